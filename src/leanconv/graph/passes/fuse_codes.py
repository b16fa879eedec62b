"""Let a convolution of codes add the other branch of a residual connection."""

from __future__ import annotations

from leanconv.graph.edit import Editor, node_like, rewrite
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.quantised import CODES
from leanconv.spec.requantise import ResidualCodes


def fuse_codes(graph: Graph) -> Graph:
    """Move a QLinearAdd of two tensors of one shape into a QLinearConv whose only user it is.

    The QLinearConv then takes the place of the QLinearAdd, so that both of its operands are
    computed before it, and rounds twice, as both of them do. When both are convolutions the later
    one takes it.

    Left alone: one that broadcasts, adds a constant, gives another type of codes or takes another
    zero than the convolution gives; a QLinearConv that is read by others or has a residual already.

    Requires: a verified graph.
    Ensures: such convolutions carry the other branch as fifth input.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
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
    """The convolution that does what it and the addition do, whose operand `index` it is."""
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
