"""Let a convolution add the other branch of a residual connection."""

from __future__ import annotations

from leanconv.graph.edit import Editor, node_like, rewrite
from leanconv.graph.ir import Graph, Node


def fuse_residual(graph: Graph) -> Graph:
    """Move an Add of two tensors of one shape into a Conv whose only user it is.

    The Conv then takes the place of the Add, so that both of its operands are computed before it.
    When both are convolutions the later one takes it.

    Left alone: an Add that broadcasts or adds a constant, a Conv with an activation or a residual
    already (its activation comes first), or read by others; ConvTranspose.

    Requires: a verified graph, before `fuse_activations`.
    Ensures: such convolutions carry the other branch as fourth input.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
    if node.op != "Add":
        return False
    for index in sorted((0, 1), key=lambda i: -editor.position(node.inputs[i])):
        conv, residual = editor.producer(node.inputs[index]), node.inputs[1 - index]
        if conv is not None and _may_take(editor, conv, residual):
            inputs = (*(*conv.inputs, "")[:3], residual)
            editor.replace(node, node_like(conv, inputs=inputs, outputs=node.outputs))
            return True
    return False


def _may_take(editor: Editor, conv: Node, residual: str) -> bool:
    (out,) = conv.outputs
    return (
        conv.op == "Conv"
        and editor.is_private(out)
        and conv.attributes["activation"] is None
        and not conv.input(3)
        and residual not in editor.constants
        and editor.shape(residual) == editor.shape(out)
    )
