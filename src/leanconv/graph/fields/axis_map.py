"""Maps from an axis of a result to the indices that it reads of a source, which are periodic.

    element o reads [first[o % P] + Q * (o // P), last[o % P] + Q * (o // P)]

`P` elements of the result move by `Q` of the source: a convolution of stride 2 has P = 1, Q = 2;
doubling has P = 2, Q = 1. That is exact for everything that is the same everywhere: maps put one
after the other are such a map again. What lies outside of the source (padding) is counted on, as if
the source had no end.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from leanconv.records import dataclass

MOST_PHASES = 4096  # the longest period; what has a longer one is as good as irregular
_NOTHING = 0, -1  # the range of an element that reads nothing


class IrregularError(ValueError):
    """A map is not periodic, or its period is too long."""


@dataclass(frozen=True)
class AxisMap:
    """A periodic map of the indices of one axis.

    Attributes:
        step: Q, the source's indices by which a period moves.
        first, last: of each element of one period; `last` below `first` where it reads nothing.
    """

    step: int
    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def period(self) -> int:
        """P, the elements of the result after which the map repeats itself."""
        return len(self.first)

    @property
    def stride(self) -> Fraction:
        """The source's indices by which one element moves."""
        return Fraction(self.step, self.period)

    @property
    def extent(self) -> int:
        """The most indices that an element reads, those between the first and the last counted."""
        return max(0, *(b - a + 1 for a, b in zip(self.first, self.last, strict=True)))

    @property
    def offset(self) -> int:
        """The first index that element 0 reads: negative in the padding before the source."""
        return self.first[0]

    def reads(self, element: int) -> tuple[int, int]:
        """The first and the last index that an element reads."""
        periods, phase = divmod(element, self.period)
        moved = periods * self.step
        return self.first[phase] + moved, self.last[phase] + moved

    def after(self, inner: AxisMap) -> AxisMap:
        """Compose this map with `inner`, that of its source, to the indices that `inner` reads.

        Raises:
            IrregularError: the period would be too long.
        """
        times = inner.period // gcd(inner.period, self.step)
        period = _checked(self.period * times)
        step = inner.step * (self.step * times // inner.period)
        return _reduced(step, [_hull(inner, *self.reads(o)) for o in range(period)])

    def joined(self, other: AxisMap) -> AxisMap:
        """Return the map to the indices that either of two maps reads.

        Raises:
            IrregularError: they move at different strides.
        """
        if self.stride != other.stride:
            raise IrregularError(f"strides of {self.stride} and {other.stride}")
        period = _checked(lcm(self.period, other.period))
        ranges = []
        for o in range(period):
            (a, b), (c, d) = self.reads(o), other.reads(o)
            one, two = b >= a, d >= c
            both = (min(a, c), max(b, d)) if one and two else (a, b) if one else (c, d)
            ranges.append(both)
        return _reduced(self.step * (period // self.period), ranges)


IDENTITY = AxisMap(1, (0,), (0,))


def window_map(stride: int, first: int, span: int) -> AxisMap:
    """Make the map of a sliding window of `span` indices, of which the first begins at `first`."""
    return AxisMap(stride, (first,), (first + span - 1,))


def transposed_map(kernel: int, stride: int, dilation: int, before: int) -> AxisMap:
    """Make the map of a transposed convolution whose result is cut by `before` elements."""
    ranges = []
    for phase in range(stride):
        places = (phase + before - tap * dilation for tap in range(kernel))
        cells = [place // stride for place in places if place % stride == 0]
        ranges.append((min(cells), max(cells)) if cells else _NOTHING)
    return _reduced(1, ranges)


def table_map(first: np.ndarray, last: np.ndarray, extent: int) -> AxisMap:
    """The map that tables say, as of a resized axis, whose ends are clamped to the source.

    Args:
        first, last: int64 of shape (size,): the first and the last index that each element reads.
        extent: of the source.

    Raises:
        IrregularError: the tables do not repeat themselves, or are too short to tell.
    """
    size = len(first)
    divisor = gcd(size, extent)
    period, step = size // divisor, extent // divisor
    if _checked(period) * 3 > size:
        raise IrregularError(f"{size} elements of {extent}, less than three periods")
    inside = np.flatnonzero((first > 0) & (last < extent - 1))
    if len(inside) < period:
        raise IrregularError(f"{size} elements of {extent}, less than a period inside")
    begin, end = int(inside[0]), int(inside[-1]) + 1
    for table in (first, last):
        whole = table[begin:end]
        if np.any(whole[period:] - whole[:-period] != step):
            raise IrregularError(f"{size} elements of {extent} at places that do not repeat")
    ranges = []
    for o in range(period):
        at = o + -(-(begin - o) // period) * period
        back = (at - o) // period * step
        ranges.append((int(first[at]) - back, int(last[at]) - back))
    return _reduced(step, ranges)


def _hull(inner: AxisMap, first: int, last: int) -> tuple[int, int]:
    """Return the first and the last index that the elements from `first` to `last` read."""
    ends: Sequence[int] = range(first, last + 1)
    if len(ends) > 2 * inner.period:  # each phase reads furthest at its first and last element
        ends = [*ends[: inner.period], *ends[-inner.period :]]
    found = [(a, b) for a, b in map(inner.reads, ends) if b >= a]
    return (min(a for a, _ in found), max(b for _, b in found)) if found else _NOTHING


def _reduced(step: int, ranges: Sequence[tuple[int, int]]) -> AxisMap:
    """The map of these ranges with the shortest period."""
    size = len(ranges)
    for period in range(1, size):
        if size % period or step * period % size:
            continue
        moved = step * period // size
        shifted = zip(ranges, ranges[period:], strict=False)
        if all(_is_moved(one, two, moved) for one, two in shifted):
            ranges, step = ranges[:period], moved
            break
    first, last = zip(*ranges, strict=True)
    return AxisMap(step, first, last)


def _is_moved(one: tuple[int, int], two: tuple[int, int], by: int) -> bool:
    if one[1] < one[0]:
        return two[1] < two[0]
    return (one[0] + by, one[1] + by) == two


def _checked(period: int) -> int:
    if period > MOST_PHASES:
        raise IrregularError(f"a period of {period} elements; expected at most {MOST_PHASES}")
    return period
