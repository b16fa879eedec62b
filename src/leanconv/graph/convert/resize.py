"""Resizing: the forms of all opsets to the normal form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.ops import not_taken
from leanconv.graph.ops.resample import outside
from leanconv.graph.ops.resize import (
    COORDINATE_MODES,
    CROP,
    NEAREST_MODES,
    check_sizes,
    nearest_cells,
)
from leanconv.graph.value import Value
from leanconv.records import dataclass
from leanconv.symbolic import Symbol
from leanconv.types import HALVES, INT8, INT64, UINT8
from leanconv.units import shape_text


def _resize_mode(call: Call, modes: dict[str, str]) -> str:
    mode = call.attribute("mode", "nearest")
    if mode not in modes:
        raise UnsupportedError(f"mode {mode!r} is not supported; expected {' or '.join(modes)}")
    return modes[mode]


def _old_resize(call: Call) -> list[Value]:
    """Upsample, and Resize of opset 10: asymmetric coordinates, rounded down."""
    x = call.value()
    mode = _resize_mode(call, {"nearest": "nearest", "linear": "linear", "bilinear": "linear"})
    if call.opset < 7:
        height, width = call.attribute("height_scale", None), call.attribute("width_scale", None)
        if height is None or width is None or len(x.shape) != 4:
            raise ModelError(
                f"got height_scale {height} and width_scale {width} for {x.type}; expected both, "
                "and a map of rank 4"
            )
        scales: tuple[float, ...] = (1.0, 1.0, height, width)
    elif call.node.op == "Upsample" and call.opset < 9:
        scales = call.attribute("scales", ())
    else:
        scales = _scales(call, 1)
    return [_resized(call, x, scales, None, _Way(mode))]


def _scales(call: Call, index: int) -> tuple[float, ...]:
    array = call.constant(index)
    if array.ndim != 1 or array.size > len(call.value().shape) or array.dtype.kind != "f":
        raise ModelError(
            f"input {index} is {array.dtype} of shape {shape_text(array.shape)}; expected one "
            "scale for each axis"
        )
    return tuple(float(scale) for scale in array)


@dataclass(frozen=True)
class _Way:
    """A method of resizing, whatever the sizes.

    Attributes:
        mode: nearest, linear or cubic.
        coordinates, nearest: attributes of ONNX's.
        antialias, exclude_outside, cubic_coeff_a: attributes of ONNX's, for weighted cells.
        roi: begins of all axes, then ends; of a crop.
        outside: the number where a crop reaches over the map.
    """

    mode: str
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    antialias: bool = False
    exclude_outside: bool = False
    cubic_coeff_a: float = -0.75
    roi: tuple[float, ...] = ()
    outside: float = 0.0

    def windows(
        self, axes: Sequence[int], sizes: Sequence[int], scales: Sequence[float]
    ) -> dict[str, Any]:
        """The attributes of a Resample of some axes, of a map's sizes and scales."""
        return {
            "axes": tuple(axes),
            "sizes": tuple(sizes[axis] for axis in axes),
            "scales": tuple(float(scales[axis]) for axis in axes),
            "rois": tuple(self.part(axis) for axis in axes),
            "mode": self.mode,
            "coordinate_transformation_mode": self.coordinates,
            "cubic_coeff_a": self.cubic_coeff_a,
            "exclude_outside": self.exclude_outside,
            "antialias": self.antialias,
        }

    def part(self, axis: int) -> tuple[float, float]:
        """Return begin and end of an axis' crop, as shares of its extent."""
        return (self.roi[axis], self.roi[len(self.roi) // 2 + axis]) if self.roi else (0.0, 1.0)


def _resize(call: Call) -> list[Value]:
    if call.opset < 11:
        return _old_resize(call)
    x = call.value()
    rank = len(x.shape)
    mode = _resize_mode(call, {mode: mode for mode in ("nearest", "linear", "cubic")})
    coordinates = call.attribute("coordinate_transformation_mode", "half_pixel")
    nearest = call.attribute("nearest_mode", "round_prefer_floor")
    if coordinates not in (*COORDINATE_MODES, CROP) or nearest not in NEAREST_MODES:
        raise UnsupportedError(
            f"coordinate_transformation_mode {coordinates!r} with nearest_mode {nearest!r} is not "
            f"supported; expected one of {', '.join((*COORDINATE_MODES, CROP))} and one of "
            f"{', '.join(NEAREST_MODES)}"
        )
    axes = call.axes(call.attribute("axes", tuple(range(rank))), rank)
    way = _Way(
        mode,
        coordinates,
        nearest,
        call.flag("antialias") and mode != "nearest",
        call.flag("exclude_outside"),
        call.attribute("cubic_coeff_a", -0.75),
        _roi(call, axes, rank) if coordinates == CROP else (),
        call.attribute("extrapolation_value", 0.0),
    )
    scales, sizes = call.optional(2), call.optional(3)
    by_size = sizes is not None and sizes.shape != (0,)
    by_scale = scales is not None and scales.shape != (0,)
    if by_size == by_scale:
        raise ModelError("got both or neither of scales and sizes; expected one of them")
    if by_scale:
        given = _spread(_scales(call, 2), axes, (1.0,) * rank)
        return [_resized(call, x, given, None, way)]
    targets = _spread(call.integers(3), axes, x.shape)
    kept = _kept_ratio(call, x, targets, axes)
    return [
        _resized(call, x, None, targets, way) if kept is None else _resized(call, x, *kept, way)
    ]


def _kept_ratio(
    call: Call, x: Value, targets: Sequence[int], axes: Sequence[int]
) -> tuple[Sequence[float] | None, Sequence[int]]:
    """Scales and sizes that keep the ratio of the axes; no scales where it may be any.

    Raises:
        ModelError: the policy is none of ONNX's.
    """
    policy = call.attribute("keep_aspect_ratio_policy", "stretch")
    if policy not in ("stretch", "not_larger", "not_smaller"):
        raise ModelError(
            f"keep_aspect_ratio_policy is {policy!r}; expected stretch, not_larger or not_smaller"
        )
    if policy == "stretch" or not x.type.elements or not axes:
        return None, targets
    choose = min if policy == "not_larger" else max
    ratio = choose(np.float32(int(targets[i])) / np.float32(int(x.shape[i])) for i in axes)
    sizes, scales = list(x.shape), [1.0] * len(x.shape)
    for axis in axes:
        sizes[axis] = math.floor(float(ratio * np.float32(int(x.shape[axis]))) + 0.5)
        scales[axis] = float(ratio)
    return scales, sizes


def _roi(call: Call, axes: Sequence[int], rank: int) -> tuple[float, ...]:
    """Begins of all axes, then ends, in parts of their extents.

    Raises:
        ModelError: roi has other numbers than a begin and an end of each axis that is named.
    """
    array = call.constant(1)
    if array.shape != (2 * len(axes),) or not np.isfinite(array.astype(np.float64)).all():
        raise ModelError(
            f"input 1, the roi, has the shape {shape_text(array.shape)}; expected {2 * len(axes)} "
            "finite numbers, a begin and an end for each axis"
        )
    begins, ends = (array[part].tolist() for part in np.split(np.arange(array.size), 2))
    return (*_spread(begins, axes, (0.0,) * rank), *_spread(ends, axes, (1.0,) * rank))


def _scaled(extent: int, scale: float) -> int:
    """The extent times the scale, rounded down, as float32 has it.

    Raises:
        ModelError: the product is too large.
    """
    if isinstance(extent, Symbol) and scale.is_integer() and extent * int(scale) < 1 << 24:
        return extent * int(scale)  # exact
    with np.errstate(over="ignore"):
        product = float(np.float32(scale) * np.float32(int(extent)))
    if not math.isfinite(product):
        raise ModelError(f"got a scale of {scale}; expected a smaller number")
    return math.floor(product)


def _spread(numbers: Sequence[Any], axes: Sequence[int], default: Sequence[Any]) -> tuple[Any, ...]:
    """Numbers for some axes, with defaults for the others."""
    if len(numbers) != len(axes):
        raise ModelError(f"got {len(numbers)} scales or sizes; expected {len(axes)}, one each axis")
    result = list(default)
    for axis, number in zip(axes, numbers, strict=True):
        result[axis] = number
    return tuple(result)


def _resized(
    call: Call, x: Value, scales: Sequence[float] | None, sizes: Sequence[int] | None, way: _Way
) -> Value:
    """A map in other sizes: given ones, or those of the scales."""
    if scales is not None and (
        len(scales) != len(x.shape) or any(not (math.isfinite(s) and s > 0) for s in scales)
    ):
        raise ModelError(f"scales is {scales}; expected a positive number for each axis")
    if sizes is None:
        assert scales is not None
        sizes = tuple(_scaled(e, s) for e, s in zip(x.shape, scales, strict=True))
    elif scales is None:
        pairs = zip(sizes, x.shape, strict=True)
        if any(size == 0 and extent != 0 for size, extent in pairs):
            raise ModelError(f"got sizes {sizes} of the input {x.type}; expected positive numbers")
        pairs = zip(sizes, x.shape, strict=True)
        scales = tuple(size / extent if extent else 1.0 for size, extent in pairs)
    check_sizes(sizes, x.type)
    if way.mode == "nearest":
        return _nearest(call, x, sizes, scales, way)
    if x.type.dtype in HALVES:
        raise not_taken("Resize", x.type.dtype, str(x.type))
    if x.type.dtype.is_float:
        return _weighted(call, x, sizes, scales, way)
    return _of_integers(call, x, sizes, scales, way)


def _nearest(
    call: Call, x: Value, sizes: Sequence[int], scales: Sequence[float], way: _Way
) -> Value:
    """Each cell is that of the input which is nearest; of a crop one axis after the other."""
    if way.roi:
        y = x
        for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
            extent = int(x.shape[axis])
            if not _changes(extent, size, scale, way, axis) or not extent:
                continue
            given = extent, int(size), float(scale), CROP, way.nearest, way.part(axis)
            cells = call.fold(partial(nearest_cells, *given), (int(size),), INT64, 56 * int(size))
            y = call.emit("Gather", [y, cells], axis=axis)
        return _filled_outside(call, x, y, scales, way)
    return _emit_resize(call, x, sizes, scales, way)


def _emit_resize(
    call: Call, x: Value, sizes: Sequence[int], scales: Sequence[float], way: _Way
) -> Value:
    return call.emit(
        "Resize",
        [x],
        mode=way.mode,
        sizes=tuple(sizes),
        scales=tuple(float(scale) for scale in scales),
        coordinate_transformation_mode=way.coordinates,
        nearest_mode=way.nearest,
    )


def _weighted(
    call: Call, x: Value, sizes: Sequence[int], scales: Sequence[float], way: _Way
) -> Value:
    """Floats mixed by weights: two cells of each axis at once, or one axis after the other."""
    if way.mode == "linear" and not way.antialias and not way.roi:
        return _emit_resize(call, x, sizes, scales, way)
    y, changed = x, []
    for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        if _changes(x.shape[axis], size, scale, way, axis):
            changed.append(axis)
    while changed:  # two axes that follow each other are one operation
        pair = changed[-2:] if changed[-2:-1] == [changed[-1] - 1] else changed[-1:]
        pair = pair if x.type.dtype.is_float else changed[-1:]  # codes are rounded after each axis
        del changed[-len(pair) :]
        y = call.emit("Resample", [y], **way.windows(pair, sizes, scales))
    return _filled_outside(call, x, y, scales, way)


def _of_integers(
    call: Call, x: Value, sizes: Sequence[int], scales: Sequence[float], way: _Way
) -> Value:
    """Integers mixed as floats, towards zero; with antialiasing each axis to the nearest ones."""
    dtype, single = x.type.dtype, call.builder.single
    if way.antialias and dtype in (INT8, UINT8):
        return _weighted(call, x, sizes, scales, way)
    y = call.emit("Cast", [x], to=single)
    if not way.antialias:
        return call.emit("Cast", [_weighted(call, y, sizes, scales, way)], to=dtype)
    for axis in reversed(range(len(sizes))):
        part = [1.0] * len(sizes)
        part[axis] = scales[axis]
        shape = tuple(sizes[i] if i == axis else e for i, e in enumerate(y.shape))
        made = _weighted(call, y, shape, part, way)
        y = made if made is y else call.emit("Round", [made])
    return call.emit("Cast", [y], to=dtype)


def _changes(extent: int, size: int, scale: float, way: _Way, axis: int) -> bool:
    """Return whether resizing changes an axis."""
    return size != extent or scale != 1 or way.part(axis) != (0.0, 1.0)


def _filled_outside(call: Call, x: Value, y: Value, scales: Sequence[float], way: _Way) -> Value:
    """A crop with its number where it reaches over the map."""
    if not way.roi or not y.type.elements:
        return y
    rank, inside = len(y.shape), None
    for axis, scale in enumerate(scales):
        extent, size = x.shape[axis], y.shape[axis]
        if not _changes(extent, size, scale, way, axis):
            continue
        gone = outside(extent, int(size), float(scale), way.part(axis))
        if gone.any():
            shape = [-1 if i == axis else 1 for i in range(rank)]
            line = call.builder.constant(~gone.reshape(shape))
            inside = line if inside is None else call.emit("And", [inside, line])
    if inside is None:
        return y
    return call.emit("Where", [inside, y, call.number(way.outside, y)])


_RESIZE = {
    "mode": "string",
    "coordinate_transformation_mode": "string",
    "nearest_mode": "string",
    "cubic_coeff_a": "float",
    "exclude_outside": "int",
    "extrapolation_value": "float",
    "antialias": "int",
    "axes": "ints",
    "keep_aspect_ratio_policy": "string",
}
RULES: dict[str, Rule] = {
    "Resize": Rule(_resize, _RESIZE, 1, 4, since=10, codes="kept"),
    "Upsample": Rule(
        _old_resize,
        {"mode": "string", "scales": "floats"},
        1,
        2,
        until=9,
        moved=(9, ("scales",)),
        older=Older(7, {"height_scale": "float", "width_scale": "float"}),
    ),
}
