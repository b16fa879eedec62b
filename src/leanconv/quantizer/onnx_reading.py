"""An ONNX file, which is not trusted, as a graph that can be changed, raised to opset 13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from leanconv.errors import InputError, ModelError, UnsupportedError
from leanconv.graph import onnx_schema as schema
from leanconv.graph.file_errors import shown
from leanconv.graph.file_graph import DOMAINS
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_description import outermost
from leanconv.graph.onnx_nodes import attribute_message
from leanconv.graph.onnx_parts import FileParts
from leanconv.graph.onnx_tensor import ExternalFiles, open_view, read_tensor
from leanconv.graph.wire import Reader, fields
from leanconv.quantizer.onnx_graph import (
    GRAPH,
    INPUT,
    IR_VERSION,
    NODE,
    OPSETS,
    OUTPUT,
    TENSOR,
    VALUE,
    Array,
    OnnxGraph,
    OnnxNode,
    int_attribute,
)

_LEAST_IR = 7  # in which opset 13 is written
PER_CHANNEL = 13  # the first opset whose QuantizeLinear has a scale for each channel
_OLDEST = 11  # below, Clip, Pad, Slice and Resize are others
_WHOLE = {"Softmax", "LogSoftmax", "Hardmax"}  # of all axes from one on, until opset 13


def read_graph(source: Path | bytes) -> OnnxGraph:
    """Read a file.

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
        data, files = open_view(path, None, InputError), ExternalFiles(source)
    else:
        data, files = memoryview(source), ExternalFiles(None)
    reader = Reader(Limits().fields)
    model = outermost(reader, data, source.name if isinstance(source, Path) else "", {})
    parts = FileParts(data)
    versions = {"": 1}
    for each in model["opset_import"]:
        entry = reader.message(each, schema.OPSET, "opset_import")
        domain = entry.get("domain", "")
        versions["" if domain in DOMAINS else domain] = int(entry.get("version", 0))
    tensors, inside, outputs = _sorted_fields(model["graph"], reader)
    pairs = enumerate(zip(parts.data, parts.reads, strict=True))
    nodes = [_node(each, reads, reader, n) for n, (each, reads) in pairs]
    _name_apart(nodes)
    constants, others = _arrays(tensors, reader, files)
    kept = []
    for node in nodes:
        value = _constant(node, reader, files)
        if value is None:
            kept.append(node)
        else:
            constants[node.outputs[0]] = value
    skipped = {IR_VERSION, OPSETS, GRAPH}
    return OnnxGraph(
        nodes=kept,
        constants=constants,
        inputs={name: bytes(each) for name, each in parts.inputs.items()},
        outputs=outputs,
        opset=versions.pop(""),
        domains=versions,
        ir_version=max(_LEAST_IR, int(model.get("ir_version", 0))),
        around=tuple(bytes(w) for n, w, _ in fields(data, "ModelProto") if n not in skipped),
        inside=inside,
        others=others,
    )


def _sorted_fields(
    graph: memoryview, reader: Reader
) -> tuple[list[memoryview], tuple[bytes, ...], dict[str, bytes]]:
    """A graph's tensors, fields that are kept as they are, and outputs by name."""
    tensors, inside, outputs = [], [], {}
    for number, whole, payload in fields(graph, "GraphProto"):
        if number == TENSOR:
            tensors.append(payload)
        elif number == OUTPUT:
            name = reader.message(payload, schema.VALUE, "output").get("name", "")
            outputs[name] = bytes(payload)
        elif number not in (NODE, INPUT, VALUE):
            inside.append(bytes(whole))
    return tensors, tuple(inside), outputs


def _node(data: memoryview, reads: frozenset[str], reader: Reader, number: int) -> OnnxNode:
    message = reader.message(data, schema.NODE, f"node {number}")
    attributes = {}
    for each in message["attribute"]:
        attributes[attribute_message(each, reader).get("name", "")] = bytes(each)
    domain = message.get("domain", "")
    op = message.get("op_type", "")
    return OnnxNode(
        op=op,
        inputs=list(message["input"]),
        outputs=list(message["output"]),
        name=message.get("name", "") or f"{op}_{number}",
        attributes=attributes,
        domain="" if domain in DOMAINS else domain,
        overload=message.get("overload", ""),
        captured=reads - set(message["input"]),
    )


def _name_apart(nodes: Sequence[OnnxNode]) -> None:
    known: set[str] = set()
    for number, node in enumerate(nodes):
        while node.name in known:
            node.name = f"{node.name}_{number}"
        known.add(node.name)


def _arrays(
    tensors: Sequence[memoryview], reader: Reader, files: ExternalFiles
) -> tuple[dict[str, Array], dict[str, bytes]]:
    """Weights as arrays, and those of types without one (text, bfloat16) as bytes."""
    arrays, others = {}, {}
    for data in tensors:
        message = reader.message(data, schema.TENSOR, "initializer")
        if message.get("data_type", 0) in schema.DTYPES:
            name, arrays[name] = read_tensor(data, reader, files, "initializer")
        elif message.get("data_location", 0):
            raise UnsupportedError(
                f"weight {shown(message.get('name', ''))!r} is of a type that is not taken and "
                "lies in another file; expected it within the model"
            )
        else:
            others[message.get("name", "")] = bytes(data)
    return arrays, others


def _constant(node: OnnxNode, reader: Reader, files: ExternalFiles) -> Array | None:
    """The array of a node Constant, None where it is another node."""
    if node.op != "Constant" or node.domain or "value" not in node.attributes:
        return None
    message = attribute_message(memoryview(node.attributes["value"]), reader)
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
        _attributes_to_inputs(node, result, graph.opset)
        if not node.domain and node.op in _WHOLE:
            nodes += _softmax(node, result, rank_of)
        else:
            nodes.append(node)
    result.nodes = nodes
    return result


def _attributes_to_inputs(node: OnnxNode, graph: OnnxGraph, opset: int) -> None:
    """Make constants, read by the node, of attributes that a later opset has as inputs."""
    since, names = node.rule.moved
    for name in names if opset < since <= PER_CHANNEL else ():
        if name not in node.attributes:
            continue
        kind = np.float32 if node.rule.attributes[name] == "float" else np.int64
        value = node.number(name, 0.0) if kind is np.float32 else node.integers(name)
        del node.attributes[name]
        constant = graph.unused_name(f"{node.outputs[0]}_{name}")
        graph.constants[constant] = np.array(value, kind)
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
