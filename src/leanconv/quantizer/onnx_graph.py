"""An ONNX file that can be changed: nodes, weights as arrays, and how it is written again.

Nothing is lost that is not changed: attributes, types of inputs and outputs, metadata, functions
and graphs within nodes are kept as bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.graph.convert import FILE_RULES, Rule
from leanconv.graph.file_graph import table_key
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_nodes import attribute_message
from leanconv.graph.wire import Reader, integers, written
from leanconv.records import dataclass
from leanconv.types import FLOAT32, as_dtype

Array = np.ndarray[Any, Any]
IR_VERSION, OPSETS, GRAPH = 1, 8, 7  # fields of ModelProto
NODE, TENSOR, INPUT, OUTPUT, VALUE = 1, 5, 11, 12, 13  # fields of GraphProto
_MOST_BYTES = 2**31 - 1  # of a protobuf message
_UNKNOWN = Rule(lambda _: ())


@dataclass(eq=False)
class OnnxNode:
    """A node of the file.

    Attributes:
        op, domain: what it computes; the domain is `""` for ONNX's own operations.
        inputs, outputs: names, `""` where absent.
        name: of the node.
        attributes: AttributeProtos by name.
        captured: names that graphs within the node read.
    """

    op: str
    inputs: list[str]
    outputs: list[str]
    name: str
    attributes: dict[str, bytes] = field(default_factory=dict)
    domain: str = ""
    overload: str = ""
    captured: frozenset[str] = frozenset()

    @property
    def rule(self) -> Rule:
        """The rule of its operation; an empty one if that is not imported."""
        return FILE_RULES.get(table_key(self.domain, self.op), _UNKNOWN)

    def copy(self) -> OnnxNode:
        """The same node, with lists and attributes of its own."""
        return replace(
            self,
            inputs=list(self.inputs),
            outputs=list(self.outputs),
            attributes=dict(self.attributes),
        )

    def data(self) -> bytes:
        """The NodeProto."""
        parts = [written(1, each.encode()) for each in self.inputs]
        parts += [written(2, each.encode()) for each in self.outputs]
        parts += [written(3, self.name.encode()), written(4, self.op.encode())]
        parts += [written(5, each) for each in self.attributes.values()]
        parts += [written(7, self.domain.encode())] if self.domain else []
        parts += [written(8, self.overload.encode())] if self.overload else []
        return b"".join(parts)

    def _attribute(self, name: str) -> Mapping[str, Any] | None:
        found = self.attributes.get(name)
        if found is None:
            return None
        return attribute_message(memoryview(found), Reader(Limits().fields))

    def integer(self, name: str, default: int) -> int:
        """An attribute that is a whole number."""
        message = self._attribute(name)
        return default if message is None else int(message.get("i", 0))

    def number(self, name: str, default: float) -> float:
        """An attribute that is a float."""
        message = self._attribute(name)
        return default if message is None else float(message.get("f", 0.0))

    def text(self, name: str, default: str) -> str:
        """An attribute that is text."""
        message = self._attribute(name)
        return (
            default if message is None else bytes(message.get("s", b"")).decode("utf-8", "replace")
        )

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of whole numbers, None where it is absent."""
        message = self._attribute(name)
        return None if message is None else tuple(integers(message["ints"], name).tolist())


@dataclass(eq=False)
class OnnxGraph:
    """A whole file; see the module.

    Attributes:
        nodes: in an order in which they can run.
        constants: weights that are floats, and other small ones, as arrays by name.
        inputs, outputs: ValueInfoProtos by name; inputs that are weights are left out.
        opset: the version of ONNX's own operations.
        domains: versions of others.
        ir_version: of the file.
        around: fields of the file around its graph, as they are.
        inside: fields of the graph that are not here, as they are.
        others: TensorProtos of weights without an array, by name.
        taken: names that `unused_name` does not give; empty before its first call.
    """

    nodes: list[OnnxNode]
    constants: dict[str, Array]
    inputs: dict[str, bytes]
    outputs: dict[str, bytes]
    opset: int
    domains: dict[str, int]
    ir_version: int
    around: tuple[bytes, ...]
    inside: tuple[bytes, ...]
    others: dict[str, bytes]
    taken: set[str] = field(default_factory=set)

    def copy(self) -> OnnxGraph:
        """The same graph, with nodes and tables of its own; arrays are shared."""
        return replace(
            self,
            nodes=[node.copy() for node in self.nodes],
            constants=dict(self.constants),
            outputs=dict(self.outputs),
            taken=set(self.taken),
        )

    def pruned(self) -> OnnxGraph:
        """The same graph without nodes on which no output depends."""
        return replace(self.copy(), nodes=self._needed(self.outputs))

    def producers(self) -> dict[str, OnnxNode]:
        """The node that writes a value, by the value's name."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[OnnxNode]]:
        """The nodes that read a value, by its name; each once."""
        found: dict[str, list[OnnxNode]] = {}
        for node in self.nodes:
            for name in {*node.inputs, *node.captured} - {""}:
                found.setdefault(name, []).append(node)
        return found

    def data(self, outputs: Sequence[str] | None = None) -> bytes:
        """The file.

        Args:
            outputs: names of values that are the outputs, in place of the file's own.

        Raises:
            UnsupportedError: it would have 2 GiB or more.
        """
        values = self.outputs if outputs is None else {n: written(1, n.encode()) for n in outputs}
        nodes = self._needed(values)
        read = {name for node in nodes for name in (*node.inputs, *node.captured)}.union(values)
        parts = [written(NODE, node.data()) for node in nodes]
        parts += [
            written(TENSOR, tensor(name, array))
            for name, array in self.constants.items()
            if name in read
        ]
        parts += [written(TENSOR, raw) for name, raw in self.others.items() if name in read]
        parts += self.inside
        parts += [written(INPUT, each) for each in self.inputs.values()]
        parts += [written(OUTPUT, each) for each in values.values()]
        graph = b"".join(parts)
        opsets = {"": self.opset, **self.domains}
        head = [written(IR_VERSION, self.ir_version), *self.around]
        head += [
            written(OPSETS, written(1, domain.encode()) + written(2, version))
            for domain, version in opsets.items()
        ]
        if len(graph) > _MOST_BYTES:
            raise UnsupportedError(
                f"the file would have {len(graph)} bytes; expected less than 2 GiB: quantise a "
                "smaller network"
            )
        return b"".join((*head, written(GRAPH, graph)))

    def _needed(self, outputs: Iterable[str]) -> list[OnnxNode]:
        """The nodes on which outputs depend, in order."""
        wanted, kept = set(outputs), []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                wanted.update((*node.inputs, *node.captured))
                kept.append(node)
        return kept[::-1]

    def unused_name(self, wanted: str) -> str:
        """A name for a value that no value has yet, and that no later call gives."""
        if not self.taken:
            self.taken = {name for node in self.nodes for name in (*node.inputs, *node.outputs)}
            self.taken |= {*self.constants, *self.inputs, *self.others}
        name, number = wanted, 1
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name


def tensor(name: str, array: Array) -> bytes:
    """A TensorProto."""
    dtype = as_dtype(array.dtype)
    little = np.asarray(array, array.dtype.newbyteorder("<"))
    dims = b"".join(written(1, extent) for extent in array.shape)
    assert little.nbytes == dtype.bytes * math.prod(array.shape)
    return dims + written(2, dtype.onnx) + written(8, name.encode()) + written(9, little.tobytes())


def int_attribute(name: str, value: int) -> bytes:
    """An AttributeProto of a whole number that is not negative."""
    return written(1, name.encode()) + written(3, value) + written(20, 2)


def is_float(array: Array | None) -> bool:
    """Return whether a value is an array of float32."""
    return array is not None and array.dtype == np.dtype(FLOAT32)
