"""Compute x + x·s as x·(1 + s) where s is small: one pass over x, not two."""

from __future__ import annotations

import numpy as np

from leanconv.graph.edit import Editor, frozen, rewrite
from leanconv.graph.ir import Graph, Node

_TIMES_SMALLER = 4  # elements of x for one of s, at least


def factor_sums(graph: Graph) -> Graph:
    """Turn Add(x, Mul(x, s)) into Mul(x, Add(s, 1)), s being computed and much smaller than x.

    That is how attention to channels (squeeze and excite) stands beside a shortcut; an activation
    before s takes in the 1.

    Left alone: products that others read as well, and constants, which `fold_batch_norm` takes.

    Requires: a verified graph, before `fuse_affine`.
    Ensures: no such sum remains.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
    if node.op != "Add":
        return False
    for index in (0, 1):
        x, product = node.inputs[1 - index], editor.private_producer(node.inputs[index], "Mul")
        if product is None or x not in product.inputs or x in editor.constants:
            continue
        factor = product.inputs[1 - product.inputs.index(x)]
        kind = editor.types[factor]
        if factor in editor.constants or _TIMES_SMALLER * kind.elements > editor.types[x].elements:
            continue
        if editor.shape(node.output) != editor.shape(x):
            continue
        one = editor.constant(f"{factor}.one", np.ones(1, kind.dtype))
        more = editor.value(factor, kind)
        editor.replace(
            node,
            Node("Add", (factor, one), (more,), frozen({}), product.name),
            Node("Mul", (x, more), node.outputs, frozen({}), node.name),
        )
        return True
    return False
