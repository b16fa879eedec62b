"""Codes: integers that stand for floats, the scales of weights and the ranges of values.

    value = (code - zero) * scale

A wide range of a value rounds all numbers coarsely, a narrow one cuts the largest. Four ways to
choose one from where its numbers lie:

- `min-max`: nothing is cut.
- `percentile`: of the numbers 1e-5 at either end are cut.
- `mse`: the least mean squared difference between numbers and what their codes stand for.
- `entropy`: the least Kullback-Leibler divergence between the histogram and that of the codes
  (Migacz, "8-bit inference with TensorRT", 2017; here for codes with a zero).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from leanconv.errors import SpecError
from leanconv.graph.ops.base import Array
from leanconv.records import dataclass
from leanconv.types import MOST_OF_TWO

LOW, HIGH = 0, 255  # of a value's codes, uint8
WIDE_HIGH = 65535  # of uint16
MOST = 127  # of a weight's code, int8; -128 is not used, so that signs are alike
_LEAST_SCALE = 2.0**-100
_INT32 = 2.0**31 - 1
# Shares of the largest weight that are tried
_SHRUNK = np.concatenate([np.linspace(1.0, 0.9, 21), np.linspace(0.88, 0.4, 25)])
BINS = 4096  # a value that is never negative uses half of them
_CUT = 1e-5  # share of the numbers beyond a percentile, at either end
_SHARES = np.linspace(1.0, 0.05, 58)  # of the least and largest number that are tried as ends
_ROUNDS = 2  # in which one end is chosen after the other


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


class Histogram:
    """Distribution of a value's numbers: counts, filled sample by sample; least and largest.

    It has a fixed number of bins over (-r, r), r a power of two. A number outside doubles r: two
    bins become one, so that nothing that was counted is lost and no sample is kept.

    Attributes:
        low, high: of all numbers so far; 0.0 where there were none.
        counts: float64 `(BINS,)`.
        unsound: whether there was a number that is not finite.
    """

    def __init__(self) -> None:
        self.low = self.high = 0.0
        self.counts = np.zeros(BINS)
        self._radius = 0.0
        self.unsound = False

    def add(self, values: Array) -> None:
        """Count the numbers of an array."""
        flat = values.reshape(-1)
        if not flat.size:
            return
        low, high = float(flat.min()), float(flat.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            self.unsound = True
            return
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._widen(max(-low, high))
        scale = BINS / (2.0 * self._radius)
        bins = ((flat + np.float32(self._radius)) * np.float32(scale)).astype(np.int32)
        np.clip(bins, 0, BINS - 1, out=bins)
        self.counts += np.bincount(bins, minlength=BINS)

    def _widen(self, most: float) -> None:
        needed = 2.0 ** (math.floor(math.log2(max(most, 2.0**-60))) + 1)
        if not self._radius:
            self._radius = needed
        while self._radius < needed:
            pairs = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.zeros(BINS)
            self.counts[BINS // 4 : BINS // 4 * 3] = pairs
            self._radius *= 2.0

    @property
    def middles(self) -> Array:
        """The middle of each bin, float64 `(BINS,)`; the outermost lie within the range."""
        step = 2.0 * self._radius / BINS
        places = (np.arange(BINS) + 0.5) * step - self._radius
        return np.asarray(np.clip(places, self.low, self.high))

    def merged(self, other: Histogram) -> Histogram:
        """Counts of two values that share a scale."""
        both = Histogram()
        both.low, both.high = min(self.low, other.low), max(self.high, other.high)
        both.unsound = self.unsound or other.unsound
        for each in (self, other):
            if each._radius:
                both._radius = max(both._radius, each._radius)
        for each in (self, other):
            if not each._radius:
                continue
            copy = Histogram()
            copy.counts, copy._radius = each.counts, each._radius
            copy._widen(both._radius / 2)
            both.counts = both.counts + copy.counts
        return both


def value_codes(seen: Histogram, method: str) -> Codes:
    """Return codes for a value.

    Args:
        seen: its numbers on samples.
        method: a key of `METHODS`.
    """
    low, high = METHODS[method](seen)
    return codes_of_range(low, high)


def _min_max(seen: Histogram) -> tuple[float, float]:
    return seen.low, seen.high


def _percentile(seen: Histogram) -> tuple[float, float]:
    total = np.cumsum(seen.counts)
    if not total[-1]:
        return seen.low, seen.high
    share = total / total[-1]
    first, last = int(np.searchsorted(share, _CUT)), int(np.searchsorted(share, 1.0 - _CUT))
    middles = seen.middles
    last = min(last, len(middles) - 1)
    return max(seen.low, float(middles[first])), min(seen.high, float(middles[last]))


def _least(seen: Histogram, loss: Callable[[Array, Array, Codes], float]) -> tuple[float, float]:
    """The range of the least loss, one end after the other."""
    used = seen.counts > 0
    counts, middles = seen.counts[used], seen.middles[used]
    low, high = seen.low, seen.high
    if not len(counts):
        return low, high
    best = loss(counts, middles, codes_of_range(low, high))
    for _ in range(_ROUNDS):
        for found in _narrower(seen.low, seen.high, low, high):
            now = loss(counts, middles, codes_of_range(*found))
            if now < best:
                best, (low, high) = now, found
    return low, high


def _narrower(least: float, most: float, low: float, high: float) -> Iterator[tuple[float, float]]:
    """Ranges in which one end is nearer to 0, or both."""
    for share in _SHARES:
        yield least * share, most * share
    for share in _SHARES:
        yield low, most * share
    for share in _SHARES if low < 0 else ():
        yield least * share, high


def _squared(counts: Array, middles: Array, codes: Codes) -> float:
    return float((counts * np.square(codes.rounded(middles) - middles)).sum())


def _divergence(counts: Array, middles: Array, codes: Codes) -> float:
    """Return the relative entropy of the histogram to that of its codes.

    All numbers of a code are taken to be equally frequent; those that are cut count as the code at
    that end. Zeros, which Relu gives in any number, are left out: their code is exact.
    """
    some = np.abs(middles) > np.abs(middles).min()
    counts, middles = counts[some], middles[some]
    if not len(counts):
        return 0.0
    places = np.clip(np.rint(middles / codes.scale) + codes.zero, LOW, HIGH).astype(np.int64)
    low, high = codes.bounds
    half = codes.scale / 2
    inside = (middles >= low - half) & (middles <= high + half)
    held = np.bincount(places, counts, HIGH + 1)
    within = np.bincount(places[inside], counts[inside], HIGH + 1)
    bins = np.bincount(places[inside], minlength=HIGH + 1)
    if np.any((held > 0) & (within == 0)) or not within.sum():
        return math.inf  # nothing but what is cut has the code at an end
    # The reference: what is cut lies in the bins at the ends.
    reference = counts[inside] * (held / np.maximum(within, 1e-300))[places[inside]]
    expected = (within / np.maximum(bins, 1))[places[inside]]
    p, q = reference / reference.sum(), expected / expected.sum()
    return float((p * np.log(p / q)).sum())


METHODS: dict[str, Callable[[Histogram], tuple[float, float]]] = {
    "min-max": _min_max,
    "percentile": _percentile,
    "mse": lambda seen: _least(seen, _squared),
    "entropy": lambda seen: _least(seen, _divergence),
}


def checked_method(method: object) -> str:
    """Return the name of a method.

    Raises:
        SpecError: there is none of that name.
    """
    if isinstance(method, str) and method in METHODS:
        return method
    raise SpecError(f"ranges is {method!r}; expected one of {', '.join(METHODS)}")
