"""Raising a file to opset 13, the first whose QuantizeLinear has a scale for each channel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.graph.onnx_names import shown
from leanconv.quantizer.onnx_graph import OnnxGraph, OnnxNode, int_attribute

PER_CHANNEL = 13
_OLDEST = 11  # below, Clip, Pad, Slice and Resize are others
_AXES = {"Squeeze": "axes", "Unsqueeze": "axes", "ReduceSum": "axes", "Split": "split"}
_WHOLE = {"Softmax", "LogSoftmax", "Hardmax"}  # of all axes from one on, until opset 13


def raised(graph: OnnxGraph, rank_of: Callable[[str], int]) -> OnnxGraph:
    """The same network in opset 13 or later.

    Args:
        graph: of any opset; it is not changed.
        rank_of: the number of axes of a value, by its name; it may run the network.

    Raises:
        UnsupportedError: it is older than opset 11, or has a softmax over several axes.
    """
    if graph.opset >= PER_CHANNEL:
        return graph
    if graph.opset < _OLDEST:
        raise UnsupportedError(
            f"the model is of opset {graph.opset}; expected {_OLDEST} or later, for its quantised "
            "form needs 13: convert it with onnx.version_converter.convert_version(model, 13)"
        )
    held = next((node for node in graph.nodes if node.op in ("If", "Loop", "Scan")), None)
    if held is not None:
        raise UnsupportedError(
            f"node {shown(held.name)!r} ({held.op}) holds graphs, and the model is of opset "
            f"{graph.opset}; expected 13 or later: convert it with onnx.version_converter"
        )
    result = graph.copy()
    result.opset = PER_CHANNEL
    nodes: list[OnnxNode] = []
    for node in result.nodes:
        if not node.domain and node.op in _AXES:
            _axes_to_input(node, _AXES[node.op], result)
        if not node.domain and node.op in _WHOLE:
            nodes += _softmax(node, result, rank_of)
        else:
            nodes.append(node)
    result.nodes = nodes
    return result


def _axes_to_input(node: OnnxNode, name: str, graph: OnnxGraph) -> None:
    """What was an attribute becomes a constant that the node reads."""
    values = node.integers(name)
    if values is None:
        return
    del node.attributes[name]
    constant = graph.unused_name(f"{node.outputs[0]}_{name}")
    graph.constants[constant] = np.array(values, np.int64)
    node.inputs = [node.inputs[0], constant]


def _softmax(node: OnnxNode, graph: OnnxGraph, rank_of: Callable[[str], int]) -> list[OnnxNode]:
    """A softmax over all axes from `axis` on: the same operation where that is the last one.

    Else the tensor becomes a matrix, and is given its shape back.
    """
    axis = node.integer("axis", 1)
    if axis == -1:
        return [node]
    if axis == rank_of(node.inputs[0]) - 1:
        node.attributes["axis"] = int_attribute("axis", axis)
        return [node]
    flat, shape, soft = (
        graph.unused_name(f"{node.outputs[0]}_{key}") for key in ("flat", "shape", "matrix")
    )
    at, one = {"axis": int_attribute("axis", axis)}, {"axis": int_attribute("axis", 1)}
    return [
        OnnxNode("Flatten", [node.inputs[0]], [flat], f"{node.name}_flatten", at),
        OnnxNode("Shape", [node.inputs[0]], [shape], f"{node.name}_shape"),
        OnnxNode(node.op, [flat], [soft], node.name, one),
        OnnxNode("Reshape", [soft, shape], list(node.outputs), f"{node.name}_reshape"),
    ]
