"""The nodes of an ONNX file: first their names only, then, of those that are needed, the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from leanconv.errors import (
    LeanConvError,
    ModelError,
    UnsupportedError,
    located,
    located_inside,
    shown,
)
from leanconv.graph import onnx_schema as schema
from leanconv.graph.convert import RULES, Rule, in_parts
from leanconv.graph.file_graph import FileGraph, FileNode, table_key
from leanconv.graph.ir import TensorType
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_description import Port, declared_port
from leanconv.graph.onnx_initializers import initializer, initializers, read_sparse
from leanconv.graph.onnx_tensor import ExternalFiles, dtype_of_number, read_tensor
from leanconv.graph.ops.base import MAX_RANK, Array
from leanconv.graph.wire import Message, Reader, fixed, integers, text
from leanconv.types import DType

MOST_NESTED = 32  # graphs within graphs
_LONG = ("value_ints", "value_floats", "split")  # attributes that may hold any number of numbers


def raw_nodes(
    parts: Iterable[memoryview], reader: Reader, opset: int | None, depth: int = 0, prefix: str = ""
) -> tuple[FileNode, ...]:
    """Decode the names of nodes, and of the graphs that they hold.

    Args:
        parts: NodeProtos.
        reader: of the file.
        opset: the version of ONNX's operations; None where nothing says.
        depth: how many nodes hold the graph that these are of, one within the other.
        prefix: of the names of those that have none.
    """
    messages = [reader.message(each, schema.NODE, f"node {i}") for i, each in enumerate(parts)]
    names = (
        message.get("name", "") or f"{prefix}{message.get('op_type', '')}_{index}"
        for index, message in enumerate(messages)
    )
    pairs = zip(messages, names, strict=True)
    nodes = (named_node(message, shown(name), opset) for message, name in pairs)
    return tuple(
        _with_graphs(node, reader, depth) if node.op in _HOLDERS else node for node in nodes
    )


_HOLDERS = frozenset(op for op, rule in RULES.items() if rule.graphs)


def named_node(message: Message, name: str, opset: int | None = None) -> FileNode:
    """A node of that name, of which nothing is decoded but names."""
    domain = message.get("domain", "")
    return FileNode(
        op=table_key(domain, message.get("op_type", "")),
        inputs=tuple(message["input"]),
        outputs=tuple(message["output"]),
        attributes=MappingProxyType({}),
        name=name,
        opset=opset,
        domain=domain,
        overload=message.get("overload", ""),
        undecoded=tuple(message["attribute"]),
    )


def _with_graphs(node: FileNode, reader: Reader, depth: int) -> FileNode:
    """The node with the names of its graphs.

    Raises:
        ModelError: one is missing or damaged, or they lie too deep in each other.
    """
    if depth == MOST_NESTED:
        raise ModelError(
            f"{node.where} lies in {depth} graphs, one within the other; expected at most "
            f"{MOST_NESTED - 1}: graphs that come to an end"
        )
    messages = [attribute_message(each, reader) for each in node.undecoded]
    wanted, graphs = RULES[node.op].graphs, {}
    for message in messages:
        name = message.get("name", "")
        if name not in wanted:
            continue
        if "g" not in message or name in graphs:
            raise ModelError(
                f"{node.where}: attribute {name} is no graph, or is given twice; expected one graph"
            )
        try:
            graphs[name] = _raw_graph(message["g"], reader, node.opset, depth + 1, f"{node.name}/")
        except LeanConvError as error:
            raise located_inside(error, f"{node.where}, {name}") from error
    others = tuple(each for each in messages if each.get("name", "") not in wanted)
    return replace(node, undecoded=others, graphs=MappingProxyType(graphs))


def _raw_graph(
    data: memoryview, reader: Reader, opset: int | None, depth: int, prefix: str
) -> FileGraph:
    message = reader.message(data, schema.GRAPH, "GraphProto")
    inputs = _names(message["input"], reader, "input")
    outputs = _names(message["output"], reader, "output")
    nodes = raw_nodes(message["node"], reader, opset, depth, prefix)
    tensors = initializers(message, reader)
    given = {*inputs, *tensors}
    own = given.union(*(node.outputs for node in nodes))
    if len(given) < len(tensors) + len(inputs) or "" in inputs:
        raise ModelError("an input has no name, or one is defined twice; expected each once")
    used = (name for node in nodes for name in node.reads)
    captured = {name: name for name in (*used, *outputs) if name and name not in own}
    declared = tuple(_least(declared_port(each, reader)) for each in message["output"])
    return FileGraph(inputs, outputs, nodes, {}, captured, declared=declared, undecoded=tensors)


def _names(values: Iterable[memoryview], reader: Reader, what: str) -> tuple[str, ...]:
    return tuple(reader.message(each, schema.VALUE, what).get("name", "") for each in values)


def _least(port: Port) -> TensorType | None:
    """The type that a value is declared to have; see `FileGraph`."""
    if not isinstance(port.dtype, DType):
        return None
    extents = (extent if isinstance(extent, int) else 0 for extent in port.shape or ())
    return TensorType(tuple(extents), port.dtype)


def decoded(node: FileNode, reader: Reader, files: ExternalFiles) -> FileNode:
    """Decode the rest of a node, whose operation `onnx_flow` has found in the table.

    Raises:
        ModelError: inputs or attributes do not fit the operation.
        UnsupportedError: an attribute that is not taken.
    """
    rule, where, opset = RULES[node.op], node.where, node.opset
    if opset is None or not rule.since <= opset <= rule.until:
        raise ModelError(
            f"{where} does not exist in this opset; expected opset {rule.since} to {rule.until}"
        )
    most = rule.most if rule.moved[0] <= opset else rule.least
    least = rule.least
    if opset < rule.older.before and rule.older.inputs is not None:
        least, most = rule.older.inputs
    if not least <= len(node.inputs) <= most:
        raise ModelError(f"{where} has {len(node.inputs)} inputs; expected {least} to {most}")
    if not node.outputs:
        raise ModelError(f"{where} has no output; expected at least one")
    lost = [name for name in rule.graphs if name not in node.graphs]
    if lost:
        raise ModelError(f"{where} has no attribute {lost[0]}; expected a graph")
    kinds = _kinds(rule, opset)
    try:
        found = (_attribute(each, reader, files, kinds, opset) for each in node.undecoded)
        attributes = {name: value for name, value in found if name != _CONSUMED}
    except LeanConvError as error:
        raise located(error, where) from error
    moved = [name for name in rule.moved[1] if opset >= rule.moved[0] and name in attributes]
    if moved:
        raise ModelError(f"{where} has the attribute {moved[0]}; expected an input in this opset")
    held = {name: _graph(graph, reader, files) for name, graph in node.graphs.items()}
    return replace(
        node, attributes=MappingProxyType(attributes), graphs=MappingProxyType(held), undecoded=()
    )


def _graph(graph: FileGraph, reader: Reader, files: ExternalFiles) -> FileGraph:
    """Decode a graph that a node holds; what is not supported counts if the graph is computed."""
    nodes: tuple[FileNode, ...] = ()
    constants: Mapping[str, Array] = {}
    refused = graph.refused
    if refused is None:
        try:
            nodes = in_parts(decoded(each, reader, files) for each in graph.nodes)
            constants = {
                name: initializer(name, data, reader, files)
                for name, data in graph.undecoded.items()
            }
        except UnsupportedError as error:
            refused = error
    return replace(
        graph,
        nodes=nodes,
        constants=MappingProxyType(constants),
        captured=MappingProxyType(graph.captured),
        refused=refused,
        undecoded={},
    )


# Before opset 6 it says which inputs may be overwritten.
_CONSUMED, _CONSUMED_UNTIL = "consumed_inputs", 5


def _kinds(rule: Rule, opset: int) -> Mapping[str, str]:
    """The kinds of the attributes that an operation may have in an opset, by name."""
    kinds = dict(rule.attributes)
    if opset < rule.older.before:
        kinds.update(rule.older.attributes)
    if opset <= _CONSUMED_UNTIL:
        kinds[_CONSUMED] = "ints"
    return kinds


def attribute_message(attribute: memoryview | Message, reader: Reader) -> Message:
    """One level of an attribute."""
    if isinstance(attribute, dict):
        return attribute
    return reader.message(attribute, schema.ATTRIBUTE, "AttributeProto")


def attribute(node: FileNode, name: str, default: Any) -> Any:
    """A node's number, numbers or text of that name; the default where it has none."""
    value = node.attributes.get(name, default)
    if not isinstance(value, memoryview):
        return value
    message = attribute_message(value, Reader(Limits().fields))
    return _DECODERS[_kind(message)](message, name)


def _attribute(
    attribute: memoryview | Message,
    reader: Reader,
    files: ExternalFiles,
    kinds: Mapping[str, str],
    opset: int,
) -> tuple[str, Any]:
    message = attribute_message(attribute, reader)
    name = message.get("name", "")
    wanted = kinds.get(name)
    if "ref_attr_name" in message or wanted is None:
        listed = ", ".join(sorted(set(kinds) - {_CONSUMED})) or "none"
        raise UnsupportedError(f"attribute {shown(name)!r} is not supported; expected {listed}")
    got = _kind(message)
    if wanted == "element type" and got == "string" and opset < 6:
        written = text(message.get("s", memoryview(b"")), f"attribute {name}").upper()
        return name, dtype_of_number(schema.DTYPE_NUMBERS.get(written, 0), f"attribute {name}")
    if got != ("int" if wanted in ("dtype", "element type") else wanted):
        raise ModelError(f"attribute {name} is of kind {got}; expected {wanted}")
    if wanted == "sparse tensor":
        sparse = message.get("sparse_tensor", memoryview(b""))
        return name, read_sparse(sparse, reader, files, f"attribute {name}")[1]
    if wanted == "tensor":
        return name, read_tensor(message.get("t", memoryview(b"")), reader, files, name)[1]
    value = _DECODERS[wanted](message, name)
    if isinstance(value, tuple) and name not in _LONG and len(value) > 4 * MAX_RANK:
        raise ModelError(
            f"attribute {name} holds {len(value)} numbers; expected at most {4 * MAX_RANK}"
        )
    return name, value


def _kind(message: Message) -> str:
    """The kind of an attribute; very old files have some without a type."""
    if message.get("type", 0) in schema.ATTRIBUTE_KINDS:
        return schema.ATTRIBUTE_KINDS[message["type"]]
    single = (("f", "float"), ("i", "int"), ("s", "string"), ("t", "tensor"))
    for key, kind in (*single, ("sparse_tensor", "sparse tensor")):
        if key in message:
            return kind
    return "floats" if message["floats"] else "ints"


_DECODERS: dict[str, Callable[[Message, str], Any]] = {
    "float": lambda message, _: float(message.get("f", 0.0)),
    "int": lambda message, _: int(message.get("i", 0)),
    "dtype": lambda message, name: dtype_of_number(message.get("i", 0), f"attribute {name}"),
    "element type": lambda message, name: dtype_of_number(
        message.get("i", 0), f"attribute {name}", narrow=True
    ),
    "string": lambda message, name: text(message.get("s", memoryview(b"")), f"attribute {name}"),
    "floats": lambda message, name: tuple(fixed(message["floats"], "<f4", name).tolist()),
    "ints": lambda message, name: tuple(integers(message["ints"], name).tolist()),
    "strings": lambda message, name: tuple(
        text(each, f"attribute {name}") for each in message["strings"]
    ),
}
