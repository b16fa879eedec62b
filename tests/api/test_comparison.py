"""Algorithms side by side: the estimates are those that plans are made with."""

from __future__ import annotations

import re

import numpy as np
import pytest

import leanconv as lc
from leanconv.api.comparison import compare_algorithms
from leanconv.runtime import calibration
from leanconv.runtime.calibration import planning_target
from leanconv.spec import ConvSpec
from leanconv.units import format_ns

SPEC = ConvSpec(1, 16, 16, (14, 14), (3, 3), (1, 1), (1, 1), (0, 0), (0, 0))


def test_estimates_do_not_depend_on_the_clock_of_the_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = planning_target().costs
    for name in ("chain_nanoseconds", "busy_nanoseconds"):
        monkeypatch.setattr(calibration, name, lambda: 1e6)
    for row in compare_algorithms(SPEC, threads=2):
        if not row.reason:
            assert row.seconds == pytest.approx(costs.shared_ns(costs.ns(row.cycles), 2) * 1e-9)


def test_a_plan_explains_the_time_that_the_list_has() -> None:
    rows = [row for row in compare_algorithms(SPEC, threads=2) if not row.reason]
    for row in rows:
        plan = lc.plan_conv2d(
            (1, 16, 14, 14),
            np.ones((16, 16, 3, 3), np.float32),
            algorithm=row.algorithm,
            max_error=None,
            threads=2,
        )
        (told,) = re.findall(r"^  estimated time (.*), 2 threads$", plan.explain(), re.M)
        assert told == format_ns(round(row.seconds * 1e9))
