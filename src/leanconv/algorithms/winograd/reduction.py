"""The reduction of fused Winograd: (phase, channel) pairs as runs of vectors, and partial sums.

The last row of G picks the last tap, so at the last point of an axis (the one at infinity) U is
zero for phases that have one tap less than the longest: 7 taps with a stride of 2 are phases of 4
and 3. These are left out of the products there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from leanconv.algorithms.winograd.kernel import WinogradConv

Last = tuple[bool, bool]  # whether a point is the last one along height and width


class Run(NamedTuple):
    """Vectors of V whose lanes take part in the same way.

    Attributes:
        first: number of the first vector.
        vectors: how many there are.
        groups: groups of neighbouring lanes.
        kept: lanes that take part at the beginning of each group.
        grain: lanes from one group to the next.
    """

    first: int
    vectors: int
    groups: int
    kept: int
    grain: int

    @property
    def lanes(self) -> int:
        """Products of one vector."""
        return self.groups * self.kept


def _run(first: int, vectors: int, groups: int, kept: int, grain: int) -> Run:
    """A run; lanes without gaps are one group."""
    if kept == grain:
        return Run(first, vectors, 1, groups * grain, groups * grain)
    return Run(first, vectors, groups, kept, grain)


def whole_phases(conv: WinogradConv) -> tuple[int, int]:
    """Phases along height and width that have as many taps as the longest ones."""
    h, w = (k - (r - 1) * s for k, r, s in zip(conv.kernel, conv.taps, conv.stride, strict=True))
    return h, w


def reduction_runs(conv: WinogradConv, last: Last = (False, False)) -> list[Run]:
    """The runs of the reduction at a point."""
    whole_h, whole_w = whole_phases(conv)
    py = whole_h if last[0] else conv.phases[0]
    if conv.planar:
        px, per_block, grain = 1, conv.lines, conv.grain
        kept = whole_w if last[1] and whole_w < conv.phases[1] else grain
    else:
        px, per_block, grain, kept = conv.phases[1], conv.lanes, 1, 1
    if conv.few_lines:
        whole, rest = divmod(py * conv.inputs, per_block)
        runs = [_run(0, whole, per_block, kept, grain)] if whole else []
        return runs + ([_run(whole, 1, rest, kept, grain)] if rest else [])
    whole, rest = divmod(conv.inputs, per_block)
    chosen = whole_w if last[1] and not conv.planar else px
    if not rest and chosen == px:
        return [_run(0, py * px * whole, per_block, kept, grain)]
    runs = []
    for row, column in product(range(py), range(chosen)):
        first = (row * px + column) * (whole + (rest > 0))
        if whole:
            runs.append(_run(first, whole, per_block, kept, grain))
        if rest:
            runs.append(_run(first + whole, 1, rest, kept, grain))
    return runs


def steps_of(runs: list[Run]) -> int:
    """Products of all runs."""
    return sum(run.vectors * run.lanes for run in runs)


def kept_steps(conv: WinogradConv, last: Last) -> np.ndarray:
    """Numbers of the steps of the whole reduction that take part at a point, in its order."""
    whole_h, whole_w = whole_phases(conv)
    columns = conv.grain if conv.planar else conv.phases[1]
    numbers = np.arange(conv.steps)
    if conv.planar:
        py, px = numbers // (columns * conv.inputs), numbers % columns
    else:
        py, px = np.divmod(numbers // conv.inputs, columns)
    kept = np.ones(conv.steps, bool)
    if last[0]:
        kept &= py < whole_h
    if last[1] and whole_w < conv.phases[1]:
        kept &= px < whole_w
    return numbers[kept]


@dataclass(frozen=True)
class SumPart:
    """Some equal partial sums, one after the other.

    Attributes:
        count: how many.
        runs: of the first one; those of each next one begin where these end.
    """

    count: int
    runs: tuple[Run, ...]

    @property
    def steps(self) -> int:
        """Products of one of the sums."""
        return steps_of(list(self.runs))


def sum_parts(runs: list[Run], length: int) -> list[SumPart]:
    """Cut a reduction into partial sums of at most `length` products (one vector's at least)."""
    parts: list[SumPart] = []
    waiting: list[Run] = []
    room = length
    for run in runs:
        if run.vectors * run.lanes <= room:
            waiting.append(run)
            room -= run.vectors * run.lanes
            continue
        if waiting:
            parts.append(SumPart(1, tuple(waiting)))
        each = max(1, length // run.lanes)
        whole, rest = divmod(run.vectors, each)
        if whole:
            parts.append(SumPart(whole, (run._replace(vectors=each),)))
        waiting = [run._replace(first=run.first + whole * each, vectors=rest)] if rest else []
        room = length - rest * run.lanes
    return [*parts, SumPart(1, tuple(waiting))] if waiting else parts


class Region(NamedTuple):
    """Neighbouring points along one axis that are alike.

    Attributes:
        first: number of the first one.
        points: how many there are.
        last: whether it is the point at infinity, and short phases have no part in it.
        left_out: whether narrow tiles leave them out.
    """

    first: int
    points: int
    last: bool
    left_out: bool = False


def regions(conv: WinogradConv, axis: int) -> list[Region]:
    """The points along an axis: those that narrow tiles leave out, others, the last one."""
    alpha, gone = conv.alpha[axis], conv.left_out[axis]
    stop = alpha if whole_phases(conv)[axis] == conv.phases[axis] else alpha - 1
    found = [
        Region(0, gone, False, True),
        Region(gone, stop - gone, False),
        Region(stop, alpha - stop, True),
    ]
    return [region for region in found if region.points]


def steps_at(conv: WinogradConv, last: Last) -> int:
    """Length of the reduction at a point."""
    return steps_of(reduction_runs(conv, last))


def steps_of_row(conv: WinogradConv, last: bool) -> int:
    """Steps of all points of one row of points."""
    return sum(r.points * steps_at(conv, (last, r.last)) for r in regions(conv, 1))


def steps_of_points(conv: WinogradConv) -> int:
    """Steps of all points together."""
    return sum(r.points * steps_of_row(conv, r.last) for r in regions(conv, 0))
