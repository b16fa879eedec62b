"""Recognise layers between DequantizeLinear and QuantizeLinear, and compute them on codes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from leanconv.graph.codes import Code, fused, table
from leanconv.graph.edit import Array, Editor, frozen, node_like, rewrite
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS
from leanconv.graph.passes.coded_layers import (
    coded_conv,
    coded_dense,
    coded_transposed,
    dense_of_codes,
)
from leanconv.graph.passes.coded_values import (
    Coded,
    Values,
    bounds_of,
    floats_made,
    inner,
    moves_codes,
)
from leanconv.records import dataclass, replace
from leanconv.types import FLOAT32, FLOATS


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
        found = _RULES.get(node.op, _move if moves_codes(node) else None)
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
    """Let a node move codes of one quantisation instead of floats, which are made behind it."""
    parts, given, changes = [*map(values.coded, node.inputs)], node.attributes, dict[str, Any]()
    codes = {part.code for part in parts if part is not None}
    if None in parts or len(codes) != 1 or all(map(values.is_constant, node.inputs)):
        return False
    (code,) = codes
    if code.dtype not in OPS[node.op].dtypes:
        return False
    if node.op == "Resize" and given["mode"] != "nearest":
        return False
    if node.op == "Pad" and given["mode"] == "constant":
        fill = code.code_of(given["value"])
        if float(code.floats(np.asarray(fill))) != given["value"]:
            return False
        changes["value"] = float(fill)
    inputs = tuple(part.name for part in parts if part is not None)
    return _behind(values, node, code, node_like(node, inputs=inputs, attributes=changes))


def _behind(values: Values, node: Node, code: Code, new: Node) -> bool:
    """Replace a node by one that gives codes of its result, and make the floats behind it."""
    editor = values.editor
    out = editor.value(node.output, TensorType(editor.shape(node.output), code.dtype))
    scale = editor.constant(node.output, np.asarray(code.scale, np.float32))
    zero = editor.constant(node.output, np.asarray(code.zero, code.dtype))
    attributes = frozen({"axis": 0, "dtype": editor.types[node.output].dtype})
    floats = Node("DequantizeLinear", (out, scale, zero), node.outputs, attributes, node.name)
    editor.replace(node, replace(new, outputs=(out,)), floats)
    return True


# -- in front of a QuantizeLinear --------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Quantised:
    """A QuantizeLinear, and the nodes between it and the layer whose result it reads.

    Attributes:
        values: of the graph.
        node: the QuantizeLinear.
        code: of its result.
        low, high: bounds of its codes, those of a Relu or Clip behind the layer among them.
        root: name of the layer's result, floats.
        moves: nodes behind the layer that only move elements, in order.
    """

    values: Values
    node: Node
    code: Code
    low: int
    high: int
    root: str
    moves: tuple[Node, ...]

    @property
    def attributes(self) -> dict[str, Any]:
        """Bounds and type of the result, as attributes of an operation that gives codes."""
        return {"low": self.low, "high": self.high, "dtype": self.code.dtype}

    @property
    def whole(self) -> bool:
        """True if nothing between the layer and the QuantizeLinear bounds its codes.

        ONNX Runtime computes a layer in floats whose Relu or Clip bounds them.
        """
        return (self.low, self.high) == (self.code.dtype.low, self.code.dtype.high)

    def fused(self, *codes: Code) -> dict[str, Any]:
        """Return the attributes of an operation on these codes."""
        return {**fused((*codes, self.code)), **self.attributes}

    def replaced(self, *new: Node) -> bool:
        """Replace the node by some, of which the last gives codes of `root`, and the movements."""
        editor, out = self.values.editor, self.node.output
        shapes = [editor.shape(name) for name in (self.root, *(m.output for m in self.moves))]
        kinds = [TensorType(shape, self.code.dtype) for shape in shapes[:-1]]
        names = [*(editor.value(out, kind) for kind in kinds), out]
        chain = [*new[:-1], replace(new[-1], outputs=(names[0],))]
        for move, source, result in zip(self.moves, names, names[1:], strict=False):
            inputs = (source, *move.inputs[1:])
            chain.append(replace(move, inputs=inputs, outputs=(result,)))
        editor.replace(self.node, *chain)
        return True


def _quantise(values: Values, node: Node) -> bool:
    """A QuantizeLinear: the layer in front of it computes codes."""
    code = values.code(node)
    if code is None or values.editor.types[node.inputs[0]].dtype != FLOAT32:
        return False
    found = _followed(values, node, code)
    return any(rule(found) for rule in _LAYERS)


def _followed(values: Values, node: Node, code: Code) -> _Quantised:
    """Go back from a QuantizeLinear over bounds and views to the layer."""
    editor, name, moves = values.editor, node.inputs[0], []
    low = node.attributes.get("low", int(code.dtype.low))
    high = node.attributes.get("high", int(code.dtype.high))
    while True:
        before = editor.producer(name)
        if before is None or not editor.is_private(name):
            break
        bounds = bounds_of(before)
        if bounds is not None and not math.isnan(sum(bounds)):
            low, high = inner(low, high, *map(code.code_of, bounds))
        elif _moves_once(editor, before):
            moves.append(before)
        elif before.op != "Cast" or editor.types[before.inputs[0]].dtype not in FLOATS:
            break
        name = before.inputs[0]
    return _Quantised(values, node, code, low, high, name, tuple(moves[::-1]))


def _moves_once(editor: Editor, node: Node) -> bool:
    """Return whether a node moves elements of one tensor, and none of them to several places."""
    if not OPS[node.op].rearranges or len(node.outputs) > 1:
        return False
    return editor.types[node.output].elements <= editor.types[node.inputs[0]].elements


def _requantised(q: _Quantised) -> bool:
    """Codes as other codes, or as they are."""
    x = q.values.coded(q.root)
    if x is None or q.values.is_constant(q.root):
        return False
    if x.code != q.code or not q.whole:
        return q.replaced(_looked_up(q, x, table(x.code, q.code)))
    if not q.moves:
        return q.values.editor.alias(q.node, x.name)
    shape = frozen({"shape": q.values.editor.shape(q.root)})
    return q.replaced(Node("Reshape", (x.name,), (q.root,), shape, q.node.name))


def _looked_up(q: _Quantised, x: Coded, codes: Array) -> Node:
    """A Lookup in a table, clamped to the bounds."""
    clamped = np.clip(codes, q.low, q.high).astype(q.code.dtype)
    held = q.values.editor.constant(q.node.output, clamped)
    return Node("Lookup", (x.name, held), (q.root,), frozen({}), q.node.name)


def _layer(q: _Quantised) -> bool:
    """A QLinearConv that gave floats."""
    editor = q.values.editor
    conv = editor.private_producer(q.root, "QLinearConv")
    if conv is None or conv.attributes["dtype"] != FLOAT32:
        return False
    with np.errstate(all="ignore"):
        factors = editor.constants[conv.inputs[3]] / np.float32(q.code.scale)
    if not np.all(np.isfinite(factors)):
        return False
    least, most = (q.code.code_of(conv.attributes[name]) for name in ("low", "high"))
    low, high = inner(least, most, q.low, q.high)
    scale = editor.constant(conv.inputs[3], factors)
    changes = {**q.attributes, "low": low, "high": high, "y_zero": q.code.zero}
    return q.replaced(node_like(conv, inputs=(*conv.inputs[:3], scale), attributes=changes))


# By the operations on floats those on codes of one tensor or two.
_ON_CODES = {each.of_floats: op for op, each in OPS.items() if each.of_floats}
_OF_ONE, _OF_TWO = (
    [each for each, op in _ON_CODES.items() if OPS[op].most == count] for count in (1, 2)
)


def _pair(q: _Quantised) -> bool:
    """Add, Mul or MatMul of codes.

    Bounds belong to sums and products of matrices, which are much faster on codes; they may differ
    by one code from floats that are rounded later.
    """
    node = q.values.editor.private_producer(q.root, *_OF_TWO)
    if node is None or (node.op == "Mul" and not q.whole):
        return False
    a, b = (q.values.coded(name) for name in node.inputs)
    if a is None or b is None:
        return False
    if node.op == "MatMul" and min(len(q.values.editor.shape(n)) for n in node.inputs) < 2:
        return False
    attributes = frozen(q.fused(a.code, b.code))
    return q.replaced(Node(_ON_CODES[node.op], (a.name, b.name), (q.root,), attributes, node.name))


def _joined(q: _Quantised) -> bool:
    """A Concat of codes, each as codes of the result."""
    editor = q.values.editor
    node = editor.private_producer(q.root, "Concat")
    parts = [] if node is None else [q.values.coded(name) for name in node.inputs]
    if node is None or any(part is None for part in parts):
        return False
    new, names = [], []
    for part, source in zip(parts, node.inputs, strict=True):
        assert part is not None, "all are coded"
        kind = TensorType(editor.shape(source), q.code.dtype)
        found = _looked_up(q, part, table(part.code, q.code))
        new.append(replace(found, outputs=(editor.value(source, kind),)))
        names.append(new[-1].output)
    return q.replaced(*new, replace(node, inputs=tuple(names)))


def _single(q: _Quantised) -> bool:
    """AveragePool, Softmax to codes of the same type, or the mean over all spatial axes."""
    editor = q.values.editor
    node = editor.private_producer(q.root, *_OF_ONE)
    x = None if node is None else q.values.coded(node.inputs[0])
    if node is None or x is None or not q.whole:
        return False
    shape, given, op = editor.shape(node.inputs[0]), node.attributes, _ON_CODES[node.op]
    if node.op == "Softmax" and x.code.dtype != q.code.dtype:
        return False
    if node.op != "ReduceMean":
        attributes = frozen({**given, **q.fused(x.code)})
        return q.replaced(Node(op, (x.name,), (q.root,), attributes, node.name))
    if not 3 <= len(shape) <= 5 or sorted(given["axes"]) != list(range(2, len(shape))):
        return False
    kind = TensorType((*shape[:2], *(1,) * (len(shape) - 2)), q.code.dtype)
    pooled = editor.value(q.root, kind)
    pool = Node(op, (x.name,), (pooled,), frozen(q.fused(x.code)), node.name)
    if given["keepdims"]:
        return q.replaced(pool)
    view = frozen({"shape": editor.shape(q.root)})
    return q.replaced(pool, Node("Reshape", (pooled,), (q.root,), view, node.name))


def _function(q: _Quantised) -> bool:
    """Make a Lookup of any function of one tensor, element by element."""
    found = q.values.function(q.root)
    if found is None:
        return False
    x, floats = found
    return q.replaced(_looked_up(q, x, q.code.codes(floats)))


# Layers in front of a QuantizeLinear; the first that fits takes it.
_LAYERS = (_requantised, _layer, _pair, _joined, _single, _function)
# Where a node between codes begins a pattern, what looks for the rest: code of this pass alone.
_RULES: Mapping[str, Callable[[Values, Node], bool]] = {
    "Conv": coded_conv,
    "ConvTranspose": coded_transposed,
    "Gemm": coded_dense,
    "MatMul": coded_dense,
    "Relu": _clip,
    "Clip": _clip,
    "QuantizeLinear": _quantise,
}
