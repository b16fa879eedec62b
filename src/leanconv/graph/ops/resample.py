"""Resample: one axis resized by weights of the cells around each place, linear or cubic.

With antialiasing the weights reach over as many cells as one of the result covers; places may be
those of a crop. Resize in several axes is one Resample for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, checked, first, single
from leanconv.graph.ops.resize import CROP, coordinates


def window(attributes: Attributes, extent: int) -> tuple[Array, Array]:
    """The cells that each cell of the result mixes, and their weights.

    Args:
        attributes: of a Resample.
        extent: of its axis.

    Returns:
        (first, weights): int64 of shape (size,) and float64 of shape (size, taps): the cell of
        number `r` is the sum over t of weights[r, t] * x[first[r] + t].
    """
    size, scale = int(attributes["size"]), float(attributes["scale"])
    mode, roi = attributes["coordinate_transformation_mode"], attributes["roi"]
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
        weights = weights / weights.sum(axis=1, keepdims=True)
    return _within(cells, weights, int(extent))


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


def outside(attributes: Attributes, extent: int) -> Array:
    """Which cells of the result lie outside of the input, bool of shape (size,); of a crop."""
    size, scale = int(attributes["size"]), float(attributes["scale"])
    place = coordinates(int(extent), size, scale, CROP, np.float32, attributes["roi"])
    return np.asarray((place < 0) | (place > int(extent) - 1))


def _infer(types: Types, attributes: Attributes) -> TensorType:
    x, axis, size = first(types), attributes["axis"], attributes["size"]
    if not 0 <= axis < len(x.shape):
        raise ModelError(f"attribute axis is {axis}; expected an axis of {x}")
    if size < 0 or (size == 0) != (x.shape[axis] == 0):
        raise ModelError(f"got the size {size} for axis {axis} of {x}; expected a positive number")
    return checked((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)


def _evaluate(arrays: Arrays, attributes: Attributes) -> Array:
    x, axis = array(arrays), attributes["axis"]
    begin, weights = window(attributes, x.shape[axis])
    shape = (-1,) + (1,) * (x.ndim - 1 - axis)
    taps: Sequence[Array] = [
        np.take(x, begin + tap, axis) * weights[:, tap].astype(x.dtype).reshape(shape)
        for tap in range(weights.shape[1])
    ]
    return np.asarray(sum(taps[1:], start=taps[0]), x.dtype)


def reach(scale: float, antialias: bool) -> int:
    """The most cells that one of the result mixes."""
    return math.ceil(4 * max(1 / scale, 1.0) if antialias else 4) + 1


def _work(types: Types, attributes: Attributes, result: TensorType) -> int:
    taps = reach(float(attributes["scale"]), bool(attributes["antialias"]))
    return result.elements * int(min(taps, first(types).shape[attributes["axis"]]))


NAMES = (
    "axis",
    "size",
    "scale",
    "mode",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "antialias",
    "roi",
)
OPS: dict[str, Op] = {"Resample": single(_infer, _evaluate, attributes=NAMES, work=_work)}
