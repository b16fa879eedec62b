"""Let a convolution do operations behind it: a residual, an activation, a factor, a summand."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from leanconv.graph.edit import Array, Editor, channel_slope, conv_behind, node_like, rewriting
from leanconv.graph.ir import Node
from leanconv.graph.ops.pointwise import activation_of

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
