"""ONNX's operations on codes: sums of products."""

from __future__ import annotations

from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import float_codes
from leanconv.graph.codes import fused
from leanconv.graph.convert.code_products import Requantisation, convolved, product
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


def qlinear_conv(call: Call) -> list[Value]:
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
    given = [call.optional(i) for i in (1, 2, 4, 5, 6, 7)]
    known = all(each is None or each.array is not None for each in given)
    matrices = min(len(a.shape), len(b.shape)) >= 2
    if b.array is None and call.value(4).type.elements == 1 and known and matrices:
        codes = [scalar(call, i, i + 1, call.dtype(i - 1)) for i in (1, 4)]
        codes.append(scalar(call, 6, 7, call.dtype(0), other=True))
        return [call.emit("QLinearMatMul", operands, **fused(codes))]
    result = one_scale(call, 6, 7, call.dtype(0), other=True)
    return [scaled_product(call, operands, 1.0, len(call), result)]


CONV_DATA = (0, 1, 2, 4, 6, 7)  # inputs of a QLinearConv but weights, their zeros, bias
RULES: dict[str, Rule] = {
    **LINEAR,
    **DYNAMIC,
    "MatMulInteger": Rule(_matmul_integer, {}, 2, 4, running=None, since=10),
    "ConvInteger": Rule(_conv_integer, CONV_ATTRIBUTES, 2, 4, running=(0, 2), since=10),
    "QLinearConv": Rule(qlinear_conv, CONV_ATTRIBUTES, 8, 9, running=CONV_DATA, since=10),
    "QLinearMatMul": Rule(_qlinear_matmul, {}, 8, 8, running=None, since=10),
}
