"""The reduction of fused Winograd: (phase, channel) pairs as runs of vectors, and partial sums.

The last row of G picks the last tap, so at the last point of an axis (the one at infinity) U is
zero for phases that have one tap less than the longest: 7 taps with a stride of 2 are phases of 4
and 3. The shorter phases are left out of the products at that point.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from leanconv.algorithms.decompose import phase_count, phase_taps
from leanconv.records import dataclass

AtInfinity = tuple[bool, bool]  # whether a point is the last one along height and width
_FINITE: AtInfinity = (False, False)


class Run(NamedTuple):
    """Consecutive vectors of V with the same pattern of lanes that are summed.

    Attributes:
        first: number of the first vector.
        vectors: their number.
        groups: groups of neighbouring lanes.
        kept: lanes that are summed, at the beginning of each group.
        group_lanes: lanes from one group to the next.
    """

    first: int
    vectors: int
    groups: int
    kept: int
    group_lanes: int

    @property
    def lanes(self) -> int:
        """Products of one vector."""
        return self.groups * self.kept


def _run(first: int, vectors: int, groups: int, kept: int, group_lanes: int) -> Run:
    """A run; lanes without gaps are one group."""
    if kept == group_lanes:
        return Run(first, vectors, 1, groups * group_lanes, groups * group_lanes)
    return Run(first, vectors, groups, kept, group_lanes)


def steps_of(runs: Sequence[Run]) -> int:
    """Products of all runs."""
    return sum(run.vectors * run.lanes for run in runs)


class Region(NamedTuple):
    """Neighbouring points along one axis that are alike.

    Attributes:
        first: number of the first one.
        points: their number.
        at_infinity: whether it is the point at infinity, where short phases are left out.
        dropped: whether narrow tiles skip them.
    """

    first: int
    points: int
    at_infinity: bool
    dropped: bool = False


@dataclass(frozen=True)
class Reduction:
    """The (phase, channel) pairs that are summed at each point, and their vectors in V.

    Attributes:
        inputs: channels of one group.
        lanes: of a vector.
        planar: whether lanes hold several columns of the image, gathered from planes.
        kernel, stride: of the sliding window (h, w).
        m: outputs of a tile (h, w).
        dropped_points: points that narrow tiles skip along (h, w).
    """

    inputs: int
    lanes: int
    planar: bool
    kernel: tuple[int, int]
    stride: tuple[int, int]
    m: tuple[int, int]
    dropped_points: tuple[int, int]

    @property
    def taps(self) -> tuple[int, int]:
        """Taps of one phase's filter (h, w)."""
        (kh, kw), (sh, sw) = self.kernel, self.stride
        return phase_taps(kh, sh), phase_taps(kw, sw)

    @property
    def phases(self) -> tuple[int, int]:
        """Phases of the stride that have taps."""
        (kh, kw), (sh, sw) = self.kernel, self.stride
        return phase_count(kh, sh), phase_count(kw, sw)

    @property
    def whole_phases(self) -> tuple[int, int]:
        """Phases along height and width that have as many taps as the longest ones."""
        zipped = zip(self.kernel, self.taps, self.stride, strict=True)
        height, width = (k - (r - 1) * s for k, r, s in zipped)
        return height, width

    @property
    def columns_per_group(self) -> int:
        """Neighbouring columns that become lanes of one vector (planar input only)."""
        return self.stride[1]

    @property
    def rows_per_vector(self) -> int:
        """Rows of the image that one vector's lanes come from (planar input only)."""
        return self.lanes // self.columns_per_group

    @property
    def packs_phases(self) -> bool:
        """True if a vector holds channels of several phases, as those of one do not fill it."""
        return self.planar and self.inputs < self.rows_per_vector

    def runs(self, at: AtInfinity = _FINITE) -> list[Run]:
        """The runs of the reduction at a point."""
        whole_h, whole_w = self.whole_phases
        py = whole_h if at[0] else self.phases[0]
        if self.planar:
            px, per_block, columns = 1, self.rows_per_vector, self.columns_per_group
            kept = whole_w if at[1] and whole_w < self.phases[1] else columns
        else:
            px, per_block, columns, kept = self.phases[1], self.lanes, 1, 1
        if self.packs_phases:
            whole, rest = divmod(py * self.inputs, per_block)
            runs = [_run(0, whole, per_block, kept, columns)] if whole else []
            return runs + ([_run(whole, 1, rest, kept, columns)] if rest else [])
        whole, rest = divmod(self.inputs, per_block)
        chosen = whole_w if at[1] and not self.planar else px
        if not rest and chosen == px:
            return [_run(0, py * px * whole, per_block, kept, columns)]
        runs = []
        for row, column in product(range(py), range(chosen)):
            first = (row * px + column) * (whole + (rest > 0))
            if whole:
                runs.append(_run(first, whole, per_block, kept, columns))
            if rest:
                runs.append(_run(first + whole, 1, rest, kept, columns))
        return runs

    def regions(self, axis: int) -> list[Region]:
        """The points along an axis: those that narrow tiles skip, others, the last one."""
        alpha, dropped = self.m[axis] + self.taps[axis] - 1, self.dropped_points[axis]
        stop = alpha if self.whole_phases[axis] == self.phases[axis] else alpha - 1
        found = [
            Region(0, dropped, False, True),
            Region(dropped, stop - dropped, False),
            Region(stop, alpha - stop, True),
        ]
        return [region for region in found if region.points]

    def steps_at(self, at: AtInfinity = _FINITE) -> int:
        """Length of the reduction at a point."""
        return steps_of(self.runs(at))

    def steps_of_row(self, at_infinity: bool) -> int:
        """Steps of all points of one row of points."""
        regions = self.regions(1)
        return sum(r.points * self.steps_at((at_infinity, r.at_infinity)) for r in regions)

    def steps_of_points(self) -> int:
        """Steps of all points together."""
        known = all(type(dropped) is int for dropped in self.dropped_points)
        return _steps_of_points(self) if known else self._steps_of_points()

    def _steps_of_points(self) -> int:
        return sum(r.points * self.steps_of_row(r.at_infinity) for r in self.regions(0))

    def kept_steps(self, at: AtInfinity) -> np.ndarray:
        """Indices of the steps of the whole reduction that are summed at a point, in order."""
        whole_h, whole_w = self.whole_phases
        columns = self.columns_per_group if self.planar else self.phases[1]
        numbers = np.arange(self.steps_at())
        if self.planar:
            py, px = numbers // (columns * self.inputs), numbers % columns
        else:
            py, px = np.divmod(numbers // self.inputs, columns)
        kept = np.ones(len(numbers), bool)
        if at[0]:
            kept &= py < whole_h
        if at[1] and whole_w < self.phases[1]:
            kept &= px < whole_w
        return numbers[kept]


# Maps of all sizes, which are compared with one another, share the answers.
_steps_of_points = lru_cache(maxsize=1024)(Reduction._steps_of_points)


@dataclass(frozen=True)
class PartialSums:
    """Some equal partial sums, one after the other.

    Attributes:
        count: their number.
        runs: of the first one; those of each next one begin where these end.
    """

    count: int
    runs: tuple[Run, ...]

    @property
    def steps(self) -> int:
        """Products of one of the sums."""
        return steps_of(self.runs)


def partial_sums(runs: Sequence[Run], length: int) -> list[PartialSums]:
    """Cut a reduction into partial sums of at most `length` products (one vector's at least)."""
    sums: list[PartialSums] = []
    waiting: list[Run] = []
    room = length
    for run in runs:
        if run.vectors * run.lanes <= room:
            waiting.append(run)
            room -= run.vectors * run.lanes
            continue
        if waiting:
            sums.append(PartialSums(1, tuple(waiting)))
        each = max(1, length // run.lanes)
        whole, rest = divmod(run.vectors, each)
        if whole:
            sums.append(PartialSums(whole, (run._replace(vectors=each),)))
        waiting = [run._replace(first=run.first + whole * each, vectors=rest)] if rest else []
        room = length - rest * run.lanes
    return [*sums, PartialSums(1, tuple(waiting))] if waiting else sums
