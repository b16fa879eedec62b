"""Where a value's numbers lie: a histogram that is filled sample by sample.

It has a fixed number of bins over (-r, r), r a power of two. A number outside doubles r: two bins
become one, so that nothing that was counted is lost and no sample is kept.
"""

from __future__ import annotations

import math

import numpy as np

from leanconv.quantizer.onnx_graph import Array

BINS = 4096  # a value that is never negative uses half of them


class Histogram:
    """Counts, and the least and largest number.

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
