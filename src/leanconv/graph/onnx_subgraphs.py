"""The graphs that nodes of a file hold: what of them is needed, with functions replaced.

Names in such a graph are its own, and those of the graphs around it that nothing in it defines:
these are captured, and a node needs what its graphs capture as it needs its inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from types import MappingProxyType

from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph.limits import Limits
from leanconv.graph.located import located_inside
from leanconv.graph.onnx_flow import needed_nodes
from leanconv.graph.onnx_functions import Functions
from leanconv.graph.onnx_nodes import MOST_NESTED, RawGraph, RawNode
from leanconv.graph.onnx_operations import check_operations


class Subgraphs:
    """Completes the nodes of a file's graphs.

    Args:
        functions: of the file.
        limits: how many nodes all graphs together may have.
    """

    def __init__(self, functions: Functions, limits: Limits) -> None:
        self._functions, self._limits = functions, limits
        self._left = limits.nodes

    def complete(
        self,
        nodes: Sequence[RawNode],
        given: Collection[str],
        outputs: Sequence[str],
        depth: int = 0,
    ) -> list[RawNode]:
        """The nodes on which outputs depend, calls of functions replaced, also in their graphs.

        Args:
            nodes: of a graph.
            given: names of its inputs, its initialisers and what it captures.
            outputs: of the graph.
            depth: how many nodes hold it, one within the other.

        Raises:
            ModelError: a name is defined twice or nowhere, nodes form a circle, or there are too
                many of them, or graphs that lie too deep in each other.
        """
        raw = needed_nodes(nodes, given, outputs)
        if any(self._functions.calls(node) for node in raw):
            taken = set(given).union(*(node.outputs for node in raw))
            raw = needed_nodes(self._functions.expanded(raw, taken), given, outputs)
        self._left -= len(raw)
        if self._left < 0:
            raise ModelError(
                f"the graphs of the file have over {self._limits.nodes} nodes together; expected "
                "at most that many; raise the limit `nodes` if you trust the file"
            )
        if not any(node.graphs for node in raw):
            return raw
        return needed_nodes([self._inside(node, depth) for node in raw], given, outputs)

    def _inside(self, node: RawNode, depth: int) -> RawNode:
        """The node with its graphs completed."""
        if not node.graphs:
            return node
        if depth == MOST_NESTED:
            raise ModelError(
                f"{node.where} lies in {depth} graphs, one within the other; expected at most "
                f"{MOST_NESTED - 1}: functions that come to an end"
            )
        graphs = {}
        for name, graph in node.graphs.items():
            try:
                graphs[name] = self._graph(graph, depth + 1)
            except LeanConvError as error:
                raise located_inside(error, f"{node.where}, {name}") from error
        return replace(node, graphs=MappingProxyType(graphs))

    def _graph(self, graph: RawGraph, depth: int) -> RawGraph:
        given = {*graph.inputs, *graph.tensors, *graph.captured}
        nodes = self.complete(graph.nodes, given, tuple(dict.fromkeys(graph.outputs)), depth)
        needed = {*graph.outputs, *(name for node in nodes for name in node.reads)}
        refused = None
        try:
            check_operations(nodes)
        except UnsupportedError as error:  # it may never be computed
            refused = error
        return replace(
            graph,
            nodes=tuple(nodes),
            tensors={name: data for name, data in graph.tensors.items() if name in needed},
            captured={name: outer for name, outer in graph.captured.items() if name in needed},
            refused=refused,
        )
