"""Compute once what several nodes compute alike (common subexpressions)."""

from __future__ import annotations

from collections.abc import Hashable

from leanconv.graph.edit import Editor, rewrite
from leanconv.graph.ir import Graph, Node
from leanconv.symbolic import key

_COMMUTATIVE = frozenset({"Add", "Mul", "Min", "Max"})


def merge_common(graph: Graph) -> Graph:
    """Let identical nodes (same operation, inputs and attributes) share one result.

    Requires: a verified graph.
    Ensures: no two nodes are identical, but for those that define two outputs of the network.
    """
    seen: dict[Hashable, tuple[str, ...]] = {}

    def rule(editor: Editor, node: Node) -> bool:
        key = _key(node)
        first = seen.setdefault(key, node.outputs)
        return first != node.outputs and editor.alias(node, *first)

    return rewrite(graph, rule)


def _key(node: Node) -> Hashable:
    inputs = tuple(sorted(node.inputs)) if node.op in _COMMUTATIVE else node.inputs
    return (
        node.op,
        inputs,
        tuple((name, key(value)) for name, value in sorted(node.attributes.items())),
    )
