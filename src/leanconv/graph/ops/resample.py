"""Resample: axes resized by weights of the cells around each place, linear or cubic.

With antialiasing the weights reach over as many cells as one of the result covers; places may be
those of a crop. A node does one axis, or two that follow each other: `sizes`, `scales` and `rois`
(begin, end, in parts of the axis) have a number for each of `axes`.
"""

from __future__ import annotations

import math

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, checked, first, single
from leanconv.graph.ops.resize import CROP, coordinates


def order(attributes: Attributes) -> tuple[int, ...]:
    """The axes in the order in which they are mixed: what becomes smaller first.

    It follows from the scales alone, so that all formats and windows of an image give equal bits.
    """
    axes: tuple[int, ...] = attributes["axes"]
    return axes if attributes["scales"][0] < 1 else axes[::-1]


def window(attributes: Attributes, axis: int, extent: int) -> tuple[Array, Array]:
    """The cells that each cell of the result mixes along an axis, and their weights.

    Args:
        attributes: of a Resample.
        axis: one of its axes.
        extent: of that axis, before.

    Returns:
        (first, weights): int64 of shape (size,) and float64 of shape (size, taps): the cell of
        number `r` is the sum over t of weights[r, t] * x[first[r] + t].
    """
    size, scale, roi = _along(attributes, axis)
    mode = attributes["coordinate_transformation_mode"]
    place = coordinates(int(extent), size, scale, mode, np.float64, roi)
    stretch = max(1 / scale, 1.0) if attributes["antialias"] else 1.0
    support = stretch * (2 if attributes["mode"] == "cubic" else 1)
    cells = np.ceil(place - support)[:, None] + np.arange(math.ceil(2 * support) + 1)
    distance = np.abs(cells - place[:, None]) / stretch
    weights = _cubic(distance, attributes["cubic_coeff_a"])
    if attributes["mode"] == "linear":
        weights = np.maximum(1 - distance, 0.0)
    if attributes["exclude_outside"]:
        weights = np.where((cells >= 0) & (cells < extent), weights, 0.0)
    if attributes["exclude_outside"] or attributes["antialias"]:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)  # 0 where a crop is far outside
    return _within(cells, weights, int(extent))


def _along(attributes: Attributes, axis: int) -> tuple[int, float, tuple[float, float]]:
    """Size, scale and crop of an axis."""
    number = attributes["axes"].index(axis)
    sizes, scales, rois = (attributes[name] for name in ("sizes", "scales", "rois"))
    return int(sizes[number]), float(scales[number]), rois[number]


def _cubic(distance: Array, a: float) -> Array:
    """Keys' kernel with the parameter `a`."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _within(cells: Array, weights: Array, extent: int) -> tuple[Array, Array]:
    """As a window of cells that are all there: those outside are the nearest one of the border."""
    used = np.any(weights != 0, axis=0)
    if used.any():
        chosen = slice(int(np.argmax(used)), len(used) - int(np.argmax(used[::-1])))
        cells, weights = cells[:, chosen], weights[:, chosen]
    taps = min(cells.shape[1], extent)
    begin = np.clip(cells[:, 0], 0, extent - taps).astype(np.int64)
    result = np.zeros((len(begin), taps))
    inside = np.clip(cells, 0, extent - 1).astype(np.int64) - begin[:, None]
    np.add.at(result, (np.arange(len(begin))[:, None], inside), weights)
    return begin, result


def outside(extent: int, size: int, scale: float, roi: tuple[float, float]) -> Array:
    """Which cells of a crop's axis lie outside of the input, bool of shape (size,)."""
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
    for axis, size in zip(axes, attributes["sizes"], strict=True):
        if size < 0 or (size == 0) != (shape[axis] == 0):
            raise ModelError(
                f"got the size {size} for axis {axis} of {x}; expected a positive number"
            )
        shape[axis] = size
    return checked(tuple(shape), x.dtype)


def _evaluate(arrays: Arrays, attributes: Attributes) -> Array:
    x = array(arrays)
    for axis in order(attributes):
        begin, weights = window(attributes, axis, x.shape[axis])
        shape = (-1,) + (1,) * (x.ndim - 1 - axis)
        total = np.zeros((), x.dtype)
        for tap in range(weights.shape[1]):
            part = np.take(x, begin + tap, axis)
            part *= weights[:, tap].astype(x.dtype).reshape(shape)
            total = np.add(total, part, out=total if tap else part)
        x = total
    return x


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
OPS: dict[str, Op] = {"Resample": single(_infer, _evaluate, attributes=NAMES, work=_work)}
