"""Resample: axes resized by weights of the cells around each place, linear or cubic.

With antialiasing the weights reach over as many cells as one of the result covers; places may be
those of a crop. A node does one axis, or two that follow each other: `sizes`, `scales` and `rois`
(begin, end, in parts of the axis) have a number for each of `axes`.

Codes of 8 bits are mixed in 32-bit integers by weights of 22 bits, and rounded to codes after each
axis, as Pillow and ONNX Runtime do: a node of codes has one axis.

    y = clip((sum over the cells of weight * x + ONE / 2) >> 22)
"""

from __future__ import annotations

import math

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, checked, first, single
from leanconv.graph.ops.resize import CROP, coordinates
from leanconv.types import FLOAT64, FLOATS, INT8, UINT8, DType, as_dtype

ONE_BITS = 22  # of the weight one, where codes are mixed
ONE = 1 << ONE_BITS
_PART = 32 * 1024  # weights that are computed at a time: what NumPy works in stays small


def order(attributes: Attributes) -> tuple[int, ...]:
    """The axes in the order in which they are mixed: what becomes smaller first.

    It follows from the scales alone, so that all formats and windows of an image give equal bits.
    """
    axes: tuple[int, ...] = attributes["axes"]
    return axes if attributes["scales"][0] < 1 else axes[::-1]


def window(
    attributes: Attributes, axis: int, extent: int, dtype: DType = FLOAT64
) -> tuple[Array, Array]:
    """The cells that each cell of the result mixes along an axis, and their weights.

    Args:
        attributes: of a Resample.
        axis: one of its axes.
        extent: of that axis, before.
        dtype: of the elements. Weights of codes are int32, in parts of `ONE`, from float32.

    Returns:
        (first, weights): int64 of shape (size,) and float64 or int32 of shape (size, taps): the
        cell of number `r` is the sum over t of weights[r, t] * x[first[r] + t].
    """
    kind = np.float64 if dtype.is_float else np.float32
    size, scale, roi = _along(attributes, axis)
    mode = attributes["coordinate_transformation_mode"]
    place = np.arange(size, dtype=kind)
    if scale != 1 or mode == CROP:
        place = coordinates(int(extent), size, scale, mode, kind, roi)
    cells = size * reach(scale, bool(attributes["antialias"]))
    parts = np.array_split(place, max(1, min(size, cells // _PART)))
    found = [_weights(attributes, scale, int(extent), part) for part in parts]
    used = np.any([np.any(weights != 0, axis=0) for _, weights, _ in found], axis=0)
    last = len(used) - int(np.argmax(used[::-1]))
    chosen = slice(int(np.argmax(used)), last) if used.any() else slice(None)
    within = [
        _within(first + chosen.indices(last)[0], weights[:, chosen], int(extent))
        for first, weights, _ in found
    ]
    begin, weights = (np.concatenate(arrays) for arrays in zip(*within, strict=True))
    weights *= np.concatenate([factor for *_, factor in found])
    return begin, weights if dtype.is_float else _fixed(weights)


def _weights(
    attributes: Attributes, scale: float, extent: int, place: Array
) -> tuple[Array, Array, Array]:
    """Windows of places on an axis; in float32 each step is rounded as ONNX Runtime has it.

    Returns:
        (first, weights, factor): of shapes (size,), (size, taps) and (size, 1): the first cells,
        which may be outside of the axis; weights; and what these are to be multiplied by.
    """
    kind = place.dtype.type
    step = kind(1) / kind(scale)
    stretch = max(step, kind(1)) if attributes["antialias"] else kind(1)
    support = stretch * kind(2 if attributes["mode"] == "cubic" else 1)
    centre, half = place + kind(0.5), kind(0.5)
    first, end = np.floor(centre - support + half), np.floor(centre + support + half)
    cells = first[:, None] + np.arange(2 * math.ceil(support) + 1, dtype=kind)
    distance = np.abs((cells - centre[:, None] + half) * (kind(1) / stretch))
    if attributes["mode"] == "linear":
        weights = np.maximum(kind(1) - distance, kind(0))
    else:
        weights = _cubic(distance, kind(attributes["cubic_coeff_a"]))
    weights[cells >= end[:, None]] = 0
    if attributes["exclude_outside"]:
        weights[(cells < 0) | (cells >= extent)] = 0
    if attributes["exclude_outside"] or attributes["antialias"]:
        total = np.add.accumulate(weights, axis=1)[:, -1:]
        factor = kind(1) / np.where(total == 0, kind(1), total)  # 0 where a crop is far outside
    else:
        factor = np.ones((len(first), 1), kind)
    return first, weights, factor


def _along(attributes: Attributes, axis: int) -> tuple[int, float, tuple[float, float]]:
    """Size, scale and crop of an axis."""
    number = attributes["axes"].index(axis)
    sizes, scales, rois = (attributes[name] for name in ("sizes", "scales", "rois"))
    return int(sizes[number]), float(scales[number]), rois[number]


def _cubic(distance: Array, a: np.floating) -> Array:
    """Keys' kernel with the parameter `a`."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return np.where(distance < 1, near, np.where(distance < 2, far, 0)).astype(distance.dtype)


def _within(first: Array, weights: Array, extent: int) -> tuple[Array, Array]:
    """Return the windows inside the axis: cells beyond are the nearest one of the border."""
    width, taps = weights.shape[1], min(weights.shape[1], extent)
    # In float64, as float32 rounds an end of over 2^24 cells up; of a far crop no cell is inside.
    first = np.clip(first.astype(np.float64), -width, extent).astype(np.int64)
    begin = np.clip(first, 0, extent - taps)
    cells = first[:, None] + np.arange(width)
    inside = np.clip(cells, 0, extent - 1)
    result = np.zeros((len(begin), taps), weights.dtype)
    rows, at = np.arange(len(begin))[:, None], inside - begin[:, None]
    for own in (True, False):  # the sums of border cells begin with their own weights
        np.add.at(result, (rows, at), np.where((cells == inside) == own, weights, 0))
    return begin, result


def _fixed(weights: Array) -> Array:
    """Weights of codes in parts of `ONE`: the nearest, halves away from zero; int32. NaN is 0."""
    parts = np.nan_to_num(weights.astype(np.float64)) * ONE
    nearest = np.trunc(parts + np.copysign(0.5, parts))
    most = np.iinfo(np.int32)
    return np.clip(nearest, most.min, most.max).astype(np.int32)


def outside(extent: int, size: int, scale: float, roi: tuple[float, float]) -> Array:
    """Return a mask of cells of a crop's axis outside the input, bool of shape (size,)."""
    place = coordinates(int(extent), size, scale, CROP, np.float32, roi)
    return np.asarray((place < 0) | (place > int(extent) - 1))


def _infer(types: Types, attributes: Attributes) -> TensorType:
    x, axes, shape = first(types), attributes["axes"], list(first(types).shape)
    for name in ("sizes", "scales", "rois"):
        if len(attributes[name]) != len(axes):
            raise ModelError(f"got axes {axes} and {name} {attributes[name]}; expected as many")
    allowed = [(a,) for a in range(len(shape))] + [(a, a + 1) for a in range(len(shape) - 1)]
    if axes not in allowed:
        raise ModelError(f"got axes {axes}; expected one of {x}, or one and the next")
    if not x.dtype.is_float and len(axes) > 1:
        raise ModelError(f"got axes {axes} of {x}; expected one: codes are rounded after each axis")
    for axis, size in zip(axes, attributes["sizes"], strict=True):
        if size < 0 or (size != 0 and shape[axis] == 0):
            raise ModelError(
                f"got the size {size} for axis {axis} of {x}; expected none below 0, and 0 where "
                "there are no elements"
            )
        shape[axis] = size
    return checked(tuple(shape), x.dtype)


def _evaluate(arrays: Arrays, attributes: Attributes) -> Array:
    x = array(arrays)
    for axis in order(attributes):
        begin, weights = window(attributes, axis, x.shape[axis], as_dtype(x.dtype))
        codes = x.dtype.kind != "f"
        kind = np.dtype(np.int32) if codes else x.dtype
        shape = (-1,) + (1,) * (x.ndim - 1 - axis)
        total = np.full((), ONE // 2 if codes else 0, kind)
        for tap in range(weights.shape[1]):
            part = np.take(x, begin + tap, axis).astype(kind, copy=False)
            part *= weights[:, tap].astype(kind).reshape(shape)
            total = np.add(total, part, out=total if tap else part)
        if codes:
            total >>= ONE_BITS
            total = np.clip(total, *_code_range(x.dtype), out=total).astype(x.dtype)
        x = total
    return x


def _code_range(dtype: np.dtype) -> tuple[int, int]:
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def reach(scale: float, antialias: bool) -> int:
    """The most cells that one of the result mixes."""
    return math.ceil(4 * max(1 / scale, 1.0) if antialias else 4) + 1


def _work(types: Types, attributes: Attributes, _result: TensorType) -> int:
    shape, work = list(first(types).shape), 0
    for axis in order(attributes):
        size, scale, _ = _along(attributes, axis)
        taps = min(reach(scale, bool(attributes["antialias"])), int(shape[axis]))
        shape[axis] = size
        work += math.prod(shape) * taps
    return work


_WEIGHT_BYTES = 32  # measured: for each weight of a window, while they are computed


def _tables(_types: Types, attributes: Attributes, _results: Types) -> int:
    windows = zip(attributes["sizes"], attributes["scales"], strict=True)
    each = _WEIGHT_BYTES
    return sum(each * reach(float(s), bool(attributes["antialias"])) * size for size, s in windows)


NAMES = (
    "axes",
    "sizes",
    "scales",
    "rois",
    "mode",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "antialias",
)
OPS: dict[str, Op] = {
    "Resample": single(
        _infer,
        _evaluate,
        "x; mode: linear, cubic",
        attributes=NAMES,
        work=_work,
        tables=_tables,
        dtypes=(*FLOATS, INT8, UINT8),
        halves="scaled",
        routes="resized",
        size_attributes=("sizes",),
        kernel="resample",
        working=9,  # of codes: sums and products are four times as wide
    )
}
