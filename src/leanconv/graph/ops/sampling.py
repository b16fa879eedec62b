"""Operations that read images between their pixels, at places that are data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from math import prod
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
    required,
    same_dtype,
    single,
)
from leanconv.graph.ops.conv import check_window, window_extent, window_steps
from leanconv.graph.ops.indexing import check_indices
from leanconv.types import FLOATS, INT64
from leanconv.units import shape_text

MODES = ("nearest", "linear", "cubic")
MOST_SAMPLES = 256  # of a bin along an axis, where a file says so
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}  # cells of a place along an axis, by mode
PADDINGS = ("zeros", "border", "reflection")
FARTHEST = 2.0**62  # a place of GridSample beyond, or that is no number, is the first one, -1
_A = -0.75  # of Keys' kernel
_STEP = 20_000  # multiply-adds in the time of one step of the interpreter
_MOST = 1 << 24  # samples of a bin along an axis

Taps = list[tuple[Array, Any, Any]]  # cells of places within the axis, whether there, weights


def taps_along(place: Array, extent: int, mode: str, padding: str, align: bool) -> Taps:
    """The cells that places on an axis mix; `align` decides where it is reflected."""
    if mode == "nearest":
        place = np.rint(place)
    if padding == "border" and mode != "cubic":  # each tap is, too
        place = np.clip(place, 0, extent - 1)
    elif padding == "reflection":
        place = _reflected(place, extent, align)
    place = np.clip(np.where(np.isnan(place), -3, place), -3, extent + 2)
    low = np.floor(place)
    part = place - low
    if mode == "nearest":
        shares: dict[int, Any] = {0: 1.0}
    elif mode == "linear":
        shares = {0: 1 - part, 1: part}
    else:
        shares = {-1: _far(part + 1), 0: _near(part), 1: _near(1 - part), 2: _far(2 - part)}
    found: Taps = []
    for tap, share in shares.items():
        cell = _reflected(low + tap, extent, align) if padding == "reflection" else low + tap
        there = (cell >= 0) & (cell < extent) if padding == "zeros" else True
        found.append((np.clip(cell, 0, extent - 1).astype(np.int64), there, share))
    return found


def _reflected(place: Array, extent: int, align: bool) -> Array:
    low, width = (0.0, extent - 1) if align else (-0.5, extent)
    if width == 0:
        return np.zeros_like(place)
    distance = np.abs(place - place.dtype.type(low)) % (2 * width)
    return np.asarray(np.minimum(distance, 2 * width - distance) + place.dtype.type(low))


def _near(d: Array) -> Array:
    return ((_A + 2) * d - (_A + 3)) * d * d + 1


def _far(d: Array) -> Array:
    return _A * (((d - 5) * d + 8) * d - 4)


def mixed(x: Array, axes: Sequence[Taps]) -> Array:
    """Places of planes, (C, P), of planes x (C, spatial) and the taps along each axis."""
    flat = x.reshape(len(x), -1)
    total = np.zeros((len(x), len(axes[0][0][0])), x.dtype)
    for chosen in product(*axes):
        offset, there, weight = np.zeros(total.shape[1], np.int64), np.True_, 1.0
        for (cell, inside, share), extent in zip(chosen, x.shape[1:], strict=True):
            offset, there, weight = offset * extent + cell, there & inside, weight * share
        total += np.where(there, flat[:, offset], 0) * np.asarray(weight, x.dtype)
    return total


def _infer_grid(types: Types, attributes: Attributes) -> TensorType:
    dtype, x, grid = same_dtype(types), first(types), required(types, 1)
    check_rank(x, 3, 5)
    sizes, axes = attributes["sizes"], len(x.shape) - 2
    if len(sizes) != axes or grid.shape != (x.shape[0] * prod(sizes), axes):
        raise ModelError(
            f"got places {grid} of {x} for a result of {shape_text(sizes)}; expected {axes} "
            "numbers for each place of each image"
        )
    if attributes["mode"] not in MODES or attributes["padding_mode"] not in PADDINGS:
        raise ModelError(
            f"got mode {attributes['mode']!r} and padding_mode {attributes['padding_mode']!r}; "
            f"expected one of {', '.join(MODES)} and one of {', '.join(PADDINGS)}"
        )
    result = checked((*x.shape[:2], *sizes), dtype)
    if any(extent == 0 for extent in x.shape[2:]) and result.elements:
        raise ModelError(f"reads {x}, which has no elements; expected some")
    return result


def _evaluate_grid(arrays: Arrays, attributes: Attributes) -> Array:
    x, grid, align = array(arrays), array(arrays, 1), bool(attributes["align_corners"])
    sizes = attributes["sizes"]
    places = grid.reshape(len(x), prod(sizes), x.ndim - 2)
    y = np.empty((*x.shape[:2], prod(sizes)), x.dtype)
    for image, listed in enumerate(places):
        axes = []
        for number, extent in enumerate(x.shape[2:]):
            place = listed[:, -1 - number] + 1
            cells = place * 0.5 * (extent - 1) if align else (place * extent - 1) * 0.5
            first = 0.0 if align else -0.5
            cells = np.asarray(np.where(np.abs(cells) < FARTHEST, cells, first), x.dtype)
            how = (attributes["mode"], attributes["padding_mode"], align)
            axes.append(taps_along(cells, extent, *how))
        y[image] = mixed(x[image], axes)
    return y.reshape(*x.shape[:2], *sizes)


def _work_regions(_types: Types, attributes: Attributes, result: TensorType) -> int:
    samples = max(attributes["sampling_ratio"], 2) ** 2
    bins = prod(attributes["sizes"])
    return int(4 * result.elements * samples + _STEP * result.shape[0] * bins)


def _work_columns(types: Types, attributes: Attributes, result: TensorType) -> int:
    steps = first(types).shape[0] * attributes["offset_group"] * prod(attributes["kernel_shape"])
    return int(4 * result.elements + _STEP * steps)


def _work_grid(types: Types, attributes: Attributes, result: TensorType) -> int:
    taps = {"nearest": 1, "linear": 2, "cubic": 4}[attributes["mode"]]
    cells = int(taps ** (len(first(types).shape) - 2))
    return result.elements * cells + _STEP * cells * first(types).shape[0]


def _infer_columns(types: Types, attributes: Attributes) -> TensorType:
    dtype, x, offset = same_dtype(types), first(types), required(types, 1)
    check_rank(x, 4, 4)
    check_window(attributes, 2)
    kernel, groups, run = (attributes[n] for n in ("kernel_shape", "offset_group", "run"))
    if not 1 <= groups <= max(x.shape[1], 1) or x.shape[1] % groups or x.shape[1] % run:
        raise ModelError(f"attribute offset_group is {groups}; expected a divisor of {x.shape[1]}")
    axes = zip(x.shape[2:], kernel, window_steps(attributes), strict=True)
    out = [window_extent(extent, size, *steps, False) for extent, size, steps in axes]
    taps, places = prod(kernel), prod(out)
    given = [x.shape[0] * groups * taps * 2, x.shape[0] * groups * taps]
    for kind, rows in zip(types[1:], given, strict=False):
        if kind is not None and kind.shape != (rows, places):
            raise ModelError(
                f"got offsets {offset} or a mask {kind} of {x} for {shape_text(out)} windows of "
                f"{taps} cells in {groups} groups; expected {shape_text((rows, places))}"
            )
    return checked((x.shape[0], x.shape[1] * taps, *out), dtype)


def _evaluate_columns(arrays: Arrays, attributes: Attributes) -> Array:
    x, offset = array(arrays), array(arrays, 1)
    (kernel_h, kernel_w), groups = attributes["kernel_shape"], attributes["offset_group"]
    images, channels, taps, run = *x.shape[:2], kernel_h * kernel_w, attributes["run"]
    axes = zip(x.shape[2:], (kernel_h, kernel_w), window_steps(attributes), strict=True)
    out = [window_extent(extent, size, *steps, False) for extent, size, steps in axes]
    moved = offset.reshape(images, groups, taps, 2, prod(out))
    mask = np.ones((images, groups, taps, prod(out)), x.dtype)
    if len(arrays) > 2:
        mask = array(arrays, 2).reshape(mask.shape)
    start = np.indices(out).reshape(2, -1)
    y = np.empty((images, channels // run, taps, run, prod(out)), x.dtype)
    width = channels // groups
    for image, group, tap in np.ndindex(images, groups, taps):
        cell, found = divmod(tap, kernel_w), []
        for axis in range(2):
            place = start[axis] * attributes["strides"][axis] - attributes["pads"][axis]
            place = place + cell[axis] * attributes["dilations"][axis]
            place = np.asarray(place + moved[image, group, tap, axis], x.dtype)
            found.append(taps_along(place, x.shape[2 + axis], "linear", "zeros", False))
        part = mixed(x[image, group * width : (group + 1) * width], found) * mask[image, group, tap]
        for number, plane in enumerate(part, group * width):
            y[image, number // run, tap, number % run] = plane
    return y.reshape(images, channels * taps, *out)


def _infer_regions(types: Types, attributes: Attributes) -> TensorType:
    x, regions, images = first(types), required(types, 1), required(types, 2)
    check_rank(x, 4, 4)
    bins, ratio, scale = (attributes[n] for n in ("sizes", "sampling_ratio", "spatial_scale"))
    if regions.dtype != x.dtype or regions.shape[1:] != (4,) or images.dtype != INT64:
        raise ModelError(f"got regions {regions} in images {images} of {x}; expected 4 each")
    if images.shape != regions.shape[:1] or min(bins) < 1 or not 0 <= ratio <= MOST_SAMPLES:
        raise ModelError(
            f"got {regions} in images {images}, bins {bins} and sampling_ratio {ratio}; expected "
            f"an image for each, positive numbers of bins, and a ratio of 0 to {MOST_SAMPLES}"
        )
    if attributes["mode"] not in ("avg", "max") or not math.isfinite(scale):
        raise ModelError(f"got mode {attributes['mode']!r}, scale {scale}; expected avg or max")
    if not x.shape[0] or 0 in x.shape[2:]:
        raise ModelError(f"reads {x}, which has no elements; expected some")
    return checked((regions.shape[0], x.shape[1], *bins), x.dtype)


def _evaluate_regions(arrays: Arrays, attributes: Attributes) -> Array:
    x, regions, images = (array(arrays, index) for index in range(3))
    bins, y = attributes["sizes"], np.zeros((len(regions), x.shape[1], *attributes["sizes"]))
    largest, half = attributes["mode"] == "max", bool(attributes["half_pixel"])
    check_indices(images, 0, len(x) - 1)
    for number, (region, image) in enumerate(zip(regions, images, strict=True)):
        pixels = x[image]
        starts, extents = [], []
        for axis in (0, 1):
            start, end = (region[i] * attributes["spatial_scale"] for i in (1 - axis, 3 - axis))
            extent = end - start if half else max(end - start, 1.0)
            starts.append(start - 0.5 * half)
            extents.append(extent / bins[axis])
        for place in np.ndindex(*bins):
            corner = [start + i * e for start, i, e in zip(starts, place, extents, strict=True)]
            lines = [
                _samples(*each, attributes["sampling_ratio"])
                for each in zip(corner, extents, x.shape[2:], strict=True)
            ]
            index: Any = (number, slice(None), *place)
            y[index] = _bin(pixels, lines, largest)
    return y.astype(x.dtype)


def _samples(corner: float, extent: float, pixels: int, ratio: int) -> tuple[Array, float]:
    """The samples of a bin along an axis that are near the image, and how many there are in all."""
    count = float(ratio) if ratio else min(max(np.nan_to_num(np.ceil(extent)), 0.0), 1.0 * _MOST)
    if not count:
        return np.zeros(0), 0.0
    step = extent / count
    first, ends = corner + step / 2, [0.0, count]
    if not ratio:
        near = np.nan_to_num([(-1 - first) / step - 1, (pixels - first) / step + 2])
        ends = np.clip(near, 0, count).tolist()
    return first + np.arange(math.floor(ends[0]), math.ceil(ends[1])) * step, count


def _bin(x: Array, lines: Sequence[tuple[Array, float]], largest: bool) -> Array:
    """The mean of some samples of each plane, or the largest weighted cell."""
    sides = []
    for (places, _), extent in zip(lines, x.shape[1:], strict=True):
        inside = (places >= -1) & (places <= extent)
        near = np.clip(np.nan_to_num(places), 0, extent - 1)
        low = near.astype(np.int64)
        part = near - low
        cells = [(low, (1 - part) * inside), (np.minimum(low + 1, extent - 1), part * inside)]
        sides.append(cells)
    count = lines[0][1] * lines[1][1]
    if not count:
        return np.zeros(len(x))
    weighted = [
        x[:, rows[:, None], columns] * (down[:, None] * across)
        for (rows, down), (columns, across) in product(*sides)
    ]
    if not largest:
        return np.asarray(sum(each.sum(axis=(1, 2)) for each in weighted) / count)
    found = np.max([each.max(axis=(1, 2), initial=-np.inf) for each in weighted], axis=0)
    missed = weighted[0][0].size < count
    return np.asarray(np.maximum(found, 0) if missed else found)


OPS: dict[str, Op] = {
    "RoiAlign": single(
        _infer_regions,
        _evaluate_regions,
        "x (N, C, H, W), regions (R, 4), their images (R,); gives (R, C, sizes); mode: avg, max",
        ("mode", "half_pixel", "sampling_ratio", "spatial_scale", "sizes"),
        _work_regions,
        dtypes=(*FLOATS, INT64),
        halves="rounded",
        precise=slice(1, None),
        working=4,
        kernel="roi_align",
        blocked=1,
    ),
    "DeformColumns": single(
        _infer_columns,
        _evaluate_columns,
        "x (N, C, H, W), offsets (N * groups * taps * 2, places), mask (half as many, places)?",
        ("kernel_shape", "strides", "pads", "dilations", "offset_group", "run"),
        _work_columns,
        precise=slice(1, 2),
        kernel="deform",
        blocked=1,
    ),
    "GridSample": single(
        _infer_grid,
        _evaluate_grid,
        "x (N, C, spatial), places (N * number, axes); from -1 to 1, the last axis first",
        ("mode", "padding_mode", "align_corners", "sizes"),
        _work_grid,
        precise=slice(1, 2),
        working=0,
        places=6,
        kernel="sampling",
        blocked=16,
    ),
}
