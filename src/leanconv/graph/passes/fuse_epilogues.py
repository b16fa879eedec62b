"""Let a convolution do operations around it: a residual, an activation, a factor, a summand.

Those of codes quantise and pad, too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np

from leanconv.graph.edit import (
    Array,
    Editor,
    channel_extent,
    channel_slope,
    channel_vector,
    conv_behind,
    frozen,
    node_like,
    rewriting,
)
from leanconv.graph.ir import Node, TensorType
from leanconv.graph.ops.pointwise import activation_of
from leanconv.graph.ops.quantised import CODES
from leanconv.spec.requantise import ResidualCodes
from leanconv.types import FLOAT32

N = TypeVar("N", float, Array)


@rewriting
def hoist_activations(editor: Editor, node: Node) -> bool:
    """Turn activation(Reshape(conv)) into Reshape(activation(conv)).

    A fully connected layer is a Conv and a Reshape by now; this brings its activation to the Conv,
    and the Reshape to that of the next layer. Several activations in a row move one by one.

    Left alone: values that others read as well, and a PRelu whose slopes are not along the
    convolution's channels.

    Requires: a verified graph, after `dense_to_conv`.
    Ensures: no activation that could move follows a private Reshape of a private Conv.
    """
    if activation_of(node) is None:
        return False
    view = editor.private_producer(node.inputs[0], "Reshape")
    if view is None:
        return False
    source = view.inputs[0]
    before = editor.producer(source)
    if before is None or not editor.is_private(source):
        return False
    if before.op not in ("Conv", "ConvTranspose") and activation_of(before) is None:
        return False
    slope: tuple[str, ...] = ()
    if node.op == "PRelu":
        moved = _moved_slope(editor, node)
        if moved is None:
            return False
        slope = (moved,)
    active = editor.value(node.output, editor.types[source])
    editor.replace(
        node,
        node_like(node, inputs=(source, *slope), outputs=(active,)),
        node_like(view, inputs=(active,), outputs=node.outputs),
    )
    return True


def _moved_slope(editor: Editor, node: Node) -> str | None:
    """The slopes of a PRelu for the layout of the convolution behind its Reshape."""
    found = conv_behind(editor, node.inputs[0])
    slope = channel_slope(editor, node, found.axis) if found else None
    if found is None or slope is None:
        return None
    spatial = len(editor.shape(found.conv.output)) - 2
    return editor.constant(node.inputs[1], slope.reshape(-1, *(1,) * spatial))


@rewriting
def fuse_residual(editor: Editor, node: Node) -> bool:
    """Move an Add of two tensors of one shape into a Conv whose only user it is.

    The Conv then takes the place of the Add, so that both of its operands are computed before it.
    When both are convolutions the later one takes it.

    Left alone: an Add that broadcasts or adds a constant, a Conv with an activation or a residual
    already (its activation comes first), or read by others; ConvTranspose.

    Requires: a verified graph, before `fuse_activations`.
    Ensures: such convolutions carry the other branch as fourth input.
    """
    found = _addends(editor, node, activated=False)
    if found is None:
        return False
    conv, residual = found
    inputs = (*(*conv.inputs, "")[:3], residual)
    editor.replace(node, node_like(conv, inputs=inputs, outputs=node.outputs))
    return True


@rewriting
def fuse_outer_residual(editor: Editor, node: Node) -> bool:
    """Move an Add into a Conv with an activation: act(conv) + residual.

    Requires: a verified graph, after `fuse_activations`.
    Ensures: such convolutions carry the other branch, and their activation says that it is first.
    """
    found = _addends(editor, node, activated=True)
    if found is None:
        return False
    conv, residual = found
    inputs = (*(*conv.inputs, "")[:3], residual, *conv.inputs[4:])
    activation = replace(conv.attributes["activation"], before_residual=True)
    attributes = {"activation": activation}
    new = node_like(conv, inputs=inputs, outputs=node.outputs, attributes=attributes)
    editor.replace(node, new)
    return True


def _addends(editor: Editor, node: Node, *, activated: bool) -> tuple[Node, str] | None:
    """The later convolution that an Add of two tensors of one shape reads, and the other tensor."""
    if node.op != "Add":
        return None
    for index in sorted((0, 1), key=lambda i: -editor.position(node.inputs[i])):
        conv, residual = editor.producer(node.inputs[index]), node.inputs[1 - index]
        if conv is None or not _may_take(editor, conv, residual):
            continue
        if (conv.attributes["activation"] is not None) == activated:
            return conv, residual
    return None


def _may_take(editor: Editor, conv: Node, residual: str) -> bool:
    return (
        conv.op == "Conv"
        and editor.is_private(conv.output)
        and not conv.input(3)
        and residual not in editor.constants
        and editor.shape(residual) == editor.shape(conv.output)
    )


@rewriting
def fuse_activations(editor: Editor, node: Node) -> bool:
    """Move an activation into the Conv or ConvTranspose whose only user it is.

    Left alone: a second activation on top of the first, PRelu with slopes that are not along
    the channels, and convolutions that others read as well.

    Requires: a verified graph, after `fuse_residual`: the activation comes after the residual.
    Ensures: such convolutions carry the activation, and the slopes of PRelu as fifth input.
    """
    activation = activation_of(node)
    if activation is None:
        return False
    conv = editor.private_producer(node.inputs[0], "Conv", "ConvTranspose")
    if conv is None or conv.attributes["activation"] is not None:
        return False
    inputs = conv.inputs
    if node.op == "PRelu":
        slope = channel_slope(editor, node, 1)
        if slope is None:
            return False
        inputs = (*(*inputs, "", "")[:4], editor.constant(node.inputs[1], slope))
    editor.replace(
        node,
        node_like(conv, inputs=inputs, outputs=node.outputs, attributes={"activation": activation}),
    )
    return True


@rewriting
def fuse_affine(editor: Editor, node: Node) -> bool:
    """Move a Mul, Add or Sub with one constant number into the convolution with an activation.

    Several in a row move one by one.

    Left alone: what follows a convolution without an activation, whose weights take it in (see
    `fold_batch_norm`), or one whose residual comes after its activation; numbers for each channel;
    values that others read as well; factors and summands that are not finite.

    Requires: a verified graph, after `fuse_activations`.
    Ensures: such convolutions carry both numbers with their activation.
    """
    if node.op not in ("Mul", "Add", "Sub"):
        return False
    for index in (0, 1):
        number = editor.uniform(node.inputs[1 - index])
        conv = editor.private_producer(node.inputs[index], "Conv", "ConvTranspose")
        if number is None or conv is None:
            continue
        affine = _affine(editor, conv, node, number, first=index == 1)
        if affine is None:
            return False
        activation = replace(conv.attributes["activation"], affine=affine)
        attributes = {"activation": activation}
        editor.replace(node, node_like(conv, outputs=node.outputs, attributes=attributes))
        return True
    return False


def _affine(
    editor: Editor, conv: Node, node: Node, number: float, *, first: bool
) -> tuple[float, float] | None:
    """Factor and summand of a convolution with a node behind it; None if it cannot have them."""
    activation, kind = conv.attributes["activation"], editor.types[conv.output]
    if activation is None or activation.before_residual or editor.types[node.output] != kind:
        return None
    factor, summand = activation.affine or (1.0, 0.0)
    factor, summand = affine_behind(node, factor, summand, number, first=first)
    rounded = np.array([factor, summand]).astype(kind.dtype)
    return (factor, summand) if np.isfinite(rounded).all() else None


def affine_behind(node: Node, factor: N, summand: N, number: N, *, first: bool) -> tuple[N, N]:
    """Factor and summand with a Mul, Add or Sub behind them, whose operand a number is.

    Args:
        node: the operation.
        factor, summand: before it: numbers, or one for each channel, as `number` is.
        number: the other operand.
        first: whether it is the first one.
    """
    if node.op == "Mul":
        return factor * number, summand * number
    if node.op == "Add":
        return factor, summand + number
    return (-factor, number - summand) if first else (factor, summand - number)


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
        if conv is not None and _may_add(editor, conv, residual, node, index):
            editor.replace(node, _fused(conv, residual, node, index))
            return True
    return False


def _may_add(editor: Editor, conv: Node, residual: str, node: Node, index: int) -> bool:
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
        return any(_coded_affine(editor, node, index) for index in (0, 1))
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


def _coded_affine(editor: Editor, node: Node, index: int) -> bool:
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
