"""Operations on codes: QuantizeLinear, DequantizeLinear, scales of ranges, sums of products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import float_codes
from leanconv.graph.codes import fused
from leanconv.graph.convert.code_products import WIDEST, Requantisation, convolved, product
from leanconv.graph.convert.packed_weights import blocked_floats
from leanconv.graph.convert.quantisation import (
    LIFT,
    Quantisation,
    Scale,
    broadcast,
    check_scales,
    is_subnormal,
    lifted,
    one_scale,
    read_quantisation,
    scalar,
    single_precision,
    zero_of,
)
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.typed import narrowed, widened
from leanconv.graph.convert.windows import (
    CONV_ATTRIBUTES,
    convolution_window,
    exact_convolution,
    with_bias,
)
from leanconv.graph.narrow_codes import table
from leanconv.graph.ops.base import Array, check_rank
from leanconv.graph.ops.quantised import CODES, DEQUANTISED, QUANTISED
from leanconv.graph.value import Value
from leanconv.types import DTYPES, FLOAT8E8M0, FLOAT32, FLOATS, INT32, NARROW, UINT8, DType

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
        x = call.cast(x, FLOAT32)
    block = call.attribute("block_size", 0)
    given = read_quantisation(call, 1, 2, x, _axis(call, x, call.value(1)), block)
    if given.scale.array is not None:
        check_scales(np.asarray(given.scale.numbers), 1, positive=True)
    if code.is_float:
        _check_no_zero(given, code)
        scale = broadcast(call, call.cast(given.scale, FLOAT32), x, given)
        return [narrowed(call, call.emit("Div", [x, scale]), code)]
    if given.is_constant and code.held == code:
        scale, zero = single_precision(call, given.scale), zero_of(call, given, code)
        if is_subnormal(scale):
            x, scale = lifted(call, x), lifted(call, scale)
        return [call.emit("QuantizeLinear", [x, scale, zero], axis=given.axis)]
    scale = broadcast(call, call.cast(given.scale, x.type.dtype), x, given)
    zero = call.cast(zero_of(call, given, code.held), x.type.dtype)
    zero, ends = broadcast(call, zero, x, given), (code.low, code.high)
    codes = float_codes.quantise(call, x, scale, zero, code.held, ends)
    return [codes if code.held == code else call.builder.as_narrow(codes, code)]


def _check_no_zero(given: Quantisation, code: DType) -> None:
    """Raise where the zero point of codes that are floats is known not to be 0, as ONNX wants it.

    Raises:
        UnsupportedError: the zero point is not 0.
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
    if given.blocks and not code.is_float and given.is_known and x.is_known:
        return [blocked_floats(call, x, given, dtype)]
    scale = broadcast(call, call.cast(given.scale, dtype), x, given)
    if code.is_float:
        _check_no_zero(given, code)
        floats = call.cast(widened(call), dtype)
        return [call.emit("Mul", [floats, scale])]
    if given.zero is not None:
        zero = broadcast(call, given.zero, x, given)
    return [float_codes.dequantise(call, x, scale, zero, dtype)]


def constant_dequantised(call: Call, x: Value, given: Quantisation, dtype: DType) -> Value:
    """Floats of codes whose quantisation is constant."""
    scale, zero = single_precision(call, given.scale), zero_of(call, given, x.type.dtype)
    lift = is_subnormal(scale)
    if lift:
        scale = lifted(call, scale)
    y = call.emit("DequantizeLinear", [x, scale, zero], axis=given.axis, dtype=dtype)
    return call.emit("Mul", [y, call.number(1 / LIFT, y)]) if lift else y


def dynamic(call: Call, x: Value) -> tuple[Value, Value, Value]:
    """The codes of x as uint8, its scale and its zero point, which follow from its range.

    The range includes 0; where it is nothing else, the scale is 1.
    """
    zero, extremes = call.number(0.0, x), call.emit("Extremes", [x])
    low, high = (
        call.reshape(call.emit("Slice", [extremes], starts=(i,), steps=(1,), sizes=(1,)), ())
        for i in range(2)
    )
    low, high = call.emit("Min", [low, zero]), call.emit("Max", [high, zero])
    none = call.emit("Equal", [low, high])
    width = call.emit("Div", [call.emit("Sub", [high, low]), call.number(UINT8.high, x)])
    scale = call.emit("Where", [none, call.number(1.0, x), width])
    start = call.emit("Neg", [call.emit("Div", [low, scale])])
    place = call.emit("Round", [call.emit("Clip", [start], min=0.0, max=float(UINT8.high))])
    bounds = {"low": int(UINT8.low), "high": int(UINT8.high)}
    codes = call.emit("QuantizeFloats", [x, scale, place], dtype=UINT8, **bounds)
    return codes, scale, call.cast(place, UINT8)


def _dynamic(call: Call) -> Sequence[Value]:
    x = call.value()
    if x.type.dtype not in FLOATS or not x.type.elements:
        raise UnsupportedError(f"input 0 is {x.type}; expected floats, at least one")
    return dynamic(call, x)


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
        gives=UINT8,
        narrow=True,
    ),
    "DequantizeLinear": Rule(
        _dequantise,
        {"axis": "int", "block_size": "int", "output_dtype": "int"},
        2,
        3,
        running=None,
        since=10,
        gives=FLOAT32,
        narrow=True,
    ),
}
DYNAMIC = {"DynamicQuantizeLinear": Rule(_dynamic, since=11, outputs=3, gives=UINT8)}


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
        ModelError: the zero point is of another type than the tensor.
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
    _check_zeros(zeros.size, call.value(w))
    return array, zeros


def _check_zeros(count: int, w: Value) -> None:
    if count not in (1, *w.shape[:1]):
        raise ModelError(
            f"got {count} zero points for {w.type}; expected one, or one for each of its channels"
        )


def _conv_integer(call: Call) -> list[Value]:
    window, zero = _window(call, 0, 1), zero_point(call, 2, 0)
    x_zero: int | Value = 0
    if zero is not None and zero.type.elements != 1:
        raise UnsupportedError(f"the zero point of x is {zero.type}; expected one number")
    if zero is not None:
        x_zero = zero if zero.array is None else int(call.constant(2).reshape(-1)[0])
    return [_conv_sums(call, x_zero, (1, 3), window)]


def _conv_sums(
    call: Call, x_zero: int | Value, places: tuple[int, int], window: Mapping[str, Any]
) -> Value:
    """The sums of a convolution of codes whose weights are constants, or data.

    Args:
        call: the node.
        x_zero: zero point of its first input.
        places: the numbers of the weights and their zero points among its inputs.
        window: strides, pads, dilations, group.
    """
    x, w, w_zero = call.value(0), call.value(places[0]), zero_point(call, places[1], places[0])
    if not _is_data(call, *places):
        return convolved(call, x, *_weights(call, *places), x_zero, window)
    if w_zero is not None:
        _check_zeros(w_zero.type.elements, w)
        w_zero = call.reshape(w_zero, (w_zero.type.elements, *(1,) * (len(w.shape) - 1)))
    away = call.number(x_zero, x) if isinstance(x_zero, int) else call.reshape(x_zero, ())
    operands = float_codes.exact(call, x, away), float_codes.exact(call, w, w_zero)
    total = exact_convolution(call, *operands, window)
    return float_codes.sums(call, total, math.prod(w.shape[1:]) * WIDEST**2)


def _is_data(call: Call, *indices: int) -> bool:
    """Return whether one of some inputs is known only when the network runs."""
    held = (call.optional(index) for index in indices)
    return any(each is not None and not each.is_known for each in held)


def _bias(call: Call, index: int) -> Value | None:
    added = call.optional(index)
    if added is not None and added.type.dtype != INT32:
        raise ModelError(f"the bias is {added.type}; expected int32")
    return added


def qlinear_conv(call: Call) -> list[Value]:
    """QLinearConv: x, its scale and zero point, w, its, those of y, bias."""
    source = one_scale(call, 1, 2, call.dtype(0))
    result = one_scale(call, 6, 7, call.dtype(0), other=True)
    window, bias = _window(call, 0, 3), _bias(call, 8)
    given = read_quantisation(call, 4, 5, call.value(3), 0)
    factors = _factors(call, source.scale, given, result)
    becomes = Requantisation(factors, result.zero, result.dtype)
    if not _is_data(call, 3, 5, 8):
        weights = _weights(call, 3, 5)
        return [convolved(call, call.value(0), *weights, source.zero, window, bias, becomes)]
    total = with_bias(call, _conv_sums(call, source.zero, (3, 5), window), bias)
    return [becomes.applied(call, total, 1)]


def _factors(call: Call, factor: Value, given: Quantisation, result: Scale | None) -> Value:
    """factor * scale / the result's scale as float32, whose scale is 1 where it is floats."""
    factors = call.emit("Mul", [factor, call.cast(given.scale, FLOAT32)])
    return factors if result is None else call.emit("Div", [factors, result.scale])


def scaled_product(
    call: Call, operands: tuple[Value, Value], alpha: float, bias: int, result: Scale | None
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
    given = [call.optional(i) for i in (1, 2, 4, 5, 6, 7)]
    known = all(each is None or each.array is not None for each in given)
    matrices = min(len(a.shape), len(b.shape)) >= 2
    if b.array is None and call.value(4).type.elements == 1 and known and matrices:
        codes = [scalar(call, i, i + 1, call.dtype(i - 1)) for i in (1, 4)]
        codes.append(scalar(call, 6, 7, call.dtype(0), other=True))
        return [call.emit("QLinearMatMul", operands, **fused(codes))]
    result = one_scale(call, 6, 7, call.dtype(0), other=True)
    return [scaled_product(call, operands, 1.0, len(call), result)]


_PRODUCTS: dict[str, Any] = {"running": None, "since": 10, "products": True}
_RULES: dict[str, Rule] = {
    **LINEAR,
    **DYNAMIC,
    "MatMulInteger": Rule(_matmul_integer, {}, 2, 4, gives=INT32, **_PRODUCTS),
    "ConvInteger": Rule(_conv_integer, CONV_ATTRIBUTES, 2, 4, gives=INT32, **_PRODUCTS),
    "QLinearConv": Rule(qlinear_conv, CONV_ATTRIBUTES, 8, 9, **_PRODUCTS),
    "QLinearMatMul": Rule(_qlinear_matmul, {}, 8, 8, **_PRODUCTS),
}
RULES = {op: replace(rule, quantised=True) for op, rule in _RULES.items()}
