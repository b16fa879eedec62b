"""Checks of a file's nodes that need no shapes: what flows where."""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.errors import UnsupportedError
from leanconv.graph.convert import RULES, FileNode
from leanconv.graph.onnx_file import FileModel
from leanconv.graph.onnx_nodes import shown


def check_flow(file: FileModel) -> None:
    """Check what flows between the nodes that the outputs need.

    Raises:
        UnsupportedError: a value that must be known at load depends on the inputs, or an output of
            a node is used that is not computed.
    """
    _check_used(file)
    _check_running(file.nodes, {each.name for each in file.inputs})


def _check_used(file: FileModel) -> None:
    used = {name for node in file.nodes for name in node.inputs}
    used.update(file.outputs)
    for node in file.nodes:
        extra = [name for name in node.outputs[RULES[node.op].outputs :] if name in used]
        if extra:
            raise UnsupportedError(
                f"node {node.name!r} ({node.op}, opset {node.opset}): its output "
                f"{shown(extra[0])!r} is used; expected only the first "
                f"{RULES[node.op].outputs} to be; export the model for inference, or without what "
                "reads it"
            )


def _check_running(nodes: Sequence[FileNode], inputs: set[str]) -> None:
    """Raise where a value that depends on the inputs goes to where a constant must be."""
    running = set(inputs)
    for node in nodes:
        rule = RULES[node.op]
        flows = [index for index, name in enumerate(node.inputs) if name in running]
        refused = [] if rule.running is None else [i for i in flows if i not in rule.running]
        if refused and not rule.knows_shape:
            where = f"node {node.name!r} ({node.op}, opset {node.opset})"
            place = f"input {refused[0]} ({shown(node.inputs[refused[0]])!r})"
            if not rule.running:
                raise UnsupportedError(
                    f"{where} is not supported on data yet, and its {place} depends on the "
                    "network's inputs; expected shapes and constants"
                )
            raise UnsupportedError(
                f"{where}: {place} depends on the network's inputs, which is not supported on data "
                f"yet; expected a constant: only input {', '.join(map(str, rule.running))} may be "
                "data"
            )
        if any(index not in rule.typed for index in flows) and not rule.knows_shape:
            running.update(name for name in node.outputs if name)
