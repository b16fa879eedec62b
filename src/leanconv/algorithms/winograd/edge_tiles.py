"""The order of tiles in blocks where tiles at the far edges of the image are narrower.

A narrow tile skips points (see `leanconv.winograd.variants`), so at these points the products have
fewer rows. Every block gets an equal share of narrow tiles, placed at its ends:

    both | last column | neither | last row

The tiles that have a given point are then contiguous in the block, whichever axis skips it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.spec.format import ceil_div
from leanconv.symbolic import fixed
from leanconv.winograd.program import LinearProgram

Narrow = tuple[bool, bool]  # along height and width
_KINDS = {(True, True): 0, (False, True): 1, (False, False): 2, (True, False): 3}
_INNER = 2
_MOST_ORDERED = 1 << 14  # tiles in a table of the order; of more tiles only few are at an edge
# Kinds that are distributed over the blocks together, and the shift of their distribution, so that
# not all start in the same block. The first two are distributed as evenly as possible, so that the
# other kinds have the same positions in every block.
_SHARES = (((0, 1), 0.25), ((3,), 0.75))


class RowRange(NamedTuple):
    """The register tiles that cover the tiles of a block with some point.

    Attributes:
        start: position of the first tile in the block.
        many: number of register tiles.
        rows: tiles of each register tile.
    """

    start: int
    many: int
    rows: int


@lru_cache(maxsize=256)
def tile_order(
    batch: int, grid: tuple[int, int], narrow: Narrow, tiles: int
) -> tuple[tuple[int, ...], dict[Narrow, tuple[int, int]]]:
    """The indices of the tiles in the order of blocks, and the range that has each kind of point.

    Args:
        batch: images.
        grid: tiles along height and width of one.
        narrow: whether the last row and the last column are narrow.
        tiles: of a block.

    Returns:
        The order; and by whether a point is skipped along (height, width): the first position in a
        block that has the point, and one past the last, over all blocks.
    """
    rows, columns = grid
    kinds = [
        _KINDS[narrow[0] and y == rows - 1, narrow[1] and x == columns - 1]
        for _ in range(batch)
        for y in range(rows)
        for x in range(columns)
    ]
    count = ceil_div(len(kinds), tiles)
    room = [tiles] * (count - 1) + [len(kinds) - (count - 1) * tiles]
    blocks: list[list[int]] = [[] for _ in room]
    for together, shift in _SHARES:
        members = [t for t, kind in enumerate(kinds) if kind in together]
        for number, tile in enumerate(members):
            at = int((number + shift) * count / len(members))
            while len(blocks[at]) == room[at]:
                at = (at + 1) % count
            blocks[at].append(tile)
    inner = iter([t for t, kind in enumerate(kinds) if kind == _INNER])
    for block, most in zip(blocks, room, strict=True):
        block += islice(inner, most - len(block))
        block.sort(key=lambda t: (kinds[t], t))
    found = {(False, False): (0, tiles)}
    for dropped in ((False, True), (True, False), (True, True)):
        absent = {
            kind for ends, kind in _KINDS.items() if dropped[0] & ends[0] or dropped[1] & ends[1]
        }
        held = [p for block in blocks for p, t in enumerate(block) if kinds[t] not in absent]
        found[dropped] = min(held, default=0), max(held, default=0) + 1
    return tuple(t for block in blocks for t in block), found


def _order(shape: WinogradShape) -> tuple[tuple[int, ...], dict[Narrow, tuple[int, int]]]:
    (height, width), (rows, columns) = shape.dropped_points, shape.grid
    grid = fixed((rows, columns))
    return tile_order(fixed(shape.conv.batch), grid, (height > 0, width > 0), shape.tiles)


def is_ordered(shape: WinogradShape) -> bool:
    """Return whether tiles are reordered; if not, the products compute all tiles at every point."""
    return any(shape.dropped_points) and shape.tile_count <= _MOST_ORDERED


def order_of(shape: WinogradShape) -> tuple[int, ...] | None:
    """Indices of the tiles in the order of blocks; None if they are not reordered."""
    return _order(shape)[0] if is_ordered(shape) else None


def row_ranges(shape: WinogradShape) -> dict[Narrow, RowRange]:
    """Register tiles of a block, by whether narrow tiles skip the point along (h, w)."""
    if not is_ordered(shape):
        return dict.fromkeys(_KINDS, RowRange(0, shape.tiles // shape.rows, shape.rows))
    ranges = {}
    for dropped, (first, stop) in _order(shape)[1].items():
        many = ceil_div(stop - first, shape.rows)
        rows = ceil_div(stop - first, many)
        ranges[dropped] = RowRange(min(first, shape.tiles - many * rows), many, rows)
    return ranges


class TilePlace(NamedTuple):
    """A tile: its image, its row and column of tiles, and where it is narrow (h, w).

    `narrow` is None for an axis without narrow tiles.
    """

    image: Value
    ty: Value
    tx: Value
    narrow: tuple[Value | None, Value | None]


@contextmanager
def each_place(
    e: Function, shape: WinogradShape, first: Value, count: Value, order: Pointer | None
) -> Iterator[tuple[Value, TilePlace]]:
    """Run the body for `count` tiles from `first` on, in the order of blocks.

    Coordinates are divided out of an index once, for the first tile, and then counted.

    Yields:
        The tile's number among the `count`, and the tile.
    """
    conv = shape.conv
    if order:
        with e.loop("tile", count) as i:
            index = e.index(e.convert("zext", e.load(order.at(first + i)), "i64"))
            yield i, _place(shape, *e.split(index, conv.batch, *shape.grid))
        return
    image, *inside = e.split(first, conv.batch, *shape.grid)
    images = [image]
    one_image = not shape.any_size and conv.batch == 1
    counted = [inside] if one_image else [images, inside]
    with e.loop("tile", count, counted) as i:
        yield i, _place(shape, *images, *inside)
        rows, columns = shape.grid
        inside[1], carry = _counted(e, inside[1] + 1, columns)
        inside[0] = inside[0] + carry
        if not one_image:
            inside[0], carry = _counted(e, inside[0], rows)
            images[0] = images[0] + carry


def _counted(e: Function, index: Value, extent: int) -> tuple[Value, Value]:
    """An index up to an extent, zero in place of the extent, and 1 where that was done, else 0."""
    ends = index.compare("eq", extent)
    return e.select(ends, e.i64(0), index), e.index(e.convert("zext", ends, "i64"))


def _place(shape: WinogradShape, n: Value, ty: Value, tx: Value) -> TilePlace:
    ends = zip((ty, tx), shape.grid, shape.dropped_points, strict=True)
    last_row, last_column = (t.compare("eq", g - 1) if dropped else None for t, g, dropped in ends)
    return TilePlace(n, ty, tx, (last_row, last_column))


def full_and_edge_tiles(
    e: Function, narrow: Value | None, programs: tuple[LinearProgram, LinearProgram]
) -> Iterator[LinearProgram]:
    """Emit the body for whole tiles, and again for narrow ones where there may be any.

    Args:
        e: the function to append to.
        narrow: whether this tile is narrow; None where none is.
        programs: the transform of whole tiles, and that of narrow ones.
    """
    if narrow is None:
        yield programs[0]
        return
    with e.when(narrow ^ 1):
        yield programs[0]
    with e.when(narrow):
        yield programs[1]


def skipped_points(e: Function, shape: WinogradShape, narrow: Value | None) -> Value | int:
    """The number of points that a tile skips along its width."""
    if narrow is None:
        return 0
    return e.select(narrow, e.i64(shape.dropped_points[1]), e.i64(0))
