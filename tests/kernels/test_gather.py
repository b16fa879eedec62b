"""Gather and Scatter by indices that are data: all types, sizes, and indices that are outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.graph.ops.indexing import REDUCTIONS
from leanconv.kernels import gather, scatter
from leanconv.kernels.gather import GatherElements, GatherRows
from leanconv.kernels.scatter import Scatter
from leanconv.target import Target, preset
from leanconv.types import BOOL, DTYPES, FLOAT32, FLOAT64, INT32, INT64, NUMBERS, UINT8, DType
from support.forms import shared
from support.nodes import Case

# This machine, and AVX2 where it can run that.
RUN = [host()] if host().isa == "neon" else [host(), preset("haswell")]
TARGETS = pytest.mark.parametrize("target", RUN, ids=lambda t: t.name)
HELD = [dtype for dtype in DTYPES if dtype != "bfloat16"]


def numbers(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> np.ndarray:
    """Small numbers, so that sums and products of few are exact."""
    found = np.random.default_rng(seed).integers(0, 2 if dtype == BOOL else 5, shape)
    return np.asarray(found.astype(dtype))


def places(
    shape: tuple[int, ...], extents: list[int], dtype: DType, *, seed: int = 0, wild: bool = False
) -> np.ndarray:
    """Indices of some axes, of both signs; some far outside if they are wild."""
    generator = np.random.default_rng(seed)
    found = np.stack([generator.integers(-e, e, shape) for e in extents], axis=-1)
    if wild:
        ends = np.iinfo(dtype)
        strange = [ends.min, ends.max, ends.max - 1, -100, 100, 1 << 30, -(1 << 30)]
        found = np.where(generator.random(found.shape) < 0.3, generator.choice(strange), found)
    return np.asarray(found.astype(dtype))


def check(
    module: Any, op: str, arrays: list[np.ndarray], target: Target, **attributes: Any
) -> None:
    case = Case(module, op, arrays, attributes)
    found, wanted = case.run(target, False), case.expected()
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@TARGETS
@pytest.mark.parametrize("dtype", HELD)
def test_types(dtype: DType, target: Target) -> None:
    x = numbers((5, 7, 19), dtype)
    for index in (INT32, INT64):
        for axis in range(3):
            at = places((3, 4), [x.shape[axis]], index, wild=True)[..., 0]
            check(gather, "Gather", [x, at], target, axis=axis)
            shape = tuple(4 if i == axis else e for i, e in enumerate(x.shape))
            at = places(shape, [x.shape[axis]], index, wild=True)[..., 0]
            check(gather, "GatherElements", [x, at], target, axis=axis)
            updates = numbers(shape, dtype, 1)
            arrays = [x, at, updates]
            check(scatter, "ScatterElements", arrays, target, axis=axis, reduction="none")


@TARGETS
@pytest.mark.parametrize("inner", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 129, 1000])
def test_rows(inner: int, target: Target) -> None:
    for dtype in (FLOAT32, UINT8):
        x = numbers((9, inner), dtype)
        check(gather, "Gather", [x, places((11,), [9], INT64, wild=True)[..., 0]], target, axis=0)
        x = numbers((2, 3, 4, inner), dtype)
        at = places((2, 6), [3, 4], INT32, wild=True)
        check(gather, "GatherND", [x, at], target, batch_dims=1)
        at = places((5, 6), [2, 3, 4], INT32, wild=True)
        check(gather, "GatherND", [x, at], target, batch_dims=0)
        updates = numbers((5, 6, inner), dtype, 1)
        for reduction in REDUCTIONS:
            check(scatter, "ScatterND", [x, at, updates], target, reduction=reduction)


@TARGETS
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(reduction: str, target: Target) -> None:
    for dtype in NUMBERS:
        x = numbers((3, 6, 37), dtype)
        for axis in range(3):
            shape = tuple(4 if i == axis else e for i, e in enumerate(x.shape))
            at = places(shape, [x.shape[axis]], INT64, wild=True)[..., 0]
            arrays = [x, at, numbers(shape, dtype, 2)]
            check(scatter, "ScatterElements", arrays, target, axis=axis, reduction=reduction)
        at = places((8,), [3], INT64)
        arrays = [x, at, numbers((8, 6, 37), dtype, 2)]
        check(scatter, "ScatterND", arrays, target, reduction=reduction)


@TARGETS
def test_nan_spreads(target: Target) -> None:
    x = np.array([1.0, np.nan, 3.0], FLOAT64)
    at, updates = np.array([0, 1, 2, 2]), np.array([np.nan, 5.0, -1.0, 9.0])
    for reduction in ("min", "max", "add", "mul"):
        arrays = [x, at, updates]
        check(scatter, "ScatterElements", arrays, target, axis=0, reduction=reduction)


@TARGETS
def test_many_chunks(target: Target) -> None:
    x = numbers((50, 300), FLOAT32)
    check(gather, "Gather", [x, places((2500,), [50], INT64)[..., 0]], target, axis=0)
    check(gather, "Gather", [x, places((2500,), [300], INT32)[..., 0]], target, axis=1)
    check(gather, "GatherND", [x, places((5000,), [50, 300], INT64)], target, batch_dims=0)
    wide = numbers((3, 5, 1500), FLOAT32)
    for axis, extents in ((0, (70, 5, 1500)), (1, (3, 70, 1500)), (2, (3, 5, 2200))):
        at = places(extents, [wide.shape[axis]], INT64)[..., 0]
        check(gather, "GatherElements", [wide, at], target, axis=axis)
        updates = numbers(extents, FLOAT32, 1)
        arrays = [wide, at, updates]
        check(scatter, "ScatterElements", arrays, target, axis=axis, reduction="add")
    rows, at = numbers((20, 1500), FLOAT32), places((6,), [3], INT64)
    updates = numbers((6, 5, 1500), FLOAT32)
    check(scatter, "ScatterND", [wide, at, updates], target, reduction="none")
    at = places((33,), [20], INT64)
    check(scatter, "ScatterND", [rows, at, numbers((33, 1500), FLOAT32)], target, reduction="add")


def test_sizes_share_forms() -> None:
    sizes = [(2, 4, 40, (9,), 64), (3, 2, 50, (19,), 256), (5, 7, 4150, (4,), 4099)]
    assert shared(GatherRows(4, INT64, *size) for size in sizes)
    lengths = [(30, 2, 40, 9), (40, 4, 400, 90), (8, 2, 4000, 9)]
    assert shared(GatherElements(4, INT64, *size, True) for size in lengths)
    parts = [(2, (9,), 64, 5), (3, (4,), 100, 7)]
    assert shared(Scatter(FLOAT32, INT64, "add", True, *part) for part in parts)
