"""Choice of tile, parts, block, slices and products by the estimated cycles of each.

`best` chooses where lanes are channels, `best_plane` for one channel whose tiles fill vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod

from leanconv.algorithms.fft.layout import FftLayout, PlaneLayout
from leanconv.algorithms.fft.network import (
    Network,
    complex_forward,
    complex_inverse,
    real_forward,
    real_inverse,
)
from leanconv.algorithms.fft.overlap_save import Axis, axes_of
from leanconv.algorithms.problem import Problem, dram_cycles, strided_walk_cycles, typical
from leanconv.codegen.tiling import Tile, rank_tiles
from leanconv.errors import SpecError
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_MOST_TILES = 32  # tiles of one block
_MOST_SPLITS = 8
_MOST_BYTES = 8 * 1024 * 1024  # workspace of one thread, unless a single tile needs more
_CHUNKS = 4  # chunks wanted at least, so that threads have work
_TOO_LARGE = 4  # times as many cycles count for a workspace beyond `_MOST_BYTES`
_ROUNDED = 1 - 2.0**-30  # share by which sums of another order may differ
_OVERLAP_LOSSES = 2  # the products of one bin are short: they hide less of its weights


@dataclass(frozen=True)
class Choices:
    """Lengths of the transform, numbers of products, and parts (any if None) to choose from."""

    lengths: tuple[int, ...]
    products: tuple[int, ...]
    parts: tuple[int, int] | None = None


@lru_cache(maxsize=256)  # parts and blocks are chosen for the size itself
def best(problem: Problem, target: Target, choices: Choices) -> tuple[float, FftLayout]:
    """The cheapest choice and its cycles on one core.

    Blocks that are too few for several threads, or too large, count as more expensive.

    Raises:
        SpecError: the kernel cannot be cut into so many parts.
    """

    sized = typical(problem) if problem.any_size else problem
    layout = _cheapest(sized, target, choices)
    if layout is None:
        raise SpecError(
            f"fft: parts is {choices.parts} for {problem}; expected so many that each fits "
            "its tile: leave parts out"
        )
    if problem.any_size:
        found = _resized(layout, problem)
        layout = min(found, key=lambda layout: _rank(problem, target, layout))
    cycles = _waiting(problem, target, layout)
    return target.costs.fft_over_model * cycles + strided_walk_cycles(problem, target), layout


def _waiting(problem: Problem, target: Target, layout: FftLayout) -> float:
    """Cycles of one core, those included in which weights come from DRAM."""
    waiting = dram_cycles(problem, target, layout.weight_elements * layout.item)
    return _cycles(layout, target) + waiting


def _rank(problem: Problem, target: Target, layout: FftLayout) -> float:
    """Cycles by which layouts are compared."""
    chunks = layout.outer * layout.splits * prod(layout.blocks)
    rounds = ceil_div(chunks, _CHUNKS) * _CHUNKS / chunks if chunks < 4 * _CHUNKS else 1.0
    large = layout.output_tiles > 1 and layout.scratch_offsets[2] * layout.item > _MOST_BYTES
    return _waiting(problem, target, layout) * rounds * (_TOO_LARGE if large else 1)


def _resized(ideal: FftLayout, problem: Problem) -> Iterator[FftLayout]:
    """A layout for maps of another size: its transform, block and slices are form.

    So are the outputs of a tile: all that fit, whatever would divide the map into equal tiles.
    """
    choices = Choices((ideal.length,), (ideal.products,), ideal.parts)
    for height, width in _axes(problem, choices):
        yield replace(ideal, conv=problem.conv, height=height.longest, width=width.longest)


# -- what there is to choose from --------------------------------------------------------------
def _blocks(height: Axis, width: Axis, images: int) -> Iterator[tuple[int, int]]:
    """Blocks of tiles worth considering."""
    if (height.parts, width.parts) == (1, 1):
        total = images * height.tiles * width.tiles
        sizes = {ceil_div(total, ceil_div(total, r)) for r in range(1, _MOST_TILES + 1)}
        yield from ((1, r) for r in sorted(sizes))
        return
    acrosses = _equal_parts(width.tiles)
    for down in _equal_parts(height.tiles):
        yield from ((down, a) for a in acrosses if down * a <= _MOST_TILES)


def _equal_parts(tiles: int) -> list[int]:
    """Sizes of equal parts of an axis, each a quarter larger than the one before at least."""
    found = [1]
    for size in range(2, min(tiles, _MOST_TILES) + 1):
        equal = size == ceil_div(tiles, ceil_div(tiles, size))
        if equal and 4 * size >= 5 * found[-1]:
            found.append(size)
    return found


_Place = tuple[int, int, int]  # of the axes' cut, of products and slices among what is chosen from


def _cheapest(problem: Problem, target: Target, choices: Choices) -> FftLayout | None:
    """The layout of the least rank, the first one of equal ranks; None where there is none.

    Kinds that take longer, whatever their blocks, than the best layout so far are passed over.
    """
    kinds = [
        (_least_cycles(problem, target, kind), place, kind)
        for place, kind in _kinds(problem, target, choices)
    ]
    best: tuple[float, ...] | None = None  # rank and place
    found: FftLayout | None = None
    for bound, (cut, *rest), kind in sorted(kinds, key=lambda each: each[:2]):
        if best is not None and bound > best[0]:
            break
        for number, layout in enumerate(_blocked(kind, target)):
            rank = (_rank(problem, target, layout), cut, number, *rest)
            if best is None or rank < best:
                best, found = rank, layout
    return found


def _kinds(
    problem: Problem, target: Target, choices: Choices
) -> Iterator[tuple[_Place, FftLayout]]:
    """Every choice of axes, products and slices, in blocks of one tile."""
    conv, lanes = problem.conv, problem.conv.lanes(target)
    depthwise = conv.inputs == conv.outputs == 1 and conv.groups > 1
    vectors = 1 if depthwise else ceil_div(conv.outputs, lanes)
    slices = [n for n in range(1, min(vectors, _MOST_SPLITS) + 1) if vectors % n == 0]
    products = (4,) if depthwise else choices.products
    for cut, (height, width) in enumerate(_axes(problem, choices)):
        for (at, count), (slice_number, splits) in product(enumerate(products), enumerate(slices)):
            yield (
                (cut, at, slice_number),
                FftLayout(
                    conv, height, width, lanes, tile=Tile(1, 1), splits=splits, products=count
                ),
            )


def _blocked(kind: FftLayout, target: Target) -> Iterator[FftLayout]:
    """A kind with each of its blocks, and the register tile for it."""
    for down, across in _blocks(kind.height, kind.width, kind.images):
        tile = kind.tile
        if not kind.depthwise:
            steps = kind.reduction_steps
            tile = _tile(target, across, kind.output_vectors, steps, kind.products)[1]
        yield replace(kind, tile=tile, block_height=down, block_width=across)


def _axes(problem: Problem, choices: Choices) -> Iterator[tuple[Axis, Axis]]:
    for length in choices.lengths:
        cut = (axes_of(problem.conv.window, axis, length) for axis in (1, 2))
        for height, width in product(*cut):
            if choices.parts in (None, (height.parts, width.parts)):
                yield height, width


@lru_cache(maxsize=4096)
def _tile(
    target: Target, tiles: int, vectors: int, steps: int, products: int
) -> tuple[float, Tile]:
    """Cycles of one reduction over a line of tiles, and the register tile for it."""
    each = 2 if products == 4 else 1
    passes = 2 if products == 4 else 3
    ranked = rank_tiles(target, tiles * each, vectors, steps * passes)
    return next((cycles, tile) for cycles, tile in ranked if tile.rows % each == 0)


# -- what a choice costs -----------------------------------------------------------------------
@lru_cache(maxsize=1024)
def transform_cycles(length: int, rows: int, columns: int, target: Target) -> tuple[float, float]:
    """Estimated cycles of one vector of channels of one tile, forwards and back."""
    half, move = length // 2, target.costs.vector_move
    inner = (half - 1, complex_forward(length)), (half - 1, complex_inverse(length, rows))
    forward = [(length + 2, real_forward(length)), inner[0]]
    back = [(2, real_inverse(length, rows)), inner[1], (rows, real_inverse(length, columns))]

    def cycles(networks: list[tuple[int, Network]]) -> float:
        return sum(
            times * (n.operations / target.fma_units + move * (n.inputs + len(n.outputs)))
            for times, n in networks
        )

    return cycles(forward), cycles(back)


def _least_cycles(problem: Problem, target: Target, kind: FftLayout) -> float:
    """Return a lower bound, for any blocks, of the cycles of all transforms and products."""
    forward, back = transform_cycles(kind.length, kind.height.step, kind.width.step, target)
    each = kind.phases * kind.input_vectors * forward + kind.output_vectors * back
    if not kind.depthwise:
        dots = kind.products * kind.output_vectors * kind.reduction_steps
        each += kind.bins * dots / target.fma_units
    tiles = kind.images * kind.height.tiles * kind.width.tiles
    waiting = dram_cycles(problem, target, kind.weight_elements * kind.item)
    return _ROUNDED * (kind.outer * kind.splits * tiles * each + waiting)


def _cycles(layout: FftLayout, target: Target) -> float:
    rows, columns, costs = layout.height.step, layout.width.step, target.costs
    forward, back = transform_cycles(layout.length, rows, columns, target)
    if not layout.conv.x.lanes_contiguous:
        forward += costs.transposed_vector * layout.length**2
    if not layout.conv.y.lanes_contiguous:
        back += costs.transposed_vector * rows * columns
    chunk = layout.input_tiles * layout.phases * layout.input_vectors * forward
    chunk += layout.output_tiles * layout.output_vectors * back
    if layout.depthwise:
        terms = layout.phases * prod(layout.parts)
        products = layout.output_tiles * (4 * terms / target.fma_units + 2 * costs.store)
    else:
        steps = layout.reduction_steps
        tiles, vectors = layout.block_width, layout.output_vectors
        line = _tile(target, tiles, vectors, steps, layout.products)[0]
        products = layout.block_height * line
    everything = layout.weight_elements * layout.item
    rate = costs.l2_read if everything < costs.l2_share * target.l2_bytes else costs.l3_read
    rate = costs.dram_read if everything > max(target.l3_bytes, target.l2_bytes) else rate
    weights = layout.bin_weights * layout.item / rate
    shown = _OVERLAP_LOSSES * costs.overlap_loss * min(products, weights)
    chunk += layout.bins * (max(products, weights) + shown)
    buffer = layout.bins * layout.slot * layout.item
    if buffer > target.l2_bytes:
        chunk += 2 * buffer / costs.l3_read  # written and read, inputs and outputs
    return chunk * layout.outer * layout.splits * prod(layout.blocks)


_MOST_TERMS = 64  # parts and phases of one output


@lru_cache(maxsize=256)
def best_plane(problem: Problem, target: Target, choices: Choices) -> tuple[float, PlaneLayout]:
    """The cheapest choice and its cycles on one core.

    Raises:
        SpecError: the kernel cannot be cut into so many parts.
    """
    sized = typical(problem) if problem.any_size else problem
    found = [(plane_cycles(each, target), each) for each in _layouts(sized, target, choices)]
    if not found:
        raise SpecError(
            f"fft: parts is {choices.parts} for {problem}; expected so many that each fits "
            "its tile: leave parts out"
        )
    cycles, layout = min(found, key=lambda each: each[0])
    if not problem.any_size:
        return cycles, layout
    alike = Choices((layout.length,), choices.products, layout.parts)
    resized = next(iter(_layouts(problem, target, alike)))
    # Outputs of a tile are all that fit, whatever would divide the map into equal tiles.
    layout = replace(resized, height=resized.height.longest, width=resized.width.longest)
    return plane_cycles(layout, target), layout


def _layouts(problem: Problem, target: Target, choices: Choices) -> Iterator[PlaneLayout]:
    conv = problem.conv
    for length in choices.lengths:
        cut = (axes_of(conv.window, axis, length) for axis in (1, 2))
        for height, width in product(*cut):
            layout = PlaneLayout(conv, height, width, conv.lanes(target))
            wanted = choices.parts in (None, layout.parts)
            if wanted and (choices.parts or layout.reduction_steps <= _MOST_TERMS):
                yield layout


def plane_cycles(layout: PlaneLayout, target: Target) -> float:
    """Estimated cycles of one core."""
    costs, length, terms = target.costs, layout.length, layout.reduction_steps
    rows, columns = layout.height.kept, layout.width.kept
    forward, back = transform_cycles(length, rows, columns, target)
    # Rows pass through memory twice more, as they lie in the tensor and transposed.
    moved = costs.transposed_vector + 4 * costs.vector_move
    forward += length**2 * moved
    back += rows * columns * moved
    products = layout.bins * (4 / target.fma_units + 4 * costs.vector_move)
    passed = 2 * terms * length * layout.mid_row * layout.item  # written, then read by columns
    level = costs.l2_read if passed < 2 * target.l2_bytes else costs.l3_read
    waits = 2 * passed / level if passed > 2 * costs.l1_ways * costs.l1_way_bytes else 0.0
    return layout.conv.groups * layout.vectors * (terms * (forward + products) + back + waits)
