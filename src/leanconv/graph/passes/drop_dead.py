"""Remove the nodes and constants that no output depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from leanconv.graph.edit import node_like, part_nodes
from leanconv.graph.ir import Graph, Node
from leanconv.graph.regions import Region

_T = TypeVar("_T")


def drop_dead(graph: Graph) -> Graph:
    """Keep the nodes that an output depends on, and the constants that those nodes read.

    Requires: a verified graph.
    Ensures: every node and constant is needed, every part of a Split, the places of a MaxPool, and
        what a Loop stacks and captures; inputs and outputs are as before.
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
            if node.op == "Loop":
                node = _without_unread(node, needed)
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


def _without_unread(node: Node, needed: set[str]) -> Node:
    """A loop that stacks only what is read, and captures only what its body reads."""
    states, body = node.attributes["states"], node.attributes["body"].graph
    stacked = [n for n, name in enumerate(node.outputs) if n < states or name in needed]
    if len(stacked) < len(node.outputs):
        body = drop_dead(replace(body, outputs=tuple(body.outputs[n] for n in stacked)))
    read = {*body.outputs, *(name for each in body.nodes for name in each.inputs)}
    given = [n for n, name in enumerate(body.inputs) if n < states or name in read]
    if len(stacked) == len(node.outputs) and len(given) == len(node.inputs):
        return node
    unread = set(body.inputs).difference(body.inputs[n] for n in given)
    types = _only(body.types, set(body.types) - unread)
    body = replace(body, inputs=tuple(body.inputs[n] for n in given), types=types)
    inputs = tuple(node.inputs[n] for n in given)
    outputs = tuple(node.outputs[n] for n in stacked)
    return node_like(node, inputs=inputs, outputs=outputs, attributes={"body": Region(body)})


def _only(items: Mapping[str, _T], names: set[str]) -> Mapping[str, _T]:
    return MappingProxyType({name: item for name, item in items.items() if name in names})
