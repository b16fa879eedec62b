"""Quantised values as passes see them: codes behind floats, functions of one, bounds."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from leanconv.errors import LeanConvError
from leanconv.graph.codes import Code, all_codes
from leanconv.graph.edit import Array, Editor
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import BINARY, OPS, UNARY, evaluate
from leanconv.graph.ops.quantised import CODES
from leanconv.graph.passes.simplify import drop_dead
from leanconv.records import dataclass
from leanconv.types import FLOAT16, FLOAT32

Number = TypeVar("Number", int, float)
_DEEPEST = 16  # operations of a function of one value


@dataclass(frozen=True)
class Coded:
    """Codes of 8 bits, and their quantisation."""

    name: str
    code: Code


@dataclass(frozen=True, eq=False)
class HeldCodes:
    """The codes of which a constant is made: it is (codes - zero) * scale.

    Attributes:
        codes: integers of the constant's shape.
        scale: float32, of one number () or of one for each place along `axis`.
        zero: of the codes' type and the scale's shape.
        axis: of the constant.
    """

    codes: Array
    scale: Array
    zero: Array
    axis: int


class Values:
    """The values of a graph that is rebuilt.

    Args:
        editor: of the graph.
    """

    def __init__(self, editor: Editor) -> None:
        self.editor = editor

    def held(self, name: str) -> HeldCodes | None:
        """The codes of a constant that a DequantizeLinear gives; None for other values."""
        node = self.editor.producer(name)
        if node is None or not of_constants(node, self.editor.constants):
            return None
        codes, scale, zero = (self.editor.constants[each] for each in node.inputs)
        return HeldCodes(codes, scale, zero, node.attributes["axis"])

    def is_constant(self, name: str) -> bool:
        """Return whether a value is known, as numbers or as codes."""
        return name in self.editor.constants or self.held(name) is not None

    def array(self, name: str) -> Array | None:
        """The numbers of a constant; None for other values."""
        node = self.editor.producer(name)
        if node is None or not of_constants(node, self.editor.constants):
            return self.editor.constants.get(name)
        return floats_of(node, self.editor.constants)

    def coded(self, name: str) -> Coded | None:
        """The codes of which floats were made, None unless they have one scale."""
        node = self.editor.producer(name)
        if node is None or node.op != "DequantizeLinear":
            return None
        code = self.code(node)
        return None if code is None else Coded(node.inputs[0], code)

    def code(self, node: Node) -> Code | None:
        """The quantisation of a QuantizeLinear or DequantizeLinear, if it is one of 8 bits."""
        scale, zero = (self.editor.constants[name] for name in node.inputs[1:3])
        dtype = next((each for each in CODES if each == str(zero.dtype)), None)
        if scale.size != 1 or dtype is None:
            return None
        number = float(scale.reshape(-1)[0])
        if not (math.isfinite(number) and number > 0):
            return None
        return Code(number, int(zero.reshape(-1)[0]), dtype)

    def function(self, name: str) -> tuple[Coded, Array] | None:
        """A value as a function of one coded value of its shape: element by element.

        Returns:
            The codes, and float32 results for all of them, (256,); None if it is no such function.
        """
        found: dict[str, Array] = {}
        sources: dict[str, Coded] = {}
        shape = self.editor.shape(name)

        def results(each: str, depth: int) -> Array | None:
            if each in found:
                return found[each]
            if self.is_constant(each):
                number = self._uniform(each)
                return None if number is None else np.full((256,), number, np.float32)
            coded = self.coded(each)
            if coded is not None and self.editor.shape(each) == shape:
                sources[coded.name] = coded
                if len(sources) > 1:
                    return None
                made = coded.code.floats(all_codes(coded.code.dtype))
            else:
                node = self.editor.producer(each)
                if node is None or not depth or not self._elementwise(node, shape):
                    return None
                inputs = [results(operand, depth - 1) for operand in node.inputs]
                if any(operand is None for operand in inputs):
                    return None
                try:
                    (made,) = evaluate(node.op, inputs, node.attributes)
                except LeanConvError:
                    return None
            found[each] = made
            return made

        made = results(name, _DEEPEST)
        if made is None or len(sources) != 1 or made.dtype != np.float32:
            return None
        (source,) = sources.values()
        return source, made

    def _uniform(self, name: str) -> float | None:
        """The one number of a constant, None if there are several."""
        if name in self.editor.constants:
            return self.editor.uniform(name)
        floats = self.array(name)
        one = floats is not None and floats.size and bool(np.all(floats == floats.flat[0]))
        return float(floats.flat[0]) if floats is not None and one else None

    def _elementwise(self, node: Node, shape: tuple[int, ...]) -> bool:
        rounds = node.op == "Cast" and node.attributes["to"] in (FLOAT16, FLOAT32)
        known = node.op in UNARY or node.op in BINARY or rounds
        return known and self.editor.shape(node.output) == shape


def moves_codes(node: Node) -> bool:
    """Return whether a node only gives elements of all its inputs: codes as well as floats."""
    entry = OPS[node.op]
    moved = slice(1) if entry.selects else entry.moves
    return moved is not None and node.inputs[moved] == node.inputs and len(node.outputs) == 1


def of_constants(node: Node, constants: Container[str]) -> bool:
    """Return whether a node makes floats of codes that are known."""
    return node.op == "DequantizeLinear" and all(name in constants for name in node.inputs)


def floats_of(node: Node, constants: Mapping[str, Array]) -> Array:
    """Compute the result of a DequantizeLinear of constants."""
    with np.errstate(all="ignore"):
        return evaluate(node.op, [constants[name] for name in node.inputs], node.attributes)[0]


def floats_made(graph: Graph) -> Graph:
    """The graph with floats of constant codes as constants, which nodes have given so far."""
    given = [node for node in graph.nodes if of_constants(node, graph.constants)]
    if not given:
        return graph
    constants = dict(graph.constants)
    for node in given:
        made = np.ascontiguousarray(floats_of(node, graph.constants))
        made.flags.writeable = False
        constants[node.output] = made.reshape(graph.types[node.output].shape)
    nodes = tuple(node for node in graph.nodes if node.key not in constants)
    return drop_dead(replace(graph, nodes=nodes, constants=MappingProxyType(constants)))


def bounds_of(node: Node) -> tuple[float, float] | None:
    """The bounds of a Relu or a Clip."""
    if node.op == "Relu":
        return 0.0, math.inf
    return (node.attributes["min"], node.attributes["max"]) if node.op == "Clip" else None


def inner(low: Number, high: Number, least: Number, most: Number) -> tuple[Number, Number]:
    """The bounds of numbers from `low` to `high` that are clamped to others, too."""
    return min(max(low, least), most), min(max(high, least), most)
