"""In which order tiles stand in blocks where those at the far edges of the image are narrower.

A narrow tile leaves points out (see `leanconv.winograd.narrow`), so at these points the products
take fewer rows. Every block gets its share of narrow tiles, and they stand at its ends:

    both | last column | neither | last row

Then the tiles that take part at a point stand side by side, whichever axis leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.codegen.emitter import Function, Value
from leanconv.spec.format import ceil_div
from leanconv.winograd.program import LinearProgram

Narrow = tuple[bool, bool]  # along height and width
_PLACES = {(True, True): 0, (False, True): 1, (False, False): 2, (True, False): 3}
_INNER = 2
_MOST_ORDERED = 1 << 14  # tiles whose order is worth a table; of more, few are at an edge
# Kinds that are dealt out together, and where in a block's share a tile is counted, so that not
# all begin in the same block. Tiles of the last column are as many in each block as can be: then
# the others stand at the same places.
_SHARES = (((0, 1), 0.25), ((3,), 0.75))


class RowRange(NamedTuple):
    """Register tiles that hold the tiles of a block that take part in some products.

    Attributes:
        start: place of the first tile.
        many: register tiles.
        rows: of each.
    """

    start: int
    many: int
    rows: int


@lru_cache(maxsize=256)
def tile_order(
    batch: int, grid: tuple[int, int], narrow: Narrow, tiles: int
) -> tuple[tuple[int, ...], dict[Narrow, tuple[int, int]]]:
    """The numbers of the tiles in the order of blocks, and who takes part.

    Args:
        batch: images.
        grid: tiles along height and width of one.
        narrow: whether the last row and the last column are narrow.
        tiles: of a block.

    Returns:
        The order, and for points left out along (height, width) the first place in a block, and
        one past the last, that some block needs.
    """
    rows, columns = grid
    kinds = [
        _PLACES[narrow[0] and y == rows - 1, narrow[1] and x == columns - 1]
        for _ in range(batch)
        for y in range(rows)
        for x in range(columns)
    ]
    count = ceil_div(len(kinds), tiles)
    room = [tiles] * (count - 1) + [len(kinds) - (count - 1) * tiles]
    blocks: list[list[int]] = [[] for _ in room]
    for dealt, shift in _SHARES:
        members = [t for t, kind in enumerate(kinds) if kind in dealt]
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
    for gone in ((False, True), (True, False), (True, True)):
        absent = {kind for ends, kind in _PLACES.items() if gone[0] & ends[0] or gone[1] & ends[1]}
        held = [p for block in blocks for p, t in enumerate(block) if kinds[t] not in absent]
        found[gone] = min(held, default=0), max(held, default=0) + 1
    return tuple(t for block in blocks for t in block), found


def _order(conv: WinogradShape) -> tuple[tuple[int, ...], dict[Narrow, tuple[int, int]]]:
    height, width = conv.dropped_points
    return tile_order(conv.batch, conv.grid, (height > 0, width > 0), conv.tiles)


def is_ordered(conv: WinogradShape) -> bool:
    """Whether tiles stand in an order of their own; else the products take all at every point."""
    return any(conv.dropped_points) and conv.tile_count <= _MOST_ORDERED


def order_of(conv: WinogradShape) -> tuple[int, ...] | None:
    """Numbers of the tiles in the order of blocks, None if it is theirs."""
    return _order(conv)[0] if is_ordered(conv) else None


def row_ranges(conv: WinogradShape) -> dict[Narrow, RowRange]:
    """Register tiles of a block at points that narrow tiles leave out along (h, w) or not."""
    found = dict.fromkeys(_PLACES, (0, conv.tiles))
    if is_ordered(conv):
        found = _order(conv)[1]
    ranges = {}
    for gone, (first, stop) in found.items():
        many = ceil_div(stop - first, conv.rows)
        rows = ceil_div(stop - first, many)
        ranges[gone] = RowRange(min(first, conv.tiles - many * rows), many, rows)
    return ranges


class TilePlace(NamedTuple):
    """A tile: its image, its row and column of tiles, and where it is narrow (h, w).

    None stands for an axis along which none is narrow.
    """

    image: Value
    ty: Value
    tx: Value
    narrow: tuple[Value | None, Value | None]


def tile_place(e: Function, conv: WinogradShape, index: Value, order: Value | None) -> TilePlace:
    """Find a tile by its number in the order of blocks."""
    rows, columns = conv.grid
    if order:
        index = e.convert("zext", e.load(order.at(index, "i32"), "i32"), "i64")
    n, inside = index // (rows * columns), index % (rows * columns)
    ty, tx = inside // columns, inside % columns
    ends = zip((ty, tx), conv.grid, conv.dropped_points, strict=True)
    low, wide = (t.compare("eq", g - 1) if gone else None for t, g, gone in ends)
    return TilePlace(n, ty, tx, (low, wide))


def full_and_edge_tiles(
    e: Function, narrow: Value | None, programs: tuple[LinearProgram, LinearProgram]
) -> Iterator[LinearProgram]:
    """Emit what follows twice where tiles may be narrow: for whole ones and for narrow ones.

    Args:
        e: the function to append to.
        narrow: whether this tile is narrow; None where none is.
        programs: that of whole tiles and that of narrow ones.
    """
    if narrow is None:
        yield programs[0]
        return
    with e.when(narrow ^ 1):
        yield programs[0]
    with e.when(narrow):
        yield programs[1]


def skipped_points(
    e: Function, conv: WinogradShape, narrow: Value | None, axis: int
) -> Value | int:
    """How many points a tile leaves out along an axis."""
    if narrow is None:
        return 0
    return e.select(narrow, e.const("i64", conv.dropped_points[axis]), e.const("i64", 0))
