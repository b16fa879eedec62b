"""TopK, exactly as the reference gives it: all types, axes, numbers of results, ties and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import TensorType
from leanconv.kernels import top_k
from leanconv.kernels.top_k import TopLanes, TopSort
from leanconv.kernels.top_k_scan import TopScan
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, FLOATS, INT8, INT64, NUMBERS, UINT8, DType
from support.listing import assembly
from support.nodes import Case

# This machine, and AVX2 where it can run that.
RUN = [host()] if host().isa == "neon" else [host(), preset("haswell")]
TARGETS = pytest.mark.parametrize("target", RUN, ids=lambda t: t.name)


def numbers(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> np.ndarray:
    """Many different ones of all sizes, some of them equal, and the ends of the type."""
    generator = np.random.default_rng(seed)
    if dtype.is_float:
        x = generator.normal(size=shape) * 10.0 ** generator.integers(-30, 30, shape)
        ends = np.array([np.inf, -np.inf, 0.0, -0.0, dtype.high, 1e-310], dtype)
    else:
        x = generator.integers(int(dtype.low), int(dtype.high), shape, dtype, endpoint=True)
        ends = np.array([dtype.low, dtype.high, 0, 1, 2], dtype)
    chosen = generator.integers(0, 4, shape) == 0
    return np.where(chosen, generator.choice(ends, shape), x.astype(dtype)).astype(dtype)


def bits(x: np.ndarray) -> np.ndarray:
    """So that the zeros of both signs differ, and NaN does not."""
    return x.view(f"u{x.itemsize}")


def check(x: np.ndarray, axis: int, k: int, target: Target, kernel: type | None = None) -> None:
    for largest in (False, True):
        attributes = {"axis": axis, "k": k, "largest": largest, "sorted": True}
        case = Case(top_k, "TopK", [x], attributes)
        if kernel is not None:
            assert isinstance(case.lower(target, False).calls[0].kernel, kernel)
        (values, places), (wanted, expected) = case.run_all(target), case.expected_all()
        assert places.dtype == INT64
        assert values.dtype == x.dtype
        np.testing.assert_array_equal(places, expected, err_msg=f"largest={largest}")
        np.testing.assert_array_equal(bits(values), bits(wanted), err_msg=f"largest={largest}")


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("dtype", NUMBERS)
def test_types_and_axes(dtype: DType, target: Target) -> None:
    x = numbers((5, 83, 70), dtype)
    for axis in range(3):
        for k in (1, 5) if axis else (5,):
            check(x, axis, k, target, TopScan if axis == 2 else TopLanes)
    # Lines that lie apart are copied first, on all targets alike.
    for axis in (1, 2) if target == host() else (2,):
        check(x, axis, 11, target, TopScan)
        check(x, axis, 33, target)
        check(x, axis, 66, target, TopSort)


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("k", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 1000])
def test_numbers_of_results_and_sizes(k: int, target: Target) -> None:
    kernel = TopScan if k <= 16 else TopSort if k > 64 else None
    for dtype in (FLOAT32, INT8):
        for size in sorted({k, k + 1, k + 7, k + 64, 3 * k, 3 * k + 5}):
            check(numbers((size,), dtype), 0, k, target, kernel)
            check(numbers((2, size), dtype, 1), 1, k, target)
            check(numbers((1, size, 3), dtype, 2), 1, k, target, TopLanes if k <= 8 else None)


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("inner", [1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 130])
def test_columns_beside_each_other(inner: int, target: Target) -> None:
    for dtype in (FLOAT64, UINT8):
        for k in (4, 12, 40, 80):
            check(numbers((2, 83, inner), dtype), 1, k, target)


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("k", [4, 20, 60, 100, 3000])
def test_long_lines_in_many_chunks(k: int, target: Target) -> None:
    """In random order, and in those in which all numbers, or none, are taken."""
    x = np.random.default_rng(k).normal(size=(3, 20000)).astype(np.float32)
    for line in (x, np.sort(x), np.sort(x)[:, ::-1], np.zeros_like(x), np.round(x)):
        check(line, 1, k, target)
    check(x.reshape(20, 1000, 3), 1, min(k, 1000), target)


@TARGETS
@pytest.mark.parametrize("k", [1, 4, 12, 33, 70])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_is_beyond_all_numbers(dtype: DType, k: int, target: Target) -> None:
    """NaN of either sign and of any bits; of several that of the lower place is first."""
    x = numbers((4, 80, 5), dtype)
    x[1, [7, 8, 30]], x[1, [0, 31]] = np.nan, -np.array(np.nan, dtype)
    bits(x)[1, 30] += 5
    x[2] = np.nan
    x[3, 1:, 2] = -np.inf
    check(x, 1, k, target)
    check(np.moveaxis(x, 1, 2).copy(), 2, k, target)


@TARGETS
def test_places_of_equal_numbers_are_in_order(target: Target) -> None:
    for k in (3, 20, 40, 70):
        for x in (np.zeros((3, 100)), np.arange(300).reshape(3, 100) % 3):
            for dtype in (FLOAT32, INT64, UINT8):
                check(x.astype(dtype), 1, k, target)
                check(x.T.astype(dtype).copy(), 0, min(k, 3), target)


def test_narrow_vectors_without_masks() -> None:
    for dtype in (FLOAT32, INT8):
        for k in (3, 12, 66):
            check(numbers((2, 83, 5), dtype), 1, k, preset("neoverse-n1"))


def test_too_many_numbers_are_refused() -> None:
    attributes = {"axis": 0, "k": 2, "largest": True, "sorted": True}
    case = Case(top_k, "TopK", [numbers((4, 2), UINT8)], attributes)
    case.graph.types["x0"] = TensorType(((1 << 32) + 1, 2), UINT8)  # type: ignore[index]
    with pytest.raises(UnsupportedError, match="TopK among 4294967297 numbers; expected at most"):
        case.lower(host(), False)


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["neoverse-n1", "icelake-server", "haswell"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_nothing_is_called_on_any_machine(dtype: DType, name: str) -> None:
    target = preset(name)
    for axis, k in ((0, 3), (0, 20), (1, 20), (1, 66)):
        attributes = {"axis": axis, "k": k, "largest": True, "sorted": True}
        case = Case(top_k, "TopK", [numbers((37, 67), dtype)], attributes)
        text = assembly(case.lower(target, False).calls[0].kernel, target)
        assert "call" not in text
        assert "\tbl\t" not in text
