"""Let convolutions of codes do operations around them: add a residual, activate, quantise, pad."""

from __future__ import annotations

import math

import numpy as np

from leanconv.graph.edit import (
    Array,
    Editor,
    channel_extent,
    channel_vector,
    frozen,
    node_like,
    rewriting,
)
from leanconv.graph.ir import Node, TensorType
from leanconv.graph.ops.pointwise import activation_of
from leanconv.graph.ops.quantised import CODES
from leanconv.graph.passes.fuse_epilogues import affine_behind
from leanconv.spec.requantise import ResidualCodes
from leanconv.types import FLOAT32


@rewriting
def fuse_codes(editor: Editor, node: Node) -> bool:
    """Move a QLinearAdd of two tensors of one shape into a QLinearConv whose only user it is.

    The QLinearConv then takes the place of the QLinearAdd, so that both of its operands are
    computed before it, and rounds twice, as both of them do. When both are convolutions the later
    one takes it.

    Left alone: one that broadcasts, adds a constant, gives another type of codes or takes another
    zero than the convolution gives; a QLinearConv that is read by others or has a residual already.

    Requires: a verified graph.
    Ensures: such convolutions carry the other branch as fifth input.
    """
    if node.op != "QLinearAdd":
        return False
    for index in sorted((0, 1), key=lambda i: -editor.position(node.inputs[i])):
        conv, residual = editor.producer(node.inputs[index]), node.inputs[1 - index]
        if conv is not None and _may_take(editor, conv, residual, node, index):
            editor.replace(node, _fused(conv, residual, node, index))
            return True
    return False


def _may_take(editor: Editor, conv: Node, residual: str, node: Node, index: int) -> bool:
    if conv.op != "QLinearConv" or not editor.is_private(conv.output):
        return False
    dtype, other = conv.attributes["dtype"], editor.types[residual]
    alike = editor.types[conv.output] == other == editor.types[node.output]
    return (
        conv.attributes["residual"] is None
        and dtype in CODES
        and alike
        and residual not in editor.constants
        and conv.attributes["y_zero"] == node.attributes["zeros"][index]
    )


def _fused(conv: Node, residual: str, node: Node, index: int) -> Node:
    """Make a convolution that also does the addition, whose operand `index` it is."""
    own, added = conv.attributes, node.attributes
    scales, zeros = added["scales"], added["zeros"]
    codes = ResidualCodes(
        own_zero=own["y_zero"],
        own_low=own["low"],
        own_high=own["high"],
        own_scale=scales[index],
        scale=scales[1 - index],
        result_scale=scales[2],
        zero=zeros[1 - index],
        first=index == 1,
    )
    attributes = {"residual": codes, "y_zero": zeros[2], "low": added["low"], "high": added["high"]}
    inputs = (*(*conv.inputs, "", "")[:4], residual, *conv.inputs[5:])
    return node_like(conv, inputs=inputs, outputs=node.outputs, attributes=attributes)


@rewriting
def fuse_coded_activations(editor: Editor, node: Node) -> bool:
    """Move operations behind a QLinearConv that gives floats into it, one node after the other.

    - An activation of one input, unless there are bounds before it.
    - A Mul, Add or Sub behind the activation, of one number or one for each channel.
    - A QuantizeLinear of one scale behind these: codes are made of what the activation gives.

    Left alone: floats that others read as well, PRelu, a second activation, numbers that are not
    finite. Without an activation, `recognise_quantised` has done the same exactly.

    Requires: a verified graph, after `recognise_activations`.
    Ensures: such convolutions carry the activation, and give codes where these are made of them.
    """
    if node.op in ("Mul", "Add", "Sub"):
        return any(_affine(editor, node, index) for index in (0, 1))
    conv = _conv(editor, node.inputs[0]) if node.inputs else None
    if conv is None:
        return False
    if node.op == "QuantizeLinear":
        return _quantised(editor, conv, node)
    own, activation = conv.attributes, activation_of(node)
    if activation is None or node.op == "PRelu" or own["activation"] is not None:
        return False
    if (own["low"], own["high"]) != (-math.inf, math.inf):
        return False
    channels = editor.shape(conv.output)[1]
    numbers = np.repeat(np.array([[1.0], [0.0]]), channels, axis=1)
    return _replaced(editor, node, conv, numbers, activation=activation)


def _conv(editor: Editor, name: str) -> Node | None:
    """A convolution of codes that gives floats to one node."""
    conv = editor.private_producer(name, "QLinearConv")
    return conv if conv is not None and conv.attributes["dtype"] == FLOAT32 else None


def _numbers(editor: Editor, conv: Node) -> Array | None:
    """Factors and summands behind a convolution's activation, (2, K) float64; None without one."""
    name = conv.input(5)
    return editor.constants[name].astype(np.float64) if name else None


def _affine(editor: Editor, node: Node, index: int) -> bool:
    """Factors or summands behind an activation."""
    conv, constant = _conv(editor, node.inputs[index]), node.inputs[1 - index]
    numbers = None if conv is None else _numbers(editor, conv)
    if conv is None or numbers is None or constant not in editor.constants:
        return False
    kind = editor.types[conv.output]
    fits = channel_extent(editor.shape(constant), kind.shape, 1)
    if not fits or editor.types[node.output] != kind:
        return False
    given = channel_vector(editor.constants[constant], numbers.shape[1])
    factor, summand = numbers
    made = np.stack(affine_behind(node, factor, summand, given, first=index == 1))
    return _replaced(editor, node, conv, made)


def _quantised(editor: Editor, conv: Node, node: Node) -> bool:
    """Let the convolution make codes of its activation's results."""
    scale, zero = (editor.constants.get(name) for name in node.inputs[1:3])
    numbers = _numbers(editor, conv)
    if numbers is None or scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return False
    dtype, step = editor.types[node.output].dtype, float(scale.reshape(-1)[0])
    if dtype not in CODES or not (math.isfinite(step) and step > 0.0):
        return False
    return _replaced(
        editor,
        node,
        conv,
        numbers / step,
        dtype=dtype,
        y_zero=int(zero.reshape(-1)[0]),
        low=node.attributes.get("low", int(dtype.low)),
        high=node.attributes.get("high", int(dtype.high)),
    )


def _replaced(editor: Editor, node: Node, conv: Node, numbers: Array, **changes: object) -> bool:
    """Replace a node by the convolution with other numbers, if these are finite in float32."""
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
    if not np.isfinite(single).all() or not editor.may_add(single.nbytes):
        return False
    affine = editor.constant(node.output, single)
    inputs = (*(*conv.inputs, "", "")[:5], affine)
    new = node_like(conv, inputs=inputs, outputs=node.outputs, attributes=changes)
    editor.replace(node, new)
    return True


@rewriting
def pad_codes(editor: Editor, node: Node) -> bool:
    """Let a Pad write the zero's code round the input of a QLinearConv that pads with it.

    Kernels leave out the taps in the padding, as if it were code 0. Equal Pads of one input become
    one by `merge_common`.

    Requires: a verified graph.
    Ensures: a QLinearConv pads only where its input's zero is code 0.
    """
    if node.op != "QLinearConv":
        return False
    zero, pads = node.attributes["x_zero"], node.attributes["pads"]
    if not zero or not any(pads):
        return False
    kind, rank = editor.types[node.inputs[0]], len(pads) // 2
    around = (0, 0, *pads[:rank], 0, 0, *pads[rank:])
    ends = zip(kind.shape, around[: rank + 2], around[rank + 2 :], strict=True)
    padded = TensorType(
        tuple(extent + before + after for extent, before, after in ends), kind.dtype
    )
    name = editor.value(f"{node.inputs[0]}/padded", padded)
    attributes = frozen({"pads": around, "mode": "constant", "value": float(zero)})
    pad = Node("Pad", node.inputs[:1], (name,), attributes, node.name)
    conv = node_like(node, inputs=(name, *node.inputs[1:]), attributes={"pads": (0,) * len(pads)})
    editor.replace(node, pad, conv)
    return True
