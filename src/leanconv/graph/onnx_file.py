"""The contents of an ONNX file: messages decoded, nothing understood yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph import onnx_schema as schema
from leanconv.graph.builder import located
from leanconv.graph.convert import FIRST_OPSET, LAST_OPSET, RULES, FileNode, Rule
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_tensor import ExternalFiles, dtype_name, read_tensor
from leanconv.graph.ops.base import MAX_RANK, Array
from leanconv.graph.wire import Message, Reader, fixed, integers, text
from leanconv.records import dataclass

_NAME = 200  # characters of a name that messages show
_DOMAINS = ("", "ai.onnx")
_LONG = ("value_ints", "value_floats", "split")  # attributes that may hold any number of numbers
_QUANTISED = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")


Extents = tuple[int | str | None, ...]
# What exporters write for an extent that they know nothing of: two of them need not be equal.
_NAMELESS = ("", "?", "-1", "None", None)


class NoModelError(ModelError):
    """The file is no ONNX model at all, or its outermost message is damaged."""


@dataclass(frozen=True)
class FileInput:
    """A declared input: name, dtype, and extents as numbers, symbols or None."""

    name: str
    dtype: str
    shape: Extents | None


@dataclass(frozen=True, eq=False)
class FileModel:
    """All of a file that matters: nodes in file order, constants by name, its metadata."""

    opset: int
    inputs: tuple[FileInput, ...]
    outputs: tuple[str, ...]
    output_shapes: tuple[Extents | None, ...]
    nodes: tuple[FileNode, ...]
    constants: dict[str, Array]
    metadata: dict[str, str]


def shown(name: str) -> str:
    """A name short enough for a message."""
    return name if len(name) <= _NAME else name[:_NAME] + "…"


def read_file(data: memoryview, files: ExternalFiles, limits: Limits) -> FileModel:
    """Decode a model file.

    Raises:
        NoModelError: the outermost bytes are not those of an ONNX model.
        ModelError: the bytes are not a sound ONNX file, or exceed the limits.
        UnsupportedError: an operation, opset or element type that is not taken.
    """
    reader = Reader(limits.fields)
    most = {"metadata_props": limits.metadata}
    try:
        model = reader.message(data, schema.MODEL, "ModelProto", most)
    except ModelError as error:
        raise NoModelError(str(error)) from error
    if "graph" not in model:
        raise NoModelError("the file holds no graph; expected an ONNX model")
    opset = _opset(reader, model)
    metadata = _metadata(reader, model, limits)
    most = {"node": limits.nodes}
    graph = reader.message(model["graph"], schema.GRAPH, "GraphProto", most)
    if graph["sparse_initializer"]:
        raise UnsupportedError("the graph has sparse initializers; expected dense ones")
    constants: dict[str, Array] = {}
    for each in graph["initializer"]:
        name, array = read_tensor(each, reader, files, "initializer")
        if not name or name in constants:
            raise ModelError(
                f"initializer {shown(name)!r} has no name or is given twice; expected each once"
            )
        constants[name] = array
    inputs = [_input(each, reader, constants) for each in graph["input"]]
    outputs = [reader.message(each, schema.VALUE, "output") for each in graph["output"]]
    messages = [
        reader.message(each, schema.NODE, f"node {i}") for i, each in enumerate(graph["node"])
    ]
    _check_operations(messages, opset)
    nodes = [_node(each, reader, files, opset, i) for i, each in enumerate(messages)]
    return FileModel(
        opset=opset,
        inputs=tuple(each for each in inputs if each is not None),
        outputs=tuple(each.get("name", "") for each in outputs),
        output_shapes=tuple(_declared_shape(each, reader) for each in outputs),
        nodes=tuple(nodes),
        constants=constants,
        metadata=metadata,
    )


def _metadata(reader: Reader, model: Message, limits: Limits) -> dict[str, str]:
    """The file's own key-value pairs; of a key that is given twice, the last."""
    held = sum(len(each) for each in model["metadata_props"])
    if held > limits.metadata_bytes:
        raise ModelError(
            f"the metadata takes {held} bytes; expected at most {limits.metadata_bytes}; "
            "raise the limit `metadata_bytes` if you trust the file"
        )
    entries = [reader.message(e, schema.ENTRY, "metadata") for e in model["metadata_props"]]
    return {entry.get("key", ""): entry.get("value", "") for entry in entries}


def _opset(reader: Reader, model: Message) -> int:
    entries = [reader.message(e, schema.OPSET, "opset_import") for e in model["opset_import"]]
    versions = {e.get("version", 0) for e in entries if e.get("domain", "") in _DOMAINS}
    others = sorted({entry.get("domain", "") for entry in entries} - set(_DOMAINS))
    if not versions and others:
        raise UnsupportedError(
            f"the file has operations of the domain {shown(', '.join(others))!r} only; expected a "
            "network of ONNX's own operations, such as Conv"
        )
    if not versions and not entries and 1 <= model.get("ir_version", 0) < 3:
        versions.add(1)  # before there were numbers
    if len(versions) != 1:
        raise ModelError(
            f"the file imports {len(versions)} versions of ONNX's operations; expected one"
        )
    opset = int(versions.pop())
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        raise UnsupportedError(
            f"the model is of opset {opset}; expected {FIRST_OPSET} to {LAST_OPSET}; convert it "
            "with onnx.version_converter"
        )
    return opset


def _input(data: memoryview, reader: Reader, constants: dict[str, Array]) -> FileInput | None:
    """A declared input, or None for one that an initializer defines."""
    value = reader.message(data, schema.VALUE, "input")
    name = value.get("name", "")
    if not name:
        raise ModelError("an input has no name; expected one")
    if name in constants:
        return None
    what = f"input {shown(name)!r}"
    kind = reader.message(value.get("type", memoryview(b"")), schema.TYPE, what)
    if "tensor_type" not in kind:
        raise UnsupportedError(f"{what} is no tensor; expected a tensor of float32 or float64")
    tensor = reader.message(kind["tensor_type"], schema.TENSOR_TYPE, what)
    dtype = dtype_name(tensor.get("elem_type", 0), what)
    return FileInput(name, dtype, _shape(tensor, reader, what))


def _declared_shape(value: Message, reader: Reader) -> Extents | None:
    """The shape that the file declares for an output; nothing needs it, so it may be damaged."""
    try:
        kind = reader.message(value.get("type", memoryview(b"")), schema.TYPE, "output")
        tensor = kind.get("tensor_type", memoryview(b""))
        return _shape(reader.message(tensor, schema.TENSOR_TYPE, "output"), reader, "output")
    except LeanConvError:
        return None


def _shape(tensor: Message, reader: Reader, what: str) -> Extents | None:
    """A declared shape, None where the file does not even fix the rank."""
    if "shape" not in tensor:
        return None
    extents = reader.message(tensor["shape"], schema.SHAPE, what)["dim"]
    if len(extents) > MAX_RANK:
        raise ModelError(f"{what} has rank {len(extents)}; expected at most {MAX_RANK}")
    return tuple(_extent(each, reader, what) for each in extents)


def _extent(data: memoryview, reader: Reader, what: str) -> int | str | None:
    extent = reader.message(data, schema.DIMENSION, what)
    number = extent.get("dim_value", 0)
    if number > 0:
        return int(number)
    name = extent.get("dim_param")
    return None if name in _NAMELESS else name


def _place(message: Message, opset: int, index: int) -> tuple[str, str]:
    """A node's name, and what messages call it."""
    op = message.get("op_type", "")
    name = shown(message.get("name", "") or f"{op}_{index}")
    return name, f"node {name!r} ({shown(op)}, opset {opset})"


def _check_operations(messages: Sequence[Message], opset: int) -> None:
    """Raise for the first operation that is not known, and name all others of the file."""
    lacking: dict[str, str] = {}
    for index, message in enumerate(messages):
        op, domain = message.get("op_type", ""), message.get("domain", "")
        if domain not in _DOMAINS:
            where = f"{_place(message, opset, index)[1]} of the domain {shown(domain)!r}"
            lacking.setdefault(f"{domain}.{op}", where)
        elif op not in RULES:
            lacking.setdefault(op, _place(message, opset, index)[1])
    if not lacking:
        return
    (_, where), *others = lacking.items()
    more = f", nor {', '.join(shown(op) for op, _ in others[:20])}" if others else ""
    advice = f"expected one of {', '.join(sorted(RULES))}"
    if any(op in _QUANTISED or "Integer" in op for op in lacking):
        advice = (
            "expected a network that computes in float32 or float64: give the one from before it "
            "was quantised"
        )
    raise UnsupportedError(f"{where} is not supported{more}; {advice}")


def _node(
    message: Message, reader: Reader, files: ExternalFiles, opset: int, index: int
) -> FileNode:
    op = message.get("op_type", "")
    name, where = _place(message, opset, index)
    rule = _rule(op, opset, where)
    inputs, outputs = message["input"], message["output"]
    most = rule.least if opset < rule.moved[0] else rule.most
    if not rule.least <= len(inputs) <= most:
        raise ModelError(f"{where} has {len(inputs)} inputs; expected {rule.least} to {most}")
    if not outputs:
        raise ModelError(f"{where} has no output; expected at least one")
    try:
        attributes = dict(_attribute(each, reader, files, rule) for each in message["attribute"])
    except LeanConvError as error:
        raise located(error, where) from error
    moved = [name for name in rule.moved[1] if opset >= rule.moved[0] and name in attributes]
    if moved:
        raise ModelError(f"{where} has the attribute {moved[0]}; expected an input in this opset")
    return FileNode(op, tuple(inputs), tuple(outputs), MappingProxyType(attributes), name)


def _rule(op: str, opset: int, where: str) -> Rule:
    rule = RULES[op]
    if not rule.since <= opset <= rule.until:
        raise ModelError(
            f"{where} does not exist in this opset; expected opset {rule.since} to {rule.until}"
        )
    return rule


def _attribute(
    data: memoryview, reader: Reader, files: ExternalFiles, rule: Rule
) -> tuple[str, Any]:
    message = reader.message(data, schema.ATTRIBUTE, "AttributeProto")
    name = message.get("name", "")
    wanted = rule.attributes.get(name)
    if "ref_attr_name" in message or wanted is None:
        listed = ", ".join(sorted(rule.attributes)) or "none"
        raise UnsupportedError(f"attribute {shown(name)!r} is not supported; expected {listed}")
    got = schema.ATTRIBUTE_KINDS.get(message.get("type", 0), _guessed(message))
    if got != ("int" if wanted == "dtype" else wanted):
        raise ModelError(f"attribute {name} is of kind {got}; expected {wanted}")
    if wanted == "tensor":
        return name, read_tensor(message.get("t", memoryview(b"")), reader, files, name)[1]
    value = _DECODERS[wanted](message, name)
    if isinstance(value, tuple) and name not in _LONG and len(value) > 4 * MAX_RANK:
        raise ModelError(
            f"attribute {name} holds {len(value)} numbers; expected at most {4 * MAX_RANK}"
        )
    return name, value


def _guessed(message: Message) -> str:
    """The kind of an attribute without a type, as very old files have it."""
    for field, kind in (("f", "float"), ("i", "int"), ("s", "string"), ("t", "tensor")):
        if field in message:
            return kind
    return "floats" if message["floats"] else "ints"


_DECODERS: dict[str, Callable[[Message, str], Any]] = {
    "float": lambda message, _: float(message.get("f", 0.0)),
    "int": lambda message, _: int(message.get("i", 0)),
    "dtype": lambda message, name: dtype_name(message.get("i", 0), f"attribute {name}"),
    "string": lambda message, name: text(message.get("s", memoryview(b"")), f"attribute {name}"),
    "floats": lambda message, name: tuple(fixed(message["floats"], "<f4", name).tolist()),
    "ints": lambda message, name: tuple(integers(message["ints"], name).tolist()),
}
