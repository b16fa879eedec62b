"""Cutting a row of output columns into tiles whose code is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, TypeAlias

from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.geometry import Window, first_residue_below
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.symbolic import fixed, least, most

Index: TypeAlias = Any  # a number, one that the kernel reads, or one that it computes
_Run = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True)
class ColumnTile:
    """Output columns `first + i*pixels …` for i < count, computed by the same code.

    Attributes:
        first: column of the first tile.
        count: number of tiles, one after the other.
        pixels: columns of one tile.
        runs: taps in runs `(low, high, columns)`: the taps low … high-1 touch the input at exactly
            these columns of the tile.
        computed: instead of `runs`, the kernel computes each column's bounds when it runs; tiles
            of one column.
        most: the column at which the last tile begins at most: it may overlap the one before.
        needed: the tile does not exist if this is not positive.
        done: the tile's first columns, which other tiles compute.
        once: whether each column is stored once where the last tile overlaps the one before, so
            that `done` is computed.
    """

    first: Index
    count: Index
    pixels: int
    runs: tuple[_Run, ...]
    computed: bool = False
    most: Index | None = None
    needed: Index = 1
    done: Index = 0
    once: bool = False


def each_tile_of_row(e: Function, tiles: list[ColumnTile]) -> Iterator[tuple[Value, ColumnTile]]:
    """Emit loops over a row's tiles; the body is emitted once for each of `tiles`.

    Yields:
        The first column, and the tile.
    """
    for tile in tiles:
        if isinstance(tile.needed, int) and tile.needed <= 0:
            continue
        with _where(e, tile.needed):
            if isinstance(tile.count, int) and tile.count == 1:
                yield e.i64(tile.first), tile
                continue
            with e.loop("tile", tile.count) as index:
                column = index * tile.pixels + tile.first
                start = column if tile.most is None else e.smin(column, tile.most)
                yield start, replace(tile, done=column - start) if tile.once else tile


def _where(e: Function, needed: Index) -> AbstractContextManager[None]:
    if isinstance(needed, int):
        return nullcontext()
    return e.when(e.i64(needed).compare("sgt", 0))


_MOST_RUNS = 40  # written out one by one; with more, code and compile time would explode


def bounded_tiles(window: Window, pixels: int) -> list[ColumnTile]:
    """Cut as `column_tiles` does, but columns at the ends compute their taps if there are many."""
    first, stop = window.full(2)
    if window.out[2] - (stop - first) <= _MOST_RUNS:
        return written_tiles(window, pixels, _MOST_RUNS)
    return _computed_ends(window, pixels)


def written_tiles(window: Window, pixels: int, most_runs: int) -> list[ColumnTile]:
    """Cut as `column_tiles` does; with more than `most_runs` runs the ends compute their taps.

    Args:
        window: the sliding window.
        pixels: columns of a tile.
        most_runs: runs of all tiles together that are written out.
    """
    tiles, runs = [], 0
    for tile in column_tiles(window, pixels):
        tiles.append(tile)
        runs += len(tile.runs)
        if runs > most_runs:
            return _computed_ends(window, pixels)
    return tiles


def overlapping_tiles(window: Window, pixels: int, once: bool) -> list[ColumnTile]:
    """Cut the output columns so that few codes serve all widths: three, mostly.

    Tiles overlap where the width is no multiple: what both compute is the same. A last tile that
    would compute few columns alone is half as wide. Rows of less than a tile have smaller ones, and
    the narrowest columns that compute their taps.

    Args:
        window: the sliding window.
        pixels: columns of a tile.
        once: whether each column must be stored once, as where the output is added to.
    """
    width, reach = window.out[2], (window.kernel[2] - 1) * window.dilation[2]
    first = _first_full(window)
    past = (window.size[2] - 1 - reach + window.pad[2]) // window.stride[2] + 1
    if first > pixels - _half(pixels):
        return bounded_tiles(window, pixels)
    for columns in (pixels, pixels // 3):
        if columns < 2 or first > columns - _half(columns):
            continue
        if first == 0 and past >= width:
            tiles = _between(window, columns, 0, width, once) if width >= columns else []
        elif window.stride[2] == 1:
            tiles = _between_edges(window, columns, past, once)
        else:
            tiles = _before_the_end(window, columns, first, least(width, past), once)
        if tiles:
            return tiles
    return [ColumnTile(0, width, 1, (), computed=True)]


def tiles_of_one_code(window: Window, pixels: int) -> list[ColumnTile]:
    """Cut the output columns so that one code serves all widths.

    Before column `past` all taps touch the input, or but the first column's do: tiles if there are
    columns enough for one, else smaller ones. Columns that are left compute their taps.
    """
    width, kernel = window.out[2], window.kernel[2]
    reach = (kernel - 1) * window.dilation[2]
    past = (window.size[2] - 1 - reach + window.pad[2]) // window.stride[2] + 1
    if isinstance(past, int) and past <= 0:
        return [ColumnTile(0, width, 1, (), computed=True)]
    first = max(_first_full(window), 0)
    begin = first if first > 1 else 0  # columns before it compute their taps, too
    count, tiles = most(least(past, width) - begin, 0), list[ColumnTile]()
    if begin:
        before = least(begin, width)
        tiles.append(ColumnTile(0, before, 1, (), computed=True))
    done: Index = 0  # 1 where larger tiles serve
    for columns in dict.fromkeys((pixels, max(1, pixels // 3))):
        fits = least(count // columns, 1)
        here, done = fits - done, fits
        wide, narrow, start = _whole(window, columns), _whole(window, _half(columns)), begin
        if first == 1:
            steps = (window.pad[2] - column * window.stride[2] for column in range(columns))
            taps = [(max(0, ceil_div(step, window.dilation[2])), kernel) for step in steps]
            tiles.append(replace(wide, runs=_runs(taps), needed=here))
            start = columns
        stop = begin + count
        left = (stop - start) * here
        whole = (left + (columns - 1 - narrow.pixels)) // columns * here
        tiles += [
            replace(wide, first=start, count=whole, most=stop - columns, needed=whole),
            replace(narrow, first=stop - narrow.pixels, needed=left - whole * columns),
        ]
    served = begin + count * done
    tiles.append(ColumnTile(served, width - served, 1, (), computed=True, needed=width - served))
    return tiles


def _between_edges(window: Window, pixels: int, stop: Index, once: bool) -> list[ColumnTile]:
    """A tile at either edge, and those between; none if the row is too narrow for that."""
    width = window.out[2]
    if width <= pixels or stop < pixels or stop < width - (pixels - _half(pixels)):
        return []
    left = ColumnTile(0, 1, pixels, _edge(window, 0, pixels))
    right = ColumnTile(width - pixels, 1, pixels, _edge(window, width - pixels, pixels))
    if once and width <= 2 * pixels:
        return [left, replace(right, done=2 * pixels - width)]
    # The columns between, 0 if the width is less than two tiles, without a guard on it.
    enough = width // (2 * pixels)
    between = (width - 2 * pixels) * ceil_div(enough, enough + 1)
    return [left, *_between(window, pixels, pixels, between, once), right]


def _before_the_end(
    window: Window, pixels: int, first: int, stop: Index, once: bool
) -> list[ColumnTile]:
    """Tiles up to the last column at which all taps touch the input; those after it compute theirs.

    How many there are depends on what the stride leaves of the row. None if it is too narrow.
    """
    if stop < first + pixels:
        return []
    beyond = window.out[2] - stop
    end = ColumnTile(stop, beyond, 1, (), computed=True, needed=beyond)
    if first == 0:
        return [*_between(window, pixels, 0, stop, once), end]
    left = ColumnTile(0, 1, pixels, _edge(window, 0, pixels))
    return [left, *_between(window, pixels, pixels, stop - pixels, once), end]


def tiles_of_any_row(width: Value, pixels: int) -> list[ColumnTile]:
    """The tiles of a row whose width, at least one, is known only when the kernel runs.

    Every column is stored once. Columns before the row are computed if it is shorter than a tile.
    """
    columns = ((0, 1, tuple(range(pixels))),)
    count = (width + (pixels - 1)) // pixels
    return [ColumnTile(0, count, pixels, columns, most=width - pixels, once=True)]


def _first_full(window: Window) -> int:
    """A lower bound of the first column none of whose taps is before the input."""
    return ceil_div(window.pad[2], window.stride[2])


def _half(pixels: int) -> int:
    return ceil_div(pixels, 2)


def _whole(window: Window, pixels: int) -> ColumnTile:
    """A tile of columns at which all taps touch the input."""
    return ColumnTile(0, 1, pixels, ((0, window.kernel[2], tuple(range(pixels))),))


def _edge(window: Window, first: int, pixels: int) -> tuple[_Run, ...]:
    return _runs([_taps(window, first + i) for i in range(pixels)])


def _between(window: Window, pixels: int, first: int, count: int, once: bool) -> list[ColumnTile]:
    """Tiles of `count` columns from `first` on, at which all taps touch the input.

    If there are any, there are columns enough before their end for a tile.
    """
    stop = first + count
    wide, narrow = _whole(window, pixels), _whole(window, _half(pixels))
    if once:
        whole, rest = count // pixels, count % pixels
        if not (first and _first_full(window) > 1):
            number = ceil_div(count, pixels)
            last = stop - pixels
            return [replace(wide, first=first, count=number, most=last, needed=number, once=True)]
        # A wide tile that others have done but for a few columns would begin in the padding.
        more, done = rest // (narrow.pixels + 1), narrow.pixels - rest
        return [
            replace(wide, first=first, count=whole, needed=whole),
            replace(wide, first=stop - pixels, needed=rest * more, done=pixels - rest),
            replace(narrow, first=stop - narrow.pixels, needed=rest - rest * more, done=done),
        ]
    # The last tile is narrow if at most its half is left: count // pixels wide ones then, else one
    # more.
    whole = (count + (pixels - 1 - narrow.pixels)) // pixels
    return [
        replace(wide, first=first, count=whole, most=stop - pixels, needed=whole),
        replace(narrow, first=stop - narrow.pixels, needed=count - whole * pixels),
    ]


def _computed_ends(window: Window, pixels: int) -> list[ColumnTile]:
    taps, width = window.kernel[2], window.out[2]
    first, stop = window.full(2)
    if first == stop:
        first = stop = width
    whole, rest = divmod(stop - first, pixels)
    tiles = [ColumnTile(0, first, 1, (), computed=True)] if first else []
    for start, count, columns in ((first, whole, pixels), (stop - rest, 1, rest)):
        if count and columns:
            runs = ((0, taps, tuple(range(columns))),)
            tiles.append(ColumnTile(start, count, columns, runs))
    if stop < width:
        tiles.append(ColumnTile(stop, width - stop, 1, (), computed=True))
    return tiles


def column_tiles(window: Window, pixels: int) -> Iterator[ColumnTile]:
    """Cut the output columns into tiles; equal neighbours are merged into one with a count.

    They are made one by one, each in steps that do not depend on its count: a caller that can use
    only few of them stops.
    """
    width, first = window.out[2], 0
    last: ColumnTile | None = None
    while first < width:
        columns = fixed(min(pixels, width - first))
        bounds = [_taps(window, first + i) for i in range(columns)]
        alike = columns == pixels and len(set(bounds)) == 1
        count = max(1, (_next_change(window, first) - first) // pixels) if alike else 1
        tile = ColumnTile(first, count, columns, _runs(bounds))
        first += count * columns
        if last and (last.pixels, last.runs) == (tile.pixels, tile.runs):
            last = replace(last, count=last.count + count)
            continue
        if last:
            yield last
        last = tile
    if last:
        yield last


def _taps(window: Window, o: int) -> tuple[int, int]:
    """The taps at a column; (0, 0) wherever there are none."""
    low, high = window.taps(2, o)
    return fixed((low, high)) if low < high else (0, 0)


def _next_change(window: Window, o: int) -> int:
    """The first column after `o` whose taps may differ; all columns before have the same."""
    step, apart, pad = window.stride[2], window.dilation[2], window.pad[2]
    size, width = window.size[2], window.out[2]
    reach = (window.kernel[2] - 1) * apart
    start, (low, high) = o * step - pad, window.taps(2, o)
    if low < high:  # until one tap less is before the input, or one more beyond its end
        fewer = ceil_div(pad - (low - 1) * apart, step) if low else width
        found = min(fewer, (size - 1 - (high - 1) * apart + pad) // step + 1)
    elif start >= size:
        found = width
    elif start + reach < 0:  # until the last tap comes to the input
        found = ceil_div(pad - reach, step)
    else:  # until a tap between two others does
        before = min(width, ceil_div(pad, step)) - o
        found = o + first_residue_below(before, step, start, apart, size)
    return min(width, found)


def _runs(bounds: list[tuple[int, int]]) -> tuple[_Run, ...]:
    """The runs of a tile whose columns have these taps."""
    ends = sorted({end for low, high in bounds if low < high for end in (low, high)})
    runs: list[_Run] = []
    for low, high in pairwise(ends):
        columns = tuple(p for p, (first, stop) in enumerate(bounds) if first <= low < stop)
        if columns:
            runs.append((low, high, columns))
    return tuple(runs)
