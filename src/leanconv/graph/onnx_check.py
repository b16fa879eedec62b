"""Checks of a file's nodes that need no shapes."""

from __future__ import annotations

from leanconv.errors import UnsupportedError
from leanconv.graph.convert import RULES
from leanconv.graph.onnx_file import FileModel
from leanconv.graph.onnx_names import shown


def check_used(file: FileModel) -> None:
    """Check the outputs of nodes that others read.

    Raises:
        UnsupportedError: one is used that is not computed.
    """
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
