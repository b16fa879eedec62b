"""Codes: integers that stand for floats, and how scales are chosen for weights.

value = (code - zero) * scale
"""

from __future__ import annotations

import math

import numpy as np

from leanconv.quantizer.onnx_graph import Array
from leanconv.records import dataclass

LOW, HIGH = 0, 255  # of a value's codes, uint8
WIDE_HIGH = 65535  # of uint16
MOST = 127  # of a weight's code, int8; -128 is not used, so that signs are alike
MOST_OF_TWO = 128  # of two of the same sign beside each other: 255 * 128 < 2^15
_LEAST_SCALE = 2.0**-100
_INT32 = 2.0**31 - 1
# Shares of the largest weight that are tried
_SHRUNK = np.concatenate([np.linspace(1.0, 0.9, 21), np.linspace(0.88, 0.4, 25)])


@dataclass(frozen=True)
class Codes:
    """The codes of a value between layers.

    Attributes:
        scale: a float32 number.
        zero: the code of 0.0.
        high: the largest code: of uint8, or of uint16.
    """

    scale: float
    zero: int
    high: int = HIGH

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest number that a code stands for."""
        return (LOW - self.zero) * self.scale, (self.high - self.zero) * self.scale

    def rounded(self, values: Array) -> Array:
        """The numbers that the codes of some floats stand for."""
        codes = np.clip(np.rint(values / self.scale), LOW - self.zero, self.high - self.zero)
        return np.asarray(codes * self.scale)


def codes_of_range(low: float, high: float, most: int = HIGH) -> Codes:
    """Codes for numbers from `low` to `high`; 0.0, with which images are padded, is exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32(max((high - low) / (most - LOW), _LEAST_SCALE)))
    return Codes(scale, int(np.clip(np.rint(LOW - low / scale), LOW, most)), most)


@dataclass(frozen=True, eq=False)
class WeightCodes:
    """The codes of a layer's weights.

    Attributes:
        codes: int8 `(channels, n)`.
        scales: float32 `(channels,)`.
    """

    codes: Array
    scales: Array

    @property
    def values(self) -> Array:
        """The weights that the codes stand for, float32 `(channels, n)`."""
        return self.codes.astype(np.float32) * self.scales[:, None]


def weight_scales(weights: Array, least_error: bool, order: Array | None = None) -> Array:
    """A scale for each output channel, float32.

    Args:
        weights: `(channels, n)`.
        least_error: of those for ranges down to 0.4 of the largest weight, the one whose codes have
            the least squared error; else the one for the largest weight.
        order: of the n places, where codes beside each other are `limited`; None: they are not.
    """
    ordered = weights if order is None else weights[:, order]
    largest = np.abs(weights).max(axis=1, initial=0.0).astype(np.float64) / MOST
    if order is not None:
        left, right = ordered[:, :-1], ordered[:, 1:]
        sums = np.abs(np.add(left, right, dtype=np.float64)).max(axis=1, initial=0.0)
        largest = np.maximum(largest, sums / MOST_OF_TWO)
    whole = np.where(largest > 0, largest, 1.0)
    best = whole.copy()
    if least_error:
        least = np.full(len(weights), math.inf)
        units = (ordered / whole[:, None]).astype(np.float32)  # codes of the largest scales
        for share in _SHRUNK.astype(np.float32):
            rounded = np.clip(np.rint(units / share), -MOST, MOST)
            rounded = rounded if order is None else _within_pairs(rounded)
            error = np.square(rounded * share - units).sum(axis=1)
            better = error < least
            best[better], least[better] = (whole * share)[better], error[better]
    return np.asarray(np.maximum(best, _LEAST_SCALE), np.float32)


def weight_codes(weights: Array, scales: Array, order: Array | None = None) -> WeightCodes:
    """The nearest codes of weights `(channels, n)`, with an order those that are `limited`."""
    codes = limited(np.clip(np.rint(weights / scales[:, None]), -MOST, MOST), order)
    return WeightCodes(codes.astype(np.int8), scales)


def limited(codes: Array, order: Array | None) -> Array:
    """Codes of weights of which no two beside each other saturate: see `saturating`.

    Args:
        codes: `(channels, n)`, whole numbers of -127 to 127.
        order: of the n places; None: any codes will do.
    """
    if order is None:
        return codes
    found = np.empty_like(codes)
    found[:, order] = _within_pairs(codes[:, order])
    return found


def _within_pairs(codes: Array) -> Array:
    """Codes that lie in their order; what two are too large by is shared between them.

    First the pairs from an even place on, then the others: none is made larger.
    """
    found = codes.copy()
    for begin in (0, 1):
        end = begin + (codes.shape[1] - begin) // 2 * 2
        left, right = found[:, begin:end:2], found[:, begin + 1 : end : 2]
        sums = left + right
        where = np.nonzero((sums > MOST_OF_TWO) | (sums < -MOST_OF_TWO))  # few: of one sign, then
        over = np.abs(sums[where]) - MOST_OF_TWO
        sign, half = np.sign(sums[where]), over // 2
        left[where] -= sign * half
        right[where] -= sign * (over - half)
    return np.asarray(found)


def scales_for_bias(scales: Array, bias: Array | None, value_scale: float) -> Array:
    """Scales of weights, larger where an int32 sum would not hold the bias else."""
    if bias is None:
        return scales
    needed = np.abs(bias.astype(np.float64)) / (value_scale * _INT32 / 2)
    return np.asarray(np.maximum(scales, needed), np.float32)


def bias_codes(bias: Array, scales: Array, value_scale: float) -> tuple[Array, Array]:
    """A bias as int32, and its scales: those of the sums to which it is added."""
    steps = np.asarray(scales * np.float32(value_scale), np.float32)
    return np.rint(bias / steps.astype(np.float64)).astype(np.int32), steps
