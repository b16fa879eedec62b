"""Recognise layers between DequantizeLinear and QuantizeLinear, and compute them on codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.graph.codes import Code
from leanconv.graph.edit import Editor, frozen, node_like, rewrite
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS
from leanconv.graph.passes.coded_layers import coded_conv, coded_dense
from leanconv.graph.passes.coded_results import quantise
from leanconv.graph.passes.coded_transposed import coded_transposed
from leanconv.graph.passes.coded_values import Coded, Values, bounds_of, floats_made, inner
from leanconv.graph.passes.dense_of_codes import dense_of_codes
from leanconv.types import FLOAT32

# What gives elements back as they are.
_MOVES = ("Reshape", "Transpose", "Slice", "Expand", "MaxPool", "Pad", "Resize")


def recognise_quantised(graph: Graph) -> Graph:
    """Replace DequantizeLinear, layer, QuantizeLinear by the layer on codes.

    - A Conv, ConvTranspose, Gemm or MatMul of codes by constant codes becomes a QLinearConv, whose
      result is floats where no QuantizeLinear reads it alone.
    - Relu and Clip in front of a QuantizeLinear, or behind such a layer, become bounds of it.
    - Add, Mul, MatMul, AveragePool, global means and Concat between codes become operations on
      codes; any other function of one tensor, element by element, a Lookup.
    - A Gemm or MatMul of few rows of floats by constant codes becomes a MatMulNBits.
    - What only moves elements moves codes: a DequantizeLinear goes behind it, and a
      QuantizeLinear before it where a layer of codes is behind that.

    Left alone: several scales along an axis of activations, codes that are not of 8 bits, and
    layers whose floats others read, too. They are computed in floats. In a network that is computed
    in float64, codes are those of float32.

    Requires: a verified graph, as its file has it: floats of constant codes are given by nodes.
    Ensures: floats of constant codes are constants.
    """
    if not any(node.op == "DequantizeLinear" for node in graph.nodes):
        return graph

    def rule(editor: Editor, node: Node) -> bool:
        found = _RULES.get(node.op)
        if found is None or not all(editor.types[name].elements for name in node.outputs):
            return False
        return found(Values(editor), node)

    return floats_made(dense_of_codes(rewrite(graph, rule)))


def _clip(values: Values, node: Node) -> bool:
    """A Relu or Clip behind a QLinearConv that gives floats: bounds of its result."""
    conv = values.editor.private_producer(node.inputs[0], "QLinearConv")
    bounds = bounds_of(node)
    if conv is None or bounds is None or conv.attributes["dtype"] != FLOAT32:
        return False
    low, high = inner(conv.attributes["low"], conv.attributes["high"], *bounds)
    if not low <= high:
        return False
    changes = {"low": low, "high": high}
    values.editor.replace(node, node_like(conv, outputs=node.outputs, attributes=changes))
    return True


def _move(values: Values, node: Node) -> bool:
    """What moves elements: it moves their codes, and the floats are made behind it."""
    x = values.coded(node.inputs[0])
    if x is None or values.is_constant(node.inputs[0]) or not _moves_codes(node, x.code):
        return False
    _behind(values, node, x.code, (_moved(node, x),))
    return True


def _moves_codes(node: Node, code: Code) -> bool:
    """Whether a node gives, of codes, the codes of what it gives of floats."""
    given = node.attributes
    if node.op == "Resize" and given["mode"] != "nearest":
        return False
    if node.op == "Pad" and given["mode"] == "constant":
        held = code.floats(np.asarray(code.code_of(given["value"])))
        if float(held) != given["value"]:
            return False
    return code.dtype in OPS[node.op].dtypes


def _moved(node: Node, x: Coded) -> Node:
    """The same movement of codes."""
    changes: dict[str, Any] = {}
    if node.op == "Pad" and node.attributes["mode"] == "constant":
        changes["value"] = float(x.code.code_of(node.attributes["value"]))
    return node_like(node, inputs=(x.name, *node.inputs[1:]), attributes=changes)


def _behind(values: Values, node: Node, code: Code, new: tuple[Node, ...]) -> None:
    """Replace a node by `new`, whose last one gives codes of its result."""
    editor = values.editor
    out = editor.value(node.output, TensorType(editor.shape(node.output), code.dtype))
    last = replace(new[-1], outputs=(out,))
    scale = editor.constant(node.output, np.asarray(code.scale, np.float32))
    zero = editor.constant(node.output, np.asarray(code.zero, code.dtype))
    attributes = frozen({"axis": 0, "dtype": editor.types[node.output].dtype})
    floats = Node("DequantizeLinear", (out, scale, zero), node.outputs, attributes, node.name)
    editor.replace(node, *new[:-1], last, floats)


def _concat(values: Values, node: Node) -> bool:
    """A Concat of codes that all stand for the same: floats are made behind it."""
    parts = [values.coded(name) for name in node.inputs]
    if not all(parts) or len({part.code for part in parts if part}) != 1:
        return False
    if all(values.is_constant(name) for name in node.inputs) or parts[0] is None:
        return False
    names = tuple(part.name for part in parts if part)
    _behind(values, node, parts[0].code, (replace(node, inputs=names),))
    return True


_RULES: Mapping[str, Callable[[Values, Node], bool]] = {
    "Conv": coded_conv,
    "ConvTranspose": coded_transposed,
    "Gemm": coded_dense,
    "MatMul": coded_dense,
    "Relu": _clip,
    "Clip": _clip,
    "Concat": _concat,
    **dict.fromkeys(_MOVES, _move),
    "QuantizeLinear": quantise,
}
