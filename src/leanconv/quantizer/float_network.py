"""The network in float32 that is quantised: read, raised to opset 13, folded, and run.

A file is not trusted. Nodes after a layer that only scale or shift its channels become part of its
weights:

    y = g (w * x + b) + h        becomes        y = (g w) * x + (g b + h)

with g and h a number for each output channel: batch normalisation, and products with and sums of
constants. A quantised layer then has all of it in its integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.load import load
from leanconv.api.network import Network
from leanconv.errors import InputError, ModelError, UnsupportedError, shown
from leanconv.graph import onnx_schema as schema
from leanconv.graph.edit import channel_extent, channel_vector
from leanconv.graph.file_graph import FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_description import outermost
from leanconv.graph.onnx_graph import OnnxGraph, named_value
from leanconv.graph.onnx_initializers import read_sparse, values_of
from leanconv.graph.onnx_nodes import attribute, attribute_message
from leanconv.graph.onnx_tensor import ExternalFiles, open_view, read_tensor
from leanconv.graph.ops import OPS
from leanconv.graph.ops.algebra import batch_norm_affine
from leanconv.graph.ops.base import Array
from leanconv.graph.wire import Reader
from leanconv.quantizer.layers import Layer, is_float, layer_of, rule_of

_LEAST_IR = 7  # in which opset 13 is written
PER_CHANNEL = 13  # the first opset whose QuantizeLinear has a scale for each channel
_OLDEST = 11  # below, Clip, Pad, Slice and Resize are others
_WHOLE = {"Softmax", "LogSoftmax", "Hardmax"}  # of all axes from one on, until opset 13
_Affine = tuple[Any, Any]  # factors and summands, float64: one number, or one for each channel


def read_graph(source: Path | bytes) -> OnnxGraph:
    """Read a file: weights, and constants of nodes, become arrays.

    Raises:
        InputError: it cannot be read, or is of another format that is known.
        ModelError: it is damaged.
        UnsupportedError: it has weights in forms that are not taken.
    """
    if isinstance(source, Path):
        try:
            path = source.resolve(strict=True)
        except OSError as error:
            raise InputError(f"{source} cannot be read: {error.strerror or error}") from error
        data, files = open_view(path, InputError), ExternalFiles(source)
    else:
        data, files = memoryview(source), ExternalFiles(None)
    reader = Reader(Limits().fields, Limits().filled_bytes)
    outermost(reader, data, source.name if isinstance(source, Path) else "", {})
    graph = OnnxGraph.read(data)
    graph.ir_version = max(_LEAST_IR, graph.ir_version)
    _decode_weights(graph, reader, files)
    nodes, names = [], set[str]()
    for number, node in enumerate(graph.nodes):
        name = node.name
        while name in names:
            name = f"{name}_{number}"
        names.add(name)
        value = _constant(node, reader, files)
        if value is None:
            nodes.append(replace(node, name=name))
        else:
            graph.constants[node.outputs[0]] = value
    graph.nodes = nodes
    return graph


def _decode_weights(graph: OnnxGraph, reader: Reader, files: ExternalFiles) -> None:
    """Make arrays of weights, but of those of types without one (text, bfloat16)."""
    for name, data in [*graph.tensors.items()]:
        message = reader.message(data, schema.TENSOR, "initializer")
        if message.get("data_type", 0) in schema.DTYPES:
            graph.constants[name] = read_tensor(data, reader, files, "initializer")[1]
            del graph.tensors[name]
        elif message.get("data_location", 0):
            raise UnsupportedError(
                f"weight {shown(name)!r} is of a type that is not taken and lies in another file; "
                "expected it within the model"
            )
    for name, data in [*graph.sparse.items()]:
        if values_of(data, reader).get("data_type", 0) in schema.DTYPES:
            graph.constants[name] = read_sparse(data, reader, files, "sparse initializer")[1]
            del graph.sparse[name]


def _constant(node: FileNode, reader: Reader, files: ExternalFiles) -> Array | None:
    """The array of a node Constant, None where it is another node."""
    if node.op != "Constant":
        return None
    if "sparse_value" in node.attributes:
        sparse = attribute_message(node.attributes["sparse_value"], reader)
        held = sparse.get("sparse_tensor", memoryview(b""))
        if values_of(held, reader).get("data_type", 0) not in schema.DTYPES:
            return None
        return read_sparse(held, reader, files, "sparse_value")[1]
    if "value" not in node.attributes:
        return None
    message = attribute_message(node.attributes["value"], reader)
    if "t" not in message or not node.outputs:
        raise ModelError(f"node {shown(node.name)!r} (Constant) holds no tensor; expected one")
    number = reader.message(message["t"], schema.TENSOR, "value").get("data_type", 0)
    if number not in schema.DTYPES:
        return None
    return read_tensor(message["t"], reader, files, "value")[1]


def raised(graph: OnnxGraph, rank_of: Callable[[str], int]) -> OnnxGraph:
    """The same network in opset 13 or later.

    Args:
        graph: of any opset; it is not changed.
        rank_of: the number of axes of a value, by its name; it may run the network.

    Raises:
        UnsupportedError: it is older than opset 11, or has a softmax over several axes.
    """
    opset = graph.opsets[""]
    if opset >= PER_CHANNEL:
        return graph
    if opset < _OLDEST:
        raise UnsupportedError(
            f"the model is of opset {opset}; expected {_OLDEST} or later, for its quantised "
            "form needs 13: convert it with onnx.version_converter.convert_version(model, 13)"
        )
    held = next((node for node in graph.nodes if node.op in ("If", "Loop", "Scan")), None)
    if held is not None:
        raise UnsupportedError(
            f"node {shown(held.name)!r} ({held.op}) holds graphs, and the model is of opset "
            f"{opset}; expected 13 or later: convert it with onnx.version_converter"
        )
    result = graph.copy()
    result.opsets = {**graph.opsets, "": PER_CHANNEL}
    result.nodes = [_attributes_to_inputs(node, result, opset) for node in result.nodes]
    result.nodes = [
        made
        for node in result.nodes
        for made in (_softmax(node, result, rank_of) if node.op in _WHOLE else [node])
    ]
    return result


def _attributes_to_inputs(node: FileNode, graph: OnnxGraph, opset: int) -> FileNode:
    """Make constants, read by the node, of attributes that a later opset has as inputs."""
    rule = rule_of(node)
    since, names = rule.moved
    for name in names if opset < since <= PER_CHANNEL else ():
        if name not in node.attributes:
            continue
        kind = np.float32 if rule.attributes[name] == "float" else np.int64
        value = np.array(attribute(node, name, ()), kind)
        constant = graph.constant(f"{node.outputs[0]}_{name}", value)
        others = {key: each for key, each in node.attributes.items() if key != name}
        node = replace(node, attributes=others, inputs=(node.inputs[0], constant))
    return node


def _softmax(node: FileNode, graph: OnnxGraph, rank_of: Callable[[str], int]) -> list[FileNode]:
    """A softmax over all axes from `axis` on: the same operation where that is the last one.

    Else the tensor becomes a matrix, and is given its shape back.
    """
    axis = attribute(node, "axis", 1)
    if axis == -1:
        return [node]
    if axis == rank_of(node.inputs[0]) - 1:
        return [replace(node, attributes={**node.attributes, "axis": axis})]
    flat, shape, soft = (
        graph.unused_name(f"{node.outputs[0]}_{key}") for key in ("flat", "shape", "matrix")
    )
    source = node.inputs[:1]
    return [
        FileNode("Flatten", source, (flat,), {"axis": axis}, f"{node.name}_flatten"),
        FileNode("Shape", source, (shape,), {}, f"{node.name}_shape"),
        FileNode(node.op, (flat,), (soft,), {"axis": 1}, node.name),
        FileNode("Reshape", (soft, shape), node.outputs, {}, f"{node.name}_reshape"),
    ]


def folded(graph: OnnxGraph) -> OnnxGraph:
    """The same network with constant factors and summands in the weights before them."""
    result = graph.copy()
    consumers = result.consumers()
    for node in graph.nodes:
        layer = layer_of(node, result)
        while layer is not None:
            name = node.outputs[0]
            readers = consumers.get(name, [])
            if len(readers) != 1 or name in result.outputs or name in readers[0].captured:
                break
            after = readers[0]
            affine = _affine(after, name, layer, result)
            if affine is None:
                break
            inputs = _with_affine(layer, affine, result)
            node = result.change(node, inputs=inputs, outputs=after.outputs[:1])
            result.nodes.remove(after)
            layer = layer_of(node, result)
    return result


def _affine(node: FileNode, name: str, layer: Layer, graph: OnnxGraph) -> _Affine | None:
    """Return a node's factors and summands of channels; None if it computes anything else."""
    read = _FOLDED.get(node.op)
    if read is None or len([out for out in node.outputs if out]) != 1:
        return None
    with np.errstate(all="ignore"):
        found = read(node, name, layer, graph)
    if found is None or not (layer.takes_bias or not np.any(found[1])):
        return None
    return found if all(np.isfinite(each).all() for each in found) else None


def _normalisation(node: FileNode, name: str, layer: Layer, graph: OnnxGraph) -> _Affine | None:
    arrays = [graph.constants.get(each) for each in node.inputs[1:5]]
    if node.inputs[0] != name or len(arrays) != 4 or not all(map(is_float, arrays)):
        return None
    if layer.channel_axis != 1 or attribute(node, "training_mode", 0):
        return None
    given = [each.astype(np.float64) for each in arrays if each is not None]
    if any(each.shape != (layer.channels,) for each in given):
        return None
    return batch_norm_affine(given, attribute(node, "epsilon", 1e-5))


def _with_constant(node: FileNode, name: str, layer: Layer, graph: OnnxGraph) -> _Affine | None:
    """Add, Sub, Mul and Div with a number or one for each channel."""
    if len(node.inputs) != 2 or node.inputs.count(name) != 1:
        return None
    first = node.inputs[0] == name
    constant, entry = graph.constants.get(node.inputs[1 if first else 0]), OPS[node.op]
    if constant is None or not is_float(constant) or not (first or entry.commutes):
        return None
    axis = layer.channel_axis % layer.rank
    shape = tuple(layer.channels if n == axis else 0 for n in range(layer.rank))
    if entry.affine is None or not channel_extent(constant.shape, shape, axis):
        return None
    return entry.affine(channel_vector(constant, layer.channels), False)


_FOLDED: dict[str, Callable[[FileNode, str, Layer, OnnxGraph], _Affine | None]] = {
    "BatchNormalization": _normalisation,
    **dict.fromkeys((op for op, each in OPS.items() if each.affine), _with_constant),
}


def _with_affine(layer: Layer, affine: _Affine, graph: OnnxGraph) -> tuple[str, ...]:
    """The inputs with whose weights and bias a layer also computes the node after it."""
    bias = np.zeros(layer.channels) if layer.bias is None else layer.bias.astype(np.float64)
    factor, summand = affine
    rows = layer.by_channel().astype(np.float64) * np.reshape(factor, (-1, 1))
    bias = (bias * factor + summand).astype(np.float32)
    stays = layer.bias is None and not np.any(summand)
    return layer.inputs(graph, rows.astype(np.float32), None if stays else bias)


def network_of(
    graph: OnnxGraph, outputs: Sequence[str] | None = None, threads: int | None = None
) -> Network:
    """The network, ready to run; `outputs` are values in place of the file's own outputs."""
    values = None if outputs is None else {name: named_value(name) for name in outputs}
    return load(graph.data(values), threads=threads)
