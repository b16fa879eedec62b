"""Recognise layers between DequantizeLinear and QuantizeLinear, and compute them on codes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from leanconv.graph.codes import Code, fused, signed_weights, table
from leanconv.graph.edit import Array, Editor, channel_extent, frozen, node_like, rewrite
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS
from leanconv.graph.passes.coded_values import Coded, Values
from leanconv.records import dataclass
from leanconv.types import FLOAT32, FLOATS, UINT8

_MOST_BIAS = 1 << 30  # of a bias as int32, so that sums of products have room
# What gives elements back as they are.
_MOVES = ("Reshape", "Transpose", "Slice", "Expand", "MaxPool", "Pad", "Resize")
Number = TypeVar("Number", int, float)
_VIEWS = ("Reshape", "Transpose")


def recognise_quantised(graph: Graph) -> Graph:
    """Replace DequantizeLinear, layer, QuantizeLinear by the layer on codes.

    - A Conv, Gemm or MatMul of codes by constant codes becomes a QLinearConv, whose result is
      floats where no QuantizeLinear reads it alone.
    - Relu and Clip in front of a QuantizeLinear, or behind such a layer, become bounds of it.
    - Add, Mul, MatMul, AveragePool, global means and Concat between codes become operations on
      codes; any other function of one tensor, element by element, a Lookup.
    - What only moves elements moves codes: a DequantizeLinear goes behind it, and a
      QuantizeLinear before it where a layer of codes is behind that.

    Left alone: several scales along an axis of activations, codes that are not of 8 bits, and
    layers whose floats others read, too. They are computed in floats. In a network that is computed
    in float64, codes are those of float32.

    Requires: a verified graph, as its file has it: constants are those of `graph.codes`.
    Ensures: `graph.codes` is empty.
    """
    codes = graph.codes
    if not codes and not any(node.op == "DequantizeLinear" for node in graph.nodes):
        return graph

    def rule(editor: Editor, node: Node) -> bool:
        found = _RULES.get(node.op)
        if found is None or not all(editor.types[name].elements for name in node.outputs):
            return False
        return found(Values(editor, codes), node)

    return replace(rewrite(graph, rule), codes=MappingProxyType({}))


# -- layers with weights --------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Weights:
    """Constants of a QLinearConv with floats as results: names of weights, bias and scales."""

    w: str
    bias: str
    scale: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.w, self.bias, self.scale


def _weights(
    values: Values, x: Coded, name: str, bias: str, arrange: Callable[[Array], Array], axis: int
) -> _Weights | None:
    """The constants of a layer of codes, None where it has others.

    Args:
        values: of the graph.
        x: what the layer reads.
        name: of its float weights.
        bias: of its float bias, "" for none; of one axis of channels.
        arrange: brings weights into the order (K, C / group, kernel...).
        axis: of the weights, along which they have channels.
    """
    held, editor = values.held.get(name), values.editor
    if held is None or (held.scale.size > 1 and held.axis != axis) or held.codes.itemsize > 1:
        return None
    if not editor.may_add(2 * held.codes.nbytes):
        return None
    codes = np.ascontiguousarray(arrange(held.codes))
    w, left = signed_weights(codes, held.zero, x.code.dtype == UINT8)
    if left is not None:
        return None
    scale = np.broadcast_to(np.float32(x.code.scale) * held.scale.astype(np.float32), (len(w),))
    scale = np.ascontiguousarray(scale)
    added = _integer_bias(values, bias, scale) if bias else None
    if bias and added is None:
        return None
    names = [editor.constant(name, w), editor.constant(name, scale)]
    held_bias = "" if added is None else editor.constant(bias, added)
    return _Weights(names[0], held_bias, names[1])


def _integer_bias(values: Values, name: str, scale: Array) -> Array | None:
    """A constant bias in steps of the scales of sums, (K,) int32; None where that cannot be."""
    editor, held = values.editor, values.held.get(name)
    if name not in editor.constants:
        return None
    if held is not None and held.codes.dtype == np.int32 and not np.any(held.zero):
        fits = held.codes.size == scale.size and held.scale.size in (1, scale.size)
        if fits and np.allclose(held.scale.reshape(-1), scale, 1e-5, 0):
            return np.ascontiguousarray(held.codes.reshape(-1))
    floats = np.broadcast_to(editor.constants[name].reshape(-1).astype(np.float64), scale.shape)
    with np.errstate(all="ignore"):
        steps = np.rint(floats / scale)
    if not np.all(np.abs(steps) < _MOST_BIAS):  # of NaN, too
        return None
    return np.ascontiguousarray(steps.astype(np.int32))


_FLOATS: dict[str, Any] = {
    "y_zero": 0,
    "low": -math.inf,
    "high": math.inf,
    "dtype": FLOAT32,
    "residual": None,
}


def _conv(values: Values, node: Node) -> bool:
    """A Conv of codes, whose result is floats so far."""
    x, extra = values.coded(node.inputs[0]), any(node.inputs[3:])
    if x is None or extra or node.attributes["activation"] is not None:
        return False
    if node.inputs[1] not in values.editor.constants:
        return False
    weights = _weights(values, x, node.inputs[1], node.input(2), lambda w: w, 0)
    if weights is None:
        return False
    names = ("strides", "pads", "dilations", "group")
    attributes = {name: node.attributes[name] for name in names}
    attributes.update(_FLOATS, x_zero=x.code.zero)
    inputs = (x.name, *weights.inputs)
    conv = Node("QLinearConv", inputs, node.outputs, frozen(attributes), node.name)
    values.editor.replace(node, *_in_its_type(values, conv))
    return True


def _in_its_type(values: Values, conv: Node) -> tuple[Node, ...]:
    """A QLinearConv that gives floats, in the type of these, which may be float64."""
    editor, kind = values.editor, values.editor.types[conv.output]
    if kind.dtype == FLOAT32:
        return (conv,)
    out = editor.value(conv.output, TensorType(kind.shape, FLOAT32))
    cast = Node("Cast", (out,), conv.outputs, frozen({"to": kind.dtype}), conv.name)
    return replace(conv, outputs=(out,)), cast


def _dense(values: Values, node: Node) -> bool:
    """A MatMul or Gemm of codes by a constant matrix: a QLinearConv of rows (R, I, 1, 1)."""
    editor, given = values.editor, node.attributes
    x, weight, bias = values.coded(node.inputs[0]), node.inputs[1], node.input(2)
    shape, held = editor.shape(node.inputs[0]), editor.shape(weight)
    if x is None or weight not in editor.constants or len(held) != 2 or len(shape) < 2:
        return False
    turned = node.op == "Gemm" and bool(given["transB"])
    if node.op == "Gemm":
        whole = bias in editor.constants and channel_extent(
            editor.shape(bias), editor.shape(node.output), 1
        )
        if (
            given["transA"]
            or given["alpha"] != 1.0
            or (bias and (given["beta"] != 1.0 or not whole))
        ):
            return False

    def arranged(w: Array) -> Array:
        rows = w if turned else w.T
        return rows.reshape(*rows.shape, 1, 1)

    weights = _weights(values, x, weight, bias, arranged, 0 if turned else 1)
    if weights is None:
        return False
    columns, inner = (int(n) for n in (held if turned else held[::-1]))
    rows = math.prod(shape[:-1])
    kinds = (
        TensorType((rows, inner, 1, 1), x.code.dtype),
        TensorType((rows, columns, 1, 1), editor.types[node.output].dtype),
    )
    source, result = (editor.value(node.output, kind) for kind in kinds)
    window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1}
    attributes = {**window, **_FLOATS, "x_zero": x.code.zero}
    editor.replace(
        node,
        Node("Reshape", (x.name,), (source,), frozen({"shape": kinds[0].shape}), node.name),
        *_in_its_type(
            values,
            Node(
                "QLinearConv", (source, *weights.inputs), (result,), frozen(attributes), node.name
            ),
        ),
        Node(
            "Reshape",
            (result,),
            node.outputs,
            frozen({"shape": editor.shape(node.output)}),
            node.name,
        ),
    )
    return True


# -- what is between layers -----------------------------------------------------------------------
def _bounds(node: Node) -> tuple[float, float] | None:
    """The bounds of a Relu or a Clip."""
    if node.op == "Relu":
        return 0.0, math.inf
    return (node.attributes["min"], node.attributes["max"]) if node.op == "Clip" else None


def _clip(values: Values, node: Node) -> bool:
    """A Relu or Clip behind a QLinearConv that gives floats: bounds of its result."""
    conv = values.editor.private_producer(node.inputs[0], "QLinearConv")
    bounds = _bounds(node)
    if conv is None or bounds is None or conv.attributes["dtype"] != FLOAT32:
        return False
    low, high = _inner(conv.attributes["low"], conv.attributes["high"], *bounds)
    if not low <= high:
        return False
    changes = {"low": low, "high": high}
    values.editor.replace(node, node_like(conv, outputs=node.outputs, attributes=changes))
    return True


def _inner(low: Number, high: Number, least: Number, most: Number) -> tuple[Number, Number]:
    """The bounds of numbers from `low` to `high` that are clamped to others, too."""
    return min(max(low, least), most), min(max(high, least), most)


def _move(values: Values, node: Node) -> bool:
    """What moves elements: it moves their codes, and the floats are made behind it."""
    editor = values.editor
    x = values.coded(node.inputs[0])
    if x is None or node.inputs[0] in editor.constants or not _moves_codes(node, x.code):
        return False
    _behind(values, node, x.code, (_moved(node, x),))
    return True


def _moves_codes(node: Node, code: Code) -> bool:
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
    if all(name in values.editor.constants for name in node.inputs) or parts[0] is None:
        return False
    names = tuple(part.name for part in parts if part)
    _behind(values, node, parts[0].code, (replace(node, inputs=names),))
    return True


# -- in front of a QuantizeLinear -----------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Quantised:
    """A QuantizeLinear: what it gives, within bounds, and the movements that follow the layer."""

    values: Values
    node: Node
    code: Code
    low: int
    high: int
    root: str
    moves: tuple[Node, ...]

    @property
    def attributes(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "dtype": self.code.dtype}

    def fused(self, *codes: Code) -> dict[str, Any]:
        """Attributes of an operation on such codes."""
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
        before = editor.private_producer(name, "Relu", "Clip", "Cast", *_VIEWS)
        bounds = None if before is None else _bounds(before)
        if before is None or (bounds is not None and math.isnan(sum(bounds))):
            break
        if bounds is not None:
            low, high = _inner(low, high, *map(code.code_of, bounds))
        elif before.op != "Cast":
            moves.append(before)
        elif editor.types[before.inputs[0]].dtype not in FLOATS:
            break
        name = before.inputs[0]
    return _Quantised(values, node, code, low, high, name, tuple(moves[::-1]))


def _requantised(q: _Quantised) -> bool:
    """Codes as other codes, or as they are."""
    x = q.values.coded(q.root)
    if x is None or q.root in q.values.editor.constants:
        return False
    whole = (q.low, q.high) == (q.code.dtype.low, q.code.dtype.high)
    if x.code != q.code or not whole:
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
    low, high = _inner(least, most, q.low, q.high)
    scale = editor.constant(conv.inputs[3], factors)
    changes = {**q.attributes, "low": low, "high": high, "y_zero": q.code.zero}
    return q.replaced(node_like(conv, inputs=(*conv.inputs[:3], scale), attributes=changes))


def _pair(q: _Quantised) -> bool:
    """Add, Mul or MatMul of codes."""
    node = q.values.editor.private_producer(q.root, *_OF_TWO)
    if node is None:
        return False
    a, b = (q.values.coded(name) for name in node.inputs)
    if a is None or b is None:
        return False
    if node.op == "MatMul" and min(len(q.values.editor.shape(n)) for n in node.inputs) < 2:
        return False
    attributes = frozen(q.fused(a.code, b.code))
    return q.replaced(Node(_OF_TWO[node.op], (a.name, b.name), (q.root,), attributes, node.name))


_OF_TWO = {"Add": "QLinearAdd", "Mul": "QLinearMul", "MatMul": "QLinearMatMul"}


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


def _mean(q: _Quantised) -> bool:
    """AveragePool, or the mean over all spatial axes, of codes."""
    editor = q.values.editor
    node = editor.private_producer(q.root, "AveragePool", "ReduceMean")
    x = None if node is None else q.values.coded(node.inputs[0])
    if node is None or x is None:
        return False
    shape, given = editor.shape(node.inputs[0]), node.attributes
    attributes = q.fused(x.code)
    if node.op == "AveragePool":
        window = frozen({**given, **attributes})
        return q.replaced(Node("QLinearAveragePool", (x.name,), (q.root,), window, node.name))
    if not 3 <= len(shape) <= 5 or sorted(given["axes"]) != list(range(2, len(shape))):
        return False
    kind = TensorType((*shape[:2], *(1,) * (len(shape) - 2)), q.code.dtype)
    pooled = editor.value(q.root, kind)
    pool = Node("QLinearGlobalAveragePool", (x.name,), (pooled,), frozen(attributes), node.name)
    if given["keepdims"]:
        return q.replaced(pool)
    view = frozen({"shape": editor.shape(q.root)})
    return q.replaced(pool, Node("Reshape", (pooled,), (q.root,), view, node.name))


def _function(q: _Quantised) -> bool:
    """Any function of one tensor, element by element."""
    found = q.values.function(q.root)
    if found is None:
        return False
    x, floats = found
    return q.replaced(_looked_up(q, x, q.code.codes(floats)))


_LAYERS = (_requantised, _layer, _pair, _joined, _mean, _function)
_RULES: Mapping[str, Callable[[Values, Node], bool]] = {
    "Conv": _conv,
    "Gemm": _dense,
    "MatMul": _dense,
    "Relu": _clip,
    "Clip": _clip,
    "Concat": _concat,
    **dict.fromkeys(_MOVES, _move),
    "QuantizeLinear": _quantise,
}
