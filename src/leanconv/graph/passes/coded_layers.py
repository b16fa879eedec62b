"""Layers of codes by constant codes: a Conv, Gemm or MatMul becomes a QLinearConv."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.graph.codes import signed_weights
from leanconv.graph.edit import Array, channel_extent, frozen
from leanconv.graph.ir import Node, TensorType
from leanconv.graph.passes.coded_values import Coded, Values
from leanconv.records import dataclass
from leanconv.types import FLOAT32, UINT8

_MOST_BIAS = 1 << 30  # of a bias as int32, so that sums of products have room


@dataclass(frozen=True, eq=False)
class _Weights:
    """Constants of a QLinearConv with floats as results: names of weights, bias and scales."""

    w: str
    bias: str
    scale: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.w, self.bias, self.scale


def coded_weights(
    values: Values,
    x: Coded,
    name: str,
    bias: str,
    arrange: Callable[[Array], Array],
    axis: int,
    phases: int = 1,
    share: float = 1.0,
) -> _Weights | None:
    """The constants of a layer of codes, None where it has others.

    Args:
        values: of the graph.
        x: what the layer reads.
        name: of its float weights.
        bias: of its float bias, "" for none; of one axis of channels.
        arrange: brings weights into the order (K, C / group, kernel...).
        axis: of the weights, along which they have channels.
        phases: channels of the layer for each of the weights', which have a scale and a bias.
        share: bytes of arranged weights over those that there are.
    """
    held, editor = values.held(name), values.editor
    if held is None or (held.scale.size > 1 and held.axis != axis) or held.codes.itemsize > 1:
        return None
    if not editor.may_add(math.ceil(2 * share * held.codes.nbytes)):
        return None
    codes = np.ascontiguousarray(arrange(held.codes))
    if phases > 1 and np.any(held.zero):
        return None  # taps that a phase lacks are of code 0
    w, left = signed_weights(codes, held.zero.repeat(phases), x.code.dtype == UINT8)
    if left is not None or held.scale.size not in (1, len(w) // phases):
        return None
    scale = np.float32(x.code.scale) * held.scale.astype(np.float32)
    scale = np.ascontiguousarray(np.broadcast_to(scale, (len(w) // phases,)))
    added = _integer_bias(values, bias, scale) if bias else None
    if bias and added is None:
        return None
    scale, added = scale.repeat(phases), None if added is None else added.repeat(phases)
    names = [editor.constant(name, w), editor.constant(name, scale)]
    held_bias = "" if added is None else editor.constant(bias, added)
    return _Weights(names[0], held_bias, names[1])


def _integer_bias(values: Values, name: str, scale: Array) -> Array | None:
    """A constant bias in steps of the scales of sums, (K,) int32; None where that cannot be."""
    held = values.held(name)
    if not values.is_constant(name):
        return None
    if held is not None and held.codes.dtype == np.int32 and not np.any(held.zero):
        fits = held.codes.size == scale.size and held.scale.size in (1, scale.size)
        if fits and np.allclose(held.scale.reshape(-1), scale, 1e-5, 0):
            return np.ascontiguousarray(held.codes.reshape(-1))
    numbers = np.asarray(values.array(name), np.float64)
    floats = np.broadcast_to(numbers.reshape(-1), scale.shape)
    with np.errstate(all="ignore"):
        steps = np.rint(floats / scale)
    if not np.all(np.abs(steps) < _MOST_BIAS):  # of NaN, too
        return None
    return np.ascontiguousarray(steps.astype(np.int32))


FLOATS: dict[str, Any] = {
    "y_zero": 0,
    "low": -math.inf,
    "high": math.inf,
    "dtype": FLOAT32,
    "residual": None,
    "activation": None,
}


def coded_conv(values: Values, node: Node) -> bool:
    """A Conv of codes, whose result is floats so far."""
    x, extra = values.coded(node.inputs[0]), any(node.inputs[3:])
    if x is None or extra or node.attributes["activation"] is not None:
        return False
    if not values.is_constant(node.inputs[1]):
        return False
    weights = coded_weights(values, x, node.inputs[1], node.input(2), lambda w: w, 0)
    if weights is None:
        return False
    names = ("strides", "pads", "dilations", "group")
    attributes = {name: node.attributes[name] for name in names}
    attributes.update(FLOATS, x_zero=x.code.zero)
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


def coded_dense(values: Values, node: Node) -> bool:
    """A MatMul or Gemm of codes by a constant matrix: a QLinearConv of rows (R, I, 1, 1)."""
    editor, given = values.editor, node.attributes
    x, weight, bias = values.coded(node.inputs[0]), node.inputs[1], node.input(2)
    shape, held = editor.shape(node.inputs[0]), editor.shape(weight)
    if x is None or not values.is_constant(weight) or len(held) != 2 or len(shape) < 2:
        return False
    turned = node.op == "Gemm" and bool(given["transB"])
    if node.op == "Gemm" and (given["transA"] or given["alpha"] != 1.0):
        return False
    if bias and (given["beta"] != 1.0 or not values.is_constant(bias)):
        return False
    if bias and not channel_extent(editor.shape(bias), editor.shape(node.output), 1):
        return False

    def arranged(w: Array) -> Array:
        rows = w if turned else w.T
        return rows.reshape(*rows.shape, 1, 1)

    weights = coded_weights(values, x, weight, bias, arranged, 0 if turned else 1)
    if weights is None:
        return False
    columns, inner = (int(n) for n in (held if turned else held[::-1]))
    rows = math.prod(shape[:-1])
    kinds = (
        TensorType((rows, inner, 1, 1), x.code.dtype),
        TensorType((rows, columns, 1, 1), editor.types[node.output].dtype),
    )
    source, result = (editor.value(node.output, kind) for kind in kinds)
    before, behind = {"shape": kinds[0].shape}, {"shape": editor.shape(node.output)}
    window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1}
    attributes = frozen({**window, **FLOATS, "x_zero": x.code.zero})
    layer = Node("QLinearConv", (source, *weights.inputs), (result,), attributes, node.name)
    editor.replace(
        node,
        Node("Reshape", (x.name,), (source,), frozen(before), node.name),
        *_in_its_type(values, layer),
        Node("Reshape", (result,), node.outputs, frozen(behind), node.name),
    )
    return True
