"""ONNX's operations on codes: sums of products."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import float_codes
from leanconv.graph.codes import fused
from leanconv.graph.convert import data_weights
from leanconv.graph.convert.code_products import WIDEST, Requantisation, convolved, product
from leanconv.graph.convert.quantisation import (
    Quantisation,
    Scale,
    one_scale,
    read_quantisation,
    scalar,
)
from leanconv.graph.convert.quantised_linear import DYNAMIC, LINEAR
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.windows import CONV_ATTRIBUTES, convolution_window
from leanconv.graph.ops.base import Array, check_rank
from leanconv.graph.ops.quantised import CODES
from leanconv.graph.value import Value
from leanconv.types import FLOAT32, INT32


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
    total = data_weights.exact_convolution(call, *operands, window)
    return float_codes.sums(call, total, math.prod(w.shape[1:]) * WIDEST**2)


def _is_data(call: Call, *indices: int) -> bool:
    """Whether one of some inputs is known only when the network runs."""
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
    total = data_weights.with_bias(call, _conv_sums(call, source.zero, (3, 5), window), bias)
    return [becomes.applied(call, total, 1)]


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
    given = [call.optional(i) for i in (1, 2, 4, 5, 6, 7)]
    known = all(each is None or each.array is not None for each in given)
    matrices = min(len(a.shape), len(b.shape)) >= 2
    if b.array is None and call.value(4).type.elements == 1 and known and matrices:
        codes = [scalar(call, i, i + 1, call.dtype(i - 1)) for i in (1, 4)]
        codes.append(scalar(call, 6, 7, call.dtype(0), other=True))
        return [call.emit("QLinearMatMul", operands, **fused(codes))]
    result = one_scale(call, 6, 7, call.dtype(0), other=True)
    return [scaled_product(call, operands, 1.0, len(call), result)]


RULES: dict[str, Rule] = {
    **LINEAR,
    **DYNAMIC,
    "MatMulInteger": Rule(_matmul_integer, {}, 2, 4, running=None, since=10),
    "ConvInteger": Rule(_conv_integer, CONV_ATTRIBUTES, 2, 4, running=None, since=10),
    "QLinearConv": Rule(qlinear_conv, CONV_ATTRIBUTES, 8, 9, running=None, since=10),
    "QLinearMatMul": Rule(_qlinear_matmul, {}, 8, 8, running=None, since=10),
}
