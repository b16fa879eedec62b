"""Resize: which input cells each output cell reads, and with which weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import (
    Array,
    Arrays,
    Op,
    Types,
    array,
    check_rank,
    checked,
    first,
    single,
)
from leanconv.symbolic import plain
from leanconv.types import DTYPES

COORDINATE_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    "tf_half_pixel_for_nn",
)
CROP = "tf_crop_and_resize"
_TIE = 1e-6  # of a cell: places so near to a half are ties, as in ONNX Runtime
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def coordinates(
    extent: int,
    size: int,
    scale: float,
    mode: str,
    dtype: type[np.floating],
    roi: tuple[float, float] = (0.0, 1.0),
) -> Array:
    """Map the cells of a resized axis to coordinates on the input's axis.

    Args:
        extent, size: the extents of the axis before and after.
        scale: size / extent as the file gives it, which need not be exact.
        mode: one of `COORDINATE_MODES`, or `CROP`.
        dtype: the precision to compute in; engines use float32, which decides ties.
        roi: where a crop begins and ends, in parts of the axis.

    Returns:
        `size` coordinates, of `dtype`, not clamped to the input.
    """
    out = np.arange(size, dtype=dtype)
    step, half = dtype(scale), dtype(0.5)
    if mode == CROP:
        begin, end = dtype(roi[0]), dtype(roi[1])
        if size == 1:
            return np.asarray([half * (begin + end) * dtype(extent - 1)], dtype)
        along = out * (end - begin) * dtype(extent - 1) / dtype(size - 1)
        return np.asarray(begin * dtype(extent - 1) + along)
    if mode == "align_corners":
        if size == 1:
            return np.zeros(1, dtype)
        return np.asarray(out * dtype(extent - 1) / dtype(size - 1))
    if mode == "asymmetric":
        return np.asarray(out / step)
    if mode == "tf_half_pixel_for_nn":
        return np.asarray((out + half) / step)
    if mode == "pytorch_half_pixel" and size == 1:
        return np.zeros(1, dtype)
    if mode == "half_pixel_symmetric":  # the sum is double, as in ONNX Runtime
        adjustment = dtype(size) / (step * dtype(extent))
        offset = dtype(extent) / dtype(2) * (dtype(1) - adjustment)
        centre = (out.astype(np.float64) + 0.5) / np.float64(step)
        return np.asarray(np.float64(offset) + centre - 0.5, dtype)
    return np.asarray((out + half) / step - half)


def nearest_cells(
    extent: int,
    size: int,
    scale: float,
    mode: str,
    nearest: str,
    roi: tuple[float, float] = (0.0, 1.0),
) -> Array:
    """The input cell that each cell of a resized axis copies, int64 of shape (size,).

    Args:
        extent, size, scale, mode, roi: as for `coordinates`.
        nearest: one of `NEAREST_MODES`.
    """
    place = coordinates(extent, size, scale, mode, np.float32, roi)
    if nearest == "floor":
        cells = np.floor(place)
    elif nearest == "ceil":
        cells = np.ceil(place)
    else:  # a sum with a half would be rounded itself
        cells = np.floor(place)
        left = place - cells - 0.5
        cells += left >= _TIE if nearest == "round_prefer_floor" else left > -_TIE
    return np.clip(cells, 0, extent - 1).astype(np.int64)


def linear_cells(
    extent: int, size: int, scale: float, mode: str, dtype: str | np.dtype | type = np.float64
) -> tuple[Array, Array]:
    """The two input cells that each cell of a resized axis mixes.

    Args:
        extent, size, scale, mode: as for `coordinates`.
        dtype: of the elements. In float32 places are float32, as in ONNX Runtime: which code a
            number between two codes becomes depends on the last bit.

    Returns:
        (cells, weights): int64 and floats, both of shape (size, 2). A cell beyond which there is
        none is mixed with itself, half and half.
    """
    kind = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    place = np.clip(coordinates(extent, size, scale, mode, kind), 0, extent - 1)
    low = np.floor(place).astype(np.int64)
    cells = np.stack([low, np.minimum(low + 1, extent - 1)], axis=1)
    weights = np.abs(place[:, None] - cells.astype(kind))[:, ::-1]
    return cells, np.where(cells[:, :1] == cells[:, 1:], kind(0.5), weights)


def resized_axes(shape: Sequence[int], attributes: Attributes) -> list[bool]:
    """Return whether each axis of an operand of that shape is resized."""
    pairs = zip(shape, attributes["sizes"], attributes["scales"], strict=True)
    return [size != extent or scale != 1 for extent, size, scale in pairs]


def check_sizes(sizes: Sequence[int], x: TensorType) -> None:
    """Raise unless the sizes are 0 or more, and 0 where an axis has no elements.

    A scale leaves none of an axis where it is less than one over the extent: ONNX rounds down.
    """
    if any(size < 0 or (size != 0 and e == 0) for size, e in zip(sizes, x.shape, strict=True)):
        raise ModelError(
            f"got sizes {tuple(sizes)} of the input {x}; expected none below 0, and 0 where the "
            "input has no elements"
        )


def _infer_resize(types: Types, attributes: Attributes) -> TensorType:
    x = first(types)
    check_rank(x, 1, 5)
    sizes, scales = attributes["sizes"], attributes["scales"]
    if len(sizes) != len(x.shape) or len(scales) != len(x.shape):
        raise ModelError(
            f"got sizes {sizes} and scales {scales}; expected one of each for every axis of the "
            f"input {x}"
        )
    if any(not (math.isfinite(s) and s > 0) for s in scales):
        raise ModelError(f"got scales {scales}; expected positive numbers")
    check_sizes(sizes, x)
    if attributes["mode"] not in ("nearest", "linear"):
        raise ModelError(f"attribute mode is {attributes['mode']!r}; expected nearest or linear")
    if attributes["mode"] == "linear" and not x.dtype.is_float:
        raise ModelError(f"mixes {x}; expected floats, or the mode nearest")
    mode, nearest = attributes["coordinate_transformation_mode"], attributes["nearest_mode"]
    if mode not in COORDINATE_MODES or nearest not in NEAREST_MODES:
        raise ModelError(
            f"got coordinate_transformation_mode {mode!r} and nearest_mode {nearest!r}; expected "
            f"one of {', '.join(COORDINATE_MODES)} and one of {', '.join(NEAREST_MODES)}"
        )
    return checked(sizes, x.dtype)


def _evaluate_resize(arrays: Arrays, attributes: Attributes) -> Array:
    x = array(arrays)
    mode = attributes["coordinate_transformation_mode"]
    sizes, scales = attributes["sizes"], attributes["scales"]
    resized = [
        (axis, x.shape[axis], sizes[axis], scales[axis])
        for axis, changes in enumerate(resized_axes(x.shape, attributes))
        if changes
    ]
    if attributes["mode"] == "linear":
        return _mixed(
            x,
            {
                axis: linear_cells(extent, size, scale, mode, x.dtype)
                for axis, extent, size, scale in resized
            },
        )
    for axis, extent, size, scale in resized:
        cells = nearest_cells(extent, size, scale, mode, attributes["nearest_mode"])
        x = np.take(x, cells, axis=axis)
    return x


def _mixed(x: Array, tables: Mapping[int, tuple[Array, Array]]) -> Array:
    """The sum over all corners, the last axis first, of a product of weights times a cell."""
    total: Array | None = None
    for corner in itertools.product((0, 1), repeat=len(tables)):
        part, weight = x, np.ones((), x.dtype)
        sides = dict(zip(tables, corner, strict=True))
        for axis in sorted(tables, key=lambda axis: len(tables[axis][0]) / max(1, x.shape[axis])):
            part = np.take(part, tables[axis][0][:, sides[axis]], axis=axis)  # smaller ones first
        for axis, (_, weights) in reversed(list(tables.items())):
            share = weights[:, sides[axis]].astype(x.dtype)
            weight = weight * share.reshape((-1,) + (1,) * (x.ndim - 1 - axis))
        total = part * weight if total is None else total + part * weight
    return x if total is None else np.asarray(total, x.dtype)


def _work_resize(types: Types, _attributes: Attributes, result: TensorType) -> int:
    work = 0
    shape = list(first(types).shape)
    for axis, size in enumerate(result.shape):
        shape[axis] = size
        work += math.prod(shape)
    return 4 * work


# Measured, for each cell of the result: a plan within a memory limit makes its tables twice.
_CELL_BYTES = {"nearest": 72, "linear": 120}


def _tables(types: Types, attributes: Attributes, _results: Types) -> int:
    sizes, each = attributes["sizes"], _CELL_BYTES[attributes["mode"]]
    known = {"sizes": [plain(size) for size in sizes], "scales": attributes["scales"]}  # no guards
    resized = resized_axes([plain(extent) for extent in first(types).shape], known)
    return sum(each * size for size, changes in zip(sizes, resized, strict=True) if changes)


_NAMES = ("mode", "sizes", "scales", "coordinate_transformation_mode", "nearest_mode")
OPS: dict[str, Op] = {
    "Resize": single(
        _infer_resize,
        _evaluate_resize,
        "x; mode: nearest, linear",
        attributes=_NAMES,
        work=_work_resize,
        tables=_tables,
        dtypes=DTYPES,
        selects=True,
        halves="scaled",
        routes="resized",
        size_attributes=("sizes",),
        kernel="resize",
    )
}
