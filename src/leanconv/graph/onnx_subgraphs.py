"""The graphs that nodes of a file hold: what of them is needed, with functions replaced.

Names in such a graph are its own, and those of the graphs around it that nothing in it defines:
these are captured, and a node needs what its graphs capture as it needs its inputs.

What outputs need is found by the names of values alone, with an order in which nodes can run.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import MappingProxyType

from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph.file_errors import located_inside, shown
from leanconv.graph.file_graph import FileGraph, FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_functions import Functions
from leanconv.graph.onnx_nodes import MOST_NESTED
from leanconv.graph.onnx_operations import check_operations


def needed_nodes(
    nodes: Sequence[FileNode], given: Collection[str], outputs: Sequence[str]
) -> list[FileNode]:
    """The nodes on which the outputs depend, in an order in which they can run.

    Args:
        nodes: of the file, whose order is kept where it is one that they can run in.
        given: names of inputs and initialisers.
        outputs: of the graph.

    Raises:
        ModelError: a name is defined twice or nowhere, or the nodes form a circle.
    """
    producer = _producers(nodes, given)
    _check_outputs(outputs, producer)
    needed = {name for name in outputs if producer[name] >= 0}
    kept = []
    for node in reversed(_ordered(nodes, producer)):
        if any(name in needed for name in node.outputs):
            kept.append(node)
            needed.update(node.reads)
    return kept[::-1]


def _producers(nodes: Sequence[FileNode], given: Collection[str]) -> dict[str, int]:
    """The index of the node that defines each value; -1 for inputs and constants."""
    producer: dict[str, int] = dict.fromkeys(given, -1)
    for index, node in enumerate(nodes):
        for name in node.outputs:
            if name in producer:
                raise ModelError(
                    f"node {node.name!r} ({shown(node.bare_op)}) defines {shown(name)!r}, which is "
                    "defined before; expected every value to be defined once"
                )
            if name:
                producer[name] = index
    for node in nodes:
        for name in node.reads:
            if name and name not in producer:
                raise ModelError(
                    f"node {node.name!r} ({shown(node.bare_op)}) reads {shown(name)!r}, which "
                    "nothing defines; expected an input, an initializer or the output of a node"
                )
    return producer


def _check_outputs(outputs: Sequence[str], producer: dict[str, int]) -> None:
    if not outputs:
        raise ModelError("the graph has no outputs; expected at least one")
    if len(set(outputs)) != len(outputs):
        raise ModelError("an output is given twice; expected distinct outputs")
    lost = [name for name in outputs if name not in producer]
    if lost:
        raise ModelError(
            f"output {shown(lost[0])!r} is defined by nothing; expected an input, an initializer "
            "or the output of a node"
        )


def _ordered(nodes: Sequence[FileNode], producer: dict[str, int]) -> list[FileNode]:
    """Sort the nodes topologically, keeping the file's order as far as possible."""
    if all(
        producer[name] < index for index, node in enumerate(nodes) for name in node.reads if name
    ):
        return list(nodes)
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for source in {producer[name] for name in node.reads if name} - {-1}:
            waiting[index] += 1
            readers[source].append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    result = []
    while ready:
        index = heapq.heappop(ready)
        result.append(nodes[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(result) != len(nodes):
        stuck = next(node for node, count in zip(nodes, waiting, strict=True) if count)
        raise ModelError(
            f"the graph has a circle, at or before node {stuck.name!r} ({shown(stuck.op)}); "
            "expected nodes that can be put in an order"
        )
    return result


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
        nodes: Sequence[FileNode],
        given: Collection[str],
        outputs: Sequence[str],
        depth: int = 0,
    ) -> list[FileNode]:
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

    def _inside(self, node: FileNode, depth: int) -> FileNode:
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

    def _graph(self, graph: FileGraph, depth: int) -> FileGraph:
        given = {*graph.inputs, *graph.undecoded, *graph.captured}
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
            undecoded={name: data for name, data in graph.undecoded.items() if name in needed},
            captured={name: outer for name, outer in graph.captured.items() if name in needed},
            refused=refused,
        )
