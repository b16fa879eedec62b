"""Algorithms named by text, which may come from a plan's file: a plan or a LeanConvError, soon."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms import ALGORITHMS
from support.hostile import cpu_limit

VALUES = ("", "0", "-1", "1e9", "0x10", "1_0", "\u00b2", "\u0663", "x", "1x", "1x1x1", "9" * 30,
          "9" * 64, "9" * 500, f"{'9' * 60}x1")  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_value_of_a_parameter_is_taken_or_refused(name: str) -> None:
    w = np.ones((16, 16, 3, 3), "f4")
    parameters = ALGORITHMS[name].parameters.names()
    texts = [f"{name}:{key}={value}" for key in parameters for value in VALUES]
    with cpu_limit(20, name):
        messages = [message for text in texts if (message := refusal(text, w))]
    assert len(messages) >= 2 * len(parameters)  # else the values are not hostile
    assert all(len(message) < 1000 for message in messages)


def refusal(text: str, w: np.ndarray) -> str:
    """Why there is no such plan; empty if there is."""
    try:
        lc.plan_conv2d((1, 16, 6, 6), w, padding=1, algorithm=text, threads=1)
    except lc.LeanConvError as error:
        return str(error)
    return ""
