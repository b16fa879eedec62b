"""Store int8 codes inside a network as uint8, the type that processors multiply by int8 fastest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from operator import add

import numpy as np

from leanconv.graph.edit import Editor, node_like, rewrite
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS
from leanconv.graph.passes.coded_values import moves_codes
from leanconv.types import INT8, UINT8

_SHIFT = 128
_OF_FLOATS = ("QuantizeLinear", "DequantizeLinear")
_ZEROS = ("x_zero", "y_zero")
_OF_RESULT = ("y_zero", "low", "high", "value")  # attributes that are codes of the result


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
