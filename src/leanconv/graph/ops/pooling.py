"""MaxPool and AveragePool, one axis after the other, and LRN."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

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
from leanconv.graph.ops.conv import MAX_STEP, check_window, window_extent, window_steps
from leanconv.spec.conv import effective_extent
from leanconv.types import FLOATS, INT8, INT64, UINT8


def _infer_pool(types: Types, attributes: Attributes) -> TensorType:
    x = first(types)
    check_rank(x, 3, 5)
    spatial = len(x.shape) - 2
    check_window(attributes, spatial)
    kernel = attributes["kernel_shape"]
    if len(kernel) != spatial or any(not 1 <= k <= MAX_STEP for k in kernel):
        raise ModelError(
            f"attribute kernel_shape is {kernel}; expected {spatial} integers of at least 1"
        )
    extents = []
    for i, steps in enumerate(window_steps(attributes)):
        span = effective_extent(kernel[i], steps[1])
        if max(steps[2:]) >= span:
            raise ModelError(
                f"attribute pads is {attributes['pads']}; expected less than the kernel, which "
                f"spans {span} on spatial axis {i}"
            )
        extents.append(window_extent(x.shape[2 + i], kernel[i], *steps, attributes["ceil_mode"]))
    return checked((*x.shape[:2], *extents), x.dtype)


def _axis_windows(x: Array, axis: int, attributes: Attributes, fill: float) -> list[Array]:
    """The input at tap 0, 1, ... of every window along one spatial axis."""
    extent, kernel = x.shape[axis], attributes["kernel_shape"][axis - 2]
    stride, dilation, before, after = window_steps(attributes)[axis - 2]
    count = window_extent(extent, kernel, stride, dilation, before, after, attributes["ceil_mode"])
    needed = (count - 1) * stride + effective_extent(kernel, dilation)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, max(needed - extent - before, 0))
    padded = np.moveaxis(np.pad(x, widths, constant_values=fill), axis, -1)
    return [
        np.moveaxis(
            padded[..., t * dilation : t * dilation + (count - 1) * stride + 1 : stride], -1, axis
        )
        for t in range(kernel)
    ]


def _least(x: Array) -> float:
    return -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min


def _evaluate_max(arrays: Arrays, attributes: Attributes) -> Array:
    y = array(arrays)
    for axis in range(2, y.ndim):
        y = reduce(np.maximum, _axis_windows(y, axis, attributes, _least(y)))
    return np.asarray(y, order="C")


def _infer_max_places(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    if attributes["storage_order"] not in (0, 1):
        raise ModelError(
            f"attribute storage_order is {attributes['storage_order']}; expected 0 or 1"
        )
    values = _infer_pool(types, attributes)
    return values, checked(values.shape, INT64)


def _evaluate_max_places(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    """Return the largest numbers of windows and their places: of equal ones, the first.

    The first in row-major order; padding never counts. NaN is beyond all numbers, and equal to
    itself.
    """
    x = y = array(arrays)
    places = np.arange(x.size).reshape(x.shape)
    for axis in range(2, x.ndim):
        values = _axis_windows(y, axis, attributes, _least(y))
        y, places = reduce(
            _larger, zip(values, _axis_windows(places, axis, attributes, -1), strict=True)
        )
    if attributes["storage_order"]:
        places = _column_major(places, x.shape)
    return np.asarray(y, order="C"), np.asarray(places, order="C")


def _larger(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """The larger of numbers with their places; of equal ones that of the earlier place."""
    (x, i), (y, j) = a, b
    larger = (y > x) | (np.isnan(y) & ~np.isnan(x))
    equal = (y == x) | (np.isnan(y) & np.isnan(x))
    taken = larger | (equal & (j >= 0) & ((i < 0) | (j < i)))
    return np.where(taken, y, x), np.where(taken, j, i)


def _column_major(places: Array, shape: tuple[int, ...]) -> Array:
    """Places in a row-major tensor as those where the spatial axes of each image are reversed."""
    pixels = math.prod(shape[2:])
    inside = np.unravel_index(places % pixels, shape[2:])
    steps = [math.prod(shape[2 : 2 + axis]) for axis in range(len(inside))]
    moved = sum(index * step for index, step in zip(inside, steps, strict=True))
    return np.asarray(places // pixels * pixels + moved)


def _axis_counts(extent: int, axis: int, attributes: Attributes) -> list[int]:
    """Return the number of cells that each window of a spatial axis, counted from 0, is a mean of.

    Padding counts only with `count_include_pad`; cells that a partly empty last window has
    beyond the padding never do.
    """
    kernel, steps = attributes["kernel_shape"][axis], window_steps(attributes)[axis]
    stride, dilation, before, after = steps
    windows = window_extent(extent, kernel, *steps, attributes["ceil_mode"])
    low, high = 0, before + extent + after
    if not attributes["count_include_pad"]:
        low, high = before, before + extent
    starts = range(0, windows * stride, stride)
    return [
        max(min(kernel, -((start - high) // dilation)) - max(0, -((start - low) // dilation)), 0)
        for start in starts
    ]


def row_major_mean(x: Array, attributes: Attributes) -> Array:
    """The means of an AveragePool, each window summed tap by tap in row-major order."""

    def summed(part: Array, axis: int, total: Array | None) -> Array:
        if axis == x.ndim:
            return part if total is None else total + part
        for window in _axis_windows(part, axis, attributes, 0):
            total = summed(window, axis + 1, total)
        assert total is not None, "a kernel has a tap"
        return total

    y = summed(x, 2, None)
    count = np.ones((), x.dtype)
    for axis in range(2, x.ndim):
        counts = np.array(_axis_counts(x.shape[axis], axis - 2, attributes), x.dtype)
        count = count * counts.reshape(tuple(-1 if i == axis else 1 for i in range(x.ndim)))
    return np.asarray(y / count)


def _evaluate_average(arrays: Arrays, attributes: Attributes) -> Array:
    y = array(arrays)
    for axis in range(2, y.ndim):
        counts = _axis_counts(y.shape[axis], axis - 2, attributes)
        total = sum(_axis_windows(y, axis, attributes, 0.0))
        shape = (-1,) + (1,) * (y.ndim - 1 - axis)
        y = np.asarray(total) / np.maximum(counts, 1).astype(y.dtype).reshape(shape)
    return np.asarray(y, order="C")


def _work_pool(types: Types, attributes: Attributes, _result: TensorType) -> int:
    x = first(types)
    work = 2 * math.prod(
        extent + 2 * effective_extent(k, d)
        for extent, k, d in zip(
            x.shape[2:], attributes["kernel_shape"], attributes["dilations"], strict=True
        )
    )
    return int(x.shape[0] * x.shape[1] * work * max(attributes["kernel_shape"]))


def _infer_lrn(types: Types, attributes: Attributes) -> TensorType:
    x = first(types)
    check_rank(x, 2, 5)
    if not 1 <= attributes["size"] <= MAX_STEP:
        raise ModelError(f"attribute size is {attributes['size']}; expected at least 1")
    return x


def _evaluate_lrn(arrays: Arrays, attributes: Attributes) -> Array:
    """x / (bias + alpha / size * sum of squares over `size` channels around) ** beta."""
    x = array(arrays)
    size, channels = attributes["size"], x.shape[1]
    before, after = (size - 1) // 2, size // 2
    squares = x * x
    total = np.zeros_like(x)
    for shift in range(-min(before, channels - 1), min(after, channels - 1) + 1):
        to = slice(max(-shift, 0), channels - max(shift, 0))
        source = slice(max(shift, 0), channels - max(-shift, 0))
        total[:, to] += squares[:, source]
    scale = attributes["bias"] + attributes["alpha"] / size * total
    return np.asarray(x / scale ** attributes["beta"], dtype=x.dtype)


def _work_lrn(_types: Types, attributes: Attributes, result: TensorType) -> int:
    return result.elements * min(int(attributes["size"]), 2 * max(result.shape[1], 1))


_WINDOW = ("kernel_shape", "strides", "pads", "dilations", "ceil_mode", "count_include_pad")
_OF_MAX = (*FLOATS, INT8, UINT8)  # those of ONNX, of which a CPU has arithmetic
_FACTS: dict[str, Any] = {"keeps_single": True, "working": 3, "routes": "windows", "kernel": "pool"}
_MEAN = {**_FACTS, "attributes": _WINDOW, "halves": "scaled"}
OPS: dict[str, Op] = {
    "MaxPool": single(
        _infer_pool,
        _evaluate_max,
        attributes=_WINDOW,
        work=_work_pool,
        dtypes=_OF_MAX,
        selects=True,
        halves="exact",
        **_FACTS,
    ),
    "MaxPoolWithIndices": Op(
        _infer_max_places,
        _evaluate_max_places,
        "x; gives the values, and their places in x as int64",
        attributes=(*_WINDOW, "storage_order"),
        work=lambda types, attributes, results: 4 * _work_pool(types, attributes, results[0]),
        dtypes=_OF_MAX,
        halves="exact",
        **{**_FACTS, "routes": "windows and places", "kernel": "plane_pool"},
    ),
    "AveragePool": single(_infer_pool, _evaluate_average, work=_work_pool, **_MEAN),
    "LRN": single(
        _infer_lrn,
        _evaluate_lrn,
        attributes=("size", "alpha", "beta", "bias"),
        work=_work_lrn,
        halves="scaled",
        routes="along channels",
        kernel="lrn",
    ),
}
