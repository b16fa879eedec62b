"""Gather and Scatter by indices that are data: all types, sizes, and indices that are outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.graph.ops.indexing import NOWHERE, REDUCTIONS
from leanconv.kernels import gather, scatter
from leanconv.kernels.gather import GatherElements, GatherRows
from leanconv.kernels.scatter import Scatter
from leanconv.target import Target, preset
from leanconv.types import (
    BOOL,
    DTYPES,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    NUMBERS,
    UINT8,
    DType,
    as_dtype,
)
from support.forms import shared
from support.kernel_runner import run_results
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
    """What a kernel makes of indices is what NumPy makes of those that find the same."""
    if op == "ScatterElements":
        attributes["padded"] = True
    case = Case(module, op, arrays, attributes)
    tame = tamed(op, arrays, found_axes(op, arrays, attributes))
    found, wanted = case.run(target, False), Case(module, op, tame, attributes).expected()
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def found_axes(op: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> list[int]:
    """Extents of the axes along which indices find something."""
    first = attributes.get("axis", attributes.get("batch_dims", 0))
    depth = arrays[1].shape[-1] if op.endswith("ND") else 1
    return list(arrays[0].shape[first : first + depth])


def tamed(op: str, arrays: list[np.ndarray], axes: list[int]) -> list[np.ndarray]:
    """Operands that give the same without an index that is outside.

    A gather finds the nearest element; ScatterElements finds nothing there, and ScatterND has no
    such list of indices.
    """
    x, indices, *updates = arrays
    lists = indices.reshape(-1, len(axes)) if op.endswith("ND") else indices[..., None]
    near = np.clip(lists, [-extent for extent in axes], [extent - 1 for extent in axes])
    inside = (near == lists).all(axis=-1)
    if op == "ScatterND":
        rows = updates[0].reshape(len(lists), *x.shape[len(axes) :])
        return [x, lists[inside], rows[inside]]
    near = near.astype(indices.dtype).reshape(indices.shape)
    if op == "ScatterElements":
        near = np.where(inside, near, NOWHERE[as_dtype(indices.dtype)]).astype(indices.dtype)
    return [x, near, *updates]


@pytest.mark.drawn
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


@pytest.mark.drawn
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


@pytest.mark.drawn
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
@pytest.mark.parametrize("dtype", [INT32, INT64])
def test_what_is_outside_is_reported(dtype: DType, target: Target) -> None:
    """An index that is outside, wherever it is, for each axis; nothing of those that are inside."""
    generator = np.random.default_rng(0)
    for wide in (1, 5, 67):
        x, columns = numbers((9, wide), FLOAT32), (13, wide)
        cases: list[tuple[Any, str, list[np.ndarray], dict[str, Any]]] = [
            (gather, "Gather", [x, places((13,), [9], dtype)[..., 0]], {"axis": 0}),
            (gather, "GatherElements", [x, places(columns, [9], dtype)[..., 0]], {"axis": 0}),
            (
                gather,
                "GatherElements",
                [x.T, places(columns[::-1], [9], dtype)[..., 0]],
                {"axis": 1},
            ),
            (gather, "GatherND", [x, places((13,), [9, wide], dtype)], {"batch_dims": 0}),
            (scatter, "ScatterND", [x, places((13,), [9, wide], dtype), x[0, :1].repeat(13)], {}),
            (
                scatter,
                "ScatterElements",
                [x, places(columns, [9], dtype)[..., 0], x[:1].repeat(13, 0)],
                {"axis": 0, "padded": False},
            ),
        ]
        for module, op, arrays, attributes in cases:
            if module is scatter:
                attributes["reduction"] = "none"
            ends = [np.iinfo(dtype).max, np.iinfo(dtype).min]
            for axis, extent in enumerate(found_axes(op, arrays, attributes)):
                for strange in (None, extent, -extent - 1, *ends):
                    indices = np.array(arrays[1], order="C")
                    if strange is not None:
                        rows = indices.reshape(-1, indices.shape[-1] if op.endswith("ND") else 1)
                        rows[generator.integers(len(rows)), axis * (rows.shape[1] > 1)] = strange
                    case = Case(module, op, [arrays[0], indices, *arrays[2:]], attributes)
                    (call,) = case.lower(target, False).calls
                    found = np.empty(len(call.kernel.index_ranges), np.int64)
                    given = [np.ascontiguousarray(a) for a in case.values.values()]
                    result = np.zeros(case.graph.types["y"].shape, np.float32)
                    run_results(call.kernel, *given, result, target=target, outside=found)
                    wanted = np.zeros_like(found)
                    wanted[axis] = strange or 0
                    np.testing.assert_array_equal(found, wanted)
                    assert call.kernel.index_ranges[axis] == (-extent, extent - 1)


@TARGETS
def test_nan_spreads(target: Target) -> None:
    x = np.array([1.0, np.nan, 3.0], FLOAT64)
    at, updates = np.array([0, 1, 2, 2]), np.array([np.nan, 5.0, -1.0, 9.0])
    for reduction in ("min", "max", "add", "mul"):
        arrays = [x, at, updates]
        check(scatter, "ScatterElements", arrays, target, axis=0, reduction=reduction)


@TARGETS
@pytest.mark.parametrize("inner", [1, 2, 7, 37, 600])
def test_zeros_are_no_operand(inner: int, target: Target) -> None:
    """A constant of zeros is not read; any other number is, -0 included."""
    for number in (0.0, -0.0, 3.0):
        x = np.broadcast_to(np.float32(number), (9, inner))
        columns, rows = numbers((5, inner), FLOAT32, 1), {"reduction": "none"}
        operands: list[tuple[str, np.ndarray, dict[str, Any]]] = [
            ("ScatterElements", places((5, inner), [9], INT64)[..., 0], {**rows, "axis": 0}),
            ("ScatterND", places((5,), [9], INT32), rows),
        ]
        for op, at, attributes in operands:
            if op == "ScatterElements":
                attributes["padded"] = False
            case = Case(scatter, op, [x, at, columns], attributes, constants=(0,))
            (call,) = case.lower(target, False).calls
            zeros = number == 0 and not np.signbit(number)
            assert call.kernel.operands[0] == ("indices" if zeros else "x")
            found, wanted = case.run(target, False), case.expected()
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


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
    assert shared(Scatter(FLOAT32, INT64, "add", True, False, *part) for part in parts)
