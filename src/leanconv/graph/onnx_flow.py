"""What of a file's graph the outputs need, by the names of values alone, and in which order."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from leanconv.errors import ModelError
from leanconv.graph.onnx_names import shown
from leanconv.graph.onnx_nodes import RawNode


def needed_nodes(
    nodes: Sequence[RawNode], given: Collection[str], outputs: Sequence[str]
) -> list[RawNode]:
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


def _producers(nodes: Sequence[RawNode], given: Collection[str]) -> dict[str, int]:
    """The index of the node that defines each value; -1 for inputs and constants."""
    producer: dict[str, int] = dict.fromkeys(given, -1)
    for index, node in enumerate(nodes):
        for name in node.outputs:
            if name in producer:
                raise ModelError(
                    f"node {node.name!r} ({shown(node.op)}) defines {shown(name)!r}, which is "
                    "defined before; expected every value to be defined once"
                )
            if name:
                producer[name] = index
    for node in nodes:
        for name in node.reads:
            if name and name not in producer:
                raise ModelError(
                    f"node {node.name!r} ({shown(node.op)}) reads {shown(name)!r}, which nothing "
                    "defines; expected an input, an initializer or the output of a node"
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


def _ordered(nodes: Sequence[RawNode], producer: dict[str, int]) -> list[RawNode]:
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
