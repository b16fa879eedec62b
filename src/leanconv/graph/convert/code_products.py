"""Convolutions and products of matrices of codes, by QLinearConv where the weights are constants.

    sum[k] = bias[k] + sum of (x - x_zero) * (w[k] - w_zero[k])        int32, modulo 2^32

A QLinearConv takes x_zero as a number, and weights that have no zero point. Where 8 bits hold
w - w_zero, they are its weights. Elsewhere w are (of uint8 w - 128), and what is left of the zero
point is multiplied by the sums of x over each window, a convolution with ones. A zero point of x
that is data is multiplied by the sums of the weights, behind padding of that code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph import float_codes
from leanconv.graph.codes import signed_weights
from leanconv.graph.convert.rule import Call
from leanconv.graph.ops.base import Array
from leanconv.graph.value import Value
from leanconv.records import dataclass
from leanconv.types import FLOAT32, INT32, UINT8, DType

WIDEST = 255  # distance of two codes of 8 bits


@dataclass(frozen=True, eq=False)
class Requantisation:
    """The step from int32 sums to float32(sum) * scale, as floats or rounded to codes.

    Attributes:
        scale: float32, one number or one for each channel; a constant or data.
        zero: of the result's codes: a number, or data of one element.
        dtype: of the codes, or float32.
    """

    scale: Value
    zero: int | Value
    dtype: DType

    @property
    def attributes(self) -> dict[str, Any] | None:
        """Attributes of a QLinearConv; None where scale or zero are data."""
        if self.scale.array is None or isinstance(self.zero, Value):
            return None
        if self.dtype.is_float:
            return {"y_zero": 0, "low": -math.inf, "high": math.inf, "dtype": FLOAT32}
        ends = {"low": int(self.dtype.low), "high": int(self.dtype.high)}
        return {"y_zero": self.zero, **ends, "dtype": self.dtype}

    def applied(self, call: Call, total: Value, channel: int) -> Value:
        """Return int32 sums as floats or codes; `channel` is their axis of channels."""
        shape = [1] * len(total.shape)
        if self.scale.type.elements > 1:
            shape[channel] = self.scale.type.elements
        scale = call.reshape(self.scale, shape)
        y = call.emit("Mul", [call.cast(total, FLOAT32), scale])
        if self.dtype.is_float:
            return y
        y, zero = call.emit("Round", [y]), self.zero
        if isinstance(zero, Value):
            y = call.emit("Add", [y, call.cast(call.reshape(zero, ()), FLOAT32)])
        elif zero:
            y = call.emit("Add", [y, call.number(zero, y)])
        return float_codes.narrowed(call, y, self.dtype.low, self.dtype.high, self.dtype)


_SUMS = {"y_zero": 0, "low": -math.inf, "high": math.inf, "dtype": INT32}


def convolved(
    call: Call,
    x: Value,
    w: Array,
    w_zero: Array,
    x_zero: int | Value,
    window: Mapping[str, Any],
    bias: Value | None = None,
    result: Requantisation | None = None,
) -> Value:
    """A convolution of codes: its sums, or these as floats or codes.

    Args:
        call: the node.
        x: codes (N, C, spatial...).
        w: codes (K, C / group, kernel...).
        w_zero: one zero point, or one for each k.
        x_zero: a number, or data of one element.
        window: strides, pads, dilations, group.
        bias: int32 (K,), a constant.
        result: None for the sums.
    """
    codes, left = signed_weights(w, w_zero, x.type.dtype == UINT8)
    apart = w.astype(np.int32) - w_zero.astype(np.int32).reshape(-1, *(1,) * (w.ndim - 1))
    data = x_zero if isinstance(x_zero, Value) else None
    if data is not None:
        x, window = _padded(call, x, data, window)
    given = {**window, "x_zero": 0 if data is not None else x_zero}
    given.update(residual=None, activation=None)
    inputs = [x, call.builder.constant(codes), bias]
    attributes = None if result is None else result.attributes
    if data is None and left is None and result is not None and attributes is not None:
        scale = np.broadcast_to(np.asarray(result.scale.numbers).reshape(-1), (len(w),))
        scaled = _single(call, np.ascontiguousarray(scale))
        return call.emit("QLinearConv", [*inputs, scaled], **given, **attributes)
    total = call.emit("QLinearConv", inputs, **given, **_SUMS)
    if left is not None:
        one = np.ones((1 if window["group"] == 1 else len(w), *w.shape[1:]), np.int8)
        ones = call.builder.constant(one)
        around = call.emit("QLinearConv", [x, ones, None], **given, **_SUMS)
        rest = left.astype(np.int32).reshape(1, -1, *(1,) * (w.ndim - 2))
        away = call.emit("Mul", [around, call.builder.constant(rest)])
        total = call.emit("Sub", [total, away])
    if data is not None:
        sums = apart.reshape(len(w), -1).sum(axis=1, dtype=np.int64).astype(np.int32)
        factor = call.builder.constant(sums.reshape(1, -1, *(1,) * (w.ndim - 2)))
        away = call.cast(call.reshape(data, ()), INT32)
        total = call.emit("Sub", [total, call.emit("Mul", [factor, away])])
    return total if result is None else result.applied(call, total, 1)


def _single(call: Call, array: Array) -> Value:
    """A constant of float32, also in a network that computes in float64."""
    return call.fold(lambda: array, array.shape, FLOAT32)


def _padded(
    call: Call, x: Value, zero: Value, window: Mapping[str, Any]
) -> tuple[Value, dict[str, Any]]:
    """x with its padding, of a code that is data, and the window without it."""
    pads, rank = window["pads"], len(x.shape)
    code = call.reshape(zero, (1,) * rank)
    for axis in range(2, rank):
        counts = pads[axis - 2], pads[rank - 4 + axis]
        shapes = [(*x.shape[:axis], count, *x.shape[axis + 1 :]) for count in counts]
        before, after = (call.emit("Expand", [code], shape=shape) for shape in shapes)
        parts = [before] * bool(counts[0]) + [x] + [after] * bool(counts[1])
        x = call.emit("Concat", parts, axis=axis) if len(parts) > 1 else x
    return x, {**window, "pads": (0,) * len(pads)}


def product(
    call: Call,
    a: Value,
    b: Value,
    a_zero: Value | None,
    b_zero: Value | None,
    bias: Value | None = None,
    result: Requantisation | None = None,
) -> Value:
    """(a - a_zero) @ (b - b_zero) + bias, as sums, floats or codes.

    Args:
        call: the node.
        a, b: codes; vectors, matrices or stacks of them.
        a_zero: one zero point, or one for each row; None for 0.
        b_zero: one, or one for each column.
        bias: int32, of anything that broadcasts to the product.
        result: None for the sums; its channels are columns.
    """
    if not a.shape or not b.shape or a.shape[-1] != b.shape[-2:][0]:
        raise ModelError(f"got {a.type} and {b.type}; expected matrices that multiply")
    known = b_zero is None or b_zero.array is not None
    if b.array is not None and known and len(b.shape) == 2 and min(b.shape) > 0:
        return _dense(call, a, b, a_zero, b_zero, bias, result)
    left = float_codes.exact(call, a, _of_rows(call, a_zero, a))
    right = float_codes.exact(call, b, _of_columns(call, b_zero, b))
    most = int(a.shape[-1]) * WIDEST**2
    total = float_codes.sums(call, call.emit("MatMul", [left, right]), most)
    if bias is not None:
        total = call.emit("Add", [total, bias])
    return total if result is None else result.applied(call, total, len(total.shape) - 1)


def _dense(
    call: Call,
    a: Value,
    b: Value,
    a_zero: Value | None,
    b_zero: Value | None,
    bias: Value | None,
    result: Requantisation | None,
) -> Value:
    """`product` with a constant matrix b (I, K): a convolution of rows (R, I, 1, 1)."""
    inner, columns = map(int, b.shape)
    rows = call.reshape(a, (math.prod(a.shape[:-1]), inner, 1, 1))
    w = np.ascontiguousarray(np.asarray(b.numbers).T).reshape(columns, inner, 1, 1)
    zeros = np.zeros(1, b.type.dtype) if b_zero is None else np.asarray(b_zero.numbers)
    zeros = _checked_zeros(zeros, columns)
    zero: int | Value = 0
    of_rows = a_zero if a_zero is not None and a_zero.type.elements != 1 else None
    if a_zero is not None and of_rows is None:
        held = a_zero.numbers
        zero = a_zero if held is None else int(held.reshape(-1)[0])
    ones = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1}
    added = bias if bias is not None and bias.array is not None else None
    if added is not None and added.shape not in ((columns,), (1, columns)):
        added = None
    flat = None if added is None else call.reshape(added, (columns,))
    at_once = of_rows is None and (added is bias)
    y = convolved(call, rows, w, zeros, zero, ones, flat, result if at_once else None)
    y = call.reshape(y, (*a.shape[:-1], columns))
    if at_once:
        return y
    if of_rows is not None:
        sums = w.reshape(columns, -1).astype(np.int64) - zeros.astype(np.int64).reshape(-1, 1)
        factor = call.builder.constant(sums.sum(axis=1).astype(np.int32))
        away = call.cast(_of_rows(call, of_rows, a) or of_rows, INT32)
        y = call.emit("Sub", [y, call.emit("Mul", [away, factor])])
    if added is not bias and bias is not None:
        y = call.emit("Add", [y, bias])
    return y if result is None else result.applied(call, y, len(y.shape) - 1)


def _checked_zeros(zeros: Array, count: int) -> Array:
    if zeros.size not in (1, count):
        raise ModelError(f"got {zeros.size} zero points; expected one, or one for each of {count}")
    return zeros.reshape(-1)


def _of_rows(call: Call, zero: Value | None, a: Value) -> Value | None:
    """Zero points of all of a, or of its rows, in a shape that broadcasts to it; None for 0."""
    shapes = (*a.shape[:-1], 1), (*a.shape[-2:-1], 1)
    return _spread(call, zero, shapes, f"for each row of {a.type}")


def _of_columns(call: Call, zero: Value | None, b: Value) -> Value | None:
    """Zero points of all of b, or of its columns, in a shape that broadcasts to it; None for 0."""
    single = (1, b.shape[-1]) if len(b.shape) > 1 else (b.shape[-1],)
    return _spread(call, zero, (single, (*b.shape[:-2], *single)), f"per column of {b.type}")


def _spread(
    call: Call, zero: Value | None, shapes: Sequence[tuple[int, ...]], which: str
) -> Value | None:
    if zero is None or (zero.array is not None and not np.any(zero.numbers)):
        return None
    for shape in ((), *shapes):
        if zero.type.elements == math.prod(shape):
            return call.reshape(zero, shape)
    raise ModelError(f"the zero point is {zero.type}; expected one, or one {which}")
