"""Make one node of a product, its softmax and a second product: attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leanconv.graph.edit import Editor, frozen, rewrite
from leanconv.graph.ir import Graph, Node
from leanconv.types import FLOATS


@dataclass
class _Scores:
    """How scores are made: product(q, k) · scale + mask."""

    product: Node
    scale: float
    mask: str


def fuse_attention(graph: Graph) -> Graph:
    """Make an Attention of MatMul, a factor, a mask that is added, Softmax and MatMul.

    The factor and the mask may be missing. Keys that are only transposed before are read as they
    were.

    Left alone: what others read between, a softmax over another axis than the last, operands that
    are constants or are broadcast to each other's batches, masks of a larger batch than the scores.

    Requires: a verified graph.
    Ensures: such products hold no square matrix.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
    if node.op != "MatMul":
        return False
    softmax = editor.private_producer(node.inputs[0], "Softmax")
    v = node.inputs[1]
    if softmax is None or v in editor.constants:
        return False
    rank = len(editor.shape(v))
    if rank < 2 or softmax.attributes["axis"] != rank - 1:
        return False
    scores = _scores(editor, softmax.inputs[0])
    if scores is None or scores.product.inputs[1] in editor.constants:
        return False
    q, k = scores.product.inputs
    shapes = [editor.shape(name) for name in (q, k, v)]
    types = {editor.types[name].dtype for name in (q, k, v)}
    if any(s[:-2] != shapes[0][:-2] or len(s) != rank for s in shapes) or not types <= {*FLOATS}:
        return False
    if 0 in (*shapes[0], *shapes[1], *shapes[2]):
        return False
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    before = editor.private_producer(k, "Transpose")
    transposed = before is not None and before.attributes["perm"] == swapped
    if before is not None and transposed:
        k = before.inputs[0]
    inputs = (q, k, v, scores.mask) if scores.mask else (q, k, v)
    attributes = frozen({"scale": scores.scale, "transposed": transposed})
    editor.replace(node, Node("Attention", inputs, node.outputs, attributes, node.name))
    return True


def _scores(editor: Editor, name: str) -> _Scores | None:
    """What a softmax reads, if it is a product that nothing else reads."""
    scale, mask = 1.0, ""
    added = editor.private_producer(name, "Add")
    if added is not None:
        shape = editor.shape(name)
        for index in (0, 1):
            inner, other = added.inputs[index], added.inputs[1 - index]
            if editor.shape(inner) == shape and _factored(editor, inner) is not None:
                name, mask = inner, other
                break
        else:
            return None
    found = _factored(editor, name)
    if found is None:
        return None
    product, scale = found
    return _Scores(product, scale, mask)


def _factored(editor: Editor, name: str) -> tuple[Node, float] | None:
    """A private product, and the one number that it is multiplied with."""
    product = editor.private_producer(name, "MatMul")
    if product is not None:
        return product, 1.0
    scaled = editor.private_producer(name, "Mul", "Div")
    if scaled is None:
        return None
    for index in (0, 1) if scaled.op == "Mul" else (0,):
        factor = editor.uniform(scaled.inputs[1 - index])
        product = editor.private_producer(scaled.inputs[index], "MatMul")
        same = editor.shape(scaled.inputs[index]) == editor.shape(name)
        if factor and product is not None and same:
            scale = factor if scaled.op == "Mul" else 1 / factor
            return (product, scale) if math.isfinite(scale) else None
    return None
