"""What passes know of quantised values: codes behind floats, functions of one, bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from leanconv.errors import LeanConvError
from leanconv.graph.codes import Code, all_codes
from leanconv.graph.edit import Array, Editor
from leanconv.graph.ir import HeldCodes, Node
from leanconv.graph.ops import BINARY, UNARY, evaluate
from leanconv.graph.ops.quantised import CODES
from leanconv.records import dataclass
from leanconv.types import FLOATS

Number = TypeVar("Number", int, float)
_DEEPEST = 16  # operations of a function of one value


@dataclass(frozen=True)
class Coded:
    """Codes of 8 bits, and what they stand for."""

    name: str
    code: Code


class Values:
    """The values of a graph that is rebuilt.

    Args:
        editor: of the graph.
        held: codes of constants, by name.
    """

    def __init__(self, editor: Editor, held: Mapping[str, HeldCodes]) -> None:
        self.editor, self.held = editor, held

    def coded(self, name: str) -> Coded | None:
        """The codes of which floats were made, None unless they have one scale."""
        held = self.held.get(name)
        if held is not None and self.editor.types[name].dtype in FLOATS:
            code = _code(held.scale, held.zero)
            return None if code is None else Coded(self.editor.constant(name, held.codes), code)
        node = self.editor.producer(name)
        if node is None or node.op != "DequantizeLinear":
            return None
        code = self.code(node)
        return None if code is None else Coded(node.inputs[0], code)

    def code(self, node: Node) -> Code | None:
        """The quantisation of a QuantizeLinear or DequantizeLinear, if it is one of 8 bits."""
        return _code(*(self.editor.constants[name] for name in node.inputs[1:3]))

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
            number = self.editor.uniform(each) if each in self.editor.constants else None
            if number is not None:
                return np.full((256,), number, np.float32)
            coded = self.coded(each) if each not in self.editor.constants else None
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

    def _elementwise(self, node: Node, shape: tuple[int, ...]) -> bool:
        known = node.op in UNARY or node.op in BINARY
        return known and self.editor.shape(node.output) == shape


def _code(scale: Array, zero: Array) -> Code | None:
    if scale.size != 1 or str(zero.dtype) not in CODES:
        return None
    number = float(scale.reshape(-1)[0])
    if not (np.isfinite(number) and number > 0):
        return None
    dtype = next(each for each in CODES if each == str(zero.dtype))
    return Code(number, int(zero.reshape(-1)[0]), dtype)


def bounds_of(node: Node) -> tuple[float, float] | None:
    """The bounds of a Relu or a Clip."""
    if node.op == "Relu":
        return 0.0, math.inf
    return (node.attributes["min"], node.attributes["max"]) if node.op == "Clip" else None


def inner(low: Number, high: Number, least: Number, most: Number) -> tuple[Number, Number]:
    """The bounds of numbers from `low` to `high` that are clamped to others, too."""
    return min(max(low, least), most), min(max(high, least), most)
