"""Let a convolution do what follows its activation: a factor and a summand for all elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leanconv.graph.edit import Editor, node_like, rewrite
from leanconv.graph.ir import Graph, Node


def fuse_affine(graph: Graph) -> Graph:
    """Move a Mul, Add or Sub with one constant number into the convolution with an activation.

    Several in a row move one by one.

    Left alone: what follows a convolution without an activation, whose weights take it in (see
    `fold_batch_norm`), or one whose residual comes after its activation; numbers for each channel;
    values that others read as well; factors and summands that are not finite.

    Requires: a verified graph, after `fuse_activations`.
    Ensures: such convolutions carry both numbers with their activation.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
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
    if node.op == "Mul":
        factor, summand = factor * number, summand * number
    elif node.op == "Add":
        summand += number
    elif first:
        factor, summand = -factor, number - summand
    else:
        summand -= number
    rounded = np.array([factor, summand]).astype(kind.dtype)
    return (factor, summand) if np.isfinite(rounded).all() else None
