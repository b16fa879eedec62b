"""Compose operations that have no kernel of their own of others: those on codes of floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leanconv.graph import float_codes
from leanconv.graph.edit import Editor, frozen, node_like, rewrite
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS, evaluate, infer
from leanconv.graph.ops.base import Array
from leanconv.graph.ops.conv import window_steps
from leanconv.graph.ops.quantised import TABLE, add_factors, along, softmax_powers, softmax_steps
from leanconv.graph.ops.quantised_layers import weights_of
from leanconv.graph.passes.coded_values import floats_made
from leanconv.spec.conv import effective_extent
from leanconv.types import FLOAT32, FLOAT64, INT32

_BOUND = 255 * 255  # of a product of two distances of codes of 8 bits
_NO_KERNEL = ("QLinearSoftmax",)  # of a CPU


def expand_quantised(graph: Graph) -> Graph:
    """Replace operations on codes, and others without a kernel, by operations on floats.

    Requires: a verified graph, after patterns of quantised layers were recognised.
    Ensures: none of the operations of `EXPANSIONS` is left.
    """
    return rewrite(floats_made(graph), _rule)


def expand_without_kernel(graph: Graph) -> Graph:
    """Replace, in the same way, the operations that no kernel of a CPU computes.

    Requires: as `expand_quantised`.
    Ensures: none of these is left.
    """
    return rewrite(graph, lambda editor, node: node.op in _NO_KERNEL and _rule(editor, node))


def _rule(editor: Editor, node: Node) -> bool:
    expand = EXPANSIONS.get(node.op)
    if expand is None:
        return False
    composer = Composer(editor, node)
    result = expand(composer, node)
    editor.replace(node, *composer.nodes_for(result))
    return True


class Composer:
    """Collects the nodes that replace one; those of constants only are computed at once.

    Args:
        editor: of the graph.
        node: to be replaced, of one output.
    """

    def __init__(self, editor: Editor, node: Node) -> None:
        self._editor, self._node = editor, node
        self._nodes: list[Node] = []

    def kind(self, value: str) -> TensorType:
        """The type of a value."""
        return self._editor.types[value]

    def array(self, value: str) -> Array:
        """A constant."""
        return self._editor.constants[value]

    def constant(self, array: Array) -> str:
        """Add a constant and give its name."""
        return self._editor.constant(self._node.output, array)

    def number(self, number: float, like: str) -> str:
        """A scalar constant of another value's dtype."""
        return self.constant(np.asarray(number, self.kind(like).dtype))

    def emit(self, op: str, inputs: Sequence[str | None], **attributes: Any) -> str:
        """Add an operation of one output, and give its name."""
        names = tuple(name or "" for name in inputs)
        types = [self.kind(name) if name else None for name in names]
        (kind,) = infer(op, types, attributes)
        if all(name in self._editor.constants for name in names if name):
            arrays = [self.array(name) if name else None for name in names]
            return self.constant(np.asarray(evaluate(op, arrays, attributes)[0], kind.dtype))
        out = self._editor.value(self._node.output, kind)
        self._nodes.append(Node(op, names, (out,), frozen(attributes), self._node.name))
        return out

    def nodes_for(self, result: str) -> list[Node]:
        """The nodes, of which the last gives the output of the replaced one."""
        *others, last = self._nodes
        assert last.output == result, "the last operation gives the result"
        return [*others, node_like(last, outputs=self._node.outputs)]


def _quantise(c: Composer, node: Node) -> str:
    x, scale, zero = node.inputs
    kind, code = c.kind(x), c.kind(zero).dtype
    factor, place = (_parameter(c, name, node, kind) for name in (scale, zero))
    low, high = node.attributes.get("low", code.low), node.attributes.get("high", code.high)
    return float_codes.quantise(c, x, factor, place, code, (low, high))


def _dequantise(c: Composer, node: Node) -> str:
    x, scale, zero = node.inputs
    rank, axis, dtype = len(c.kind(x).shape), node.attributes["axis"], node.attributes["dtype"]
    away = c.constant(along(c.array(zero), rank, axis)) if np.any(c.array(zero)) else None
    factor = _parameter(c, scale, node, TensorType(c.kind(x).shape, dtype))
    return float_codes.dequantise(c, x, factor, away, dtype)


def _parameter(c: Composer, name: str, node: Node, like: TensorType) -> str:
    """A scale or zero point as floats that broadcast to a tensor."""
    array = along(c.array(name), len(like.shape), node.attributes["axis"])
    return c.constant(np.ascontiguousarray(array, like.dtype))


def _matmul(c: Composer, node: Node) -> str:
    a, b = node.inputs
    (sa, sb, sy), (za, zb, zy) = node.attributes["scales"], node.attributes["zeros"]
    factors = []
    for name, zero in ((a, za), (b, zb)):
        held = c.number(zero, name) if zero else None
        factors.append(float_codes.exact(c, name, held))
    most = int(c.kind(a).shape[-1]) * _BOUND
    total = float_codes.sums(c, c.emit("MatMul", factors), most)
    scale = c.constant(np.asarray(np.float32(sa) * np.float32(sb) / np.float32(sy)))
    return _requantise(c, node, total, scale, zy)


def _requantise(c: Composer, node: Node, total: str, scale: str, zero: int) -> str:
    given = node.attributes
    bounds = (given["low"], given["high"])
    return float_codes.requantise(c, total, scale, zero, bounds, given["dtype"])


def _lookup(c: Composer, node: Node) -> str:
    x, name = node.inputs
    table, places = c.array(name), float_codes.cast(c, x, INT32)
    if c.kind(x).dtype.kind == "int":  # the codes below zero are in the second half
        table = np.roll(table, TABLE // 2)
        places = c.emit("Add", [places, c.number(TABLE // 2, places)])
    return c.emit("Gather", [c.constant(table), places], axis=0)


def _add(c: Composer, node: Node) -> str:
    """Add in float64, where products are exact and sums nearly so; round each sum to float32."""
    a, b = node.inputs
    ra, rb, summand = add_factors(node.attributes["scales"], node.attributes["zeros"])
    y = c.constant(np.asarray(summand, FLOAT64))
    for name, ratio in ((b, rb), (a, ra)):
        wide = float_codes.cast(c, name, FLOAT64)
        product = c.emit("Mul", [wide, c.number(float(ratio), wide)])
        y = c.emit("Add", [product, float_codes.cast(c, y, FLOAT64)])
        y = float_codes.cast(c, y, FLOAT32)
    return _narrowed(c, node, c.emit("Round", [y]))


def _mul(c: Composer, node: Node) -> str:
    sa, sb, sy = map(np.float32, node.attributes["scales"])
    *zeros, zy = node.attributes["zeros"]
    away = []
    for name, zero in zip(node.inputs, zeros, strict=True):
        wide = float_codes.cast(c, name, FLOAT32)
        away.append(c.emit("Sub", [wide, c.number(zero, wide)]) if zero else wide)
    y = c.emit("Mul", away)
    y = c.emit("Mul", [y, c.number(float(sa * sb / sy), y)])
    return _narrowed(c, node, c.emit("Round", [c.emit("Add", [y, c.number(zy, y)])]))


def _narrowed(c: Composer, node: Node, y: str) -> str:
    given = node.attributes
    return float_codes.narrowed(c, y, given["low"], given["high"], given["dtype"])


def _global_pool(c: Composer, node: Node) -> str:
    (x,), shape = node.inputs, c.kind(node.inputs[0]).shape
    (sx, sy), (zx, zy) = map(np.float32, node.attributes["scales"]), node.attributes["zeros"]
    count = int(np.prod([int(n) for n in shape[2:]]))
    wide = float_codes.cast(c, x, INT32)
    total = c.emit("ReduceSum", [wide], axes=tuple(range(2, len(shape))), keepdims=True)
    total = c.emit("Sub", [total, c.number(count * zx, total)])
    scale = c.constant(np.asarray(sx / (sy * np.float32(count))))
    return _requantise(c, node, total, scale, zy)


def _pool(c: Composer, node: Node) -> str:
    (x,), given = node.inputs, node.attributes
    (sx, sy), (zx, zy) = given["scales"], given["zeros"]
    wide = float_codes.cast(c, x, FLOAT32)
    away = c.emit("Sub", [wide, c.number(zx, wide)])
    floats = c.emit("Mul", [away, c.number(sx, away)])
    names = OPS["AveragePool"].attributes
    means = c.emit("AveragePool", [floats], **{name: given[name] for name in names})
    y = c.emit("Div", [means, c.number(sy, means)])
    return _narrowed(c, node, c.emit("Round", [c.emit("Add", [y, c.number(zy, y)])]))


def _softmax(c: Composer, node: Node) -> str:
    (x,), axis = node.inputs, node.attributes["axis"]
    (sx, sy), (_, zy) = node.attributes["scales"], node.attributes["zeros"]
    count = int(c.kind(x).shape[axis])
    wide = float_codes.cast(c, x, INT32)
    most = c.emit("ReduceMax", [wide], axes=(axis,), keepdims=True)
    held = c.constant(softmax_powers(sx, count))
    powers = c.emit("Gather", [held, c.emit("Sub", [most, wide])], axis=0)
    sums = c.emit("CumSum", [powers], axis=axis, exclusive=False, reverse=False)  # in order
    shape = c.kind(x).shape
    starts = tuple(count - 1 if i == axis else 0 for i in range(len(shape)))
    sizes = tuple(1 if i == axis else n for i, n in enumerate(shape))
    total = c.emit("Slice", [sums], starts=starts, steps=(1,) * len(shape), sizes=sizes)
    exact = [float_codes.cast(c, value, FLOAT64) for value in (powers, total)]
    shares = c.emit("Mul", [exact[0], c.number(softmax_steps(sy), exact[0])])
    y = c.emit("Round", [c.emit("Div", [shares, exact[1]])])
    return _narrowed(c, node, c.emit("Add", [y, c.number(zy, y)]))


def _quantise_floats(c: Composer, node: Node) -> str:
    (x, scale, zero), given = node.inputs, node.attributes
    bounds = given["low"], given["high"]
    return float_codes.quantise(c, x, scale, zero, given["dtype"], bounds)


def _extremes(c: Composer, node: Node) -> str:
    (x,) = node.inputs
    axes = tuple(range(len(c.kind(x).shape)))
    ends = [c.emit(op, [x], axes=axes, keepdims=True) for op in ("ReduceMin", "ReduceMax")]
    rows = [c.emit("Reshape", [end], shape=(1,)) for end in ends]
    return c.emit("Concat", rows, axis=0)


def _packed_matmul(c: Composer, node: Node) -> str:
    held = [None, *(c.array(name) if name else None for name in node.inputs[1:4])]
    w = c.constant(weights_of(held, node.attributes))
    y = c.emit("MatMul", [node.inputs[0], w])
    bias = node.input(4)
    return c.emit("Add", [y, bias]) if bias else y


def _data_conv(c: Composer, node: Node) -> str:
    """A convolution by data: a product of its weights and of its input's windows."""
    given, (x, w, *bias) = node.attributes, node.inputs
    taps, group, spatial = given["kernel_shape"], given["group"], len(given["kernel_shape"])
    if any(given["pads"]):
        begins, ends = given["pads"][:spatial], given["pads"][spatial:]
        pads = (0, 0, *begins, 0, 0, *ends)
        x = c.emit("Pad", [x], pads=pads, mode="constant", value=0.0)
    outputs, count = c.kind(node.output).shape[1], math.prod(taps)
    rows = w
    if not given["taps_first"]:
        own = c.kind(w).shape[1] // count
        rows = c.emit("Reshape", [rows], shape=(outputs, own, count))
        rows = c.emit("Transpose", [rows], perm=(0, 2, 1))
    columns = c.kind(w).shape[1]
    rows = c.emit("Reshape", [rows], shape=(group, outputs // group, columns))
    steps = [(stride, dilation) for stride, dilation, _, _ in window_steps(given)]
    return _product_of_windows(c, node, x, rows, steps, bias)


def _data_conv_transpose(c: Composer, node: Node) -> str:
    """A transposed convolution by data: of an input with zeros between its elements.

    Its weights are those of the transposed one with the taps in reverse order.
    """
    given, (x, w, *bias) = node.attributes, node.inputs
    taps, group, count = given["kernel_shape"], given["group"], math.prod(given["kernel_shape"])
    before, after, windows = [0, 0], [0, 0], list(window_steps(given))
    for i, (stride, dilation, begin, end) in enumerate(windows):
        x = _with_zeros_between(c, x, 2 + i, stride)
        reach = effective_extent(taps[i], dilation) - 1
        before.append(reach - begin)
        after.append(reach - end + given["output_padding"][i])
    x = _padded(c, x, before, after)
    channels, own = c.kind(w).shape[0], c.kind(w).shape[1] // count
    first = given["taps_first"]
    shape = (group, channels // group, *((count, own) if first else (own, count)))
    rows = _reversed(c, c.emit("Reshape", [w], shape=shape), 2 if first else 3)
    rows = c.emit("Transpose", [rows], perm=(0, 3, 2, 1) if first else (0, 2, 3, 1))
    rows = c.emit("Reshape", [rows], shape=(group, own, count * (channels // group)))
    steps = [(1, dilation) for _, dilation, _, _ in windows]
    return _product_of_windows(c, node, x, rows, steps, bias)


def _reversed(c: Composer, x: str, axis: int) -> str:
    shape = c.kind(x).shape
    if shape[axis] == 1:
        return x
    starts = tuple(n - 1 if i == axis else 0 for i, n in enumerate(shape))
    steps = tuple(-1 if i == axis else 1 for i in range(len(shape)))
    return c.emit("Slice", [x], starts=starts, steps=steps, sizes=shape)


def _part(c: Composer, x: str, axis: int, first: int, size: int) -> str:
    """So many positions along an axis."""
    shape = c.kind(x).shape
    if shape[axis] == size:
        return x
    starts = tuple(first if i == axis else 0 for i in range(len(shape)))
    sizes = tuple(size if i == axis else n for i, n in enumerate(shape))
    return c.emit("Slice", [x], starts=starts, steps=(1,) * len(shape), sizes=sizes)


def _with_zeros_between(c: Composer, x: str, axis: int, stride: int) -> str:
    """Elements that are so far apart, with zeros between them, along an axis."""
    shape = c.kind(x).shape
    if stride == 1 or shape[axis] == 1:
        return x
    wide = c.emit("Reshape", [x], shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
    pads = [0] * (2 * len(shape) + 2)
    pads[len(shape) + axis + 2] = stride - 1
    filled = c.emit("Pad", [wide], pads=tuple(pads), mode="constant", value=0.0)
    joined = (*shape[:axis], shape[axis] * stride, *shape[axis + 1 :])
    spread = c.emit("Reshape", [filled], shape=joined)
    return _part(c, spread, axis, 0, (shape[axis] - 1) * stride + 1)


def _padded(c: Composer, x: str, before: Sequence[int], after: Sequence[int]) -> str:
    """Zeros at both ends of each axis; where there are fewer than none, elements are cut off."""
    pads = tuple(max(n, 0) for side in (before, after) for n in side)
    x = c.emit("Pad", [x], pads=pads, mode="constant", value=0.0) if any(pads) else x
    for axis, (begin, end) in enumerate(zip(before, after, strict=True)):
        cut = max(-begin, 0) + max(-end, 0)
        x = _part(c, x, axis, max(-begin, 0), c.kind(x).shape[axis] - cut)
    return x


def _product_of_windows(
    c: Composer,
    node: Node,
    x: str,
    rows: str,
    steps: Sequence[tuple[int, int]],
    bias: Sequence[str],
) -> str:
    """Windows become columns of a matrix product (im2col).

        y[n, g, o, p] = sum over k of w[g, o, k] * columns[n, g, k, p]         k: tap and channel

    Windows are taken apart along one axis after the other: a kernel of a by b taps takes a + b
    slices. Taps come before channels: the slices of an image and group are its parts as they are.

    Args:
        c: the composer.
        node: the convolution.
        x: its input, padded.
        rows: weights (group, outputs of one, k).
        steps: stride and dilation of each axis.
        bias: none, or one.
    """
    taps, group = node.attributes["kernel_shape"], node.attributes["group"]
    images, outputs, *counts = c.kind(node.output).shape
    _, channels, *extents = c.kind(x).shape
    own = channels // group
    columns = c.emit("Reshape", [x], shape=(images, group, 1, own, *extents))
    for i in reversed(range(len(taps))):
        stride, dilation = steps[i]
        parts = []
        for tap in range(taps[i]):
            sizes = list(c.kind(columns).shape)
            starts, strides = [0] * len(sizes), [1] * len(sizes)
            starts[4 + i], sizes[4 + i] = tap * dilation, counts[i]
            strides[4 + i] = 1 if counts[i] == 1 else stride
            places = {"starts": tuple(starts), "steps": tuple(strides), "sizes": tuple(sizes)}
            parts.append(c.emit("Slice", [columns], **places))
        columns = c.emit("Concat", parts, axis=2) if len(parts) > 1 else parts[0]
    shape = images, group, math.prod(taps) * own, math.prod(counts)
    columns = c.emit("Reshape", [columns], shape=shape)
    y = c.emit("MatMul", [rows, columns])
    y = c.emit("Reshape", [y], shape=(images, outputs, *counts))
    if not bias:
        return y
    held = c.emit("Reshape", [bias[0]], shape=(outputs, *(1 for _ in counts)))
    return c.emit("Add", [y, held])


# What takes the place of operations that a GPU has no kernels for: code of this pass alone.
EXPANSIONS: dict[str, Callable[[Composer, Node], str]] = {
    "QuantizeLinear": _quantise,
    "QuantizeFloats": _quantise_floats,
    "DequantizeLinear": _dequantise,
    "Lookup": _lookup,
    "Extremes": _extremes,
    "QLinearAdd": _add,
    "QLinearMul": _mul,
    "QLinearMatMul": _matmul,
    "MatMulNBits": _packed_matmul,
    "QLinearGlobalAveragePool": _global_pool,
    "QLinearAveragePool": _pool,
    "QLinearSoftmax": _softmax,
    "DataConv": _data_conv,
    "DataConvTranspose": _data_conv_transpose,
}
