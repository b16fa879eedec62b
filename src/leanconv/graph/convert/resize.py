"""Resizing: the forms of all opsets to the normal form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import Value
from leanconv.graph.convert.cubic import cubic_resize
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.ops.resize import COORDINATE_MODES, NEAREST_MODES, check_sizes
from leanconv.symbols import Symbol
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
    return _emit_resize(call, x, mode, scales, None, "asymmetric", "floor")


def _scales(call: Call, index: int) -> tuple[float, ...]:
    array = call.constant(index)
    if array.ndim != 1 or array.size > len(call.value().shape) or array.dtype.kind != "f":
        raise ModelError(
            f"input {index} is {array.dtype} of shape {shape_text(array.shape)}; expected one "
            "scale for each axis"
        )
    return tuple(float(scale) for scale in array)


def _resize(call: Call) -> list[Value]:
    if call.opset < 11:
        return _old_resize(call)
    x = call.value()
    rank = len(x.shape)
    mode = _resize_mode(call, {mode: mode for mode in ("nearest", "linear", "cubic")})
    coordinates = call.attribute("coordinate_transformation_mode", "half_pixel")
    nearest = call.attribute("nearest_mode", "round_prefer_floor")
    if coordinates not in COORDINATE_MODES or nearest not in NEAREST_MODES:
        raise UnsupportedError(
            f"coordinate_transformation_mode {coordinates!r} with nearest_mode {nearest!r} is not "
            f"supported; expected one of {', '.join(COORDINATE_MODES)} and one of "
            f"{', '.join(NEAREST_MODES)}"
        )
    if call.flag("antialias") or call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnsupportedError(
            "antialias and keep_aspect_ratio_policy are not supported; expected 0 and 'stretch'"
        )
    axes = call.axes(call.attribute("axes", tuple(range(rank))), rank)
    scales, sizes = call.optional(2), call.optional(3)
    by_size = sizes is not None and sizes.shape != (0,)
    by_scale = scales is not None and scales.shape != (0,)
    if by_size == by_scale:
        raise ModelError("got both or neither of scales and sizes; expected one of them")
    if by_scale:
        given = _spread(_scales(call, 2), axes, (1.0,) * rank)
        return _emit_resize(call, x, mode, given, None, coordinates, nearest)
    targets = _spread(call.integers(3), axes, x.shape)
    return _emit_resize(call, x, mode, None, targets, coordinates, nearest)


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


def _emit_resize(
    call: Call,
    x: Value,
    mode: str,
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    coordinates: str,
    nearest: str,
) -> list[Value]:
    if scales is not None:
        if len(scales) != len(x.shape) or any(not (math.isfinite(s) and s > 0) for s in scales):
            raise ModelError(f"scales is {scales}; expected a positive number for each axis")
        sizes = tuple(_scaled(e, s) for e, s in zip(x.shape, scales, strict=True))
    else:
        assert sizes is not None
        pairs = zip(sizes, x.shape, strict=True)
        scales = tuple(size / extent if extent else 1.0 for size, extent in pairs)
    check_sizes(sizes, x.type)
    if mode == "cubic":
        return [cubic_resize(call, x, sizes, scales, coordinates)]
    return [
        call.emit(
            "Resize",
            [x],
            mode=mode,
            sizes=tuple(sizes),
            scales=tuple(float(scale) for scale in scales),
            coordinate_transformation_mode=coordinates,
            nearest_mode=nearest,
        )
    ]


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
    "Resize": Rule(_resize, _RESIZE, 1, 4, since=10),
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
