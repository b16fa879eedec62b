"""Remove the nodes and constants that no output depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from leanconv.graph.edit import part_nodes
from leanconv.graph.ir import Graph, Node

_T = TypeVar("_T")


def drop_dead(graph: Graph) -> Graph:
    """Keep the nodes that an output depends on, and the constants that those nodes read.

    Requires: a verified graph.
    Ensures: every node and constant is needed, every part of a Split, and the places of a MaxPool;
        inputs and outputs are as before.
    """
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        if node.op == "Split" and not needed.issuperset(node.outputs):
            parts = part_nodes(node, graph.types[node.inputs[0]].shape)
            kept += [part for part in parts if part.output in needed]
        elif node.op == "MaxPoolWithIndices" and node.outputs[1] not in needed:
            kept.append(_without_places(node))
        else:
            kept.append(node)
            needed.update(node.outputs)
        needed.update(node.inputs)
    needed.update(graph.inputs)
    return replace(
        graph,
        nodes=tuple(reversed(kept)),
        types=_only(graph.types, needed),
        constants=_only(graph.constants, needed),
    )


def _without_places(node: Node) -> Node:
    held = {name: value for name, value in node.attributes.items() if name != "storage_order"}
    return replace(node, op="MaxPool", outputs=node.outputs[:1], attributes=MappingProxyType(held))


def _only(items: Mapping[str, _T], names: set[str]) -> Mapping[str, _T]:
    return MappingProxyType({name: item for name, item in items.items() if name in names})
