"""The checks of stated errors notice what they are for."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest

import leanconv as lc
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT32, FLOAT64
from support import stated
from support.problems import Problem
from support.stated import Data, check_stated, exact_sums

LINE = "ic3ih6oc4kh3ph1"


@pytest.mark.parametrize("kind", ["normal", "offset"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(
    ("factor", "message"),
    [(1.0, None), (1e-3, "times the stated error"), (1e3, "times too large"), (0.0, "times the")],
)
def test_a_wrong_statement_is_noticed(
    kind: str, dtype: str, factor: float, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = lc.plan_conv2d

    def plan_conv2d(*arguments: object, **options: object) -> lc.ConvPlan:
        plan = honest(*arguments, **options)  # type: ignore[arg-type]
        plan.predicted_error *= factor
        return plan

    monkeypatch.setattr(stated.lc, "plan_conv2d", plan_conv2d)
    problem = Problem(ConvSpec.parse(LINE, dtype=dtype, bias=True), 5)
    if message is None:
        check_stated(problem, kind, algorithm="direct")
        return
    with pytest.raises(AssertionError, match=message):
        check_stated(problem, kind, algorithm="direct")


@pytest.mark.parametrize("spot", ["wrong", "missing", "stray", "bytes"])
def test_a_wrong_result_is_noticed(spot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = lc.ConvPlan.__call__

    def call(plan: lc.ConvPlan, x: np.ndarray, out: np.ndarray, **more: object) -> np.ndarray:
        honest(plan, x, out, **more)  # type: ignore[arg-type]
        if spot == "wrong":
            out.reshape(-1)[7] += 1
        elif spot == "missing":
            out.reshape(-1)[7] = np.nan
        elif spot == "stray":
            assert out.base is not None
            out.base.reshape(-1)[-1] = 0
        return out

    monkeypatch.setattr(lc.ConvPlan, "__call__", call)
    if spot == "bytes":
        monkeypatch.setattr(lc.ConvPlan, "used_bytes", property(lambda plan: plan.memory_bytes + 1))
    with pytest.raises(AssertionError):
        check_stated(Problem(ConvSpec.parse(LINE), 5), "whole", algorithm="direct")


def test_exact_sums_are_exact() -> None:
    """Against fractions, product by product."""
    spec = ConvSpec.parse("ic40ih2oc3oh2kh1", dtype=FLOAT64, bias=True, residual=True)
    problem = Problem(spec, 3)
    arrays = Data(problem, "normal").arrays(0)
    exact = exact_sums(problem, arrays)
    assert arrays.bias is not None
    assert arrays.residual is not None
    rounded = 0
    for n, k, i, j in np.ndindex(*spec.output_shape):
        pairs = zip(arrays.x[n, :, i, j], arrays.w[k, :, 0, 0], strict=True)
        terms = [Fraction(a) * Fraction(b) for a, b in pairs]
        total = sum(terms) + Fraction(arrays.bias[k]) + Fraction(arrays.residual[n, k, i, j])
        place = n, k, i, j
        assert total == Fraction(exact.high[place]) + Fraction(exact.low[place])
        rounded += exact.low[place] != 0
    assert rounded > prod(spec.output_shape) // 2
