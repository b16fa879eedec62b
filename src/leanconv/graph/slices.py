"""Slices of rows in which the nonzeros of a matrix are read side by side: ELLPACK, with spans.

    slice   `ROWS` rows, of those of a window of rows with about as many nonzeros each
    step    of a slice: the next nonzero of each row, if it is within a span of columns

A span begins at the leftmost column that any row of the slice is at, or a little before, as its
begin is a multiple. A row whose next nonzero is behind the span waits. So a step reads neighbours
of a vector and no others, which registers hold, and rows are added up by ascending columns.

Sorting rows as SELL-C-sigma does: M. Kreutzer et al., A unified sparse matrix data format for
efficient general sparse matrix-vector multiplication on modern processors with wide SIMD units,
SIAM J. Sci. Comput. 36 (2014). Spans, and rows that wait, are not from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from leanconv.records import dataclass
from leanconv.spec.format import ceil_div

ROWS = 32
SPANS = 16, 32, 64  # columns; wide ones leave fewer rows waiting
WINDOW = 512  # rows that are sorted together
MOST_COLUMNS = 2**16  # a step's first column is an integer of 16 bits
_MULTIPLE = 16  # of columns at which a span begins; half of a span at most
_END = 2**30  # the column behind a row's last nonzero
_LEAST_TAPS = 16  # of filters that may cover a whole map


@dataclass(frozen=True)
class Slices:
    """The slices of a window of rows, one after the other.

    Attributes:
        rows: (slices, `ROWS`), the row in the window; -1 where there is none.
        counts: (slices,), steps of each.
        firsts: (steps,), the first column of each step.
        columns: (steps, `ROWS`), the column of each row; -1 where it waits.
    """

    rows: np.ndarray
    counts: np.ndarray
    firsts: np.ndarray
    columns: np.ndarray

    @staticmethod
    def of(mask: np.ndarray, span: int) -> Slices:
        """The slices of a mask (rows, columns) of what is not 0."""
        order, places, width = _sorted(mask)
        firsts, live, columns = [], [], []
        for first, left, following, taken in _walk(places, width, span):
            firsts.append(first)
            live.append(left)
            columns.append(np.where(taken, following, -1))
        if not firsts:
            none = np.zeros((0, ROWS), np.int64)
            return Slices(order, np.zeros(len(order), np.int64), none[:, 0], none)
        there = np.stack(live, axis=1)
        return Slices(
            order,
            there.sum(axis=1),
            np.stack(firsts, axis=1)[there],
            np.stack(columns, axis=1)[there],
        )


def windows(rows: int) -> Iterator[slice]:
    """The windows of so many rows."""
    return (slice(first, first + WINDOW) for first in range(0, rows, WINDOW))


def slice_count(rows: int) -> int:
    """Slices of so many rows; windows are whole slices."""
    return ceil_div(rows, ROWS)


def may_be_sliced(shape: Sequence[int]) -> bool:
    """Return whether weights (K, C/g, taps…) may be a matrix: 1x1, or of whole maps."""
    taps = prod(shape[2:])
    return (taps == 1 or taps >= _LEAST_TAPS) and prod(shape[1:]) <= MOST_COLUMNS


def count_steps(w: np.ndarray) -> tuple[int, ...]:
    """Count the steps of all slices of weights (K, C/g, taps…), any view, for each of `SPANS`."""
    found = [0] * len(SPANS)
    for window in windows(len(w)):
        mask = w[window] != 0
        _, places, width = _sorted(mask.reshape(len(mask), -1))
        for number, span in enumerate(SPANS):
            steps = (np.count_nonzero(live) for _, live, *_ in _walk(places, width, span))
            found[number] += int(sum(steps))
    return tuple(found)


_Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _sorted(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The rows of each slice; the columns of each row with an end behind them; how many at most."""
    counts = np.count_nonzero(mask, axis=1)
    sorted_rows, slices = np.argsort(counts, kind="stable"), slice_count(len(mask))
    order = np.full(slices * ROWS, -1)
    order[: len(mask)] = sorted_rows
    width = int(counts.max(initial=0)) + 1
    places = np.full(slices * ROWS * width, _END, np.int32)
    rows, columns = np.nonzero(mask[sorted_rows])
    begins = np.cumsum(counts[sorted_rows]) - counts[sorted_rows]
    places[rows * width + np.arange(len(rows)) - begins[rows]] = columns
    return order.reshape(slices, ROWS), places, width


def _walk(places: np.ndarray, width: int, span: int) -> Iterator[_Step]:
    """The steps of all slices at once.

    A step has the first columns, which slices are not at their end, of each row the next column,
    and whether the step takes it.
    """
    at = np.arange(0, len(places), width).reshape(-1, ROWS)
    following, multiple = places[at], min(_MULTIPLE, span // 2)
    while True:
        first = following.min(axis=1)
        live = first < _END
        if not live.any():
            return
        first -= first % multiple
        taken = following < np.minimum(first + span, _END)[:, np.newaxis]
        yield first, live, following, taken
        at += taken
        following = places[at]
