"""Convolutions whose weights or bias are data: a DataConv packs them in each run.

A transposed convolution is the convolution, with the kernel reversed, of an input with zeros
between its elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from leanconv.graph.convert.rule import Call
from leanconv.graph.convert.shapes import part_of
from leanconv.graph.ops import infer
from leanconv.graph.ops.windows import window_steps
from leanconv.graph.value import Value
from leanconv.spec.conv import effective_extent


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
    """The same of whole numbers, without bias: nothing is transformed, and all sums are exact."""
    made = _with_constants(call, "Conv", x, w, None, attributes)
    return made if isinstance(made, Value) else _of_data(call, x, w, None, attributes, exact=True)


def _of_data(
    call: Call,
    x: Value,
    w: Value,
    bias: Value | None,
    attributes: Mapping[str, Any],
    exact: bool = False,
) -> Value:
    """A convolution whose weights are packed in each run."""
    outputs, own, *kernel = w.shape
    rows = call.reshape(w, (outputs, own * prod(kernel)))
    given = {name: attributes[name] for name in ("strides", "pads", "dilations", "group")}
    operands = [x, rows] if bias is None else [x, rows, bias]
    return call.emit("DataConv", operands, **given, kernel_shape=tuple(kernel), exact=exact)


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
    spatial, group = len(x.shape) - 2, attributes["group"]
    spread = _with_zeros_between(call, x, attributes["strides"])
    before, after = [], []
    for i, (_, dilation, begin, end) in enumerate(window_steps(attributes)):
        reach = effective_extent(w.shape[2 + i], dilation) - 1
        before.append(reach - begin)
        after.append(reach - end + attributes["output_padding"][i])
    placed = _padded(call, spread, before, after)
    ones = {"strides": (1,) * spatial, "pads": (0,) * 2 * spatial}
    kernel = {**ones, "dilations": attributes["dilations"], "group": group}
    return _of_data(call, placed, _reversed(call, w, group), bias, kernel)


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


def _padded(call: Call, x: Value, before: Sequence[int], after: Sequence[int]) -> Value:
    """Zeros around the spatial axes; where there are fewer than none, elements are cut off."""
    most = ((0, 0, *(max(n, 0) for n in side)) for side in (before, after))
    pads = tuple(n for side in most for n in side)
    x = call.emit("Pad", [x], pads=pads, mode="constant", value=0.0) if any(pads) else x
    for axis, (begin, end) in enumerate(zip(before, after, strict=True), 2):
        if begin < 0 or end < 0:
            first, cut = max(-begin, 0), max(-begin, 0) + max(-end, 0)
            x = part_of(call, x, axis, first, 1, x.shape[axis] - cut)
    return x


def _with_zeros_between(call: Call, x: Value, strides: Sequence[int]) -> Value:
    """Elements that are so far apart, with zeros between them, along the spatial axes."""
    for axis, stride in enumerate(strides, 2):
        if stride == 1:
            continue
        shape = x.shape
        wide = call.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        pads = [0] * (2 * len(wide.shape))
        pads[len(wide.shape) + axis + 1] = stride - 1
        filled = call.emit("Pad", [wide], pads=tuple(pads), mode="constant", value=0.0)
        joined = call.reshape(filled, (*shape[:axis], shape[axis] * stride, *shape[axis + 1 :]))
        x = part_of(call, joined, axis, 0, 1, (shape[axis] - 1) * stride + 1)
    return x


def _reversed(call: Call, w: Value, group: int) -> Value:
    """Weights (C, O / group, kernel) as those of a convolution, their taps in reverse order."""
    channels, outputs, *taps = w.shape
    starts = tuple(extent - 1 for extent in taps)
    steps = tuple(-1 if extent > 1 else 1 for extent in taps)
    turned = call.emit(
        "Slice", [w], starts=(0, 0, *starts), steps=(1, 1, *steps), sizes=tuple(w.shape)
    )
    parts = call.reshape(turned, (group, channels // group, outputs, prod(taps)))
    swapped = call.emit("Transpose", [parts], perm=(0, 2, 1, 3))
    return call.reshape(swapped, (group * outputs, channels // group, *taps))


def with_bias(call: Call, y: Value, bias: Value | None) -> Value:
    """The outputs (N, O, spatial) with what is added to each channel."""
    if bias is None:
        return y
    return call.emit("Add", [y, call.reshape(bias, (y.shape[1], *(1,) * (len(y.shape) - 2)))])
