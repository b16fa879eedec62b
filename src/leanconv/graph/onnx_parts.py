"""Parts of an ONNX file as files of their own: some of its nodes, with the weights that they read.

Nothing is decoded but names: nodes, weights and all else are copied as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from leanconv.errors import ModelError
from leanconv.graph import onnx_schema as schema
from leanconv.graph.file_graph import DOMAINS
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_nodes import MOST_NESTED, named_node
from leanconv.graph.onnx_tensor import tensor_name
from leanconv.graph.wire import Message, Reader, fields, written

_GRAPH_FIELD = 7  # of ModelProto
_NODE, _NAME, _TENSOR, _INPUT, _OUTPUT, _VALUE, _SPARSE = 1, 2, 5, 11, 12, 13, 15  # of GraphProto
_GRAPHS = {**schema.ATTRIBUTE, 11: ("graphs", schema.GRAPH[1][1])}  # lists of graphs, too
_EXTERNAL = 1  # TensorProto.data_location


class FileParts:
    """A file that can be taken apart.

    Args:
        data: the file.

    Attributes:
        nodes: in the file's order, in which they can run; their names only.
        reads: names of what each of them reads, graphs that it holds included; also names of their
            own.
        data: the NodeProto of each.
        inputs: the ValueInfoProto of each input that is no weight, by name.
        outputs: names.
        functions: domain and name of the functions that the file has.
        constant: the numbers of nodes that depend on weights alone.
        external: whether weights lie in other files.
        bytes: of the file.

    Raises:
        ModelError: the file is damaged.
    """

    def __init__(self, data: memoryview) -> None:
        reader, self.bytes = Reader(Limits().fields), len(data)
        self._around = [(n, whole) for n, whole, _ in fields(data, "ModelProto")]
        model = reader.message(data, schema.MODEL, "ModelProto")
        if "graph" not in model:
            raise ModelError("the file holds no graph; expected an ONNX model")
        graph = model["graph"]
        kept: dict[int, list[memoryview]] = {}
        for number, _, payload in fields(graph, "GraphProto"):
            if isinstance(payload, memoryview):
                kept.setdefault(number, []).append(payload)
        self._name = (kept.get(_NAME) or [memoryview(b"graph")])[-1]
        tensors = kept.get(_TENSOR, [])
        self._tensors = {tensor_name(each, reader): each for each in tensors}
        self._sparse = {_sparse_name(each, reader): each for each in kept.get(_SPARSE, [])}
        weights = {*self._tensors, *self._sparse}
        values = {_value_name(each, reader): each for each in kept.get(_INPUT, [])}
        self.inputs = {name: each for name, each in values.items() if name not in weights}
        self.outputs = tuple(_value_name(each, reader) for each in kept.get(_OUTPUT, []))
        self._values = {
            _value_name(each, reader): each for n in (_VALUE, _OUTPUT) for each in kept.get(n, [])
        }
        self.data = tuple(kept.get(_NODE, []))
        messages = [reader.message(each, schema.NODE, "node") for each in self.data]
        self.nodes = tuple(named_node(each, "", None) for each in messages)
        self.reads = tuple(frozenset(_reads(each, reader, 0)) for each in messages)
        messages = [reader.message(f, schema.FUNCTION, "function") for f in model["functions"]]
        self.functions = {(f.get("domain", ""), f.get("name", "")) for f in messages}
        self._writers = {name: i for i, node in enumerate(self.nodes) for name in node.outputs}
        self.constant = self._constant(weights)
        self.external = any(
            reader.message(each, schema.TENSOR, "initializer").get("data_location") == _EXTERNAL
            for each in tensors
        )

    def _constant(self, weights: Collection[str]) -> frozenset[int]:
        known, found = set(weights), []
        for index, node in enumerate(self.nodes):
            outer = {n for n in self.reads[index] if n in self._writers or n in self.inputs}
            if outer <= known and node.domain in DOMAINS and "Random" not in node.bare_op:
                known.update(node.outputs)
                found.append(index)
        return frozenset(found)

    def of(self, number: int) -> frozenset[int]:
        """The nodes whose outputs a node reads."""
        found = (self._writers.get(name) for name in self.reads[number])
        return frozenset(index for index in found if index is not None)

    def crossing(self, first: Collection[int], second: Collection[int]) -> list[str]:
        """Names of the values that the first nodes write and the second read, in order.

        What depends on weights alone does not cross: each part computes it for itself.
        """
        read = {name for number in second for name in self.reads[number]}
        return [
            name
            for number in sorted(first)
            if number not in self.constant
            for name in self.nodes[number].outputs
            if name and name in read
        ]

    def written_by(self, numbers: Collection[int]) -> list[str]:
        """Names of the file's outputs that these nodes write."""
        return [name for name in self.outputs if self._writers.get(name) in numbers]

    def part(
        self, numbers: Iterable[int], given: Mapping[str, bytes], outputs: Sequence[str]
    ) -> bytes:
        """A file of some nodes, and of those that depend on weights alone and that these read.

        Args:
            numbers: of the nodes.
            given: the ValueInfoProto of inputs beside the file's own, by name.
            outputs: names.
        """
        chosen = set(numbers)
        waiting = list(chosen)
        while waiting:
            more = self.of(waiting.pop()) & self.constant - chosen
            chosen |= more
            waiting += more
        read = {name for number in chosen for name in self.reads[number]}.union(outputs)
        parts = [written(_NODE, self.data[number]) for number in sorted(chosen)]
        parts.append(written(_NAME, self._name))
        for number, tensors in ((_TENSOR, self._tensors), (_SPARSE, self._sparse)):
            parts += [written(number, data) for name, data in tensors.items() if name in read]
        inputs: dict[str, bytes | memoryview] = {**self.inputs, **given}
        # A network without inputs is refused, whatever its nodes are.
        declared = {name: data for name, data in inputs.items() if name in read} or inputs
        parts += [written(_INPUT, data) for data in declared.values()]
        for name in outputs:
            declaring: bytes | memoryview = self._values.get(name, memoryview(named_value(name)))
            parts.append(written(_OUTPUT, declaring))
        graph = b"".join(parts)
        around = [bytes(whole) for number, whole in self._around if number != _GRAPH_FIELD]
        return b"".join((*around, written(_GRAPH_FIELD, graph)))


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


def _reads(node: Message, reader: Reader, depth: int) -> set[str]:
    """Return the names that a node reads, and those read in the graphs that it holds."""
    found = {name for name in node["input"] if name}
    if depth == MOST_NESTED:
        raise ModelError(f"graphs lie in each other more than {depth} deep; expected fewer")
    for each in node["attribute"]:
        attribute = reader.message(each, _GRAPHS, "attribute")
        held = [*attribute["graphs"], *([attribute["g"]] if "g" in attribute else [])]
        for graph in held:
            message = reader.message(graph, schema.GRAPH, "GraphProto")
            for inner in message["node"]:
                found |= _reads(reader.message(inner, schema.NODE, "node"), reader, depth + 1)
            found |= {_value_name(output, reader) for output in message["output"]}
    return found


def _value_name(data: memoryview, reader: Reader) -> str:
    name: str = reader.message(data, schema.VALUE, "value").get("name", "")
    return name


def _sparse_name(data: memoryview, reader: Reader) -> str:
    values = reader.message(data, schema.SPARSE, "sparse initializer").get("values")
    return tensor_name(values, reader) if values is not None else ""
