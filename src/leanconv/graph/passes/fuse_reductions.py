"""Make one node of a reduction and what it reduces, each number without its sign or squared."""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.graph.edit import Editor, node_like, rewrite
from leanconv.graph.ir import Graph, Node
from leanconv.types import FLOATS

_OF: Mapping[tuple[str, str], str] = {
    ("ReduceSum", "Abs"): "ReduceL1",
    ("ReduceSum", "Mul"): "ReduceSumSquare",
    ("ReduceSum", "Pow"): "ReduceSumSquare",
    ("ReduceMean", "Mul"): "ReduceMeanSquare",
    ("ReduceMean", "Pow"): "ReduceMeanSquare",
}


def fuse_reductions(graph: Graph) -> Graph:
    """Make a ReduceL1 of Abs and ReduceSum; of a square and a sum or a mean, that of squares.

    Left alone: what others read, too; integers.

    Requires: a verified graph, after the patterns that begin with such a mean.
    Ensures: what is reduced is read, and written nowhere. The answers are the same bits.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
    if node.op not in ("ReduceSum", "ReduceMean"):
        return False
    before = editor.private_producer(node.inputs[0], "Abs", "Mul", "Pow")
    made = before and _OF.get((node.op, before.op))
    if not before or not made or editor.types[node.output].dtype not in FLOATS:
        return False
    x = before.inputs[0]
    if before.op == "Mul" and before.inputs[1] != x:
        return False
    if before.op == "Pow" and editor.uniform(before.inputs[1]) != 2:
        return False
    if editor.shape(x) != editor.shape(before.output):  # an exponent of more axes adds some
        return False
    editor.replace(node, node_like(node, op=made, inputs=(x,)))
    return True
