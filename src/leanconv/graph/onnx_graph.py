"""An ONNX file as a graph that can be changed, taken apart and written again.

Nothing is lost that is not changed: attributes, weights, types of inputs and outputs, metadata,
functions and graphs within nodes are kept as the file's bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import onnx_schema as schema
from leanconv.graph.file_graph import DOMAINS, FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_initializers import tensor_name, values_of
from leanconv.graph.onnx_nodes import MOST_NESTED, named_node
from leanconv.graph.ops.base import Array
from leanconv.graph.wire import Message, Reader, fields, written
from leanconv.records import dataclass, field, replace
from leanconv.types import as_dtype

_IR_VERSION, _GRAPH, _OPSETS = 1, 7, 8  # fields of ModelProto
_NODE, _TENSOR, _INPUT, _OUTPUT, _VALUE, _SPARSE = 1, 5, 11, 12, 13, 15  # of GraphProto
_GRAPHS = {**schema.ATTRIBUTE, 11: ("graphs", schema.GRAPH[1][1])}  # lists of graphs, too
_MOST_BYTES = 2**31 - 1  # of a protobuf message


@dataclass(eq=False)
class OnnxGraph:
    """A whole file; see the module.

    Attributes:
        nodes: in an order in which they can run; attributes are the file's bytes, or numbers.
        inputs, outputs: ValueInfoProtos by name; inputs that are weights are left out.
        opsets: versions of the operations by domain, `""` for ONNX's own.
        ir_version: of the file.
        constants: weights as arrays, by name.
        tensors: TensorProtos of the other weights.
        sparse: SparseTensorProtos.
        values: ValueInfoProtos of values between nodes.
        functions: domain and name of the functions that the file has.
        around: fields of the file around its graph, as they are.
        inside: fields of the graph that are not here, as they are.
        taken: names that `unused_name` does not give; empty before its first call.
    """

    nodes: list[FileNode]
    inputs: Mapping[str, bytes | memoryview]
    outputs: Mapping[str, bytes | memoryview]
    opsets: dict[str, int]
    ir_version: int
    constants: dict[str, Array] = field(default_factory=dict)
    tensors: dict[str, memoryview] = field(default_factory=dict)
    sparse: dict[str, memoryview] = field(default_factory=dict)
    values: dict[str, memoryview] = field(default_factory=dict)
    functions: frozenset[tuple[str, str]] = frozenset()
    around: Sequence[bytes | memoryview] = ()
    inside: Sequence[bytes | memoryview] = ()
    taken: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, data: memoryview) -> OnnxGraph:
        """Read a file, of which nothing is decoded but names.

        Raises:
            ModelError: the file is damaged.
        """
        reader = Reader(Limits().fields)
        model = reader.message(data, schema.MODEL, "ModelProto")
        if "graph" not in model:
            raise ModelError("the file holds no graph; expected an ONNX model")
        kept: dict[int, list[memoryview]] = {}
        inside = []
        known = (_NODE, _TENSOR, _INPUT, _OUTPUT, _VALUE, _SPARSE)
        for number, whole, payload in fields(model["graph"], "GraphProto"):
            if number not in known:
                inside.append(whole)
            elif isinstance(payload, memoryview):
                kept.setdefault(number, []).append(payload)
        tensors = {tensor_name(each, reader): each for each in kept.get(_TENSOR, ())}
        sparse = {values_of(each, reader).get("name", ""): each for each in kept.get(_SPARSE, ())}
        inputs, outputs, values = (
            {_value_name(each, reader): each for each in kept.get(number, ())}
            for number in (_INPUT, _OUTPUT, _VALUE)
        )
        nodes = [_node(each, reader, n) for n, each in enumerate(kept.get(_NODE, ()))]
        opsets = {"": 1}  # before there were numbers
        for each in model["opset_import"]:
            entry = reader.message(each, schema.OPSET, "opset_import")
            domain = entry.get("domain", "")
            opsets["" if domain in DOMAINS else domain] = int(entry.get("version", 0))
        functions = [reader.message(f, schema.FUNCTION, "function") for f in model["functions"]]
        structured = (_IR_VERSION, _OPSETS, _GRAPH)
        return cls(
            nodes=nodes,
            inputs={n: each for n, each in inputs.items() if not (n in tensors or n in sparse)},
            outputs=outputs,
            opsets=opsets,
            ir_version=int(model.get("ir_version", 0)),
            tensors=tensors,
            sparse=sparse,
            values=values,
            functions=frozenset((f.get("domain", ""), f.get("name", "")) for f in functions),
            around=[w for n, w, _ in fields(data, "ModelProto") if n not in structured],
            inside=inside,
        )

    def copy(self) -> OnnxGraph:
        """The same graph, with tables of its own; nodes and arrays are shared."""
        return replace(self, nodes=[*self.nodes], constants={**self.constants}, taken={*self.taken})

    def pruned(self) -> OnnxGraph:
        """The same graph without nodes on which no output depends."""
        return replace(self.copy(), nodes=self._needed(self.outputs))

    def change(self, node: FileNode, **fields: Any) -> FileNode:
        """Put a node with other fields in the place of one, and return it."""
        made = replace(node, **fields)
        self.nodes[self.nodes.index(node)] = made
        return made

    def constant(self, name: str, value: np.ndarray | np.generic) -> str:
        """Add a constant of a name like that, and return its name."""
        name = self.unused_name(name)
        self.constants[name] = np.asarray(value)
        return name

    def producers(self) -> dict[str, FileNode]:
        """The node that writes a value, by the value's name."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[FileNode]]:
        """The nodes that read a value, by its name; each once."""
        found: dict[str, list[FileNode]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(filter(None, node.reads)):
                found.setdefault(name, []).append(node)
        return found

    def data(self, outputs: Mapping[str, bytes | memoryview] | None = None) -> bytes:
        """The file.

        Args:
            outputs: ValueInfoProtos of values that are the outputs, in place of the file's own.

        Raises:
            UnsupportedError: it would have 2 GiB or more.
        """
        outputs = self.outputs if outputs is None else outputs
        nodes = self._needed(outputs)
        read = {name for node in nodes for name in node.reads}.union(outputs)
        parts: list[bytes | memoryview] = [written(_NODE, node.data()) for node in nodes]
        parts += [written(_TENSOR, _tensor(n, a)) for n, a in self.constants.items() if n in read]
        for number, tensors in ((_TENSOR, self.tensors), (_SPARSE, self.sparse)):
            parts += [written(number, each) for name, each in tensors.items() if name in read]
        parts += self.inside
        parts += [written(_INPUT, each) for each in self.inputs.values()]
        parts += [written(_OUTPUT, each) for each in outputs.values()]
        graph = b"".join(parts)
        head = [written(_IR_VERSION, self.ir_version), *self.around]
        head += [
            written(_OPSETS, written(1, domain.encode()) + written(2, version))
            for domain, version in self.opsets.items()
        ]
        if len(graph) > _MOST_BYTES:
            raise UnsupportedError(
                f"the file would have {len(graph)} bytes; expected less than 2 GiB: quantise a "
                "smaller network"
            )
        return b"".join((*head, written(_GRAPH, graph)))

    def _needed(self, outputs: Iterable[str]) -> list[FileNode]:
        """The nodes on which outputs depend, in order."""
        wanted, kept = set(outputs), []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                wanted.update(node.reads)
                kept.append(node)
        return kept[::-1]

    def unused_name(self, wanted: str) -> str:
        """A name for a value that no value has yet, and that no later call gives."""
        if not self.taken:
            self.taken = {name for node in self.nodes for name in (*node.inputs, *node.outputs)}
            self.taken |= {*self.constants, *self.inputs, *self.tensors, *self.sparse}
        name, number = wanted, 1
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name


def _node(data: memoryview, reader: Reader, number: int) -> FileNode:
    """A node with its attributes as bytes, by their names."""
    message = reader.message(data, schema.NODE, "node")
    held = _attributes(message, reader)
    captured = _captured(held, reader, 0).difference(message["input"])
    node = named_node(message, message.get("name", "") or f"{message.get('op_type', '')}_{number}")
    names = (each.get("name", "") for each in held)
    attributes = dict(zip(names, node.undecoded, strict=True))
    return replace(node, attributes=attributes, undecoded=(), captured=frozenset(captured))


def _attributes(node: Message, reader: Reader) -> list[Message]:
    return [reader.message(each, _GRAPHS, "attribute") for each in node["attribute"]]


def _captured(attributes: Iterable[Message], reader: Reader, depth: int) -> set[str]:
    """The names that graphs in a node's attributes read; some are their own."""
    if depth == MOST_NESTED:
        raise ModelError(f"graphs lie in each other more than {depth} deep; expected fewer")
    found: set[str] = set()
    for each in attributes:
        for graph in [*each["graphs"], *([each["g"]] if "g" in each else [])]:
            message = reader.message(graph, schema.GRAPH, "GraphProto")
            for data in message["node"]:
                inner = reader.message(data, schema.NODE, "node")
                found.update(inner["input"])
                found |= _captured(_attributes(inner, reader), reader, depth + 1)
            found |= {_value_name(output, reader) for output in message["output"]}
    return found - {""}


def _value_name(data: memoryview, reader: Reader) -> str:
    name: str = reader.message(data, schema.VALUE, "value").get("name", "")
    return name


def named_value(
    name: str, element: int | None = None, shape: Sequence[int | None] | None = None
) -> bytes:
    """A ValueInfoProto: a name, ONNX's number of an element type, and a shape, where known."""
    result = written(1, name.encode())
    if element is None:
        return result
    tensor = written(1, element)
    if shape is not None:
        extents = (b"" if extent is None else written(1, extent) for extent in shape)
        tensor += written(2, b"".join(written(1, extent) for extent in extents))
    return result + written(2, written(1, tensor))


def _tensor(name: str, array: Array) -> bytes:
    """A TensorProto."""
    dtype = as_dtype(array.dtype)
    little = np.asarray(array, array.dtype.newbyteorder("<"))
    dims = b"".join(written(1, extent) for extent in array.shape)
    assert little.nbytes == dtype.bytes * math.prod(array.shape)
    return dims + written(2, dtype.onnx) + written(8, name.encode()) + written(9, little.tobytes())
