"""QLinearConv: a convolution of codes, with the bits of onnxruntime's QLinearConv.

Inputs, "" where there is none: codes x; w (K, C/g, kernel…), int8, or uint8 where x is; bias, (K,)
int32; scale, (K,) float32; residual, codes of y's type and shape; affine, (2, K) float32. A code of
x stands for (code - x_zero) · its scale, and so does the padding: for code x_zero. Modulo 2^32

    sum = bias + sum over taps and channels of (x - x_zero) · w

What becomes of it, `dtype` says: int32, the sum itself; uint8 or int8, its code, as
`spec.requantise` has the formula; float32, sum · scale. An `activation` is applied to sum · scale;
`affine` has a factor and a summand for each channel that make codes of its result, without the
zero. `low` and `high` are codes, or bounds of
the float32 result; `residual` says how the residual's codes are added, None without one.
"""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, first, given, required, single
from leanconv.graph.ops.conv import check_channels, conv_type, sums_over_taps, work_conv
from leanconv.graph.ops.pointwise import activate
from leanconv.graph.ops.quantised import CODES, add_factors, fma
from leanconv.spec import Activation
from leanconv.spec.requantise import (
    FIXED,
    HIGH,
    LAST_HIGH,
    LAST_LOW,
    LOW,
    NUMBERS,
    OWN_RATIO,
    RESIDUAL_RATIO,
    ZERO,
    Quantisation,
    Requantise,
)
from leanconv.types import FLOAT32, INT8, INT32, UINT8, DType

_CODES = 256  # of a byte
RESULTS = (*CODES, FLOAT32, INT32)


def numbers_of(quantisation: Quantisation) -> np.ndarray:
    """Return the numbers that kernels read, (8,) float32, in the order of `spec.requantise`."""
    numbers = np.zeros(NUMBERS, np.float32)
    own, zero = quantisation.residual, quantisation.zero
    low, high = quantisation.low, quantisation.high
    if own is None:
        numbers[[LOW, HIGH, ZERO]] = low - zero, high - zero, zero
        return numbers
    zeros = own.own_low - own.own_zero, own.own_high - own.own_zero, own.own_zero
    numbers[[LOW, HIGH, ZERO]] = zeros
    numbers[[LAST_LOW, LAST_HIGH]] = low, high
    operands = [(own.own_scale, own.own_zero, OWN_RATIO), (own.scale, own.zero, RESIDUAL_RATIO)]
    (a_scale, a_zero, a), (b_scale, b_zero, b) = operands[::-1] if own.first else operands
    factors = add_factors((a_scale, b_scale, own.result_scale), (a_zero, b_zero, zero))
    numbers[[a, b, FIXED]] = factors
    return numbers


def form_of(quantisation: Quantisation, scales: np.ndarray, dtype: DType) -> Requantise:
    """Return the part of a quantisation on which the code of kernels depends, not their numbers."""
    small = quantisation.activation is None and bool((np.abs(scales) < 1).all())
    own, bounds = quantisation.residual, (quantisation.low, quantisation.high)
    if own is None:
        last = quantisation.zero == 0
    else:
        a, b, fixed = np.abs(numbers_of(quantisation)[[OWN_RATIO, RESIDUAL_RATIO, FIXED]])
        last = bool(2 * _CODES * (a + b) + fixed < INT32.high)
    saturates = last and dtype in (INT8, UINT8) and bounds == (dtype.low, dtype.high)
    return replace(quantisation.form, small=small, saturates=saturates)


def requantised(
    sums: np.ndarray,
    scale: np.ndarray,
    quantisation: Quantisation,
    dtype: DType,
    residual: np.ndarray | None = None,
    affine: np.ndarray | None = None,
) -> np.ndarray:
    """The definition: the codes or floats that sums (N, K, …) in int32 become.

    Args:
        sums: with bias and zeros, modulo 2^32.
        scale: (K,) float32.
        quantisation: what they become.
        dtype: int8 or uint8, or float32.
        residual: codes of the sums' shape, where `quantisation` has how they are added.
        affine: (2, K) float32, of an activation: factors and summands.
    """
    numbers, own = numbers_of(quantisation), quantisation.residual
    channels = (-1, *(1,) * (sums.ndim - 2))
    with np.errstate(all="ignore"):  # scales are a file's
        value = sums.astype(np.float32) * scale.reshape(channels)
        if affine is not None:
            factors, summands = (each.reshape(channels) for each in affine)
            value = fma(activate(value, quantisation.activation), factors, summands)
        value = _clamped(value, numbers[LOW], numbers[HIGH])
        if dtype == FLOAT32:
            return value
        value = np.rint(value) + numbers[ZERO]
        if own is not None:
            assert residual is not None, "the codes to add"
            terms = [(value, numbers[OWN_RATIO]), (residual, numbers[RESIDUAL_RATIO])]
            (a, a_ratio), (b, b_ratio) = reversed(terms) if own.first else terms
            inner = fma(np.asarray(b), np.asarray(b_ratio), np.asarray(numbers[FIXED]))
            value = fma(np.asarray(a), np.asarray(a_ratio), inner)
            value = np.rint(_clamped(value, numbers[LAST_LOW], numbers[LAST_HIGH]))
    codes: np.ndarray = value.astype(np.int32).astype(dtype)
    return codes


def _clamped(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """A number within bounds; NaN becomes the lower one."""
    return np.minimum(np.where(value > low, value, low), high, dtype=np.float32)


def quantisation_of(attributes: Attributes) -> Quantisation | None:
    """Return the quantisation of a node's sums; None: they stay int32."""
    if attributes["dtype"] == INT32:
        return None
    bounds = attributes["low"], attributes["high"]
    zero, residual = attributes["y_zero"], attributes["residual"]
    return Quantisation(zero, *bounds, residual, attributes["activation"])


def _infer(types: Types, attributes: Attributes) -> TensorType:
    x, w, dtype = first(types), required(types, 1), attributes["dtype"]
    if x.dtype not in CODES or w.dtype not in ((INT8, UINT8) if x.dtype == UINT8 else (INT8,)):
        raise ModelError(
            f"got codes {x} and weights {w}; expected uint8 or int8, and weights of int8, or uint8 "
            "for uint8"
        )
    if dtype not in RESULTS:
        raise ModelError(f"got results of {dtype}; expected one of {', '.join(RESULTS)}")
    result = conv_type(types[:2], attributes, dtype)
    bias, scale, residual = (given(types, index) for index in (2, 3, 4))
    for kind, what, held in ((bias, "the bias", INT32), (scale, "the scale", FLOAT32)):
        check_channels(kind, result.shape[1], what)
        if kind is not None and kind.dtype != held:
            raise ModelError(f"{what} is {kind}; expected {held}")
    if (scale is None) != (dtype == INT32):
        raise ModelError(f"got the scale {scale}; expected one, but none for results of int32")
    if residual is not None and (residual != result or dtype not in CODES):
        raise ModelError(f"the residual is {residual}; expected codes, {result}")
    _check_activation(attributes, given(types, 5), result.shape[1])
    if (residual is None) != (attributes["residual"] is None):
        raise ModelError(f"got the residual {residual} for {attributes['residual']}; expected both")
    _check_codes(x, attributes)
    return result


def _check_activation(attributes: Attributes, affine: TensorType | None, channels: int) -> None:
    """Raise unless an activation is one that a convolution of codes may have, with its numbers."""
    activation: Activation | None = attributes["activation"]
    wanted = None if activation is None else TensorType((2, channels), FLOAT32)
    if affine != wanted:
        raise ModelError(f"got {affine} for the activation {activation}; expected {wanted}")
    if activation is None:
        return
    plain = activation == Activation(activation.kind, activation.parameters)
    if attributes["dtype"] == INT32 or activation.kind == "prelu" or not plain:
        raise ModelError(
            f"got the activation {activation} of {attributes['dtype']}; expected one of codes or "
            "float32, with no numbers but its parameters"
        )


def _check_codes(x: TensorType, attributes: Attributes) -> None:
    """Raise unless zeros and bounds are codes of their tensors, in order."""
    dtype, low, high = attributes["dtype"], attributes["low"], attributes["high"]
    own = attributes["residual"]
    codes = [(attributes["x_zero"], x.dtype)]
    if dtype in CODES:
        codes += [(number, dtype) for number in (attributes["y_zero"], low, high)]
        if own is not None:
            numbers = own.own_zero, own.own_low, own.own_high, own.zero
            codes += [(number, dtype) for number in numbers]
    for number, held in codes:
        if not held.low <= number <= held.high:
            raise ModelError(f"got {number} as a code; expected {held.low} to {held.high}")
    if dtype != INT32 and (isnan(low) or isnan(high) or not low <= high):
        raise ModelError(f"clamps to {low} and {high}; expected bounds in order")


def _evaluate(arrays: Arrays, attributes: Attributes) -> Array:
    """Sums in float64, which are exact below 2^53."""
    x = array(arrays).astype(np.float64) - attributes["x_zero"]
    sums = sums_over_taps(x, array(arrays, 1).astype(np.float64), attributes).astype(np.int64)
    bias, scale, residual, affine = (given(arrays, index) for index in (2, 3, 4, 5))
    if bias is not None:
        sums += bias.astype(np.int64).reshape(-1, *(1,) * (sums.ndim - 2))
    wrapped = sums.astype(np.int32)
    quantisation = quantisation_of(attributes)
    if quantisation is None:
        return wrapped
    assert scale is not None, "results that are scaled have a scale"
    return requantised(wrapped, scale, quantisation, attributes["dtype"], residual, affine)


_WINDOW = ("strides", "pads", "dilations", "group")
_NUMBERS = ("x_zero", "y_zero", "low", "high", "dtype", "residual", "activation")
OPS: dict[str, Op] = {
    "QLinearConv": single(
        _infer,
        _evaluate,
        "x (codes), w, bias?, scale?, residual?, affine?",
        (*_WINDOW, *_NUMBERS),
        work_conv,
        dtypes=(*CODES, INT32, FLOAT32),
        shifts=True,
        of_floats="Conv",
        routes="convolution",
        convolves=True,
        single=(3, 5),
    )
}
