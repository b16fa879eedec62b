"""ArgMax and ArgMin, exactly as NumPy gives them: all types, axes, ties and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import TensorType
from leanconv.kernels import arg_max
from leanconv.kernels.arg_max import ExtremePlaces
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, FLOATS, INT64, NUMBERS, UINT8, DType
from support.forms import shared
from support.listing import assembly
from support.nodes import Case
from support.pools import with_ties

# This machine, and AVX2 where it can run that.
RUN = [host()] if host().isa == "neon" else [host(), preset("haswell")]
TARGETS = pytest.mark.parametrize("target", RUN, ids=lambda t: t.name)
AXIS = {"axis": 0, "keepdims": False, "last": False}
WAYS = [(op, last) for op in ("ArgMax", "ArgMin") for last in (False, True)]


def numbers(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> np.ndarray:
    return with_ties(shape, dtype, seed, ends=20)


def check(x: np.ndarray, axis: int, target: Target, **changes: Any) -> None:
    for op, last in WAYS:
        attributes = {"axis": axis, "keepdims": False, "last": last, **changes}
        case = Case(arg_max, op, [x], attributes)
        found, wanted = case.run(target, False), case.expected()
        assert found.dtype == INT64
        np.testing.assert_array_equal(found, wanted, err_msg=f"{op} last={last}")


@pytest.mark.drawn
@pytest.mark.pairs
@TARGETS
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_types_and_axes(dtype: DType, axis: int, target: Target) -> None:
    check(numbers((5, 7, 37), dtype), axis, target)
    check(numbers((5, 7, 37), dtype, 1), axis, target, keepdims=True)


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 1000])
def test_sizes(size: int, target: Target) -> None:
    for dtype in (FLOAT32, INT64):
        check(numbers((size,), dtype), 0, target)
        check(numbers((3, size), dtype, 1), 1, target)
        check(numbers((3, size), dtype, 2), 0, target)
        check(numbers((2, size, 3), dtype, 3), 1, target)
        check(numbers((1, size, 1), dtype, 4), 0, target)


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("inner", [2, 7, 8, 15, 16, 17, 63, 65, 1007, 1023, 1024, 1025, 1039, 2100])
def test_columns_and_rows(inner: int, target: Target) -> None:
    """All remainders of rows that are taken at once, of vectors and of tiles of columns."""
    for count in (1, 2, 4, 5, 6, 7, 8, 9, 13):
        for dtype in (FLOAT32, FLOAT64, UINT8):
            check(numbers((2, count, inner), dtype), 1, target)


def test_narrow_vectors_without_masks() -> None:
    for inner in (1, 3, 17, 1025):
        for dtype in (FLOAT32, UINT8):
            check(numbers((2, 7, inner), dtype), 1, preset("neoverse-n1"))


def test_columns_of_all_sizes_share_a_form() -> None:
    sizes = [(2, 9, 64), (3, 21, 1000), (5, 150, 4099)]
    assert shared(ExtremePlaces(FLOAT32, False, False, *size) for size in sizes)


def test_too_many_rows_are_refused() -> None:
    case = Case(arg_max, "ArgMax", [numbers((4, 2), UINT8)], AXIS)
    case.graph.types["x0"] = TensorType(((1 << 31) + 1, 2), UINT8)  # type: ignore[index]
    with pytest.raises(UnsupportedError, match="ArgMax among 2147483649 rows; expected at most"):
        case.lower(host(), False)


@TARGETS
def test_many_chunks(target: Target) -> None:
    check(numbers((300, 150), FLOAT32), 1, target)
    check(numbers((40, 20, 200), FLOAT32), 1, target)
    check(numbers((3, 20000), FLOAT32), 1, target)
    check(numbers((20000, 3), FLOAT32), 0, target)


@TARGETS
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("places", [(0,), (1,), (17, 18), (32,), (39, 3), tuple(range(40))])
def test_nan_is_beyond_all_numbers(places: tuple[int, ...], dtype: DType, target: Target) -> None:
    x = numbers((3, 40), dtype)
    x[1, list(places)] = np.nan
    x[2, 5] = np.inf
    check(x, 1, target)
    check(x.T.copy(), 0, target)


def test_nothing_is_called_on_any_machine() -> None:
    for name in ("neoverse-n1", "icelake-server", "haswell"):
        target = preset(name)
        for dtype in NUMBERS:
            for axis in (0, 1):
                attributes = {"axis": axis, "keepdims": False, "last": False}
                case = Case(arg_max, "ArgMax", [numbers((37, 37), dtype)], attributes)
                text = assembly(case.lower(target, False).calls[0].kernel, target)
                assert "call" not in text
                assert "\tbl\t" not in text
