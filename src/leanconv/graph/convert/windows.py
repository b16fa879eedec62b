"""Convolutions, pooling and resizing: attributes of all opsets to the normal form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import Value
from leanconv.graph.convert.cubic import cubic_resize
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.ops.base import check_rank
from leanconv.graph.ops.conv import check_window
from leanconv.graph.ops.resize import COORDINATE_MODES, NEAREST_MODES
from leanconv.graph.ops.windows import same_padding
from leanconv.spec.conv import effective_extent


def _window(call: Call, extents: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    """strides, dilations and pads of a window over the spatial `extents`."""
    spatial = len(extents)
    attributes = {
        "strides": call.attribute("strides", (1,) * spatial),
        "dilations": call.attribute("dilations", (1,) * spatial),
        "pads": call.attribute("pads", (0,) * (2 * spatial)),
    }
    auto = call.attribute("auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ModelError(
            f"attribute auto_pad is {auto!r}; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
        )
    if auto != "NOTSET":
        attributes["pads"] = (0,) * (2 * spatial)
    check_window(attributes, spatial)
    if auto.startswith("SAME"):
        pairs = [
            same_padding(*numbers, upper=auto == "SAME_UPPER")
            for numbers in zip(
                extents, kernel, attributes["strides"], attributes["dilations"], strict=True
            )
        ]
        attributes["pads"] = tuple(p[0] for p in pairs) + tuple(p[1] for p in pairs)
    return attributes


def _weighted(call: Call) -> tuple[Value, Value, list[Value | None]]:
    """x, w and all inputs of a convolution, with their ranks and kernel_shape checked."""
    x, w = call.value(0), call.value(1)
    check_rank(x.type, 3, 5)
    check_rank(w.type, len(x.shape), len(x.shape), "the weight")
    call.constant(1)
    kernel = call.attribute("kernel_shape", w.shape[2:])
    if kernel != w.shape[2:]:
        raise ModelError(
            f"attribute kernel_shape is {kernel}; expected the weight's, {w.shape[2:]}"
        )
    bias = call.optional(2)
    return x, w, [x, w] if bias is None else [x, w, bias]


def _conv(call: Call) -> list[Value]:
    x, w, inputs = _weighted(call)
    window = _window(call, x.shape[2:], w.shape[2:])
    group = call.attribute("group", 1)
    return [call.emit("Conv", inputs, group=group, activation=None, **window)]


def _conv_transpose(call: Call) -> list[Value]:
    x, w, inputs = _weighted(call)
    spatial = len(x.shape) - 2
    window = _window(call, (1,) * spatial, (1,) * spatial)
    extra = call.attribute("output_padding", (0,) * spatial)
    if len(extra) != spatial:
        raise ModelError(f"attribute output_padding is {extra}; expected {spatial} integers")
    wanted = call.attribute("output_shape", None)
    auto = call.attribute("auto_pad", "NOTSET")
    if wanted is not None and len(wanted) == spatial + 2:
        wanted = wanted[2:]
    if wanted is not None and len(wanted) != spatial:
        raise ModelError(f"attribute output_shape is {wanted}; expected {spatial} integers")
    if wanted is None and auto.startswith("SAME"):
        wanted = tuple(e * s for e, s in zip(x.shape[2:], window["strides"], strict=True))
    if wanted is not None:
        begins, ends = [], []
        for i, target in enumerate(wanted):
            full = (
                window["strides"][i] * (x.shape[2 + i] - 1)
                + effective_extent(w.shape[2 + i], window["dilations"][i])
                + extra[i]
            )
            total = max(full - target, 0)
            small = total // 2
            begins.append(small if auto == "SAME_UPPER" else total - small)
            ends.append(total - begins[-1])
            if full - total != target:
                raise ModelError(
                    f"attribute output_shape asks for {target} on spatial axis {i}; expected at "
                    f"most {full}"
                )
        window["pads"] = (*begins, *ends)
    group = call.attribute("group", 1)
    return [
        call.emit(
            "ConvTranspose", inputs, group=group, activation=None, output_padding=extra, **window
        )
    ]


def _pool(call: Call) -> list[Value]:
    x = call.value()
    check_rank(x.type, 3, 5)
    kernel = call.attribute("kernel_shape", None)
    if kernel is None or len(kernel) != len(x.shape) - 2:
        raise ModelError(
            f"attribute kernel_shape is {kernel}; expected {len(x.shape) - 2} integers for {x.type}"
        )
    window = _window(call, x.shape[2:], kernel)
    return [
        call.emit(
            call.node.op,
            [x],
            kernel_shape=kernel,
            ceil_mode=call.flag("ceil_mode"),
            count_include_pad=call.flag("count_include_pad"),
            **window,
        )
    ]


def _global_pool(op: str) -> Rule:
    def convert(call: Call) -> list[Value]:
        x = call.value()
        check_rank(x.type, 3, 5)
        return [call.emit(op, [x], axes=tuple(range(2, len(x.shape))), keepdims=True)]

    return Rule(convert)


def _lrn(call: Call) -> list[Value]:
    size = call.attribute("size", None)
    if size is None:
        raise ModelError("attribute size is missing; expected the number of channels")
    numbers = {
        name: call.attribute(name, default)
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    }
    return [call.emit("LRN", [call.value()], size=size, **numbers)]


def _resize_mode(call: Call, modes: dict[str, str]) -> str:
    mode = call.attribute("mode", "nearest")
    if mode not in modes:
        raise UnsupportedError(f"mode {mode!r} is not supported; expected {' or '.join(modes)}")
    return modes[mode]


def _old_resize(call: Call) -> list[Value]:
    """Upsample, and Resize of opset 10: asymmetric coordinates, rounded down."""
    x = call.value()
    mode = _resize_mode(call, {"nearest": "nearest", "linear": "linear", "bilinear": "linear"})
    if call.node.op == "Upsample" and call.opset < 9:
        scales = call.attribute("scales", ())
    else:
        scales = _scales(call, 1)
    return _emit_resize(call, x, mode, scales, None, "asymmetric", "floor")


def _scales(call: Call, index: int) -> tuple[float, ...]:
    array = call.constant(index)
    if array.ndim != 1 or array.size > len(call.value().shape) or array.dtype.kind != "f":
        raise ModelError(f"input {index} has shape {array.shape}; expected one scale for each axis")
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
        products = [
            float(np.float32(s) * np.float32(e)) for s, e in zip(scales, x.shape, strict=True)
        ]
        if any(not math.isfinite(product) for product in products):
            raise ModelError(f"scales is {scales}; expected smaller numbers")
        sizes = tuple(math.floor(product) for product in products)
    else:
        assert sizes is not None
        scales = tuple(size / extent for size, extent in zip(sizes, x.shape, strict=True))
    if mode == "cubic":
        if any(size < 1 for size in sizes):
            raise ModelError(f"got sizes {tuple(sizes)}; expected positive numbers")
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


_WINDOW = {
    "auto_pad": "string",
    "kernel_shape": "ints",
    "strides": "ints",
    "dilations": "ints",
    "pads": "ints",
}
_POOL = {**_WINDOW, "ceil_mode": "int", "count_include_pad": "int", "storage_order": "int"}
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
    "Conv": Rule(_conv, {**_WINDOW, "group": "int"}, 2, 3),
    "ConvTranspose": Rule(
        _conv_transpose,
        {**_WINDOW, "group": "int", "output_padding": "ints", "output_shape": "ints"},
        2,
        3,
    ),
    "MaxPool": Rule(_pool, _POOL),
    "AveragePool": Rule(_pool, _POOL),
    "GlobalAveragePool": _global_pool("ReduceMean"),
    "GlobalMaxPool": _global_pool("ReduceMax"),
    "LRN": Rule(_lrn, {"size": "int", "alpha": "float", "beta": "float", "bias": "float"}),
    "Resize": Rule(_resize, _RESIZE, 1, 4, since=10),
    "Upsample": Rule(
        _old_resize,
        {"mode": "string", "scales": "floats"},
        1,
        2,
        until=9,
        moved=(9, ("scales",)),
    ),
}
