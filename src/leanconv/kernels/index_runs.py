"""Maps of an axis: arithmetic sequences of source indices, however long they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from leanconv.errors import UnsupportedError
from leanconv.records import dataclass

_MOST_REFLECTIONS = 4096  # of one axis; each is code of its own


@dataclass(frozen=True)
class IndexRun:
    """Result indices `result + i` read source indices `source + i * step`, for i < count.

    A run with `source` below zero is filled with a constant instead.
    """

    result: int
    source: int
    step: int
    count: int


Segment = tuple[int, int, int]  # source, step, count, as of a run


def whole(extent: int, at: int = 0) -> list[IndexRun]:
    """Map an axis to itself, moved by `at` in the result."""
    return [IndexRun(at, 0, 1, extent)]


def runs_of(segments: Iterable[Segment]) -> list[IndexRun]:
    """The fewest runs that begin as early as they can, of source indices that follow each other.

    Args:
        segments: the indices, one sequence after the other; sources of -1 are filled.
    """
    runs: list[IndexRun] = []
    at = 0
    for source, step, count in segments:
        # The third index of a sequence belongs to a run of its step; the others then follow.
        for i in range(min(3, count)):
            _add(runs, at + i, source + i * step if source >= 0 else -1)
        if count > 3:
            runs[-1] = replace(runs[-1], count=runs[-1].count + count - 3)
        at += count
    return runs


def _add(runs: list[IndexRun], at: int, index: int) -> None:
    """Lengthen the last run by one index, or begin another one."""
    last = runs[-1] if runs else None
    if last is not None and (index < 0) == (last.source < 0):
        step = index - last.source if last.count == 1 else last.step
        if index < 0 or index == last.source + last.count * step:
            runs[-1] = IndexRun(last.result, last.source, step, last.count + 1)
            return
    runs.append(IndexRun(at, index, 1, 1))


def padded(extent: int, before: int, after: int, mode: str) -> list[IndexRun]:
    """Map a padded axis; `mode` is constant, reflect or edge.

    Raises:
        UnsupportedError: the axis is reflected too often.
    """
    if mode == "constant":
        middle = IndexRun(before, 0, 1, extent)
        ends = [IndexRun(0, -1, 0, before), IndexRun(before + extent, -1, 0, after)]
        return [run for run in (ends[0], middle, ends[1]) if run.count]
    if mode == "edge" or extent == 1:
        return runs_of([(0, 0, before), (0, 1, extent), (extent - 1, 0, after)])
    reflections = (before + after) // (extent - 1)
    if reflections > _MOST_REFLECTIONS:
        raise UnsupportedError(
            f"padding of {before} and {after} reflects an axis of {extent} {reflections} times; "
            f"expected at most {_MOST_REFLECTIONS}: pad less, or with a constant"
        )
    return runs_of(_reflected(extent, -before, extent + after))


def _reflected(extent: int, at: int, end: int) -> Iterator[Segment]:
    """The indices of positions at … end - 1 of an axis that is reflected at both ends."""
    period = 2 * (extent - 1)
    while at < end:
        around = at % period
        if around < extent:
            source, step, count = around, 1, extent - around
        else:
            source, step, count = period - around, -1, period - around
        count = min(count, end - at)
        yield source, step, count
        at += count
