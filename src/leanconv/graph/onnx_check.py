"""Checks of a file's nodes that need no shapes: what flows where."""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.errors import UnsupportedError
from leanconv.graph.convert import RULES, FileNode
from leanconv.graph.late import needs_compiler
from leanconv.graph.onnx_file import FileModel
from leanconv.graph.onnx_names import shown
from leanconv.graph.onnx_operations import first_refused, nor, not_on_data
from leanconv.graph.small_inputs import is_small


def check_flow(file: FileModel) -> None:
    """Check what flows between the nodes that the outputs need.

    Raises:
        UnsupportedError: a value that must be known at load depends on the inputs, and what follows
            is more than a tail may compute; or an output of a node is used that is not computed.
    """
    _check_used(file)
    _check_running(
        file.nodes, {each.name for each in file.inputs if not is_small(each.shape, each.dtype)}
    )


def _check_used(file: FileModel) -> None:
    used = {name for node in file.nodes for name in node.reads}
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
    """Raise where data goes to where a constant must be, and no tail can compute the rest."""
    refused = first_refused(nodes, inputs)
    if refused is None:
        return
    node, number = refused
    late, lacking = [], set(node.outputs) - {""}
    for each in nodes:
        if each is node or not lacking.isdisjoint(each.reads):
            late.append(each)
            lacking.update(name for name in each.outputs if name)
    if not needs_compiler(late):
        return
    where = f"node {node.name!r} ({node.op}, opset {node.opset})"
    place = f"input {number} ({shown(node.inputs[number])!r})"
    running = RULES[node.op].running
    if running:
        first = ", ".join(map(str, running[:4])) + (", …" if len(running) > 4 else "")
        raise UnsupportedError(
            f"{where}: {place} depends on the network's inputs, which is not supported on data "
            f"yet; expected a constant: only input {first} may be data"
        )
    others = [op for op in not_on_data(nodes, inputs) if op != node.op]
    raise UnsupportedError(
        f"{where} is not supported on data yet{nor(others)}, and its {place} depends on the "
        "network's inputs; expected shapes and constants"
    )
