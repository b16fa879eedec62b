"""Sums of products of codes as codes again, in NumPy: the definition, bit for bit.

The formulas are those of `spec.requantise`; so are the names of the numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leanconv.graph.ops.pointwise import activate
from leanconv.graph.ops.quantised import add_factors, fma
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


def numbers_of(quantisation: Quantisation) -> np.ndarray:
    """What kernels read of a quantisation, (8,) float32, in the order of `spec.requantise`."""
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
    """What decides the code of a kernel that makes codes or float32 of sums by these numbers."""
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
    """The definition: what sums (N, K, …) in int32 become.

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
