"""Nodes of a file, read or to be written, and the graphs that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from leanconv.errors import LeanConvError, shown
from leanconv.graph.ir import TensorType
from leanconv.graph.ops.base import Array
from leanconv.graph.wire import Message, written
from leanconv.records import dataclass, field, replace

DOMAINS = ("", "ai.onnx")  # two names of ONNX's own


def table_key(domain: str, op: str) -> str:
    """Return an operation's key in the table of operations."""
    return op if domain in DOMAINS else f"{domain}.{op}"


@dataclass(frozen=True, eq=False)
class FileNode:
    """A node as the file has it.

    Attributes:
        op: ONNX's operation; of another domain with that and a dot before it.
        inputs, outputs: names; `""` where absent.
        attributes: ints, floats, strings, tuples of numbers, arrays; none before they are decoded.
            Of nodes that are written numbers, tuples of them, and AttributeProtos.
        name: the node's name in the file, or one made from its place.
        opset: the version of the operations, where it is not the model's: functions have their own.
        graphs: the graphs that it holds, by the attribute's name.
        domain, overload: of the operation.
        undecoded: attributes as bytes of AttributeProtos, or as their decoded messages.
        captured: names that are read by graphs which lie in attributes as bytes.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    name: str
    opset: int | None = None
    graphs: Mapping[str, FileGraph] = field(default_factory=lambda: MappingProxyType({}))
    domain: str = ""
    overload: str = ""
    undecoded: tuple[memoryview | Message, ...] = ()
    captured: frozenset[str] = frozenset()

    @property
    def reads(self) -> tuple[str, ...]:
        """The names that the node reads: its inputs, and those that its graphs capture."""
        if not self.graphs and not self.captured:
            return self.inputs
        held = (name for graph in self.graphs.values() for name in graph.captured.values())
        return (*self.inputs, *self.captured, *held)

    @property
    def bare_op(self) -> str:
        """The operation without its domain."""
        return self.op if self.domain in DOMAINS else self.op[len(self.domain) + 1 :]

    @property
    def where(self) -> str:
        """The name in messages before the node is decoded."""
        version = "" if self.opset is None else f", opset {self.opset}"
        return f"node {self.name!r} ({shown(self.bare_op)}{version})"

    def data(self) -> bytes:
        """The NodeProto."""
        parts = [written(1, each.encode()) for each in self.inputs]
        parts += [written(2, each.encode()) for each in self.outputs]
        parts += [written(3, self.name.encode()), written(4, self.bare_op.encode())]
        parts += [written(5, _attribute(name, each)) for name, each in self.attributes.items()]
        parts += [written(7, self.domain.encode())] if self.domain not in DOMAINS else []
        parts += [written(8, self.overload.encode())] if self.overload else []
        return b"".join(parts)


def _attribute(name: str, value: int | tuple[int, ...] | memoryview) -> bytes | memoryview:
    """An AttributeProto of numbers that are not negative; one that is bytes already as it is."""
    if isinstance(value, memoryview):
        return value
    if isinstance(value, int):
        return written(1, name.encode()) + written(3, value) + written(20, 2)
    numbers = b"".join(written(8, each) for each in value)
    return written(1, name.encode()) + numbers + written(20, 7)


@dataclass(frozen=True, eq=False)
class Undecoded:
    """An initialiser as bytes: of a SparseTensorProto if it is sparse, or else of a TensorProto."""

    data: memoryview
    is_sparse: bool = False


@dataclass(frozen=True, eq=False)
class FileGraph:
    """A graph that a node of the file holds. Its names are its own, but for those of `captured`.

    Attributes:
        inputs, outputs: names.
        nodes: all, in the file's order; once the graph is completed those that the outputs need, in
            an order in which they can run.
        constants: its own weights.
        captured: names of the graph around it, by the names that they have in this one.
        refused: why it cannot be computed, None if nothing is known that speaks against it.
        declared: types of the outputs as the file declares them, None where it does not say of
            what elements they are; extents that are no numbers are 0, without a rank none.
        undecoded: initialisers that are no constants yet.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[FileNode, ...]
    constants: Mapping[str, Array]
    captured: Mapping[str, str]
    refused: LeanConvError | None = None
    declared: tuple[TensorType | None, ...] = ()
    undecoded: Mapping[str, Undecoded] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of nodes, with those of the graphs that they hold."""
        return count_nodes(self.nodes)

    def part(self, outputs: Sequence[str]) -> FileGraph:
        """The graph without the nodes that only other outputs need."""
        needed, nodes = set(outputs), []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.outputs):
                nodes.append(node)
                needed.update(node.reads)
        return replace(self, outputs=tuple(outputs), nodes=tuple(nodes[::-1]))

    def within(self, names: Mapping[str, str]) -> FileGraph:
        """The graph with the new names of the graph around it."""
        captured = {name: names[outer] for name, outer in self.captured.items()}
        return replace(self, captured=captured)


def count_nodes(nodes: Sequence[FileNode]) -> int:
    """The number of nodes, with those of the graphs that they hold."""
    held = (graph for node in nodes for graph in node.graphs.values())
    return len(nodes) + sum(graph.size for graph in held)
