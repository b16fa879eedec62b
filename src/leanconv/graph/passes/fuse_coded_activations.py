"""Let a convolution of codes apply the activation that follows it, and quantise its result."""

from __future__ import annotations

import math

import numpy as np

from leanconv.graph.activations import activation_of
from leanconv.graph.edit import (
    Array,
    Editor,
    channel_extent,
    channel_vector,
    node_like,
    rewrite,
)
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.quantised import CODES
from leanconv.types import FLOAT32


def fuse_coded_activations(graph: Graph) -> Graph:
    """Move what follows a QLinearConv that gives floats into it, one node after the other.

    - An activation of one input, unless there are bounds before it.
    - A Mul, Add or Sub behind the activation, of one number or one for each channel.
    - A QuantizeLinear of one scale behind these: codes are made of what the activation gives.

    Left alone: floats that others read as well, PRelu, a second activation, numbers that are not
    finite. Without an activation, `recognise_quantised` has done the same exactly.

    Requires: a verified graph, after `recognise_activations`.
    Ensures: such convolutions carry the activation, and give codes where these are made of them.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
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
    if node.op == "Mul":
        numbers *= given
    elif node.op == "Add":
        numbers[1] += given
    elif index == 0:
        numbers[1] -= given
    else:
        numbers = np.stack([-numbers[0], given - numbers[1]])
    return _replaced(editor, node, conv, numbers)


def _quantised(editor: Editor, conv: Node, node: Node) -> bool:
    """Codes of what an activation gives."""
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
