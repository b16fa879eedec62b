"""Cubic Resize as a matrix product along each axis that changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from leanconv.graph.builder import Value
from leanconv.graph.convert.rule import Call
from leanconv.graph.ops.base import Array, checked
from leanconv.graph.ops.resize import coordinates


def cubic_matrix(
    extent: int, size: int, scale: float, mode: str, a: float, exclude_outside: bool
) -> Array:
    """The weights of an axis, float64 of shape (size, extent): y = matrix @ x.

    Args:
        extent, size, scale, mode: as for `coordinates`.
        a: the parameter of Keys' kernel.
        exclude_outside: whether taps outside the input get no weight, the others its share;
            otherwise they read the nearest cell of the border.
    """
    place = coordinates(extent, size, scale, mode, np.float64)
    rows = np.arange(size)
    result = np.zeros((size, extent))
    for tap in range(-1, 3):
        cell = np.floor(place) + tap
        distance = np.abs(place - cell)
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((distance - 5) * distance + 8) * distance * a - 4 * a
        weight = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
        if exclude_outside:
            weight = np.where((cell >= 0) & (cell < extent), weight, 0.0)
        np.add.at(result, (rows, np.clip(cell, 0, extent - 1).astype(np.int64)), weight)
    return result / result.sum(axis=1, keepdims=True) if exclude_outside else result


def cubic_resize(
    call: Call, x: Value, sizes: Sequence[int], scales: Sequence[float], mode: str
) -> Value:
    """Resize one axis after the other."""
    shape = checked(sizes, x.type.dtype).shape
    a, exclude = call.attribute("cubic_coeff_a", -0.75), call.flag("exclude_outside")
    y = x
    for axis, (size, scale) in enumerate(zip(shape, scales, strict=True)):
        extent = x.shape[axis]
        if size == extent and scale == 1:
            continue
        extent, size, scale = int(extent), int(size), float(scale)  # the weights are data
        before, after = math.prod(shape[:axis]), math.prod(x.shape[axis + 1 :])
        last = after == 1
        kind = (extent, size) if last else (size, extent)

        def weights(
            extent: int = extent, size: int = size, scale: float = scale, last: bool = last
        ) -> Array:
            matrix = cubic_matrix(extent, size, scale, mode, a, exclude).astype(x.type.dtype)
            return np.ascontiguousarray(matrix.T) if last else matrix

        matrix = call.fold(weights, kind, x.type.dtype)
        y = call.reshape(y, (before, extent) if last else (before, extent, after))
        y = call.emit("MatMul", [y, matrix] if last else [matrix, y])
    return call.reshape(y, shape)
