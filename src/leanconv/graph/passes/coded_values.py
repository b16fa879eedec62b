"""Quantised values as passes see them: codes behind floats, functions of one, bounds, signs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Mapping
from operator import add
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from leanconv.errors import LeanConvError
from leanconv.graph.codes import Code, all_codes
from leanconv.graph.edit import Array, Editor, node_like, rewrite
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import BINARY, OPS, UNARY, evaluate
from leanconv.graph.ops.quantised import CODES
from leanconv.graph.passes.simplify import drop_dead
from leanconv.records import dataclass, replace
from leanconv.types import FLOAT16, FLOAT32, INT8, UINT8

Number = TypeVar("Number", int, float)
_DEEPEST = 16  # operations of a function of one value
_SHIFT = 128
_OF_FLOATS = ("QuantizeLinear", "DequantizeLinear")
_ZEROS = ("x_zero", "y_zero")
_OF_RESULT = ("y_zero", "low", "high", "value")  # attributes that are codes of the result


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


def unsigned_codes(graph: Graph) -> Graph:
    """Add 128 to int8 codes, their zero points and bounds; nothing where none is negative.

    That is done of all tensors that movements join, or of none of them. Left alone: inputs and
    outputs of the graph, constants, and whatever other operations give or read, among them means
    of windows, which add the zero point before they round; and codes below 0 of a QLinearAdd, or
    that a QLinearMul gives: sums of float32 are rounded, and 128 more would change some of them.

    Requires: a verified graph, before Pads of convolutions are nodes of their own.
    Ensures: such tensors are uint8.
    """
    shifts = _shifts(graph)
    if not shifts:
        return graph
    return rewrite(graph, lambda editor, node: _rule(editor, node, shifts))


def _shifts(graph: Graph) -> dict[str, int]:
    """Return the tensors of int8 that become uint8, and the number added to them."""
    groups: dict[str, str] = {}

    def group(name: str) -> str:
        while groups.setdefault(name, name) != name:
            groups[name] = name = groups[groups[name]]
        return name

    def is_signed(name: str) -> bool:
        return bool(name) and graph.types[name].dtype == INT8

    kept = {name for name in (*graph.inputs, *graph.outputs) if is_signed(name)}
    kept.update(name for name in graph.constants if is_signed(name))
    negative, rounded = set[str](), set[str]()
    for node in graph.nodes:
        given = [name for name in node.outputs if is_signed(name)]
        read = [name for name in node.inputs if is_signed(name)]
        if node.op == "QLinearConv" and node.input(4):  # its residual is of the type of its result
            kept.update((*given, *filter(is_signed, node.inputs[4:])))
        moves = moves_codes(node)
        if not (moves or OPS[node.op].shifts):
            kept.update((*given, *read))
        if node.op == "QLinearMul":
            rounded.update(given)
        if node.op == "QLinearAdd" or (node.op == "QLinearConv" and node.input(4)):
            rounded.update((*given, *read))
        if moves:
            for name in (*given, *read):
                groups[group(name)] = group(node.outputs[0])
        least = _least(node, graph)
        negative.update(name for name in (*given, *read) if least[name] < 0)
    refused, below = ({group(name) for name in names} for names in (kept, negative))
    refused |= {group(name) for name in rounded} & below
    made = (name for node in graph.nodes for name in node.outputs if is_signed(name))
    return {name: _SHIFT * (group(name) in below) for name in made if group(name) not in refused}


def _least(node: Node, graph: Graph) -> defaultdict[str, float]:
    """The least code that a node gives, or has as a zero point, by the tensor's name."""
    given, least = node.attributes, defaultdict[str, float](float)
    zeros = given["zeros"] if "zeros" in given else [given[n] for n in _ZEROS if n in given]
    for name, zero in zip(node.inputs, zeros, strict=False):
        least[name] = min(least[name], zero)
    numbers = [*zeros[-1:], *([given["low"]] if "low" in given else [])]
    if node.op == "Pad" and given["mode"] == "constant":
        numbers.append(given["value"])
    elif node.op == "Lookup":
        table = graph.constants.get(node.inputs[1])
        numbers.append(-1 if table is None else table.min())
    elif node.op in _OF_FLOATS:
        zero = int(graph.constants[node.inputs[2]].min(initial=0))
        least[node.inputs[0]] = zero
        numbers += [zero, given.get("low", INT8.low)]
    least[node.outputs[0]] = min(numbers, default=0)
    return least


def _rule(editor: Editor, node: Node, shifts: Mapping[str, int]) -> bool:
    reads, gives = [shifts.get(name) for name in node.inputs], shifts.get(node.outputs[0])
    if gives is None and all(shift is None for shift in reads):
        return False
    new = _changed(editor, node, [each or 0 for each in reads], gives)
    if gives is not None:
        kind = editor.types[node.output]
        editor.types[node.output] = TensorType(kind.shape, UINT8)
    editor.replace(node, new)
    return True


def _constant(editor: Editor, name: str, shift: int) -> str:
    """A constant of int8 as uint8, that much more."""
    array = editor.constants[name].astype(np.int16) + shift
    return editor.constant(name, array.astype(np.uint8))


def _changed(editor: Editor, node: Node, reads: list[int], gives: int | None) -> Node:
    """Return a node with codes, and attributes of their kind, that are that much larger."""
    given, by, inputs = node.attributes, gives or 0, list(node.inputs)
    if node.op in _OF_FLOATS:
        inputs[2] = _constant(editor, inputs[2], reads[0] if gives is None else gives)
        if gives is not None:
            given = {"low": int(INT8.low), "high": int(INT8.high), **given}
    elif node.op == "Lookup":  # its index is a byte
        if reads[0]:
            inputs[1] = editor.constant(inputs[1], np.roll(editor.constants[inputs[1]], reads[0]))
        if gives is not None:
            inputs[1] = _constant(editor, inputs[1], gives)
    changes = {name: given[name] + by for name in _OF_RESULT if name in given}
    if "x_zero" in given:
        changes["x_zero"] = given["x_zero"] + reads[0]
    if "zeros" in given:
        changes["zeros"] = tuple(map(add, given["zeros"], (*reads, by)))
    if gives is not None and "dtype" in given:
        changes["dtype"] = UINT8
    return node_like(node, inputs=tuple(inputs), attributes=changes)
