"""Let a convolution add the other branch of a residual connection."""

from __future__ import annotations

from dataclasses import replace

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


def fuse_outer_residual(graph: Graph) -> Graph:
    """The same for convolutions with an activation: act(conv) + residual.

    Requires: a verified graph, after `fuse_activations`.
    Ensures: such convolutions carry the other branch, and their activation says that it is first.
    """
    return rewrite(graph, _outer_rule)


def _rule(editor: Editor, node: Node) -> bool:
    found = _addends(editor, node, activated=False)
    if found is None:
        return False
    conv, residual = found
    inputs = (*(*conv.inputs, "")[:3], residual)
    editor.replace(node, node_like(conv, inputs=inputs, outputs=node.outputs))
    return True


def _outer_rule(editor: Editor, node: Node) -> bool:
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
