"""Store int8 codes inside a network as uint8, which is what processors multiply by int8 fastest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.graph.edit import Editor, node_like, rewrite
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.passes.coded_values import MOVES
from leanconv.types import INT8, UINT8

_SHIFT = 128
_OF_CODES = frozenset(("QLinearAdd", "QLinearMul", "QLinearMatMul", "QLinearGlobalAveragePool"))
_MOVES = frozenset((*MOVES, "Concat"))
_GIVE = frozenset(("QuantizeLinear", "QLinearConv", "Lookup")) | _OF_CODES | _MOVES
_TAKE = frozenset(("DequantizeLinear", "QLinearConv", "Lookup")) | _OF_CODES | _MOVES


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
    """The tensors of int8 that become uint8, and what is added to them."""
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
        read = [name for name in _tensors(node) if is_signed(name)]
        if node.op == "QLinearConv" and node.input(4):  # its residual is of the type of its result
            kept.update((*given, *filter(is_signed, node.inputs[4:])))
        if node.op not in _GIVE or len(node.outputs) > 1:
            kept.update(given)
        if node.op not in _TAKE:
            kept.update(read)
        if node.op == "QLinearMul":
            rounded.update(given)
        if node.op == "QLinearAdd" or (node.op == "QLinearConv" and node.input(4)):
            rounded.update((*given, *(name for name in node.inputs if is_signed(name))))
        if node.op in _MOVES:
            for name in (*given, *read):
                groups[group(name)] = group(node.outputs[0])
        least = _least(node, graph)
        negative.update(name for name in (*given, *read) if least[name] < 0)
    refused, below = ({group(name) for name in names} for names in (kept, negative))
    refused |= {group(name) for name in rounded} & below
    made = (name for node in graph.nodes for name in node.outputs if is_signed(name))
    return {name: _SHIFT * (group(name) in below) for name in made if group(name) not in refused}


def _tensors(node: Node) -> tuple[str, ...]:
    """The inputs of a node but for constants of the operation: weights, tables, zero points."""
    alone = node.op in ("QLinearConv", "Lookup", "DequantizeLinear", "QuantizeLinear")
    return node.inputs[:1] if alone else node.inputs


def _least(node: Node, graph: Graph) -> defaultdict[str, float]:
    """The least code that a node gives, or has as a zero point, by the tensor's name."""
    given, constants = node.attributes, graph.constants
    least: defaultdict[str, float] = defaultdict(float)
    out = node.outputs[0]
    if node.op in ("QuantizeLinear", "DequantizeLinear"):
        zero = int(constants[node.inputs[2]].min(initial=0))
        if node.op == "QuantizeLinear":
            least[out] = min(zero, given.get("low", INT8.low))
        else:
            least[node.inputs[0]] = zero
    elif node.op == "Lookup":
        least[out] = constants[node.inputs[1]].min() if node.inputs[1] in constants else -1
    elif node.op == "Pad":
        least[out] = given["value"] if given["mode"] == "constant" else 0
    elif node.op == "QLinearConv":
        least[out] = min(given["y_zero"], given["low"])
        least[node.inputs[0]] = given["x_zero"]
    elif node.op in _OF_CODES:
        for name, zero in zip(node.inputs, given["zeros"], strict=False):
            least[name] = min(least[name], zero)
        least[out] = min(given["zeros"][-1], given["low"])
    return least


def _rule(editor: Editor, node: Node, shifts: Mapping[str, int]) -> bool:
    reads, gives = [shifts.get(name) for name in node.inputs], shifts.get(node.outputs[0])
    if gives is None and all(shift is None for shift in reads):
        return False
    change = _CHANGES.get(node.op)
    new = node if change is None else change(editor, node, [each or 0 for each in reads], gives)
    if gives is not None:
        kind = editor.types[node.output]
        editor.types[node.output] = TensorType(kind.shape, UINT8)
    editor.replace(node, new)
    return True


def _constant(editor: Editor, name: str, shift: int) -> str:
    """A constant of int8 as uint8, that much more."""
    array = editor.constants[name].astype(np.int16) + shift
    return editor.constant(name, array.astype(np.uint8))


def _result(node: Node, shift: int | None) -> dict[str, Any]:
    """Bounds and type of a result that is that much more; None for one that stays."""
    if shift is None:
        return {}
    found: dict[str, Any] = {"dtype": UINT8} if "dtype" in node.attributes else {}
    bounds = (name for name in ("low", "high") if name in node.attributes)
    return {**found, **{name: node.attributes[name] + shift for name in bounds}}


def _quantise(editor: Editor, node: Node, _reads: list[int], gives: int | None) -> Node:
    assert gives is not None, "it reads floats"
    ends = {"low": int(INT8.low), "high": int(INT8.high), **node.attributes}
    bounds = {name: ends[name] + gives for name in ("low", "high")}
    inputs = (*node.inputs[:2], _constant(editor, node.inputs[2], gives))
    return node_like(node, inputs=inputs, attributes=bounds)


def _dequantise(editor: Editor, node: Node, reads: list[int], _gives: int | None) -> Node:
    return replace(node, inputs=(*node.inputs[:2], _constant(editor, node.inputs[2], reads[0])))


def _conv(_editor: Editor, node: Node, reads: list[int], gives: int | None) -> Node:
    given = node.attributes
    changes = {**_result(node, gives), "x_zero": given["x_zero"] + reads[0]}
    return node_like(node, attributes={**changes, "y_zero": given["y_zero"] + (gives or 0)})


def _of_codes(_editor: Editor, node: Node, reads: list[int], gives: int | None) -> Node:
    """Operations with a zero point for each input and one for the result."""
    moved = zip(node.attributes["zeros"], (*reads, gives or 0), strict=True)
    zeros = tuple(zero + shift for zero, shift in moved)
    return node_like(node, attributes={**_result(node, gives), "zeros": zeros})


def _lookup(editor: Editor, node: Node, reads: list[int], gives: int | None) -> Node:
    """A table whose index, or whose elements, are that much more: its index is a byte."""
    x, name = node.inputs
    if reads[0]:
        name = editor.constant(name, np.roll(editor.constants[name], reads[0]))
    return replace(node, inputs=(x, name if gives is None else _constant(editor, name, gives)))


def _pad(_editor: Editor, node: Node, _reads: list[int], gives: int | None) -> Node:
    return node_like(node, attributes={"value": node.attributes["value"] + (gives or 0)})


_Change = Callable[[Editor, Node, list[int], int | None], Node]
_CHANGES: Mapping[str, _Change] = {
    "QuantizeLinear": _quantise,
    "DequantizeLinear": _dequantise,
    "QLinearConv": _conv,
    "Lookup": _lookup,
    "Pad": _pad,
    **dict.fromkeys(_OF_CODES, _of_codes),
}
