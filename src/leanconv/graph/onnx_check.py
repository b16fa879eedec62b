"""Checks of a file's nodes that need no shapes: names, order, and what flows where."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert import RULES, FileNode
from leanconv.graph.onnx_file import FileModel, shown


def check_flow(file: FileModel) -> tuple[FileNode, ...]:
    """Order the nodes that the outputs need.

    Returns:
        The nodes in an order in which they can run, the file's where that is one.

    Raises:
        ModelError: a name is defined twice or nowhere, or the nodes form a circle.
        UnsupportedError: a value that must be known at load depends on the inputs.
    """
    producer = _producers(file)
    _check_outputs(file, producer)
    nodes = _ordered(file, producer)
    nodes = _needed(nodes, producer, file.outputs)
    _check_running(nodes, {each.name for each in file.inputs}, file.opset)
    return tuple(nodes)


def _producers(file: FileModel) -> dict[str, int]:
    """The index of the node that defines each value; -1 for inputs and constants."""
    producer: dict[str, int] = dict.fromkeys(file.constants, -1)
    for each in file.inputs:
        if each.name in producer:
            raise ModelError(f"input {shown(each.name)!r} is given twice; expected it once")
        producer[each.name] = -1
    for index, node in enumerate(file.nodes):
        for name in node.outputs:
            if name in producer:
                raise ModelError(
                    f"node {node.name!r} ({node.op}) defines {shown(name)!r}, which is defined "
                    "before; expected every value to be defined once"
                )
            if name:
                producer[name] = index
    for node in file.nodes:
        for name in node.inputs:
            if name and name not in producer:
                raise ModelError(
                    f"node {node.name!r} ({node.op}) reads {shown(name)!r}, which nothing defines; "
                    "expected an input, an initializer or the output of a node"
                )
    return producer


def _check_outputs(file: FileModel, producer: dict[str, int]) -> None:
    if not file.outputs:
        raise ModelError("the graph has no outputs; expected at least one")
    if len(set(file.outputs)) != len(file.outputs):
        raise ModelError("an output is given twice; expected distinct outputs")
    lost = [name for name in file.outputs if name not in producer]
    if lost:
        raise ModelError(
            f"output {shown(lost[0])!r} is defined by nothing; expected an input, an initializer "
            "or the output of a node"
        )
    used = {name for node in file.nodes for name in node.inputs}
    used.update(file.outputs)
    for node in file.nodes:
        extra = [name for name in node.outputs[RULES[node.op].outputs :] if name in used]
        if extra:
            raise UnsupportedError(
                f"node {node.name!r} ({node.op}, opset {file.opset}): its output "
                f"{shown(extra[0])!r} is used; expected only the first "
                f"{RULES[node.op].outputs} to be; export the model for inference, or without what "
                "reads it"
            )


def _ordered(file: FileModel, producer: dict[str, int]) -> list[FileNode]:
    """Sort the nodes topologically, keeping the file's order as far as possible."""
    nodes = file.nodes
    if all(
        producer[name] < index for index, node in enumerate(nodes) for name in node.inputs if name
    ):
        return list(nodes)
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for source in {producer[name] for name in node.inputs if name} - {-1}:
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
            f"the graph has a circle, at or before node {stuck.name!r} ({stuck.op}); expected "
            "nodes that can be put in an order"
        )
    return result


def _needed(
    nodes: Sequence[FileNode], producer: dict[str, int], outputs: Sequence[str]
) -> list[FileNode]:
    """The nodes on which the outputs depend."""
    needed = {name for name in outputs if producer[name] >= 0}
    kept = []
    for node in reversed(nodes):
        if any(name in needed for name in node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return kept[::-1]


def _check_running(nodes: Sequence[FileNode], inputs: set[str], opset: int) -> None:
    """Raise where a value that depends on the inputs goes to where a constant must be."""
    running = set(inputs)
    for node in nodes:
        rule = RULES[node.op]
        flows = [index for index, name in enumerate(node.inputs) if name in running]
        refused = [] if rule.running is None else [i for i in flows if i not in rule.running]
        if refused and not rule.knows_shape:
            takes = (
                "all of its inputs to be constants"
                if not rule.running
                else f"only input {', '.join(map(str, rule.running))} to be computed"
            )
            raise UnsupportedError(
                f"node {node.name!r} ({node.op}, opset {opset}): input {refused[0]} "
                f"({shown(node.inputs[refused[0]])!r}) is computed at run time; expected {takes}"
            )
        if node.op == "Cast" and flows and node.attributes.get("to") not in ("float32", "float64"):
            raise UnsupportedError(
                f"node {node.name!r} (Cast, opset {opset}) turns run-time values into "
                f"{node.attributes.get('to')}; expected float32 or float64"
            )
        if any(index not in rule.typed for index in flows) and not rule.knows_shape:
            running.update(name for name in node.outputs if name)
