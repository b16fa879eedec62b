"""Rows of a plane of any width by few codes: whole tiles of columns, the last ones overlapping.

The first tile masks what padding leaves out at the start of a row, the last one what it leaves out
at the end; those between load whole vectors. Where the width is no multiple of a tile, columns are
computed twice, with the same result: no tail is masked, and no remainder of the width is asked for.
"""

from __future__ import annotations

from leanconv.algorithms.planar.columns import (
    NO_LANES,
    ColumnVectors,
    Lanes,
    Masks,
    column_vectors,
)
from leanconv.codegen.geometry import Window
from leanconv.spec.format import ceil_div
from leanconv.symbolic import fixed, most
from leanconv.target import Target


def row_tiles(
    window: Window, lanes: int, vectors: int, target: Target, overlaps: bool
) -> tuple[ColumnVectors, ...]:
    """Cut a row of output columns into tiles.

    Args:
        window: the sliding window.
        lanes, vectors: of a tile.
        target: the machine.
        overlaps: whether columns may be computed and stored twice.
    """
    fitting = overlapping_vectors(window, lanes, vectors) if overlaps else 0
    if fitting:
        return _overlapping_tiles(window, lanes, fitting)
    return column_vectors(window, lanes, 1 if overlaps else vectors, target)


def overlapping_vectors(window: Window, lanes: int, vectors: int) -> int:
    """The vectors of tiles that may overlap: fewer in a narrow row, 0 if it has no such tile."""
    width, (before, after) = window.out[2], _masked_columns(window)
    while vectors:
        span = vectors * lanes
        if before + after <= span and width >= span + max(before, after):
            break
        vectors //= 2
    return vectors


def _masked_columns(window: Window) -> tuple[int, int]:
    """Columns at both ends of a row, of which loads reach beyond the input."""
    stride, pad = window.stride[2], window.pad[2]
    reach, beyond = (window.kernel[2] - 1) * window.dilation[2], _beyond(window)
    return ceil_div(max(pad, 0), stride), max(0, ceil_div(reach - pad - beyond, stride))


def _beyond(window: Window) -> int:
    """Input columns less the stride times the output columns."""
    return fixed(window.size[2] - window.out[2] * window.stride[2])


def _overlapping_tiles(window: Window, lanes: int, vectors: int) -> tuple[ColumnVectors, ...]:
    """The tiles of a row, all of so many vectors."""
    width, stride, pad = window.out[2], window.stride[2], window.pad[2]
    span, reach = vectors * lanes, (window.kernel[2] - 1) * window.dilation[2]
    (before, after), beyond = _masked_columns(window), _beyond(window)
    live = (lanes,) * vectors

    def edge(first: int, masks: tuple[tuple[Masks, ...], ...]) -> ColumnVectors:
        return ColumnVectors(first, 1, live, masks, lanes)

    def masks(inside: tuple[int, int]) -> tuple[tuple[Masks, ...], ...]:
        """Of loads where so many columns are inside, counted from the tile's first."""
        return tuple(
            tuple(
                tuple(
                    _lanes(inside, kw * window.dilation[2] + (v * stride + part) * lanes, lanes)
                    for part in range(stride)
                )
                for v in range(vectors)
            )
            for kw in range(window.kernel[2])
        )

    far = span * stride + reach + stride
    left, right = (pad, far), (0, span * stride + beyond + pad)
    ends = span * bool(before), span * bool(after)
    count = most(0, ceil_div(width - sum(ends), span))
    between = ColumnVectors(
        ends[0], count, live, masks((0, far)), lanes, latest=width - span - after
    )
    tiles = [edge(0, masks(left))] * bool(before) + [between]
    return (*tiles, *[edge(width - span, masks(right))] * bool(after))


def _lanes(inside: tuple[int, int], at: int, lanes: int) -> Lanes:
    """The lanes of a vector loaded from column `at` on that are inside."""
    low, high = max(0, inside[0] - at), min(lanes, inside[1] - at)
    return Lanes(low, high) if low < high else NO_LANES
