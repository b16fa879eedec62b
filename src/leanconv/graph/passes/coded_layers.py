"""Layers by constant codes: QLinearConv where their input is codes, MatMulNBits where it is floats.

A Conv, Gemm or MatMul of codes is a QLinearConv, a ConvTranspose one of all its phases, which are
put in order behind it. With s the stride along an axis, output q·s + r is the sum of x[q + b - t] ·
w[k + s·t] over t, where b = (r + pad) div s and k = (r + pad) mod s. So each r, a phase, is a
convolution of stride 1 of the input, and the phases of all axes are one convolution of K·s·s
channels, whose window is as large as all of theirs together:

    QLinearConv (N, K·s·s, Q, Q) -> (N, K, s, s, Q, Q) -> (N, K, Q, s, Q, s) -> (N, K, Qs, Qs)

Taps that a phase lacks are zeros. Surplus results of the last stride are cut off. The sums are
exact int32; ONNX Runtime, which has no such operation on integers, sums their floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from leanconv.graph.codes import signed_weights
from leanconv.graph.edit import Array, Editor, channel_extent, frozen, rewriting
from leanconv.graph.ir import Node, TensorType
from leanconv.graph.ops.quantised import CODES
from leanconv.graph.ops.quantised_layers import WORD_BITS, are_usual, packed_rows
from leanconv.graph.passes.coded_values import Coded, HeldCodes, Values
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT32, UINT8

_MOST_BIAS = 1 << 30  # of a bias as int32, so that sums of products have room


def _coded_weights(
    values: Values,
    x: Coded,
    name: str,
    bias: str,
    arrange: Callable[[Array], Array],
    axis: int,
    phases: int = 1,
    share: float = 1.0,
) -> tuple[str, str, str] | None:
    """Weights, bias ("" for none) and scales of a layer of codes, None where it has others.

    Args:
        values: of the graph.
        x: the layer's input.
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
    made, factors = editor.constant(name, w), editor.constant(name, scale)
    return made, "" if added is None else editor.constant(bias, added), factors


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


_FLOATS: dict[str, Any] = {
    "y_zero": 0,
    "low": -math.inf,
    "high": math.inf,
    "dtype": FLOAT32,
    "residual": None,
    "activation": None,
}


def _layer(
    node: Node, x: Coded, source: str, weights: Sequence[str], out: str, window: Mapping[str, Any]
) -> Node:
    """Make the QLinearConv of codes of `x`, which gives floats."""
    attributes = frozen({**window, **_FLOATS, "x_zero": x.code.zero})
    return Node("QLinearConv", (source, *weights), (out,), attributes, node.name)


def coded_conv(values: Values, node: Node) -> bool:
    """A Conv of codes, whose result is floats so far."""
    x, given = values.coded(node.inputs[0]), node.attributes
    if x is None or any(node.inputs[3:]) or given["activation"] is not None:
        return False
    weights = _coded_weights(values, x, node.inputs[1], node.input(2), lambda w: w, 0)
    if weights is None:
        return False
    window = {name: given[name] for name in ("strides", "pads", "dilations", "group")}
    conv = _layer(node, x, x.name, weights, node.output, window)
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
    if x is None or len(held) != 2 or len(shape) < 2:
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

    weights = _coded_weights(values, x, weight, bias, arranged, 0 if turned else 1)
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
    editor.replace(
        node,
        Node("Reshape", (x.name,), (source,), frozen(before), node.name),
        *_in_its_type(values, _layer(node, x, source, weights, result, window)),
        Node("Reshape", (result,), node.outputs, frozen(behind), node.name),
    )
    return True


# -- transposed convolutions -------------------------------------------------------------------
_MOST_TAPS = 3  # of all phases together, by those that they have: integers are no faster beyond


@dataclass(frozen=True)
class _Axis:
    """The phases along an axis, as one window.

    Attributes:
        stride: their number.
        extent: Q, the places of each.
        taps: of the window that holds all of theirs.
        pads: of the input, before and behind.
        weights: for each phase and tap of that window the tap of the kernel, or -1.
    """

    stride: int
    extent: int
    taps: int
    pads: tuple[int, int]
    weights: tuple[tuple[int, ...], ...]


def _axis(size: int, kernel: int, stride: int, pad: int, out: int) -> _Axis | None:
    """The phases of an axis; None where the window would not reach the input's ends."""
    firsts = [divmod(r + pad, stride) for r in range(stride)]  # b and k of each
    counts = [max(0, -(-(kernel - k) // stride)) for _, k in firsts]
    reached = [(b - n + 1, b) for (b, _), n in zip(firsts, counts, strict=True) if n]
    low, high = min(low for low, _ in reached), max(high for _, high in reached)
    extent = -(-out // stride)
    behind = extent + high - size
    if low > 0 or behind < 0:
        return None
    weights = []
    for (b, k), count in zip(firsts, counts, strict=True):
        taps = [b - (tap + low) for tap in range(high - low + 1)]
        weights.append(tuple(k + stride * t if 0 <= t < count else -1 for t in taps))
    return _Axis(stride, extent, high - low + 1, (-low, behind), tuple(weights))


def coded_transposed(values: Values, node: Node) -> bool:
    """A ConvTranspose of codes, whose result is floats so far."""
    given, editor = node.attributes, values.editor
    x = values.coded(node.inputs[0])
    plain = given["activation"] is None and not node.input(4) and set(given["dilations"]) == {1}
    if x is None or not plain or editor.types[node.output].dtype != FLOAT32:
        return False
    shape, out = editor.shape(node.inputs[0]), editor.shape(node.output)
    kernel, rank = editor.shape(node.inputs[1])[2:], len(shape) - 2
    steps = zip(shape[2:], kernel, given["strides"], given["pads"][:rank], out[2:], strict=True)
    axes = [_axis(*each) for each in steps]
    found = [axis for axis in axes if axis is not None]
    share = prod(axis.taps * axis.stride for axis in found) / prod(kernel)
    if len(found) < rank or share > _MOST_TAPS:
        return False
    groups, phases = given["group"], prod(axis.stride for axis in found)

    def arranged(w: Array) -> Array:
        return _stacked(w, groups, found)

    weights = _coded_weights(values, x, node.inputs[1], node.input(2), arranged, 1, phases, share)
    if weights is None:
        return False
    places = tuple(axis.extent for axis in found)
    conv = editor.value(node.output, TensorType((shape[0], out[1] * phases, *places), FLOAT32))
    pads = tuple(axis.pads[end] for end in (0, 1) for axis in found)
    ones = (1,) * rank
    window = {"strides": ones, "pads": pads, "dilations": ones, "group": groups}
    layer = _layer(node, x, x.name, weights, conv, window)
    editor.replace(node, layer, *_in_order(values, node, conv, found))
    return True


def _stacked(w: Array, groups: int, axes: Sequence[_Axis]) -> Array:
    """Weights (C, K / groups, kernel...) as those of all phases, (K · phases, C / groups, taps...).

    A channel's phases are neighbours.
    """
    rank = len(axes)
    inputs, outputs = w.shape[0] // groups, w.shape[1]
    parts = w.reshape(groups, inputs, outputs, *w.shape[2:]).swapaxes(1, 2)
    for number, axis in enumerate(axes):
        at = 3 + 2 * number  # an axis of kernel taps becomes one of phases and one of taps
        padded = np.concatenate([parts, np.zeros_like(parts.take([0], at))], at)
        parts = padded.take(np.array(axis.weights), at)
    order = (0, 1, *range(3, 3 + 2 * rank, 2), 2, *range(4, 4 + 2 * rank, 2))
    taps = tuple(axis.taps for axis in axes)
    return np.asarray(parts.transpose(order).reshape(-1, inputs, *taps))


def _in_order(values: Values, node: Node, source: str, axes: Sequence[_Axis]) -> list[Node]:
    """Make the nodes that put the phases' results in their places and cut off the surplus."""
    editor, rank = values.editor, len(axes)
    batch, channels, *out = editor.shape(node.output)
    strides, places = ([a.stride for a in axes], [a.extent for a in axes])
    whole = [stride * place for stride, place in zip(strides, places, strict=True)]
    perm = (0, 1, *(2 + rank * (1 - side) + axis for axis in range(rank) for side in (0, 1)))
    split = (batch, channels, *strides, *places)
    last = (batch, channels, *whole)
    moves: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("Reshape", split, {"shape": split}),
        ("Transpose", tuple(split[axis] for axis in perm), {"perm": perm}),
        ("Reshape", last, {"shape": last}),
    ]
    if whole != out:
        sizes = (batch, channels, *out)
        none, ones = (0,) * len(sizes), (1,) * len(sizes)
        moves.append(("Slice", sizes, {"starts": none, "steps": ones, "sizes": sizes}))
    kinds = [TensorType(shape, FLOAT32) for _, shape, _ in moves[:-1]]
    names = [source, *(editor.value(node.output, kind) for kind in kinds), node.output]
    return [
        Node(op, (read,), (made,), frozen(attributes), node.name)
        for (op, _, attributes), read, made in zip(moves, names, names[1:], strict=False)
    ]


# -- of floats ---------------------------------------------------------------------------------
_MOST_ROWS = 16  # beyond, a layer is bound by its products and not by reading the weights
_LEAST_WEIGHTS = 1 << 14  # of fewer the bytes do not matter


@rewriting
def dense_of_codes(editor: Editor, node: Node) -> bool:
    """Replace Gemm and MatMul of floats by constant codes of 8 bits, or 4, by MatMulNBits.

    The codes have one scale, or one for each column of the product. Left alone: many rows, few
    weights, a Gemm with factors, and one whose third input is no vector of constants.

    Requires: a verified graph, as its file has it, after layers of codes were recognised.
    Ensures: no others are changed.
    """
    if node.op not in ("Gemm", "MatMul"):
        return False
    held, (x, w) = Values(editor).held(node.inputs[1]), node.inputs[:2]
    kind, turned, bias = editor.types[x], bool(node.attributes.get("transB")), node.input(2)
    if held is None or len(editor.shape(w)) != 2 or kind.dtype != FLOAT32 or not kind.shape:
        return False
    outputs, inner = editor.shape(w) if turned else editor.shape(w)[::-1]
    plain = [node.attributes.get(n, 1) for n in ("alpha", "beta")] == [1, 1]
    if not plain or node.attributes.get("transA") or x in editor.constants:
        return False
    if outputs * inner < _LEAST_WEIGHTS or math.prod(kind.shape[:-1]) > _MOST_ROWS:
        return False
    sound = str(held.codes.dtype) in CODES and are_usual(held.scale)
    if not sound or not _of_outputs(held, turned):
        return False
    if bias and (bias not in editor.constants or not _is_vector(editor.types[bias], outputs)):
        return False
    codes, scales, zeros, given = _packed(held, turned)
    inputs = [x, editor.constant(w, codes), editor.constant(w, scales)]
    inputs += ["" if zeros is None else editor.constant(w, zeros), bias]
    attributes = frozen({**given, "inner": int(inner), "outputs": int(outputs)})
    while not inputs[-1]:
        inputs.pop()
    new = Node("MatMulNBits", tuple(inputs), node.outputs, attributes, node.name)
    editor.replace(node, new)
    return True


def _is_vector(kind: TensorType, count: int) -> bool:
    return kind.elements == count and kind.dtype == FLOAT32


def _of_outputs(held: HeldCodes, turned: bool) -> bool:
    """Return whether the weights have one scale, or one for each column of the product."""
    return held.scale.size == 1 or held.axis == (0 if turned else 1)


def _packed(held: HeldCodes, turned: bool) -> tuple[Array, Array, Array | None, dict[str, int]]:
    """Packed codes, a row for each output, scales, zero points; bits, block and middle."""
    codes = held.codes if turned else held.codes.T
    outputs, inner = codes.shape
    signed = codes.dtype.kind == "i"
    least, past = (-8, 8) if signed else (0, 16)
    few = min(int(codes.min()), int(held.zero.min())) >= least and int(codes.max()) < past
    bits = 4 if few else 8
    middle = 1 << (bits - 1) if signed else 0
    words = WORD_BITS // bits
    block = ceil_div(inner, words) * words
    scales = np.ascontiguousarray(np.broadcast_to(held.scale.reshape(-1), outputs))
    zeros = np.broadcast_to(held.zero.reshape(-1).astype(np.int64) + middle, outputs)
    given = {"bits": bits, "block": block, "middle": int(zeros[0]), "bytes": False}
    alike = bool(np.all(zeros == zeros[0]))
    packed = packed_rows(codes, bits, middle, block)
    return packed, scales, None if alike else zeros.astype(np.uint8), given
