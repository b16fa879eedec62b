"""Running totals against NumPy: integers and small whole floats exactly."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.kernels.cumulative import RunningTotal, lower
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64, INT32, INT64, DType
from support.kernel_runner import run_kernel
from support.nodes import TARGETS, run_in_place, run_node

OPS = ("CumSum", "CumProd")

SHAPES = [(1, 1, 1), (3, 5, 1), (1, 17, 7), (2, 3, 16), (5, 2, 63), (2, 9, 129), (40, 70, 3),
          (2, 4, 512), (1, 7, 513), (3, 1, 1041), (2, 6, 2051)]  # fmt: skip


def whole(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(dtype)


@pytest.mark.drawn
@pytest.mark.pairs
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT32, INT64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_totals_along_any_axis(shape: tuple[int, ...], dtype: DType, target: Target) -> None:
    x = whole(shape, dtype)
    for number in range(2 * len(shape)):
        axis, op = number // 2, OPS[number % 2]
        settings = {"axis": axis, "exclusive": number % 3 == 0, "reverse": number % 4 > 1}
        outcome = run_node(lower, op, {"x": x}, target=target, parts=(0.5,), **settings)
        np.testing.assert_array_equal(outcome.y, outcome.expected)


@pytest.mark.parametrize("columns", [5, 67, 600])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_result_takes_over_the_memory(columns: int, reverse: bool) -> None:
    x = whole((3, 41, columns), FLOAT32)
    settings = {"axis": 1, "reverse": reverse}
    outcome = run_node(lower, "CumSum", {"x": x}, exclusive=False, **settings)
    np.testing.assert_array_equal(run_in_place(outcome, 0, x), outcome.expected)
    other = run_node(lower, "CumSum", {"x": x}, exclusive=True, **settings)
    assert not other.lowered.calls[0].in_place, "rows are read after the next one was written"


def test_floats_that_are_no_numbers() -> None:
    x = np.array([1, np.inf, 2, -np.inf, 3, np.nan, 4], "f4").reshape(1, 7, 1)
    kernel = RunningTotal(FLOAT32, "sum", x.shape, False, False)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(run_kernel(kernel, x, np.zeros_like(x)), np.cumsum(x, 1))


@pytest.mark.parametrize("columns", [70, 700])
def test_a_sum_begins_at_zero_in_every_column(columns: int) -> None:
    x = np.full((1, 3, columns), -0.0, "f4")
    kernel = RunningTotal(FLOAT32, "sum", x.shape, False, False)
    assert not np.signbit(run_kernel(kernel, x, np.full_like(x, np.nan))).any()
