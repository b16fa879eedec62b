"""The nodes of an ONNX file: first their names only, then, of those that are needed, the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph import onnx_schema as schema
from leanconv.graph.builder import located
from leanconv.graph.convert import RULES, FileNode, Rule
from leanconv.graph.onnx_tensor import ExternalFiles, dtype_name, read_tensor
from leanconv.graph.ops.base import MAX_RANK
from leanconv.graph.wire import Message, Reader, fixed, integers, text
from leanconv.records import dataclass

DOMAINS = ("", "ai.onnx")  # two names of ONNX's own
NAME = 200  # characters of a name that messages show
_LONG = ("value_ints", "value_floats", "split")  # attributes that may hold any number of numbers


@dataclass(frozen=True, eq=False)
class RawNode:
    """A node of which only the names are decoded.

    Attributes:
        op, domain, overload: what it computes.
        inputs, outputs: names; `""` where absent.
        attributes: each as an AttributeProto's bytes, or as its decoded message.
        name: the node's name in the file, or one made from its place.
        opset: the version of ONNX's operations for it; None where nothing says.
    """

    op: str
    domain: str
    overload: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[memoryview | Message, ...]
    name: str
    opset: int | None

    @property
    def own(self) -> bool:
        """Whether the operation is one of ONNX's own domain."""
        return self.domain in DOMAINS

    @property
    def where(self) -> str:
        """What messages call it."""
        version = "" if self.opset is None else f", opset {self.opset}"
        return f"node {self.name!r} ({shown(self.op)}{version})"


def shown(name: str) -> str:
    """A name short enough for a message."""
    return name if len(name) <= NAME else name[:NAME] + "…"


def raw_nodes(
    parts: Iterable[memoryview], reader: Reader, opset: int | None
) -> tuple[RawNode, ...]:
    """Decode one level of nodes."""
    messages = [reader.message(each, schema.NODE, f"node {i}") for i, each in enumerate(parts)]
    return tuple(
        RawNode(
            op=message.get("op_type", ""),
            domain=message.get("domain", ""),
            overload=message.get("overload", ""),
            inputs=tuple(message["input"]),
            outputs=tuple(message["output"]),
            attributes=tuple(message["attribute"]),
            name=shown(message.get("name", "") or f"{message.get('op_type', '')}_{index}"),
            opset=opset,
        )
        for index, message in enumerate(messages)
    )


def decoded(node: RawNode, reader: Reader, files: ExternalFiles) -> FileNode:
    """Decode the rest of a node, whose operation `onnx_operations` has found in the table.

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
    kinds = _kinds(rule, opset)
    try:
        found = (_attribute(each, reader, files, kinds, opset) for each in node.attributes)
        attributes = {name: value for name, value in found if name != _CONSUMED}
    except LeanConvError as error:
        raise located(error, where) from error
    moved = [name for name in rule.moved[1] if opset >= rule.moved[0] and name in attributes]
    if moved:
        raise ModelError(f"{where} has the attribute {moved[0]}; expected an input in this opset")
    return FileNode(
        node.op, node.inputs, node.outputs, MappingProxyType(attributes), node.name, opset
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
    got = schema.ATTRIBUTE_KINDS.get(message.get("type", 0), _guessed(message))
    if wanted == "dtype" and got == "string" and opset < 6:
        written = text(message.get("s", memoryview(b"")), f"attribute {name}").upper()
        return name, dtype_name(schema.DTYPE_NUMBERS.get(written, 0), f"attribute {name}")
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
