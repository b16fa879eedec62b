"""Checks of a file's nodes that need no shapes: what flows where."""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.errors import UnsupportedError
from leanconv.graph.convert import RULES, FileNode
from leanconv.graph.onnx_file import FileModel
from leanconv.graph.onnx_names import shown
from leanconv.graph.onnx_operations import flowing
from leanconv.graph.segments import COMPILED_ONLY
from leanconv.graph.small_inputs import is_small


def check_flow(file: FileModel) -> None:
    """Check what flows between the nodes that the outputs need.

    Raises:
        UnsupportedError: weights depend on the inputs, or an output of a node is used that is not
            computed.
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
    """Raise where weights of what only a compiler computes are data."""
    for node, flows in flowing(nodes, inputs):
        running = RULES[node.op].running
        refused = [index for index in flows if running is not None and index not in running]
        if not refused or node.op not in COMPILED_ONLY:
            continue
        first = ", ".join(map(str, (running or ())[:4]))
        raise UnsupportedError(
            f"node {node.name!r} ({node.op}, opset {node.opset}): input {refused[0]} "
            f"({shown(node.inputs[refused[0]])!r}) depends on the network's inputs, which is not "
            f"supported on data yet; expected a constant: only input {first} may be data"
        )
