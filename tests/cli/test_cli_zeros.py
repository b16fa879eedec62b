"""`leanconv algorithms --zeros`: what a part of zeros makes of a convolution."""

from __future__ import annotations

import json

import numpy as np
import pytest

import leanconv as lc
from support.cli_fakes import Call

PROBLEM = "ic64ih28oc128oh28kh1"


def test_zeros_make_sparse_the_fastest(call: Call) -> None:
    shown = call("algorithms", PROBLEM, "--zeros", "0.9", "--threads", "1")
    assert shown.code == 0
    assert "90% zeros" in shown.out
    assert "90.0% of the weights are 0" in shown.out
    told = call("algorithms", PROBLEM, "--zeros", "0.9", "--threads", "1", "--json")
    document = json.loads(told.out)
    first = document["algorithms"][0]
    assert (document["zeros"], first["algorithm"]) == (0.9, "sparse")
    w = np.zeros((128, 64, 1, 1), np.float32)
    w.reshape(-1)[::10] = 1
    plan = lc.plan_conv2d((1, 64, 28, 28), w, algorithm=first["selector"], threads=1)
    assert plan.predicted_error == first["error"]


def test_without_zeros_sparse_is_slower(call: Call) -> None:
    shown = call("algorithms", PROBLEM, "--threads", "1", "--json")
    document = json.loads(shown.out)
    rows = {row["algorithm"]: row for row in document["algorithms"]}
    assert "zeros" not in document
    assert rows["sparse"]["seconds"] > min(rows[n]["seconds"] for n in ("direct", "planar"))
    assert rows["sparse"]["weight_bytes"] > rows["direct"]["weight_bytes"]


@pytest.mark.parametrize("part", ["1.5", "-0.1", "many", "nan"])
def test_a_part_is_from_0_to_1(call: Call, part: str) -> None:
    shown = call("algorithms", PROBLEM, f"--zeros={part}")
    assert shown.code == 2
    assert "is not a number from 0 to 1, such as 0.9" in shown.err


def test_gradients_leave_nothing_out(call: Call) -> None:
    shown = call("algorithms", PROBLEM, "--zeros", "0.9", "--gradient", "w")
    assert shown.code == 2
    assert "leave out --zeros or --gradient" in shown.err
