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

    The factor and the mask may be missing. Factors of queries and keys become the product's; keys
    that are only transposed before are read as they were.

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
    (q, of_q), (k, of_k) = _without_factor(editor, q), _without_factor(editor, k)
    before = editor.private_producer(k, "Transpose")
    transposed, scale = before is not None and before.attributes["perm"] == swapped, of_q * of_k
    if before is not None and transposed:
        k, factor = _without_factor(editor, before.inputs[0])
        scale *= factor
    scale *= scores.scale
    if not math.isfinite(scale):
        return False
    inputs = (q, k, v, scores.mask) if scores.mask else (q, k, v)
    attributes = frozen({"scale": scale, "transposed": transposed})
    editor.replace(node, Node("Attention", inputs, node.outputs, attributes, node.name))
    return True


def _without_factor(editor: Editor, name: str) -> tuple[str, float]:
    """What a private product with one number multiplies, and the number; else the value and 1."""
    scaled = editor.private_producer(name, "Mul", "Div")
    for index in () if scaled is None else (0, 1) if scaled.op == "Mul" else (0,):
        assert scaled is not None, "there is a product"
        inner, factor = scaled.inputs[index], editor.uniform(scaled.inputs[1 - index])
        if factor and inner not in editor.constants and editor.shape(inner) == editor.shape(name):
            return inner, factor if scaled.op == "Mul" else 1 / factor
    return name, 1.0


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
    inner, factor = _without_factor(editor, name)
    product = editor.private_producer(inner, "MatMul")
    return None if product is None else (product, factor)
