"""ONNX's operations between floats and codes, and on codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import float_codes
from leanconv.graph.builder import Value
from leanconv.graph.codes import fused
from leanconv.graph.convert.code_products import Requantisation, convolved, product
from leanconv.graph.convert.narrow import narrowed, widened
from leanconv.graph.convert.packed_weights import blocked_floats
from leanconv.graph.convert.quantisation import (
    Quantisation,
    Scale,
    broadcast,
    check_scales,
    one_scale,
    read_quantisation,
    scalar,
    single_precision,
    zero_of,
)
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.windows import CONV_ATTRIBUTES, convolution_window
from leanconv.graph.narrow_codes import table
from leanconv.graph.ops.base import Array, check_rank
from leanconv.graph.ops.quantised import CODES, DEQUANTISED, QUANTISED
from leanconv.types import (
    DTYPES,
    FLOAT8E8M0,
    FLOAT32,
    FLOATS,
    INT32,
    NARROW,
    UINT8,
    DType,
)

_NARROW_CODES = tuple(each for each in NARROW if each != FLOAT8E8M0)


def _axis(call: Call, x: Value, scale: Value) -> int:
    """The axis along which there are several scales."""
    if scale.type.elements == 1 and not call.attribute("block_size", 0):
        return 0
    return call.axis(call.attribute("axis", 1), len(x.shape))


def _code_type(call: Call) -> DType:
    """The type of the codes that a QuantizeLinear gives."""
    number = call.attribute("output_dtype", 0)
    named = next((each for each in (*DTYPES, *NARROW) if each.onnx == number), None)
    zero = call.optional(2)
    code = call.declared(2) if zero is not None else named or UINT8
    if code not in (*QUANTISED, *_NARROW_CODES) or (named not in (None, code)):
        raise UnsupportedError(
            f"gives codes of {named or code}, with a zero point of {code}; expected one of "
            f"{', '.join((*QUANTISED, *_NARROW_CODES))} for both"
        )
    return code


def _quantise(call: Call) -> list[Value]:
    """QuantizeLinear: clip(rint(x / scale) + zero)."""
    x, code = call.value(), _code_type(call)
    if x.type.dtype != FLOAT32:  # which a file's float32 may be computed in; codes are made of that
        x = float_codes.cast(call, x, FLOAT32)
    block = call.attribute("block_size", 0)
    given = read_quantisation(call, 1, 2, x, _axis(call, x, call.value(1)), block)
    if given.scale.array is not None:
        check_scales(np.asarray(given.scale.numbers), 1, positive=True)
    if code.is_float:
        _check_no_zero(given, code)
        scale = broadcast(call, float_codes.cast(call, given.scale, FLOAT32), x, given)
        return [narrowed(call, call.emit("Div", [x, scale]), code)]
    if given.is_constant and code.held == code:
        scale, zero = single_precision(call, given.scale), zero_of(call, given, code)
        return [call.emit("QuantizeLinear", [x, scale, zero], axis=given.axis)]
    scale = broadcast(call, float_codes.cast(call, given.scale, x.type.dtype), x, given)
    zero = float_codes.cast(call, zero_of(call, given, code.held), x.type.dtype)
    zero, ends = broadcast(call, zero, x, given), (code.low, code.high)
    codes = float_codes.quantise(call, x, scale, zero, code.held, ends)
    return [codes if code.held == code else call.builder.as_narrow(codes, code)]


def _check_no_zero(given: Quantisation, code: DType) -> None:
    """Raise where the zero point of codes that are floats is known not to be 0, as ONNX wants it.

    Raises:
        UnsupportedError: it is something else.
    """
    zero = None if given.zero is None else given.zero.numbers
    if zero is not None and np.any(table(code)[zero]):
        raise UnsupportedError(f"the zero point of {code} is not 0; expected 0, or none")


def _dequantise(call: Call) -> list[Value]:
    """DequantizeLinear: (x - zero) * scale."""
    x, zero, code = call.value(), call.optional(2), call.declared(0)
    taken = (*DEQUANTISED, *_NARROW_CODES)
    if code not in taken or (zero is not None and call.declared(2) != code):
        raise ModelError(
            f"got codes of {code}"
            + (f" and a zero point of {call.declared(2)}" if zero is not None else "")
            + f"; expected one of {', '.join(taken)} for both"
        )
    block = call.attribute("block_size", 0)
    given = read_quantisation(call, 1, 2, x, _axis(call, x, call.value(1)), block)
    dtype = call.builder.kept(given.scale.type.dtype)
    if dtype not in FLOATS:
        raise UnsupportedError(f"the scale is {given.scale.type}; expected {' or '.join(FLOATS)}")
    if given.is_constant and not code.is_float:
        return [constant_dequantised(call, x, given, dtype)]
    if given.blocks and not code.is_float and given.is_known and x.array is not None:
        return [blocked_floats(call, x, given, dtype)]
    scale = broadcast(call, float_codes.cast(call, given.scale, dtype), x, given)
    if code.is_float:
        _check_no_zero(given, code)
        floats = float_codes.cast(call, widened(call), dtype)
        return [call.emit("Mul", [floats, scale])]
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


def zero_point(call: Call, index: int, of: int) -> Value | None:
    """A zero point, None where there is none.

    Args:
        call: the node.
        index: number of the zero point among its inputs.
        of: that of the tensor.

    Raises:
        ModelError: it is of another type than the tensor.
    """
    zero = call.optional(index)
    if zero is not None and zero.type.dtype != call.dtype(of):
        raise ModelError(
            f"the zero point (input {index}) is {zero.type} of {call.dtype(of)}; expected one type"
        )
    return zero


def _matmul_integer(call: Call) -> list[Value]:
    check_codes(call, 0, 1)
    zeros = zero_point(call, 2, 0), zero_point(call, 3, 1)
    return [product(call, call.value(0), call.value(1), *zeros)]


def _window(call: Call, x: int, w: int) -> dict[str, Any]:
    """Check the operands of a convolution of codes; its attributes."""
    check_codes(call, x, w)
    image, weights = call.value(x), call.value(w)
    check_rank(image.type, 3, 5)
    check_rank(weights.type, len(image.shape), len(image.shape), "the weight")
    window = convolution_window(call, image.shape[2:], weights.shape[2:])
    return {**window, "group": call.attribute("group", 1)}


def _weights(call: Call, w: int, zero: int) -> tuple[Array, Array]:
    """Constant weights (K, ...) and their zero points, one or one for each k."""
    array, held = call.constant(w), zero_point(call, zero, w)
    zeros = np.zeros(1, array.dtype) if held is None else call.constant(zero).reshape(-1)
    if zeros.size not in (1, len(array)):
        raise ModelError(
            f"got {zeros.size} zero points for {call.value(w).type}; expected one, or one for each "
            "of its channels"
        )
    return array, zeros


def _conv_integer(call: Call) -> list[Value]:
    window, weights = _window(call, 0, 1), _weights(call, 1, 3)
    zero, x_zero = zero_point(call, 2, 0), 0
    if zero is not None and zero.type.elements != 1:
        raise UnsupportedError(f"the zero point of x is {zero.type}; expected one number")
    if zero is not None and zero.array is None:
        return [convolved(call, call.value(0), *weights, zero, window)]
    if zero is not None:
        x_zero = int(call.constant(2).reshape(-1)[0])
    return [convolved(call, call.value(0), *weights, x_zero, window)]


def _bias(call: Call, index: int) -> Value | None:
    added = call.optional(index)
    if added is not None and added.type.dtype != INT32:
        raise ModelError(f"the bias is {added.type}; expected int32")
    return added


def _qlinear_conv(call: Call) -> list[Value]:
    """QLinearConv: x, its scale and zero point, w, its, those of y, bias."""
    source = one_scale(call, 1, 2, call.dtype(0))
    result = one_scale(call, 6, 7, call.dtype(0), other=True)
    window, weights = _window(call, 0, 3), _weights(call, 3, 5)
    given = read_quantisation(call, 4, 5, call.value(3), 0)
    factors = _factors(call, source.scale, given, result)
    if call.optional(8) is not None:
        call.constant(8)
    becomes = Requantisation(factors, result.zero, result.dtype)
    bias = _bias(call, 8)
    return [convolved(call, call.value(0), *weights, source.zero, window, bias, becomes)]


def _factors(call: Call, factor: Value, given: Quantisation, result: Scale | None) -> Value:
    """factor * scale / the result's scale as float32, whose scale is 1 where it is floats."""
    factors = call.emit("Mul", [factor, float_codes.cast(call, given.scale, FLOAT32)])
    return factors if result is None else call.emit("Div", [factors, result.scale])


def scaled_product(
    call: Call,
    operands: tuple[Value, Value],
    alpha: float,
    bias: int,
    result: Scale | None,
) -> Value:
    """A product of matrices of codes: a, its scale and zero point, b, its; as codes or floats.

    Args:
        call: the node, with these as its first inputs.
        operands: a and b, transposed where they are to be.
        alpha: a factor.
        bias: number of the input that holds it, beyond the last for none.
        result: None for floats.
    """
    source, b = one_scale(call, 1, 2, call.dtype(0)), operands[1]
    given = read_quantisation(call, 4, 5, b, len(b.shape) - 1)
    factor = source.scale
    if alpha != 1.0:
        number = call.fold(lambda: np.asarray(alpha, np.float32), (), FLOAT32)
        factor = call.emit("Mul", [number, factor])
    factors = _factors(call, factor, given, result)
    becomes = Requantisation(factors, 0, FLOAT32)
    if result is not None:
        becomes = Requantisation(factors, result.zero, result.dtype)
    zeros = zero_point(call, 2, 0), zero_point(call, 5, 3)
    return product(call, *operands, *zeros, _bias(call, bias), becomes)


def _qlinear_matmul(call: Call) -> list[Value]:
    """QLinearMatMul: a, its scale and zero point, b, its, those of y."""
    check_codes(call, 0, 3)
    operands = a, b = call.value(0), call.value(3)
    known = all(call.value(i).array is not None for i in (1, 2, 4, 5, 6, 7))
    matrices = min(len(a.shape), len(b.shape)) >= 2
    if b.array is None and call.value(4).type.elements == 1 and known and matrices:
        codes = [scalar(call, i, i + 1, call.dtype(i - 1)) for i in (1, 4)]
        codes.append(scalar(call, 6, 7, call.dtype(0), other=True))
        return [call.emit("QLinearMatMul", operands, **fused(codes))]
    result = one_scale(call, 6, 7, call.dtype(0), other=True)
    return [scaled_product(call, operands, 1.0, len(call), result)]


_CONV_DATA = (0, 1, 2, 4, 6, 7)  # inputs of a QLinearConv but weights, their zeros, bias
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
    "ConvInteger": Rule(_conv_integer, CONV_ATTRIBUTES, 2, 4, running=(0, 2), since=10),
    "QLinearConv": Rule(_qlinear_conv, CONV_ATTRIBUTES, 8, 9, running=_CONV_DATA, since=10),
    "QLinearMatMul": Rule(_qlinear_matmul, {}, 8, 8, running=None, since=10),
}
