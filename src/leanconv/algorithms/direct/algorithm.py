"""Choosing the parameters of direct convolution: register tile, chunks, order of the loops."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from leanconv.algorithms.common.batches import batch_as_columns, gives_pixels
from leanconv.algorithms.common.kernel_fields import group_fields
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.direct.packed import PackedConv
from leanconv.algorithms.direct.parameters import (
    NONE,
    DirectParameters,
    chosen_piece,
    piece_error,
    takes_pieces,
)
from leanconv.algorithms.direct.pointwise import DirectPointwise, plan_direct_pointwise
from leanconv.algorithms.interface import Algorithm, Candidate, one_kernel_candidate
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import (
    Problem,
    dram_cycles,
    split_phases,
    strided_walk_cycles,
)
from leanconv.codegen.dot import (
    Way,
    dots_per_cycle,
    group_of,
    has_dot,
    pairs_pay,
    pairs_per_cycle,
    way_of,
)
from leanconv.codegen.epilogue import packs_columns
from leanconv.codegen.geometry import Access, PhasedAccess, Window, merge_rows
from leanconv.codegen.half_sums import PIECES
from leanconv.codegen.tiling import (
    ANY_WIDTH,
    FLOATS,
    Tile,
    TileWork,
    by_lane,
    rank_tiles,
    rows_per_chunk,
    rows_per_chunk_of_any_width,
    tile_cycles,
)
from leanconv.errors import SpecError
from leanconv.spec.format import ceil_div
from leanconv.symbols import least, most
from leanconv.target import Target
from leanconv.types import FLOAT16, FLOAT32, HALVES, INT8, INT16, UINT8, UINT16, Precision

_MEASURED_OVER_MODEL = 1.06  # measured time of layers over the sum of their tiles
_ROWS_OUTER_BYTES = 160 * 1024  # weights that stay in L2 from row to row
# In networks whose weights come from DRAM, two threads split a 1x1 layer by pixels and not by
# output channels, so that each finds its half of a tensor in its own L2. Weights of at most this
# share of L2 are read again for each row; larger ones that fit L2, for each half of the rows.
_INSIDE_SHARE = 0.25
# Weights from DRAM: the fewest columns of a row for which tiles are chosen by the wait for them,
# and the most accumulators of such a tile (the end of a larger one waits while the next one's
# weights arrive).
_DRAM_COLUMNS, _DRAM_TILE = 7, 24
_RESIDUAL_SHARE = 3 / 8  # of L2 that a residual fills when tiles prefetch it
_STRIPS, _STRIP_TILES = 16, 4  # of a map in rows of tiles: rows at least, tiles of one at most
_PREFETCHED_SHARE = 0.2  # of a prefetched line's cycles, where a tile reads a part of the channels

# Vector instructions of an accumulator's end, of those that other tiles' products do not hide: a
# sum becomes a code, a residual's codes are added; and where columns are stored by fours.
_STEPS = 8, 10
_PACKED_STEPS = 2, 6

# The same, of an accumulator in float16: a piece is added to its totals, which are checked at last.
_PIECE_STEPS, _CHECK_STEPS = 8, 6

# Instructions that convert a half beside the multiply-adds: two, of which some find a free port
# (14x2 tiles of 3x3 layers took 1.5 times float32's time).
_HALF_STEPS = 1.1

_NARROW = (INT8, UINT8, INT16, UINT16)  # what sums of integers may be stored as

_OPEN = DirectParameters()

_Ranked = tuple[tuple[float, Tile], ...]


def plan_any_size(kernel: DirectConv, target: Target, weights_from_dram: bool) -> DirectConv:
    """As `plan_direct`, by what all sizes of the images have in common.

    Chunks and the length of rows follow the size: they are extents of the code.
    """
    vectors = ceil_div(kernel.outputs, kernel.lanes)
    ranked = _usable(
        kernel, rank_tiles(target, ANY_WIDTH, vectors, int(kernel.steps), tile_work(kernel, target))
    )
    usable = [r for r in ranked if r[1].rows * r[1].vectors <= _DRAM_TILE]
    cycles, tile = (usable if weights_from_dram else ranked)[0]
    window, kernel = kernel.window, replace(kernel, any_width=True)
    if gives_pixels(window):
        kernel = batch_as_columns(kernel)
    kernel = _in_strips(kernel, tile)
    rows = kernel.row_count
    weights = kernel.groups * kernel.packed_reduction * vectors * kernel.lanes
    inside = weights * kernel.precision.w.bytes <= _ROWS_OUTER_BYTES
    panels = ceil_div(vectors, tile.vectors)
    each = cycles / ANY_WIDTH / (1 if inside else panels)
    pieces = kernel.batch * kernel.groups * (1 if inside else panels)
    width, chunk = kernel.window.out[2], target.costs.chunk
    block = rows_per_chunk_of_any_width(rows, width, each, pieces, chunk)
    return replace(kernel, tile=tile, rows=block, panels_inside=inside)


def _in_strips(kernel: DirectConv, tile: Tile) -> DirectConv:
    """A map that is one row, cut into rows of whole tiles; the last one may be shorter."""
    window, x, y = merge_rows(kernel.window, kernel.x, kernel.y, lambda total: total)
    columns = window.out[2]
    if window is kernel.window or columns < tile.rows:
        return kernel
    tiles = least(_STRIP_TILES, most(1, columns // (_STRIPS * tile.rows)))
    row = tiles * tile.rows
    flat = (1, ceil_div(columns, row), row)

    def cut(access: Access) -> Access:
        step = access.spatial[2]
        return replace(access, spatial=(access.spatial[0], row * step, step))

    window = replace(window, size=flat, out=flat)
    return replace(kernel, window=window, x=cut(x), y=cut(y), columns=columns)


def plan_direct(kernel: DirectConv, target: Target, weights_from_dram: bool = False) -> DirectConv:
    """Choose register tile and chunks for a kernel whose problem is set.

    Args:
        kernel: without tile and chunks.
        target: the machine.
        weights_from_dram: whether its weights come from DRAM in each run.
    """
    merged = _merge(kernel)
    channel_vectors = ceil_div(merged.outputs, merged.lanes)
    weights = merged.groups * channel_vectors * _vector_bytes(merged)
    one_map = prod(kernel.window.kernel) == 1 == kernel.batch * kernel.groups
    by_pixels = weights_from_dram and one_map
    inside_bytes = max(_ROWS_OUTER_BYTES, _INSIDE_SHARE * target.l2_bytes if by_pixels else 0)
    in_halves = by_pixels and inside_bytes < weights <= target.l2_bytes
    if in_halves and merged.row_count % 2 and merged.window.out[2] % 2 == 0:
        merged = _cut_rows(merged, merged.window.out[2] // 2)
    cycles, tile = _best_tile(merged, target, weights_from_dram)
    merged = _split_row(merged, tile.rows) if weights_from_dram else merged
    rows = merged.row_count
    bands = 2 if in_halves and rows % 2 == 0 else 1
    cycles /= rows
    # Panels larger than L2 are read again for each row anyway. With all panels inside a chunk the
    # input stays in L2 meanwhile (2048 channels, dilated, at 33x33: 41.5 to 36.1 ms).
    image = prod(merged.window.size) * merged.inputs * merged.groups * merged.precision.x.bytes
    neither_fits_l2 = min(_panel_bytes(merged, tile), image) > target.l2_bytes
    inside = (neither_fits_l2 or weights <= inside_bytes) and merged.batch * rows >= 16
    panels = ceil_div(channel_vectors, tile.vectors)
    per_row = cycles if inside else cycles / panels
    pieces = merged.batch * merged.groups * (1 if inside else bands * panels)
    block = rows_per_chunk(rows // bands, per_row, pieces, target.costs.chunk)
    lanes = merged.dot_group == 1 and by_lane(target, tile.rows, tile.vectors)
    return replace(merged, tile=tile, rows=block, panels_inside=inside, bands=bands, by_lane=lanes)


def _best_tile(kernel: DirectConv, target: Target, weights_from_dram: bool) -> tuple[float, Tile]:
    """The register tile, and the estimated cycles of all rows of one image.

    Only the first tile of each panel waits for weights from DRAM; with more rows it hides more of
    that latency. The other tiles find the weights in a cache.
    """
    vectors, columns = ceil_div(kernel.outputs, kernel.lanes), kernel.window.out[2]
    ranked = _ranked(kernel, target)
    cycles, tile = ranked[0]
    if not weights_from_dram or columns < _DRAM_COLUMNS:
        return cycles * kernel.row_count, tile
    bytes_, work = _vector_bytes(kernel), tile_work(kernel, target)

    def total(cycles: float, tile: Tile) -> float:
        first = tile_cycles(target, tile.rows, tile.vectors, kernel.steps, work) / tile.vectors
        wait = max(0.0, bytes_ / target.costs.dram_read_first - first)
        return kernel.row_count * cycles + vectors * wait

    small = [r for r in ranked if r[1].rows * r[1].vectors <= _DRAM_TILE]
    cycles, tile = min(small, key=lambda r: total(*r))
    return cycles * kernel.row_count, tile


def _ranked(kernel: DirectConv, target: Target) -> list[tuple[float, Tile]]:
    """All register tiles, the cheapest first, with the estimated cycles of one row of output.

    Every tile reads all weights of its panel. Where these exceed L2, tiles of few rows wait for
    them.
    """
    vectors, columns = ceil_div(kernel.outputs, kernel.lanes), kernel.window.out[2]
    work = tile_work(kernel, target)

    def waiting(tile: Tile) -> float:
        panel = _panel_bytes(kernel, tile)
        if panel <= target.l2_bytes or kernel.row_count * columns <= tile.rows:
            return 0.0
        one = tile_cycles(target, tile.rows, tile.vectors, kernel.steps, work)
        tiles = ceil_div(columns, tile.rows) * ceil_div(vectors, tile.vectors)
        stream = (panel - target.l2_bytes) / target.costs.l3_read_unprefetched
        stream += target.l2_bytes / target.costs.l2_read_beside_fma
        return tiles * max(0.0, stream - one)

    ranked = _usable(kernel, rank_tiles(target, columns, vectors, kernel.steps, work))
    return sorted(((c + waiting(tile), tile) for c, tile in ranked), key=lambda r: r[0])


def tile_work(kernel: DirectConv, target: Target) -> TileWork:
    """What a tile of codes does, or of sums in float16; of floats what all tiles do."""
    if kernel.piece:
        rate = (target.costs.f16_products or 0.0) / kernel.lanes
        pieces = ceil_div(kernel.reduction, kernel.piece)
        return TileWork(rate, (pieces * _PIECE_STEPS + _CHECK_STEPS) / target.fma_units)
    if kernel.way == "brain":
        return TileWork(pairs_per_cycle(target))
    if kernel.dot_group == 1:
        x, w = (each in HALVES for each in (kernel.precision.x, kernel.precision.w))
        return TileWork(x_steps=x * _HALF_STEPS, w_steps=w * _HALF_STEPS) if x or w else FLOATS
    ends, epilogue = 0.0, kernel.epilogue
    if epilogue.requantise:
        packed = packs_columns(epilogue, kernel.y, kernel.way, kernel.precision.y, kernel.lanes)
        own, residual = _PACKED_STEPS if packed else _STEPS
        ends = (own + epilogue.residual * residual) / target.fma_units
    return TileWork(dots_per_cycle(kernel.precision, target, kernel.folded), ends)


def _usable(kernel: DirectConv, ranked: _Ranked) -> _Ranked:
    """The tiles whose panels end with whole rows of phases, where phases are channels."""
    y = kernel.y
    if not isinstance(y, PhasedAccess) or y.block == 1:
        return ranked
    return tuple(r for r in ranked if y.takes_panels(r[1].vectors * kernel.lanes))


def _panel_bytes(kernel: DirectConv, tile: Tile) -> int:
    """Bytes of the weights of one panel."""
    return tile.vectors * _vector_bytes(kernel)


def _vector_bytes(kernel: DirectConv) -> int:
    """Bytes of the weights of one vector of a panel."""
    return kernel.packed_reduction * kernel.lanes * kernel.precision.w.bytes


def _split_row(kernel: DirectConv, columns: int) -> DirectConv:
    """Cut the only row into rows of one tile if it divides evenly: more chunks, same sums."""
    return kernel if kernel.row_count > 1 else _cut_rows(kernel, columns)


def _cut_rows(kernel: DirectConv, columns: int) -> DirectConv:
    """Cut rows into shorter ones of `columns` columns if that divides them evenly."""
    window = kernel.window
    if window.out[2] % columns:
        return kernel
    window, x, y = merge_rows(window, kernel.x, kernel.y, lambda _: columns)
    return replace(kernel, window=window, x=x, y=y)


def _merge(kernel: DirectConv) -> DirectConv:
    """Merge rows into longer ones where the sums stay the same: 1x1 kernels, batches of 1x1 maps.

    A single 1x1 map takes the same path as a batch, so that its partial sums, which may span
    several taps of a row, have the same bounds.
    """
    window = kernel.window
    if gives_pixels(window):
        return batch_as_columns(kernel)
    window, x, y = merge_rows(window, kernel.x, kernel.y, _good_width)
    return replace(kernel, window=window, x=x, y=y)


def _good_width(total: int) -> int:
    """A divisor of the map that makes rows of 28 to 256 columns, preferring multiples of 14."""
    usable = [w for w in range(28, 257) if total % w == 0] or [total]
    return min(usable, key=lambda w: (w % 14 != 0, w % 7 != 0, w % 2 != 0, w))


def _takes(precision: Precision) -> bool:
    """Floats and halves; integers, whose sums are stored as they are, saturated or scaled."""
    saturated = precision.accumulate.kind == "int" and precision.y in (*_NARROW, FLOAT32)
    halved = precision.accumulate == FLOAT32 and precision.y in HALVES
    return has_dot(precision) and (saturated or halved or precision.y == precision.accumulate)


def _reject(problem: Problem, target: Target) -> str | None:
    if reason := split_phases(problem, target):
        return reason
    group = group_of(problem.precision)
    if problem.x.block % group:
        return f"blocks of {problem.x.block} channels; dot products take {group} of a block"
    if problem.epilogue.activation and not problem.precision.accumulate.is_float:
        return f"an activation of sums in {problem.precision.accumulate}"
    unscaled = not problem.epilogue.requantise
    sums = problem.precision.accumulate
    if unscaled and not sums.is_float and problem.precision.y == FLOAT32:
        return "sums of integers as float32 without scales"
    if problem.groups == 1:
        return None
    for access, channels, side in (
        (problem.x, problem.group_inputs, "input"),
        (problem.y, problem.group_outputs, "output"),
    ):
        if channels % access.block:
            return (
                f"groups of {channels} {side} channels do not fill blocks of {access.block} "
                "channels"
            )
    return None


def _cost(problem: Problem, target: Target, given: DirectParameters = _OPEN) -> float:
    kernel, cycles = _planned(problem, target, chosen_piece(problem, target, given))
    costs, line = target.costs, None
    if isinstance(kernel, DirectPointwise):
        line = _PREFETCHED_SHARE * costs.prefetched_line
    elif isinstance(kernel, DirectConv) and kernel.channels_ahead:
        line = costs.prefetched_line
    planes = strided_walk_cycles(problem, target, line)
    cycles, weights = _MEASURED_OVER_MODEL * cycles, problem.weight_bytes
    if problem.weights_from_dram:
        return cycles + dram_cycles(problem, target, weights) + planes
    stream = weights / costs.l3_read_unprefetched if weights > target.l2_bytes else 0.0
    return costs.overlapped(cycles, stream) + planes


def _live_share(window: Window) -> float:
    """The share of taps that touch the input: products with padding are left out."""
    share = 1.0
    for axis, (out, kernel) in enumerate(zip(window.out, window.kernel, strict=True)):
        if kernel > 1:
            share *= window.live_taps(axis) / (out * kernel)
    return share


def _planned(problem: Problem, target: Target, piece: int) -> tuple[PackedConv, float]:
    """The kernel for a problem, with its estimated cycles of one core."""
    kernel = _kernel(problem, target, piece)
    window = kernel.window
    vectors = ceil_div(kernel.outputs, kernel.lanes)
    cycles, _ = _ranked(kernel, target)[0]
    if not kernel.y.lanes_contiguous:
        cycles += target.costs.transposed_store * window.out[2] * vectors
    cycles *= kernel.batch * kernel.groups * kernel.row_count * _live_share(problem.window)
    pointwise = None if piece else plan_direct_pointwise(kernel, target)
    return pointwise if pointwise and pointwise[1] < cycles else (kernel, cycles)


def _kernel(problem: Problem, target: Target, piece: int) -> DirectConv:
    inside = all(problem.window.always_full(axis) for axis in range(3))
    given = group_fields(problem, target)
    if piece:
        given["lanes"] = target.lanes(FLOAT16)
    kernel = DirectConv(
        **given,
        piece=piece,
        tile=Tile(1, 1),
        rows=1,
        panels_inside=False,
        y_offset=problem.y_offset,
        way=_way(problem, target),
        folded=problem.folds_shift and inside,  # taps in the padding are left out
    )
    plan = plan_any_size if problem.any_size else plan_direct
    planned = plan(kernel, target, problem.weights_from_dram)
    single_tap, blocks = prod(planned.window.kernel) == 1, planned.x.block > 1
    any_size, l2_bytes = bool(problem.any_size), target.l2_bytes
    large = any_size or problem.output_bytes >= _RESIDUAL_SHARE * l2_bytes
    large = large and planned.y.lanes_contiguous
    return replace(
        planned,
        weights_ahead=_weights_ahead(problem, planned, target),
        channels_ahead=_channels_ahead(planned, target),
        fetch=single_tap and blocks and (any_size or problem.input_bytes > target.l2_bytes),
        prefetches_residual=problem.epilogue.residual and large,
    )


def _way(problem: Problem, target: Target) -> Way:
    """How a step multiplies and adds.

    Pairs of bfloat16 have to lie beside each other; what is beyond the last channel may be NaN.
    """
    apart = problem.group_inputs % 2 or problem.x.block % 2
    if apart or not pairs_pay(problem.precision, target):
        return way_of(problem.precision, target)
    return "brain"


def _weights_ahead(problem: Problem, kernel: DirectConv, target: Target) -> int:
    """Elements from the weights that are loaded to those that are prefetched; 0: none.

    Weights that all panels of a row read again stay near.
    """
    far = problem.weights_from_dram or problem.weight_bytes > target.l2_bytes
    if kernel.panels_inside or kernel.panels == 1 or not far:
        return 0
    return target.costs.direct_prefetch_bytes // kernel.precision.w.bytes


def _channels_ahead(kernel: DirectConv, target: Target) -> int:
    """How many channels ahead input in planes is prefetched; 0 where channels are neighbours."""
    return 0 if kernel.x.lanes_contiguous else target.costs.channels_ahead


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    assert isinstance(parameters, DirectParameters)
    piece = chosen_piece(problem, target, parameters)
    if piece and not takes_pieces(problem, target):
        raise SpecError(
            f"algorithm direct: halves={piece} for {problem} of {problem.precision} on "
            f"{target.cpu}; expected float16 operands and a processor that sums in float16"
        )
    made = (
        _kernel(problem, target, piece) if problem.any_size else _planned(problem, target, piece)[0]
    )
    found = DirectParameters(halves=piece) if piece else parameters
    choice = Choice("direct", found, error=piece_error(problem, piece))
    details = f"pieces of {piece} products in float16" if piece else ""
    return one_kernel_candidate(choice, problem, made, details)


def _choices(problem: Problem, target: Target, lean: bool) -> list[Choice]:
    """Sums in float32, and in float16 where that is accepted."""
    del lean
    ways: list[DirectParameters] = [DirectParameters()]
    if takes_pieces(problem, target):
        ways = [DirectParameters(halves=way) for way in (*PIECES, NONE)]
    return [Choice("direct", way, _cost(problem, target, way)) for way in ways]


def _offered_from(problem: Problem) -> list[float]:
    """The errors of sums in float16."""
    types = problem.precision
    halves = types.x == types.w == FLOAT16
    return [piece_error(problem, piece) for piece in PIECES] if halves else []


DIRECT = Algorithm(
    "direct",
    DirectParameters,
    _reject,
    _cost,
    _candidate,
    choices=_choices,
    precisions=_takes,
    takes_phases=True,
    offered_from=_offered_from,
)
