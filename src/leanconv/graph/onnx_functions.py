"""Functions that a model file brings along: every call is replaced by the function's nodes.

A function is a list of nodes over names of its own. For a call its inputs and outputs become those
of the call, and all other values get names that the file has not. What this may make is bounded:
the nodes of all calls together, and how deep functions call each other; none may call itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from leanconv.errors import ModelError, shown
from leanconv.graph import onnx_schema as schema
from leanconv.graph.file_graph import DOMAINS, FileNode, count_nodes
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_nodes import attribute_message, raw_nodes
from leanconv.graph.wire import Message, Reader
from leanconv.records import dataclass, replace

MOST_NESTED = 100  # functions within functions
_HINT = 60  # characters of a value's own name that its new one keeps
_Key = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the file.

    Attributes:
        name: in messages.
        inputs, outputs: its values that a call gives and gets.
        attributes: names of those that a call may give.
        defaults: attributes that hold where a call gives none, by name.
        nodes: of its body.
        size: how many nodes that are, with those of the graphs that they hold.
        names: how many names a call makes anew.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: frozenset[str]
    defaults: Mapping[str, Message]
    nodes: tuple[FileNode, ...]
    size: int
    names: int


class Functions:
    """The functions of a model file, decoded when they are first called.

    Args:
        parts: the FunctionProtos.
        reader: of the file.
        opset: the model's version of ONNX's operations, where a function names none.
        limits: how many nodes all calls together may become, and how many names in them.
    """

    def __init__(
        self, parts: Sequence[memoryview], reader: Reader, opset: int, limits: Limits
    ) -> None:
        self._reader, self._opset, self._limits = reader, opset, limits
        self._nodes_left, self._names_left = limits.nodes, limits.fields
        self._messages: dict[_Key, Message] = {}
        self._functions: dict[_Key, Function] = {}
        for part in parts:
            message = reader.message(part, schema.FUNCTION, "FunctionProto")
            key = _key(*(message.get(each, "") for each in ("domain", "name", "overload")))
            if key in self._messages:
                raise ModelError(
                    f"the function {shown(key[1])!r} is defined twice; expected it once"
                )
            self._messages[key] = message

    def calls(self, node: FileNode) -> bool:
        """Return whether a node calls one of these functions."""
        return _of(node) in self._messages

    def expanded(self, nodes: Sequence[FileNode], taken: set[str]) -> list[FileNode]:
        """The nodes with every call replaced by the function's nodes.

        Args:
            nodes: of the graph.
            taken: names of values that are in use.

        Raises:
            ModelError: a function calls itself, is called wrongly, or all of them become too many
                nodes.
        """
        numbers = count()
        result: list[FileNode] = []
        stack: list[tuple[FileNode, tuple[_Key, ...]]] = [(node, ()) for node in reversed(nodes)]
        while stack:
            node, within = stack.pop()
            if not self.calls(node):
                result.append(node)
                continue
            key = _of(node)
            if key in within or len(within) >= MOST_NESTED:
                kind = "calls itself" if key in within else f"is nested over {MOST_NESTED} deep"
                raise ModelError(
                    f"{node.where}: the function {shown(key[1])!r} {kind}; expected functions that "
                    "come to an end"
                )
            body = self._body(node, self._function(key), numbers, taken)
            stack += [(each, (*within, key)) for each in reversed(body)]
        return result

    def _function(self, key: _Key) -> Function:
        if key not in self._functions:
            self._functions[key] = self._decoded(self._messages[key])
        return self._functions[key]

    def _decoded(self, message: Message) -> Function:
        reader, opset = self._reader, self._opset
        for part in message["opset_import"]:
            entry = reader.message(part, schema.OPSET, "opset_import")
            if entry.get("domain", "") in DOMAINS:
                opset = int(entry.get("version", 0))
        held = [attribute_message(part, reader) for part in message["attribute_proto"]]
        defaults = {each.get("name", ""): each for each in held}
        nodes = tuple(
            replace(node, undecoded=tuple(attribute_message(a, reader) for a in node.undecoded))
            for node in raw_nodes(message["node"], reader, opset)
        )
        return Function(
            name=shown(message.get("name", "")),
            inputs=tuple(message["input"]),
            outputs=tuple(message["output"]),
            attributes=frozenset((*message["attribute"], *defaults)),
            defaults=defaults,
            nodes=nodes,
            size=count_nodes(nodes),
            names=sum(len(n.reads) + len(n.outputs) + len(n.undecoded) for n in nodes)
            + len(message["input"])
            + len(message["output"])
            + len(held),
        )

    def _body(
        self, call: FileNode, function: Function, numbers: Iterator[int], taken: set[str]
    ) -> list[FileNode]:
        """The function's nodes with the values and attributes of a call."""
        self._nodes_left -= function.size + 1
        self._names_left -= function.names
        if min(self._nodes_left, self._names_left) < 0:
            raise ModelError(
                f"the functions of the file become over {self._limits.nodes} nodes, or over "
                f"{self._limits.fields} names; expected at most that many; raise the limits "
                "`nodes` and `fields` if you trust the file"
            )
        for what, given, most in (
            ("inputs", call.inputs, function.inputs),
            ("outputs", call.outputs, function.outputs),
        ):
            if len(given) > len(most):
                raise ModelError(
                    f"{call.where} has {len(given)} {what}; expected at most {len(most)}, which "
                    f"the function {function.name!r} has"
                )
        names = {"": ""}
        names.update(dict.fromkeys(function.inputs, ""))
        names.update(zip(function.inputs, call.inputs, strict=False))
        asked = dict(zip(function.outputs, call.outputs, strict=False))
        for inner in function.nodes:
            for name in inner.outputs:
                if name and name not in names:
                    names[name] = asked.get(name, "") or _fresh(name, numbers, taken)
        attributes = self._given(call, function)
        body = []
        for inner in function.nodes:
            lost = [name for name in inner.reads if name not in names]
            if lost:
                raise ModelError(
                    f"{call.where}: in the function {function.name!r}, {inner.where} reads "
                    f"{shown(lost[0])!r}, which nothing in it defines; expected its input or the "
                    "output of one of its nodes"
                )
            body.append(
                replace(
                    inner,
                    inputs=tuple(names[name] for name in inner.inputs),
                    outputs=tuple(names[name] for name in inner.outputs),
                    undecoded=self._attributes(inner, attributes),
                    name=shown(f"{call.name}/{inner.name}"),
                    graphs={key: graph.within(names) for key, graph in inner.graphs.items()},
                )
            )
        return [*body, *self._passed(call, function, names)]

    def _passed(
        self, call: FileNode, function: Function, names: Mapping[str, str]
    ) -> Iterator[FileNode]:
        """Copies for outputs of a function that are its inputs."""
        for name, wanted in zip(function.outputs, call.outputs, strict=False):
            if not wanted or names.get(name) == wanted:
                continue
            if not names.get(name):
                raise ModelError(
                    f"{call.where}: the output {shown(name)!r} of the function {function.name!r} "
                    "is defined by nothing; expected one of its nodes to define it"
                )
            yield FileNode("Identity", (names[name],), (wanted,), {}, call.name, self._opset)

    def _given(self, call: FileNode, function: Function) -> dict[str, Message]:
        """The attributes that the nodes of a function may refer to, by name."""
        given = dict(function.defaults)
        for each in call.undecoded:
            message = attribute_message(each, self._reader)
            name = message.get("name", "")
            if name not in function.attributes:
                raise ModelError(
                    f"{call.where} has the attribute {shown(name)!r}; expected those of the "
                    f"function {function.name!r}: "
                    f"{shown(', '.join(sorted(function.attributes)) or 'none')}"
                )
            given[name] = message
        return given

    def _attributes(self, inner: FileNode, given: Mapping[str, Message]) -> tuple[Message, ...]:
        """A node's attributes; one that refers to an attribute of the call becomes that, if any."""
        result = []
        for each in inner.undecoded:
            message = attribute_message(each, self._reader)
            reference = message.get("ref_attr_name", "")
            if not reference:
                result.append(message)
            elif reference in given:
                result.append({**given[reference], "name": message.get("name", "")})
        return tuple(result)


def _key(domain: str, name: str, overload: str) -> _Key:
    return ("" if domain in DOMAINS else domain), name, overload


def _of(node: FileNode) -> _Key:
    return _key(node.domain, node.bare_op, node.overload)


def _fresh(name: str, numbers: Iterator[int], taken: set[str]) -> str:
    """A name for a value that the file has not."""
    while True:
        made = f"{name[:_HINT]}#{next(numbers)}"
        if made not in taken:
            taken.add(made)
            return made
