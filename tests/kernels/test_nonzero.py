"""NonZero and Compress, exactly as the reference gives them: all types, shapes and densities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.kernels import PIECE, nonzero
from leanconv.target import Target
from leanconv.types import BOOL, DTYPES, HALVES, DType
from support.nodes import TARGETS as ALL
from support.nodes import Case

TARGETS = pytest.mark.parametrize("target", ALL[:2], ids=lambda t: t.name)
R = np.random.default_rng(4)
TYPES = [dtype for dtype in DTYPES if dtype not in HALVES]


def sparse(shape: tuple[int, ...], density: float, dtype: DType) -> np.ndarray:
    """Numbers of which some are not 0; of floats, zeros have either sign, and some are NaN."""
    kept = R.random(shape) < density
    if dtype == BOOL:
        return kept
    numbers = R.integers(1, 100, shape).astype(dtype.numpy)
    if not dtype.is_float:
        return numbers * kept
    numbers[R.random(shape) < 0.1] = np.nan
    numbers[R.random(shape) < 0.1] = np.finfo(dtype.numpy).smallest_subnormal
    return np.where(kept, numbers, np.where(R.random(shape) < 0.5, -0.0, 0.0)).astype(dtype.numpy)


def check(op: str, arrays: list[np.ndarray], target: Target, axis: int | None = None) -> None:
    """Compare what is found; the room behind it may hold anything."""
    if op == "NonZero":
        for rows in (False, True):
            check_one(op, arrays, target, {"rows": rows}, 0 if rows else 1)
    else:
        check_one(op, arrays, target, {"axis": axis}, axis or 0)


def check_one(
    op: str, arrays: list[np.ndarray], target: Target, attributes: dict[str, Any], along: int
) -> None:
    case = Case(nonzero, op, arrays, attributes)
    (room, count), (wanted, expected) = case.run_all(target), case.expected_all()
    np.testing.assert_array_equal(count, expected)
    found = int(count[0]) * (room.size // max(1, room.shape[along]))
    np.testing.assert_array_equal(room.reshape(-1)[:found], wanted.reshape(-1)[:found])


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("dtype", TYPES)
def test_places_of_all_types(dtype: DType, target: Target) -> None:
    for count in (1, 7, 8, 9, 15, 16, 17, 33, 500):
        check("NonZero", [sparse((count,), 0.5, dtype)], target)
    for density in (0.0, 0.01, 0.9, 1.0):
        check("NonZero", [sparse((3, 70), density, dtype)], target)


@TARGETS
@pytest.mark.parametrize(
    "shape", [(), (1,), (1, 1), (1, 5), (5, 1), (3, 4, 5), (1, 1, 37), (2, 1, 3, 1, 4), (7, 1, 9)]
)
def test_places_of_all_ranks(shape: tuple[int, ...], target: Target) -> None:
    for density in (0.2, 1.0):
        check("NonZero", [sparse(shape, density, BOOL)], target)


@TARGETS
@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5])
def test_places_in_pieces(size: int, target: Target) -> None:
    for density in (0.0, 0.1, 1.0):
        x = sparse((size,), density, BOOL)
        check("NonZero", [x], target)
        x[: size // 2] = False
        check("NonZero", [x.reshape(1, size)], target)
        check("NonZero", [np.stack((x, ~x))], target)


@pytest.mark.pairs
@TARGETS
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_of_all_types(axis: int, dtype: DType, target: Target) -> None:
    x = sparse((5, 6, 7), 0.8, dtype)
    for density in (0.0, 0.4, 1.0):
        check("Compress", [x, sparse((x.shape[axis],), density, BOOL)], target, axis)
        check("Compress", [x, sparse((3,), density, BOOL)], target, axis)
        check("Compress", [x, sparse((3, 9), density, BOOL)], target, axis)


@TARGETS
@pytest.mark.parametrize("inner", [1, 2, 3, 4, 16, 17, 100])
def test_slices_of_many_rows(inner: int, target: Target) -> None:
    for rows in (127, 128, 129, 2000):
        x = np.arange(rows * inner, dtype="f4").reshape(rows, inner)
        for density in (0.1, 1.0):
            check("Compress", [x, sparse((rows,), density, BOOL)], target, 0)
    x = np.arange(3 * PIECE + 5, dtype="i8")
    check("Compress", [x, sparse(x.shape, 0.5, BOOL)], target, 0)


def test_pieces_are_few() -> None:
    """Each adds up the counts of all, so that many would take time by their square."""
    wide, long = np.zeros((10_000, 600), "f4"), sparse((33 * PIECE + 7,), 0.01, BOOL)
    wide[:, 0] = np.arange(10_000)
    flags = sparse((10_000,), 0.02, BOOL)
    found = Case(nonzero, "Compress", [wide, flags], {"axis": 0}).lower(ALL[0], blocked=False).calls
    found += Case(nonzero, "NonZero", [long], {"rows": False}).lower(ALL[0], blocked=False).calls
    assert all(call.kernel.chunks <= 32 for call in found)
    check("NonZero", [long], ALL[0])
    check("Compress", [wide, flags], ALL[0], 0)


def test_another_machine() -> None:
    """Vectors of NEON, in an emulator where it is needed."""
    for count in (3, 17, 200):
        x = sparse((2, count), 0.5, BOOL)
        check("NonZero", [x], ALL[-1])
        check("Compress", [x, x[0]], ALL[-1], 1)
