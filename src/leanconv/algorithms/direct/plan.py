"""Register tile, chunks and order of the loops of a direct convolution."""

from __future__ import annotations

from math import prod

from leanconv.algorithms.common.conv import (
    batch_as_columns,
    gives_pixels,
    merge_rows,
    merge_rows_of_columns,
)
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.codegen.column_tiles import overlapping_tiles
from leanconv.codegen.dot import dots_per_cycle, pairs_per_cycle
from leanconv.codegen.epilogue import packs_columns
from leanconv.codegen.geometry import Access, PhasedAccess
from leanconv.codegen.tiling import (
    FLOATS,
    Tile,
    TileWork,
    by_lane,
    rank_tiles,
    rows_per_chunk,
    rows_per_chunk_of_any_width,
    tile_cycles,
)
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.spec.typical import ANY_COUNT
from leanconv.symbolic import fixed, least, most
from leanconv.target import Target
from leanconv.types import HALVES

_ROWS_OUTER_BYTES = 160 * 1024  # weights that stay in L2 from row to row
# In networks whose weights come from DRAM, two threads split a 1x1 layer by pixels and not by
# output channels, so that each finds its half of a tensor in its own L2. Weights of at most this
# share of L2 are read again for each row; larger ones that fit L2, for each half of the rows.
_INSIDE_SHARE = 0.25
_PANEL_SHARE, _COLUMN_VECTORS = 0.5, 2  # of L1; vectors of a tile that waits for weights first
_INSIDE_IMAGES = 0.5  # share of L2 that weights exceed where all images share a panel's
# Weights from DRAM: the fewest columns of a row for which tiles are chosen by the wait for them,
# and the most accumulators of such a tile (the end of a larger one waits while the next one's
# weights arrive).
_DRAM_COLUMNS, _DRAM_TILE = 7, 24
_USUAL_WIDTHS = ANY_COUNT, 28, 14, 7, 4  # for which tiles of a width that is known are chosen
_STRIPS, _STRIP_TILES = 16, 4  # of a map in rows of tiles: rows at least, tiles of one at most

# Vector instructions of an accumulator's end, of those that other tiles' products do not hide: a
# sum becomes a code, a residual's codes are added; and where columns are stored by fours.
_STEPS = 8, 10
_PACKED_STEPS = 2, 6

# Steps that a vector of what exceeds costs beside products by fours: fitted to 18 layers of
# ResNet-50 of which 6 to 23 % exceed (docs/tuning.md); between 1.4 and 2.3.
_EXCESS_OF_FOURS = 2

# The same, of an accumulator in float16: a piece is added to its totals, which are checked at last.
_PIECE_STEPS, _CHECK_STEPS = 8, 6

# Instructions that convert a half beside the multiply-adds: two, of which some find a free port
# (14x2 tiles of 3x3 layers took 1.5 times float32's time).
_HALF_STEPS = 1.1

_Ranked = tuple[tuple[float, Tile], ...]


def plan_any_size(
    kernel: DirectConv, target: Target, weights_from_dram: bool, known: bool = False
) -> DirectConv:
    """Choose tile and loop order as `plan_direct` does, for code that serves all image sizes.

    Chunks and the length of rows follow the size: they are extents of the code.

    Args:
        kernel: without tile and chunks.
        target: the machine.
        weights_from_dram: as of `plan_direct`.
        known: whether the width is known, and takes the best of a few tiles.
    """
    vectors = ceil_div(kernel.conv.outputs, kernel.lanes)
    ranked = _usable(
        kernel,
        rank_tiles(target, ANY_COUNT, vectors, fixed(kernel.steps), tile_work(kernel, target)),
    )
    usable = [r for r in ranked if r[1].rows * r[1].vectors <= _DRAM_TILE]
    cycles, tile = (usable if weights_from_dram else ranked)[0]
    if known and prod(kernel.conv.window.kernel) > 1:
        tile = _tile_of_width(kernel, target)
    window, kernel = kernel.conv.window, replace(kernel, any_width=True)
    if gives_pixels(window):
        kernel = batch_as_columns(kernel)
    kernel = _in_strips(kernel, tile)
    rows = kernel.conv.row_count
    weights = kernel.conv.groups * kernel.packed_reduction * vectors * kernel.lanes
    inside = weights * kernel.conv.precision.w.bytes <= _ROWS_OUTER_BYTES
    panels = ceil_div(vectors, tile.vectors)
    each = cycles / ANY_COUNT / (1 if inside else panels)
    pieces = kernel.conv.batch * kernel.conv.groups * (1 if inside else panels)
    width, chunk = kernel.conv.window.out[2], target.costs.chunk
    block = rows_per_chunk_of_any_width(rows, width, each, pieces, chunk)
    return replace(kernel, tile=tile, rows=block, panels_inside=inside)


def _tile_of_width(kernel: DirectConv, target: Target) -> Tile:
    """Choose the best tile for this width among those that are best for the usual widths."""
    conv = kernel.conv
    vectors, work = ceil_div(conv.outputs, kernel.lanes), tile_work(kernel, target)
    best = [
        _usable(kernel, rank_tiles(target, width, vectors, kernel.steps, work))[0][1]
        for width in _USUAL_WIDTHS
    ]

    def cycles(tile: Tile) -> float:
        row = overlapping_tiles(conv.window, tile.rows, conv.epilogue.residual)
        panels, rest = divmod(vectors, tile.vectors)
        total: float = sum(
            run.count * number * tile_cycles(target, run.pixels, wide, kernel.steps, work)
            for run in row
            if run.needed > 0
            for number, wide in ((panels, tile.vectors), (1, rest))
            if wide
        )
        traffic = 1 + target.costs.operand_traffic * (1 / tile.rows + 1 / tile.vectors)
        return total * traffic

    return min(dict.fromkeys(best), key=cycles)


def _in_strips(kernel: DirectConv, tile: Tile) -> DirectConv:
    """A map that is one row, cut into rows of whole tiles; the last one may be shorter."""
    conv = merge_rows(kernel.conv)
    columns = conv.window.out[2]
    if conv is kernel.conv or columns < tile.rows:
        return kernel
    tiles = least(_STRIP_TILES, most(1, columns // (_STRIPS * tile.rows)))
    row = tiles * tile.rows
    flat = (1, ceil_div(columns, row), row)

    def cut(access: Access) -> Access:
        step = access.spatial[2]
        return replace(access, spatial=(access.spatial[0], row * step, step))

    window = replace(conv.window, size=flat, out=flat)
    conv = replace(conv, window=window, x=cut(conv.x), y=cut(conv.y))
    return replace(kernel, conv=conv, columns=columns)


def plan_direct(kernel: DirectConv, target: Target, weights_from_dram: bool = False) -> DirectConv:
    """Choose register tile and chunks for a kernel whose problem is set.

    Args:
        kernel: without tile and chunks.
        target: the machine.
        weights_from_dram: whether its weights come from DRAM in each run.
    """
    conv, merged = kernel.conv, _merge(kernel)
    channel_vectors = ceil_div(merged.conv.outputs, merged.lanes)
    weights = merged.conv.groups * channel_vectors * _vector_bytes(merged)
    one_map = prod(conv.window.kernel) == 1 == conv.batch * conv.groups
    by_pixels = weights_from_dram and one_map
    inside_bytes = max(_ROWS_OUTER_BYTES, _INSIDE_SHARE * target.l2_bytes if by_pixels else 0)
    in_halves = by_pixels and inside_bytes < weights <= target.l2_bytes
    if in_halves and merged.conv.row_count % 2 and merged.conv.window.out[2] % 2 == 0:
        merged = _cut_rows(merged, merged.conv.window.out[2] // 2)
    cycles, tile = _best_tile(merged, target, weights_from_dram)
    merged = _split_row(merged, tile.rows) if weights_from_dram else merged
    rows = merged.conv.row_count
    bands = 2 if in_halves and rows % 2 == 0 else 1
    cycles /= rows
    # Panels larger than L2 are read again for each row anyway. With all panels inside a chunk the
    # input stays in L2 meanwhile (2048 channels, dilated, at 33x33: 41.5 to 36.1 ms).
    image = (
        prod(merged.conv.window.size)
        * merged.conv.inputs
        * merged.conv.groups
        * merged.conv.precision.x.bytes
    )
    neither_fits_l2 = min(_panel_bytes(merged, tile), image) > target.l2_bytes
    inside = (neither_fits_l2 or weights <= inside_bytes) and merged.conv.batch * rows >= 16
    panels = ceil_div(channel_vectors, tile.vectors)
    per_row = cycles if inside else cycles / panels
    pieces = merged.conv.batch * merged.conv.groups * (1 if inside else bands * panels)
    block = rows_per_chunk(rows // bands, per_row, pieces, target.costs.chunk)
    lanes = merged.dot_group == 1 and by_lane(target, tile.rows, tile.vectors)
    # Weights that leave L2 before the next image are read from L3 for each one, or else the images.
    traffic = panels * merged.conv.batch * image, (merged.conv.batch - 1) * weights
    together = weights > _INSIDE_IMAGES * target.l2_bytes and traffic[0] < traffic[1]
    return replace(
        merged,
        tile=tile,
        rows=block,
        panels_inside=inside,
        bands=bands,
        images_inside=together and not inside,
        by_lane=lanes,
    )


def _best_tile(kernel: DirectConv, target: Target, weights_from_dram: bool) -> tuple[float, Tile]:
    """The register tile, and the estimated cycles of all rows of one image.

    Only the first tile of each panel waits for weights from DRAM; with more rows it hides more of
    that latency. The other tiles find the weights in a cache.
    """
    conv = kernel.conv
    vectors, columns = ceil_div(conv.outputs, kernel.lanes), conv.window.out[2]
    ranked = ranked_tiles(kernel, target)
    cycles, tile = ranked[0]
    if not weights_from_dram or columns < _DRAM_COLUMNS:
        return cycles * conv.row_count, tile
    bytes_, work = _vector_bytes(kernel), tile_work(kernel, target)

    def total(cycles: float, tile: Tile) -> float:
        first = tile_cycles(target, tile.rows, tile.vectors, kernel.steps, work) / tile.vectors
        wait = max(0.0, bytes_ / target.costs.dram_read_first - first)
        return conv.row_count * cycles + vectors * wait

    small = [r for r in ranked if r[1].rows * r[1].vectors <= _DRAM_TILE]
    cycles, tile = min(small, key=lambda r: total(*r))
    return cycles * conv.row_count, tile


def ranked_tiles(kernel: DirectConv, target: Target) -> list[tuple[float, Tile]]:
    """All register tiles, the cheapest first, with the estimated cycles of one row of output.

    Every tile reads all weights of its panel. Where these exceed L1, tiles of few rows do not hide
    all of that; where they exceed L2, they wait for them.
    """
    conv = kernel.conv
    vectors, columns = ceil_div(conv.outputs, kernel.lanes), conv.window.out[2]
    work = tile_work(kernel, target)

    def waiting(tile: Tile) -> float:
        panel = _panel_bytes(kernel, tile)
        shown = target.costs.weights_shown or 0.0
        # Where it is known what shows, it is known how much of L2 weights may fill.
        held = target.l2_bytes * (target.costs.l2_share if shown else 1)
        near = panel <= (target.l1_bytes * _PANEL_SHARE if shown else held)
        if near or conv.row_count * columns <= tile.rows:
            return 0.0
        one = tile_cycles(target, tile.rows, tile.vectors, kernel.steps, work)
        tiles = ceil_div(columns, tile.rows) * ceil_div(vectors, tile.vectors)
        stream = max(0.0, panel - held) / target.costs.l3_read_unprefetched
        stream += min(panel, held) / target.costs.l2_read_beside_fma
        # A tile of one vector waits for its columns instead.
        beside = shown * min(one, stream) * max(1.0, _COLUMN_VECTORS / tile.vectors)
        return tiles * max(beside, stream - one)

    ranked = _usable(kernel, rank_tiles(target, columns, vectors, kernel.steps, work))
    return sorted(((c + waiting(tile), tile) for c, tile in ranked), key=lambda r: r[0])


def converting(x: bool, w: bool) -> TileWork:
    """Return a float tile's extra work if its input or weights are stored in halves."""
    return TileWork(x_steps=x * _HALF_STEPS, w_steps=w * _HALF_STEPS) if x or w else FLOATS


def tile_work(kernel: DirectConv, target: Target) -> TileWork:
    """Return a tile's work beside, or instead of, the multiply-adds of float sums."""
    conv = kernel.conv
    if kernel.piece:
        rate = (target.costs.f16_products or 0.0) / kernel.lanes
        pieces = ceil_div(kernel.reduction, kernel.piece)
        return TileWork(rate, (pieces * _PIECE_STEPS + _CHECK_STEPS) / target.fma_units)
    if kernel.way == "brain":
        return TileWork(pairs_per_cycle(target))
    if kernel.dot_group == 1:
        return converting(conv.precision.x in HALVES, conv.precision.w in HALVES)
    ends, epilogue = 0.0, conv.epilogue
    if epilogue.requantise:
        packed = packs_columns(epilogue, conv.y, kernel.way, conv.precision.y, kernel.lanes)
        own, residual = _PACKED_STEPS if packed else _STEPS
        ends = (own + epilogue.residual * residual) / target.fma_units
    rate = dots_per_cycle(conv.precision, target, kernel.folded, kernel.way)
    each = _EXCESS_OF_FOURS if kernel.way == "fours" else 1
    return TileWork(rate / (1 + each * kernel.excess_share), ends)


def _usable(kernel: DirectConv, ranked: _Ranked) -> _Ranked:
    """The tiles whose panels end with whole rows of phases, where phases are channels."""
    y = kernel.conv.y
    if not isinstance(y, PhasedAccess) or y.block == 1:
        return ranked
    return tuple(r for r in ranked if y.takes_panels(r[1].vectors * kernel.lanes))


def _panel_bytes(kernel: DirectConv, tile: Tile) -> int:
    return tile.vectors * _vector_bytes(kernel)


def _vector_bytes(kernel: DirectConv) -> int:
    return kernel.packed_reduction * kernel.lanes * kernel.conv.precision.w.bytes


def _split_row(kernel: DirectConv, columns: int) -> DirectConv:
    """Cut the only row into rows of one tile if it divides evenly: more chunks, same sums."""
    return kernel if kernel.conv.row_count > 1 else _cut_rows(kernel, columns)


def _cut_rows(kernel: DirectConv, columns: int) -> DirectConv:
    """Cut rows into shorter ones of `columns` columns if that divides them evenly."""
    if kernel.conv.window.out[2] % columns:
        return kernel
    return replace(kernel, conv=merge_rows(kernel.conv, lambda _: columns))


def _merge(kernel: DirectConv) -> DirectConv:
    """Merge rows into longer ones where the sums stay the same: 1x1 kernels, batches of 1x1 maps.

    Kernels one tap wide, too, where nothing is padded.

    A single 1x1 map takes the same path as a batch, so that its partial sums, which may span
    several taps of a row, have the same bounds.
    """
    if gives_pixels(kernel.conv.window):
        return batch_as_columns(kernel)
    conv = merge_rows_of_columns(kernel.conv, _good_width)
    if conv is kernel.conv:
        conv = merge_rows(conv, _good_width)
    return replace(kernel, conv=conv)


def _good_width(total: int) -> int:
    """A divisor of the map that makes rows of 28 to 256 columns, preferring multiples of 14."""
    usable = [w for w in range(28, 257) if total % w == 0] or [total]
    return min(usable, key=lambda w: (w % 14 != 0, w % 7 != 0, w % 2 != 0, w))
