"""Padding of convolutions of codes whose zero is another code than 0: nodes in front of them."""

from __future__ import annotations

from leanconv.graph.edit import Editor, frozen, node_like, rewrite
from leanconv.graph.ir import Graph, Node, TensorType


def pad_codes(graph: Graph) -> Graph:
    """Let a Pad write the zero's code round the input of a QLinearConv that pads with it.

    Kernels leave out the taps in the padding, as if it were code 0. Equal Pads of one input become
    one by `merge_common`.

    Requires: a verified graph.
    Ensures: a QLinearConv pads only where its input's zero is code 0.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
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
