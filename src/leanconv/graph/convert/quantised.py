"""ONNX's operations between floats and codes, and on codes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import float_codes
from leanconv.graph.builder import Value
from leanconv.graph.codes import fused
from leanconv.graph.convert.quantisation import (
    Quantisation,
    broadcast,
    check_scales,
    read_quantisation,
    scalar,
    single_precision,
    zero_of,
)
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.windows import convolution_window
from leanconv.graph.ops.base import check_rank
from leanconv.graph.ops.quantised import CODES, DEQUANTISED, QUANTISED
from leanconv.types import DTYPES, FLOAT32, FLOAT64, FLOATS, INT32, UINT8, DType

_WIDEST = 255  # distance of two codes of 8 bits


def _axis(call: Call, x: Value, scale: Value) -> int:
    """The axis along which there are several scales."""
    if scale.type.elements == 1 and not call.attribute("block_size", 0):
        return 0
    return call.axis(call.attribute("axis", 1), len(x.shape))


def _code_type(call: Call) -> DType:
    """The type of the codes that a QuantizeLinear gives."""
    named = next((t for t in DTYPES if t.onnx == call.attribute("output_dtype", 0)), None)
    zero = call.optional(2)
    code = zero.type.dtype if zero is not None else named or UINT8
    if code not in QUANTISED or (named not in (None, code)):
        raise UnsupportedError(
            f"gives codes of {named or code}, with a zero point of {code}; expected one of "
            f"{', '.join(QUANTISED)} for both"
        )
    return code


def _quantise(call: Call) -> list[Value]:
    """QuantizeLinear: clip(rint(x / scale) + zero)."""
    x, code = call.value(), _code_type(call)
    if x.type.dtype not in FLOATS:
        x = float_codes.cast(call, x, call.builder.single)
    block = call.attribute("block_size", 0)
    given = read_quantisation(call, 1, 2, x, _axis(call, x, call.value(1)), block)
    if given.scale.array is not None:
        check_scales(np.asarray(given.scale.numbers), 1, positive=True)
    if given.is_constant:
        scale, zero = single_precision(call, given.scale), zero_of(call, given, code)
        return [call.emit("QuantizeLinear", [x, scale, zero], axis=given.axis)]
    scale = broadcast(call, float_codes.cast(call, given.scale, x.type.dtype), x, given)
    zero = float_codes.cast(call, zero_of(call, given, code), x.type.dtype)
    return [float_codes.quantise(call, x, scale, broadcast(call, zero, x, given), code)]


def _dequantise(call: Call) -> list[Value]:
    """DequantizeLinear: (x - zero) * scale."""
    x, zero = call.value(), call.optional(2)
    if x.type.dtype not in DEQUANTISED or (zero is not None and zero.type.dtype != x.type.dtype):
        raise ModelError(
            f"got codes of {x.type.dtype}"
            + (f" and a zero point of {zero.type.dtype}" if zero is not None else "")
            + f"; expected one of {', '.join(DEQUANTISED)} for both"
        )
    block = call.attribute("block_size", 0)
    given = read_quantisation(call, 1, 2, x, _axis(call, x, call.value(1)), block)
    dtype = call.builder.kept(given.scale.type.dtype)
    if dtype not in FLOATS:
        raise UnsupportedError(f"the scale is {given.scale.type}; expected {' or '.join(FLOATS)}")
    if given.is_constant:
        return [constant_dequantised(call, x, given, dtype)]
    scale = broadcast(call, float_codes.cast(call, given.scale, dtype), x, given)
    if given.zero is not None:
        zero = broadcast(call, given.zero, x, given)
    return [float_codes.dequantise(call, x, scale, zero, dtype)]


def constant_dequantised(call: Call, x: Value, given: Quantisation, dtype: DType) -> Value:
    """Floats of codes whose quantisation is constant."""
    scale, zero = single_precision(call, given.scale), zero_of(call, given, x.type.dtype)
    return call.emit("DequantizeLinear", [x, scale, zero], axis=given.axis, dtype=dtype)


def dynamic(call: Call, x: Value) -> tuple[Value, Value, Value]:
    """The codes of x as uint8, its scale and its zero point, which follow from its range.

    The range includes 0; where it is nothing else, the scale is 1.
    """
    axes, zero = tuple(range(len(x.shape))), call.number(0.0, x)
    low = call.emit("Min", [call.emit("ReduceMin", [x], axes=axes, keepdims=False), zero])
    high = call.emit("Max", [call.emit("ReduceMax", [x], axes=axes, keepdims=False), zero])
    none = call.emit("Equal", [low, high])
    width = call.emit("Div", [call.emit("Sub", [high, low]), call.number(UINT8.high, x)])
    scale = call.emit("Where", [none, call.number(1.0, x), width])
    start = call.emit("Neg", [call.emit("Div", [low, scale])])
    place = call.emit("Round", [call.emit("Clip", [start], min=0.0, max=float(UINT8.high))])
    codes = float_codes.quantise(call, x, scale, place, UINT8)
    return codes, scale, float_codes.cast(call, place, UINT8)


def _dynamic(call: Call) -> Sequence[Value]:
    x = call.value()
    if x.type.dtype not in FLOATS or not x.type.elements:
        raise UnsupportedError(f"input 0 is {x.type}; expected floats, at least one")
    return dynamic(call, x)


# -- sums of products -----------------------------------------------------------------------------
def check_codes(call: Call, *indices: int) -> None:
    """Raise unless inputs are codes of 8 bits.

    Raises:
        ModelError: one is something else.
    """
    for index in indices:
        if call.dtype(index) not in CODES:
            raise ModelError(
                f"input {index} is {call.value(index).type}; expected {' or '.join(CODES)}"
            )


def _zero(call: Call, index: int, of: int, shape: Sequence[int]) -> Value | None:
    """A zero point in a shape that broadcasts to the tensor; None where it is 0.

    Args:
        call: the node.
        index: number of the zero point among its inputs.
        of: that of the tensor.
        shape: of the zero point where there are several.
    """
    zero = call.optional(index)
    if zero is None or (zero.array is not None and not np.any(zero.numbers)):
        return None
    if zero.type.dtype != call.dtype(of):
        raise ModelError(
            f"the zero point (input {index}) is {zero.type} of {call.dtype(of)}; expected one type"
        )
    if zero.type.elements == 1:
        return call.reshape(zero, ())
    if zero.type.elements != math.prod(shape):
        raise ModelError(
            f"the zero point (input {index}) is {zero.type}; expected one number, or one for each "
            "row or channel"
        )
    return call.reshape(zero, shape)


def integer_product(
    call: Call, a: int, b: int, a_zero: int, b_zero: int, factors: tuple[Value, Value] | None = None
) -> Value:
    """(a - a_zero) @ (b - b_zero) as int32; zero points may be of each row of a, or column of b."""
    check_codes(call, a, b)
    left, right = factors or (call.value(a), call.value(b))
    if not left.shape or not right.shape or left.shape[-1] != right.shape[-2:][0]:
        raise ModelError(f"got {left.type} and {right.type}; expected matrices that multiply")
    rows = (*left.shape[:-1], 1) if call.optional(a_zero) is not None else ()
    if rows and len(left.shape) > 2 and call.value(a_zero).type.elements == left.shape[-2]:
        rows = (left.shape[-2], 1)
    x = float_codes.exact(call, left, _zero(call, a_zero, a, rows))
    columns = (*right.shape[:-2], 1, right.shape[-1]) if len(right.shape) > 1 else (1,)
    if call.optional(b_zero) is not None and call.value(b_zero).type.elements == right.shape[-1]:
        columns = (1, right.shape[-1]) if len(right.shape) > 1 else (right.shape[-1],)
    y = float_codes.exact(call, right, _zero(call, b_zero, b, columns))
    most = int(left.shape[-1]) * _WIDEST**2
    return float_codes.sums(call, call.emit("MatMul", [x, y]), most)


def _matmul_integer(call: Call) -> list[Value]:
    return [integer_product(call, 0, 1, 2, 3)]


def integer_conv(
    call: Call, x: int, w: int, x_zero: int, w_zero: int, bias: int | None = None
) -> Value:
    """Sums of (x - x_zero) * (w - w_zero) and a bias as int32; padding stands for x_zero."""
    check_codes(call, x, w)
    image, weights = call.value(x), call.value(w)
    check_rank(image.type, 3, 5)
    check_rank(weights.type, len(image.shape), len(image.shape), "the weight")
    call.constant(w)
    window = convolution_window(call, image.shape[2:], weights.shape[2:])
    if call.optional(x_zero) is not None and call.value(x_zero).type.elements != 1:
        raise UnsupportedError(f"the zero point of x is {call.value(x_zero).type}; expected one")
    left = float_codes.exact(call, image, _zero(call, x_zero, x, ()))
    channels = (weights.shape[0], *(1,) * (len(weights.shape) - 1))
    right = float_codes.exact(call, weights, _zero(call, w_zero, w, channels))
    added = None if bias is None else call.optional(bias)
    if added is not None and added.type.dtype != INT32:
        raise ModelError(f"the bias is {added.type}; expected int32")
    inputs = [left, right] + ([] if added is None else [float_codes.cast(call, added, FLOAT64)])
    attributes = {"group": call.attribute("group", 1), "activation": None, **window}
    most = math.prod(map(int, weights.shape[1:])) * _WIDEST**2 + (0 if added is None else 1 << 31)
    return float_codes.sums(call, call.emit("Conv", inputs, **attributes), most)


def _conv_integer(call: Call) -> list[Value]:
    return [integer_conv(call, 0, 1, 2, 3)]


def _qlinear_conv(call: Call) -> list[Value]:
    """QLinearConv: x, its scale and zero point, w, its, those of y, bias."""
    x, w = call.value(0), call.value(3)
    source, result = scalar(call, 1, 2, call.dtype(0)), scalar(call, 6, 7, call.dtype(0))
    weights = read_quantisation(call, 4, 5, w, 0)
    sums = integer_conv(call, 0, 3, 2, 5, 8)
    ws = np.asarray(single_precision(call, weights.scale).array)
    factors = np.float32(source.scale) * ws / np.float32(result.scale)
    shape = factors.shape and (*factors.shape, *(1,) * (len(x.shape) - 2))
    scale = call.fold(lambda: factors.reshape(shape), shape, FLOAT32)
    bounds = (result.dtype.low, result.dtype.high)
    return [float_codes.requantise(call, sums, scale, result.zero, bounds, result.dtype)]


def product_scale(
    call: Call,
    factor: np.float32,
    scale: int,
    zero: int,
    b: Value,
    divisor: np.float32 | None = None,
) -> Value:
    """What sums of a product are multiplied by, one number or one for each column.

    Args:
        call: the node.
        factor: the other operand's scale.
        scale, zero: numbers of b's inputs.
        b: the matrix.
        divisor: the result's scale, None where it is floats.
    """
    given = read_quantisation(call, scale, zero, b, len(b.shape) - 1)
    factors = factor * np.asarray(single_precision(call, given.scale).array)
    factors = np.asarray(factors if divisor is None else factors / divisor, np.float32)
    return call.fold(lambda: factors, factors.shape, FLOAT32)


def _qlinear_matmul(call: Call) -> list[Value]:
    """QLinearMatMul: a, its scale and zero point, b, its, those of y."""
    check_codes(call, 0, 3)
    b, result = call.value(3), scalar(call, 6, 7, call.dtype(0))
    source = scalar(call, 1, 2, call.dtype(0))
    if call.value(4).type.elements == 1:
        other = scalar(call, 4, 5, call.dtype(3))
        inputs = [call.value(0), b]
        if min(len(each.shape) for each in inputs) >= 2:
            return [call.emit("QLinearMatMul", inputs, **fused((source, other, result)))]
    sums = integer_product(call, 0, 3, 2, 5)
    scale = product_scale(call, np.float32(source.scale), 4, 5, b, np.float32(result.scale))
    bounds = (result.dtype.low, result.dtype.high)
    return [float_codes.requantise(call, sums, scale, result.zero, bounds, result.dtype)]


_WINDOW = {
    "auto_pad": "string",
    "kernel_shape": "ints",
    "strides": "ints",
    "dilations": "ints",
    "pads": "ints",
    "group": "int",
}
LINEAR: dict[str, Rule] = {
    "QuantizeLinear": Rule(
        _quantise,
        {
            "axis": "int",
            "saturate": "int",
            "block_size": "int",
            "output_dtype": "int",
            "precision": "int",
        },
        2,
        3,
        running=None,
        since=10,
    ),
    "DequantizeLinear": Rule(
        _dequantise,
        {"axis": "int", "block_size": "int", "output_dtype": "int"},
        2,
        3,
        running=None,
        since=10,
    ),
}
RULES: dict[str, Rule] = {
    **LINEAR,
    "DynamicQuantizeLinear": Rule(_dynamic, since=11, outputs=3),
    "MatMulInteger": Rule(_matmul_integer, {}, 2, 4, running=None, since=10),
    "ConvInteger": Rule(_conv_integer, _WINDOW, 2, 4, running=(0, 2), since=10),
    "QLinearConv": Rule(_qlinear_conv, _WINDOW, 8, 9, running=(0,), since=10),
    "QLinearMatMul": Rule(_qlinear_matmul, {}, 8, 8, running=(0, 3), since=10),
}
