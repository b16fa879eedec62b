"""Resize: which input cells each output cell reads, and with which weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
        step = (end - begin) * dtype(extent - 1) / dtype(size - 1)
        return np.asarray(begin * dtype(extent - 1) + out * step)
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
    centre = (out + half) / step
    if mode == "half_pixel_symmetric":
        adjustment = dtype(size) / (step * dtype(extent))
        centre = dtype(extent) / dtype(2) * (dtype(1) - adjustment) + centre
    return np.asarray(centre - half)


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
        left = place - cells
        cells += left > 0.5 if nearest == "round_prefer_floor" else left >= 0.5
    return np.clip(cells, 0, extent - 1).astype(np.int64)


def linear_cells(extent: int, size: int, scale: float, mode: str) -> tuple[Array, Array, Array]:
    """The two input cells that each cell of a resized axis mixes.

    Args:
        extent, size, scale, mode: as for `coordinates`.

    Returns:
        (low, high, weight): int64, int64 and float64 of shape (size,); the value is
        (1 - weight) * x[low] + weight * x[high].
    """
    place = np.clip(coordinates(extent, size, scale, mode, np.float64), 0, extent - 1)
    low = np.floor(place).astype(np.int64)
    return low, np.minimum(low + 1, extent - 1), place - low


def check_sizes(sizes: Sequence[int], x: TensorType) -> None:
    """Raise unless the sizes are positive, but for axes that have no elements."""
    if any(size < 0 or (size == 0) != (e == 0) for size, e in zip(sizes, x.shape, strict=True)):
        raise ModelError(
            f"got sizes {tuple(sizes)} of the input {x}; expected positive numbers, and 0 where "
            "the input has no elements"
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
    """One axis after the other: both modes are separable."""
    y = array(arrays)
    mode = attributes["coordinate_transformation_mode"]
    for axis, (size, scale) in enumerate(
        zip(attributes["sizes"], attributes["scales"], strict=True)
    ):
        extent = y.shape[axis]
        if size == extent and scale == 1:
            continue
        if attributes["mode"] == "nearest":
            cells = nearest_cells(extent, size, scale, mode, attributes["nearest_mode"])
            y = np.take(y, cells, axis=axis)
        else:
            low, high, weight = linear_cells(extent, size, scale, mode)
            share = weight.astype(y.dtype).reshape((-1,) + (1,) * (y.ndim - 1 - axis))
            y = (1 - share) * np.take(y, low, axis=axis) + share * np.take(y, high, axis=axis)
    return y


def _work_resize(types: Types, _attributes: Attributes, result: TensorType) -> int:
    work = 0
    shape = list(first(types).shape)
    for axis, size in enumerate(result.shape):
        shape[axis] = size
        work += math.prod(shape)
    return 4 * work


_NAMES = ("mode", "sizes", "scales", "coordinate_transformation_mode", "nearest_mode")
OPS: dict[str, Op] = {
    "Resize": single(
        _infer_resize, _evaluate_resize, attributes=_NAMES, work=_work_resize, dtypes=DTYPES
    )
}
