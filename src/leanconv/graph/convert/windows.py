"""Convolutions and pooling: attributes of all opsets to the normal form.

A DataConv or DataConvTranspose packs weights that are data in each run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.elementwise import floating
from leanconv.graph.convert.reductions import power_of, root_of_powers, sum_over
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.ops import OPS, infer
from leanconv.graph.ops.base import check_rank
from leanconv.graph.ops.conv import check_window, same_padding
from leanconv.graph.value import Value
from leanconv.spec.conv import effective_extent
from leanconv.units import shape_text


def convolution(
    call: Call, x: Value, w: Value, bias: Value | None, attributes: Mapping[str, Any]
) -> Value:
    """A Conv of weights that are constants, or data.

    Args:
        call: the node.
        x, w: (N, C, spatial) and (O, C / group, kernel).
        bias: (O,), or None.
        attributes: strides, dilations, pads, group.
    """
    made = _with_constants(call, "Conv", x, w, bias, attributes)
    return made if isinstance(made, Value) else _of_data(call, x, w, bias, attributes)


def exact_convolution(call: Call, x: Value, w: Value, attributes: Mapping[str, Any]) -> Value:
    """A convolution of whole numbers without bias: nothing is transformed, all sums are exact."""
    made = _with_constants(call, "Conv", x, w, None, attributes)
    return made if isinstance(made, Value) else _of_data(call, x, w, None, attributes, exact=True)


def _of_data(
    call: Call,
    x: Value,
    w: Value,
    bias: Value | None,
    attributes: Mapping[str, Any],
    op: str = "DataConv",
    exact: bool = False,
) -> Value:
    """A convolution whose weights are packed in each run."""
    channels, own, *kernel = w.shape
    rows = call.reshape(w, (channels, own * prod(kernel)))
    of_op = {name: attributes[name] for name in OPS[op].attributes if name in attributes}
    given = {**of_op, "kernel_shape": tuple(kernel), "taps_first": False, "exact": exact}
    return call.emit(op, [x, rows] if bias is None else [x, rows, bias], **given)


def transposed_convolution(
    call: Call, x: Value, w: Value, bias: Value | None, attributes: Mapping[str, Any]
) -> Value:
    """A ConvTranspose of weights that are constants, or data.

    Args:
        call: the node.
        x, w: (N, C, spatial) and (C, O / group, kernel).
        bias: (O,), or None.
        attributes: strides, dilations, pads, output_padding, group.
    """
    made = _with_constants(call, "ConvTranspose", x, w, bias, attributes)
    if isinstance(made, Value):
        return made
    return _of_data(call, x, w, bias, attributes, "DataConvTranspose")


def _with_constants(
    call: Call, op: str, x: Value, w: Value, bias: Value | None, attributes: Mapping[str, Any]
) -> Value | tuple[int, ...]:
    """The operation itself where its weights are constants or its result has no elements.

    Returns:
        The result, with its bias; only its shape where the weights or the bias are data.
    """
    given = {**attributes, "activation": None}
    operands = [x, w] if bias is None else [x, w, bias]
    if w.is_known and (bias is None or bias.is_known):
        return call.emit(op, operands, **given)
    (result,) = infer(op, [each.type for each in operands], given)
    if w.is_known or not result.elements:
        return with_bias(call, call.emit(op, [x, w], **given), bias)
    return result.shape


def grouped_product(call: Call, columns: Value, w: Value, group: int) -> Value:
    """A convolution of one pixel by data: (N, O, places) of columns (N, C, places).

    Args:
        call: the node.
        columns: of any number of axes of places.
        w: (O, C / group).
        group: of channels.
    """
    (images, channels, *places), outputs = columns.shape, w.shape[0]
    parts = call.reshape(columns, (images, group, channels // group, prod(places)))
    rows = call.reshape(w, (group, outputs // group, channels // group))
    return call.reshape(call.emit("MatMul", [rows, parts]), (images, outputs, *places))


def with_bias(call: Call, y: Value, bias: Value | None) -> Value:
    """The outputs (N, O, spatial) with a bias added to each channel."""
    if bias is None:
        return y
    return call.emit("Add", [y, call.reshape(bias, (y.shape[1], *(1,) * (len(y.shape) - 2)))])


def convolution_window(call: Call, extents: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
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


def _weighted(call: Call) -> tuple[Value, Value, Value | None]:
    """x, w and bias of a convolution, with their ranks and kernel_shape checked."""
    x, w = call.value(0), call.value(1)
    check_rank(x.type, 3, 5)
    check_rank(w.type, len(x.shape), len(x.shape), "the weight")
    kernel = call.attribute("kernel_shape", w.shape[2:])
    if kernel != w.shape[2:]:
        raise ModelError(
            f"attribute kernel_shape is {shape_text(kernel)}; expected the weight's, "
            f"{shape_text(w.shape[2:])}"
        )
    return x, w, call.optional(2)


def _conv(call: Call) -> list[Value]:
    x, w, bias = _weighted(call)
    window = convolution_window(call, x.shape[2:], w.shape[2:])
    window["group"] = call.attribute("group", 1)
    return [convolution(call, x, w, bias, window)]


def _conv_transpose(call: Call) -> list[Value]:
    x, w, bias = _weighted(call)
    spatial = len(x.shape) - 2
    window = convolution_window(call, (1,) * spatial, (1,) * spatial)
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
        window["pads"], extra = _for_output(x, w, window, extra, wanted, auto)
    window.update(group=call.attribute("group", 1), output_padding=extra)
    return [transposed_convolution(call, x, w, bias, window)]


def _for_output(
    x: Value,
    w: Value,
    window: dict[str, Any],
    extra: Sequence[int],
    wanted: Sequence[int],
    auto: str,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The pads and output_padding for which a ConvTranspose gives the extents that are wanted.

    What is more than the extent wanted is cut off at both ends, the odd one before it (behind it
    for SAME_UPPER). Where the kernels reach less far, by less than a step, cells that hold the bias
    alone follow them, as behind `output_padding` and in ONNX Runtime.

    Raises:
        ModelError: an extent is not positive, or further than that.
        UnsupportedError: SAME needs more than the kernels reach: ONNX's reference puts the cells
            that are left at both ends, ONNX Runtime leaves them out.
    """
    begins, ends, added = [], [], []
    for i, target in enumerate(wanted):
        stride, dilation = window["strides"][i], window["dilations"][i]
        full = stride * (x.shape[2 + i] - 1) + effective_extent(w.shape[2 + i], dilation) + extra[i]
        most = full + max(stride, dilation) - 1
        if not 1 <= target <= most:
            raise ModelError(
                f"attribute output_shape asks for {target} on spatial axis {i}; expected 1 to "
                f"{most}, where the kernel with its stride reaches {full}"
            )
        if auto.startswith("SAME") and target > full:
            raise UnsupportedError(
                f"auto_pad {auto} makes {target} cells of {full} that the kernel reaches on "
                f"spatial axis {i}, on which engines differ; expected a kernel of at least the "
                "stride; use output_padding instead"
            )
        total = max(full - target, 0)
        small = total // 2
        begins.append(small if auto == "SAME_UPPER" else total - small)
        ends.append(total - begins[-1])
        added.append(extra[i] + max(target - full, 0))
    return (*begins, *ends), tuple(added)


def _pool(call: Call) -> Sequence[Value]:
    """A pooling; a MaxPool gives places, too, where the node has a second output."""
    x, op, window = call.value(), call.node.op, pool_window(call, call.value())
    if op != "MaxPool" or not any(call.node.outputs[1:]):
        return [call.emit(op, [x], **window)]
    order = int(call.flag("storage_order"))
    return call.emit_all("MaxPoolWithIndices", [x], storage_order=order, **window)


def pool_window(call: Call, x: Value) -> dict[str, Any]:
    """The attributes of a pooling of x in normal form."""
    check_rank(x.type, 3, 5)
    kernel = call.attribute("kernel_shape", None)
    if kernel is None or len(kernel) != len(x.shape) - 2:
        raise ModelError(
            f"attribute kernel_shape is {kernel}; expected {len(x.shape) - 2} integers for {x.type}"
        )
    return {
        "kernel_shape": kernel,
        "ceil_mode": call.flag("ceil_mode"),
        "count_include_pad": call.flag("count_include_pad"),
        **convolution_window(call, x.shape[2:], kernel),
    }


def _exponent(call: Call) -> float:
    """The p of LpPool and GlobalLpPool."""
    p = call.attribute("p", 2)
    if not (math.isfinite(p) and p > 0):
        raise ModelError(f"attribute p is {p}; expected a number above 0")
    return float(p)


def _lp_pool(call: Call) -> list[Value]:
    """(sum |x|^p)^(1/p) in each window: a convolution of every channel with ones."""
    x, p = floating(call), _exponent(call)
    window = pool_window(call, call.value())
    kernel, steps = window["kernel_shape"], window["strides"]
    (result,) = infer("AveragePool", [x.type], window)
    spatial, channels = len(kernel), x.shape[1]
    after = list(window["pads"][spatial:])
    for i, count in enumerate(result.shape[2:]):  # where windows reach further in ceil_mode
        reached = (count - 1) * steps[i] + effective_extent(kernel[i], window["dilations"][i])
        after[i] = max(after[i], reached - x.shape[2 + i] - window["pads"][i])
    ones = call.builder.filled(np.ones((), x.type.dtype.numpy), (channels, 1, *kernel))
    attributes = {
        "strides": steps,
        "dilations": window["dilations"],
        "pads": (*window["pads"][:spatial], *after),
    }
    powers = power_of(call, x, p)
    total = call.emit("Conv", [powers, ones], group=channels, activation=None, **attributes)
    return [root_of_powers(call, total, p)]


def _global_lp_pool(call: Call) -> list[Value]:
    x, p = floating(call), _exponent(call)
    check_rank(x.type, 3, 5)
    axes = tuple(range(2, len(x.shape)))
    return [root_of_powers(call, sum_over(call, power_of(call, x, p), axes, True), p)]


def _global_pool(op: str, **facts: Any) -> Rule:
    def convert(call: Call) -> list[Value]:
        x = call.value()
        check_rank(x.type, 3, 5)
        return [call.emit(op, [x], axes=tuple(range(2, len(x.shape))), keepdims=True)]

    return Rule(convert, homogeneous=True, **facts)


def _lrn(call: Call) -> list[Value]:
    size = call.attribute("size", None)
    if size is None:
        raise ModelError("attribute size is missing; expected the number of channels")
    numbers = {
        name: call.attribute(name, default)
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    }
    return [call.emit("LRN", [call.value()], size=size, **numbers)]


_WINDOW = {
    "auto_pad": "string",
    "kernel_shape": "ints",
    "strides": "ints",
    "dilations": "ints",
    "pads": "ints",
}
CONV_ATTRIBUTES = {**_WINDOW, "group": "int"}
POOL_ATTRIBUTES = {
    **_WINDOW,
    "ceil_mode": "int",
    "count_include_pad": "int",
    "storage_order": "int",
}
RULES: dict[str, Rule] = {
    "Conv": Rule(_conv, CONV_ATTRIBUTES, 2, 3, running=None, products=True),
    "ConvTranspose": Rule(
        _conv_transpose,
        {**CONV_ATTRIBUTES, "output_padding": "ints", "output_shape": "ints"},
        2,
        3,
        running=None,
        products=True,
    ),
    "MaxPool": Rule(_pool, POOL_ATTRIBUTES, outputs=2, codes="kept", homogeneous=True),
    "AveragePool": Rule(_pool, POOL_ATTRIBUTES, codes="mixed", homogeneous=True),
    "LpPool": Rule(
        _lp_pool, {**_WINDOW, "ceil_mode": "int", "p": "int"}, older=Older(2, {"p": "float"})
    ),
    "GlobalLpPool": Rule(_global_lp_pool, {"p": "int"}, older=Older(2, {"p": "float"})),
    "GlobalAveragePool": _global_pool("ReduceMean", codes="mixed"),
    "GlobalMaxPool": _global_pool("ReduceMax", halves=True),
    "LRN": Rule(_lrn, {"size": "int", "alpha": "float", "beta": "float", "bias": "float"}),
}
