"""Graphs that nodes of a graph hold: the body of a loop.

A region is closed: whatever its graph reads is an input of its own or a constant of its own. What
a file's body captures from around it are further inputs of the node, so that whoever follows the
values of a graph (passes, lifetimes, the search for plans) need not look inside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.canonical import canonical_text
from leanconv.graph.ir import Graph, Node
from leanconv.graph.open_sizes import graph_filler
from leanconv.records import cached_property, replace
from leanconv.symbolic import Fill, Holes


class Region:
    """A graph as an attribute of a node.

    Attributes:
        graph: the body; its inputs are the node's, in order.
        plans: the planner's results for the graph, by all that they depend on.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.plans: dict[Hashable, Any] = {}

    def filler_with(self, holes: Holes) -> Fill | None:
        """Return a function that fills in other extents; None if none is open (`Holes.filler`)."""
        fill = graph_filler(self.graph, holes)
        holes.filler(tuple(self.graph.constants.values()))  # those of symbols need numbers
        return fill and (lambda numbers: Region(fill(numbers)))

    def __repr__(self) -> str:
        return f"Region({self._digest})"  # part of keys: equal for graphs that are planned alike

    @cached_property
    def _digest(self) -> str:
        """A digest of the graph's operations, the values of its constants left out."""
        graph = self.graph
        nodes = [
            (node.op, node.inputs, node.outputs, sorted(node.attributes.items()))
            for node in graph.nodes
        ]
        types = sorted((name, str(kind)) for name, kind in graph.types.items())
        text = canonical_text((graph.inputs, graph.outputs, nodes, types, sorted(graph.constants)))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def region_of(node: Node) -> Region | None:
    """The region that a node holds, None for most."""
    found = node.attributes.get("body")
    return found if isinstance(found, Region) else None


def regions_of(graph: Graph) -> Iterator[Region]:
    """The regions that nodes of a graph hold, but not those inside them."""
    return (region for node in graph.nodes if (region := region_of(node)) is not None)


def all_constants(graph: Graph) -> Iterator[np.ndarray]:
    """The constants of a graph and of those that its nodes hold."""
    yield from graph.constants.values()
    for region in regions_of(graph):
        yield from all_constants(region.graph)


def with_regions(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """The graph with the results of `change` for its regions' graphs; itself if it has none."""
    if next(regions_of(graph), None) is None:
        return graph
    return graph.edited(nodes=tuple(_with_region(node, change) for node in graph.nodes))


def _with_region(node: Node, change: Callable[[Graph], Graph]) -> Node:
    region = region_of(node)
    if region is None:
        return node
    changed = {**node.attributes, "body": Region(change(region.graph))}
    return replace(node, attributes=MappingProxyType(changed))
