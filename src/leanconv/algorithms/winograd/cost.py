"""Estimated cycles of both forms; of the fused one also which blocks, register tile and parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from leanconv.algorithms.problem import Problem, dram_cycles, strided_walk_cycles
from leanconv.algorithms.winograd.edge_tiles import is_ordered
from leanconv.algorithms.winograd.shape import Pair, WinogradShape
from leanconv.algorithms.winograd.sizes import WinogradParameters
from leanconv.codegen.dot import dots_per_cycle
from leanconv.codegen.geometry import PhasedAccess
from leanconv.codegen.tiling import TileWork, by_lane, fits, rank_tiles, step_cycles
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.target import Costs, Target

_SCRATCH_SHARE = 0.6  # of L2 that V and M of a block may fill
_MOST_TILES = 20  # of a block of several panels
# Where the weights exceed their share of L3, passes over them are expensive: also tried are these
# numbers of blocks for all tiles, whose V and M may fill so many times L2.
_LARGE_BLOCKS, _LARGE_SCRATCH = (8, 6, 4, 3, 2), 2
_FULL_TILE = 20  # the fewest accumulators of a register tile for which such blocks are tried
# Factor of L2's rate where each row of register tiles reads U: products hide most of that stream.
_U_RATE = 85 / 32
_ROUNDED = 1 - 1e-9  # bounds are below what they bound by more than rounding
# Overhead of narrow edges: tiles of a block are not neighbours, transforms have two variants.
_NARROW_EDGES = 1.04
MOST_STAGED_ROWS = 112  # rows of V (tiles) that stay in cache for all panels of a chunk


# -- in stages ---------------------------------------------------------------------------------
def staged_transform_cycles(costs: Costs) -> tuple[float, float]:
    """Cycles for each vector of V and of M, which go to memory."""
    return costs.winograd_input + costs.winograd_far, costs.winograd_output + costs.winograd_far


def staged_cycles(shapes: Sequence[WinogradShape], target: Target) -> float:
    """Estimated cycles of one core: both transforms, products, traffic of V and M."""
    total, costs = 0.0, target.costs
    input_cycles, output_cycles = staged_transform_cycles(costs)
    for shape in shapes:
        tiles, vectors = shape.tile_count, shape.panels
        rows = min(tiles, MOST_STAGED_ROWS)
        steps = shape.steps // shape.dot_group
        work = TileWork(dots_per_cycle(shape.products, target))
        product = rank_tiles(target, rows, vectors, steps, work)[0][0] * tiles / rows
        into = tiles * ceil_div(shape.steps, shape.lanes) * input_cycles
        back = tiles * vectors * output_cycles
        moved = 2 * shape.points * shape.conv.groups * tiles * (shape.steps + shape.conv.outputs)
        moved *= shape.transformed.bytes
        total += shape.points * shape.conv.groups * (into + product + back)
        if moved > target.l2_bytes:
            total += moved / (costs.l3_copy if moved <= target.l3_bytes else costs.dram_copy)
    return total


# -- fused -------------------------------------------------------------------------------------
class Tiling(NamedTuple):
    """Blocks and register tile of a kernel, as `WinogradShape` has them."""

    tiles: int
    rows: int
    vectors: int
    parts: int


def best_kernel(
    problem: Problem,
    target: Target,
    sizes: Mapping[Pair, int],
    given: WinogradParameters,
) -> tuple[float, WinogradShape] | None:
    """The kernel with the fewest estimated cycles of one core, and its cycles.

    Where weights change, it is the one with the fewest together with those of transforming them,
    which are not in its cycles.

    Args:
        problem: the convolution, without dilation.
        target: the machine.
        sizes: outputs of a tile (h, w) to consider, each with the products of a partial sum.
        given: edges, tiles, rows, vectors and parts, as far as they are fixed.

    Returns:
        None if no kernel has the given parameters.
    """
    lanes = problem.conv.lanes(target)
    # Which tiles are narrow, and their order, follow the size.
    edges = given.edges or ("whole" if problem.any_size else None)
    kernels = [
        kernel
        for m, sums in sizes.items()
        for kernel in _with_edges(WinogradShape.of(problem, m, lanes, sums), edges)
    ]
    models = [_Model(problem, kernel, target) for kernel in kernels]
    models.sort(key=lambda model: model.least + model.transforming)
    best: tuple[float, Tiling, _Model] | None = None
    fewest = math.inf
    for model in models:
        if model.least + model.transforming >= fewest:
            break
        found = model.best_tiling(given, fewest - model.transforming)
        if found:
            best, fewest = (*found, model), found[0] + model.transforming
    if best is None:
        return None
    cycles, tiling, model = best
    cycles += strided_walk_cycles(problem, target)
    return cycles, replace(model.kernel, **tiling._asdict())


def shape_cycles(problem: Problem, shape: WinogradShape, target: Target) -> float:
    """The estimated cycles of one core of a kernel whose blocks and register tile are chosen."""
    tiling = Tiling(shape.tiles, shape.rows, shape.vectors, shape.parts)
    return _Model(problem, shape, target).cycles(tiling) + strided_walk_cycles(problem, target)


def transforming_cycles(problem: Problem, shape: WinogradShape, target: Target) -> float:
    """Estimated cycles of each run that transforms weights into U; 0 where they are known."""
    if not problem.weights_change:
        return 0.0
    vectors = shape.conv.groups * shape.all_steps * ceil_div(shape.conv.outputs, shape.lanes)
    return vectors * staged_transform_cycles(target.costs)[0]


def ranked_tilings(
    problem: Problem, target: Target, m: Pair, sums: int, edges: str | None
) -> list[tuple[float, Tiling, str]]:
    """All tilings for tiles of m outputs, the cheapest first: estimated cycles, tiling, edges."""
    kernel = WinogradShape.of(problem, m, problem.conv.lanes(target), sums)
    traffic = strided_walk_cycles(problem, target)
    models = [_Model(problem, one, target) for one in _with_edges(kernel, edges)]
    return sorted(
        (model.cycles(tiling) + traffic, tiling, model.kernel.edges)
        for model in models
        for tiling in model.tilings(WinogradParameters())
    )


def _with_edges(kernel: WinogradShape, edges: str | None) -> list[WinogradShape]:
    """The kernel with whole and with narrow tiles at the far edges, as is given."""
    least = prod(
        out + grid * (r - 1)
        for out, grid, r in zip(kernel.out, kernel.grid, kernel.taps, strict=True)
    )
    little = _NARROW_EDGES * least * kernel.conv.batch >= kernel.tile_points
    if edges == "whole" or (edges is None and little):
        return [kernel]
    narrow = replace(kernel, narrow=True)
    if not any(narrow.dropped_points) or (edges is None and not is_ordered(narrow)):
        return [kernel]
    return [narrow] if edges == "narrow" else [kernel, narrow]


def _gathering(kernel: WinogradShape, costs: Costs) -> float:
    """Cycles for each vector of V that is gathered from planes.

    Phases along the width are transposed a whole vector of columns at a time: a row of a patch that
    is a little longer than one costs as much as two (cv4: 17 columns in two pieces take 31 shuffles
    and 16 loads, 16 in one take 24 and 8).
    """
    width, lanes = kernel.alpha[1], kernel.lanes
    if kernel.reduction.columns_per_group == 1:
        wide = costs.winograd_gather_wide if 2 * width > lanes else 0.0
        return costs.winograd_gather + wide
    pieces = ceil_div(width * kernel.reduction.columns_per_group, lanes)
    return costs.winograd_gather * pieces * lanes / (width * kernel.reduction.columns_per_group)


def _shares(kernel: WinogradShape) -> tuple[tuple[int, float], ...]:
    """Numbers of points, each with the share of the tiles that have them."""
    sides = []
    for grid, alpha, dropped in zip(kernel.grid, kernel.alpha, kernel.dropped_points, strict=True):
        narrow = [(dropped, 1 - 1 / grid)] if dropped else []
        sides.append([(alpha - dropped, 1.0), *narrow])
    return tuple((a * b, high * wide) for a, high in sides[0] for b, wide in sides[1])


class _Model:
    """Estimates for one size of tiles, as plain numbers: hundreds of tilings are compared."""

    def __init__(self, problem: Problem, kernel: WinogradShape, target: Target) -> None:
        conv = kernel.conv
        self.problem, self.kernel, self.target = problem, kernel, target
        self.work = TileWork(dots_per_cycle(kernel.products, target))
        self.tile_count, self.points = kernel.tile_count, kernel.points
        self.tile_points = kernel.tile_points
        # Steps of the reduction, the mean over the points; bytes of U for each, of one lane.
        self.steps = kernel.all_steps / kernel.points / kernel.dot_group
        self.item = kernel.transformed.bytes * kernel.dot_group
        self.m_item = conv.precision.accumulate.bytes
        self.sums = ceil_div(kernel.steps, kernel.sums)  # partial sums
        self.out_vectors = ceil_div(conv.outputs, kernel.lanes)
        # Bytes of V for each tile.
        self.v_bytes = (
            kernel.points * kernel.channel_blocks * kernel.lanes * kernel.transformed.bytes
        )
        # Cycles of the transforms: of all inputs, and of one vector of outputs.
        costs = target.costs
        gathering = _gathering(kernel, costs) if kernel.planar else 0.0
        narrow = 1.0 if conv.precision.accumulate.is_float else costs.winograd_integer_input
        into_vector = costs.winograd_input * narrow + gathering
        self.into = self.tile_points * kernel.channel_blocks * into_vector
        transposed = costs.winograd_row * kernel.m[0] / kernel.points
        if conv.y.spatial[2] != 1 and not isinstance(conv.y, PhasedAccess):
            transposed += prod(kernel.m) * kernel.lanes * costs.store / kernel.points  # one by one
        back_vector = costs.winograd_output + (0.0 if conv.y.lanes_contiguous else transposed)
        self.back = self.tile_points * back_vector
        self.shares = _shares(kernel)
        self.known: dict[tuple[int, ...], float] = {}  # cycles by (tiles, rows, vectors)
        self.transforming = transforming_cycles(problem, kernel, target)

    @property
    def least(self) -> float:
        """A lower bound of the cycles of any tiling."""
        steps = self.tile_points * self.out_vectors * self.steps
        products = steps / (self.work.dots_per_cycle or self.target.fma_units)
        cycles = self.into + self.back * self.out_vectors + products
        return cycles * self.kernel.conv.groups * self.handicap

    @property
    def handicap(self) -> float:
        """The factor of the cycles of narrow edges."""
        return _NARROW_EDGES if self.kernel.narrow else 1.0

    def scratch(self, tiling: Tiling) -> int:
        """Bytes of V and M of a block, nearly."""
        m_bytes = self.points * tiling.vectors * self.kernel.lanes * self.m_item
        return tiling.tiles * (self.v_bytes + m_bytes)

    def best_tiling(self, given: WinogradParameters, below: float) -> tuple[float, Tiling] | None:
        """The tiling with the fewest cycles, of several the first; None if all have `below`.

        Most are passed over by a bound of their register tile.
        """
        best: tuple[float, int, Tiling] | None = None
        tiles = enumerate(self._bounded_tiles(given))
        for least, number, tile in sorted((bound, number, tile) for number, (bound, tile) in tiles):
            if least > below:
                break
            for tiling in self.tilings_of(*tile, given):
                if self._total(tiling) * self.handicap * _ROUNDED > below:
                    continue
                cycles = self.cycles(tiling)
                if cycles < below or (best and cycles == below and number < best[1]):
                    best, below = (cycles, number, tiling), cycles
        return best and (best[0], best[2])

    def _bounded_tiles(self, given: WinogradParameters) -> Iterator[tuple[float, tuple[int, int]]]:
        """The register tiles to try, each after a lower bound of the cycles of its tilings."""
        factor = self.kernel.conv.groups * self.handicap * _ROUNDED
        last, least = 0, math.inf
        for rows, vectors in self.register_tiles(given):
            # Narrow edges and the last rows have smaller tiles.
            fewer = range(1 if vectors != last else rows, rows + 1)
            one = min(self._one(Tiling(n, n, vectors, 1), n) / n for n in fewer)
            last, least = vectors, min(one, least if vectors == last else math.inf)
            panels = ceil_div(self.out_vectors, vectors)
            cycles = self.into + panels * (self.tile_points * least + self.back * vectors)
            yield cycles * factor, (rows, vectors)

    def tilings(self, given: WinogradParameters) -> Iterator[Tiling]:
        for tile in self.register_tiles(given):
            yield from self.tilings_of(*tile, given)

    def register_tiles(self, given: WinogradParameters) -> Iterator[tuple[int, int]]:
        """The register tiles to try: rows and vectors."""
        count = self.tile_count
        lanes = self.target.multiplies_by_lane and not given.rows  # tiles that spill are left out
        for vectors in range(1, min(6, self.out_vectors) + 1):
            for rows in range(min(2, count), min(16, count) + 1):
                if not fits(self.target, rows, vectors):
                    break
                if lanes and not by_lane(self.target, rows, vectors):
                    break
                if given.rows in (None, rows) and given.vectors in (None, vectors):
                    yield rows, vectors

    def tilings_of(self, rows: int, vectors: int, given: WinogradParameters) -> Iterator[Tiling]:
        """The tilings to try with a register tile: blocks and parts."""
        panels = ceil_div(self.out_vectors, vectors)
        for tiles in self._blocks(rows, vectors, given.tiles):
            for parts in (1, 2, 4, 8):
                if parts <= panels and given.parts in (None, parts):
                    yield Tiling(tiles, rows, vectors, parts)

    def _blocks(self, rows: int, vectors: int, given: int | None) -> list[int]:
        """Numbers of tiles of a block to try; only `given` if set."""
        if given:
            return [given] if given % rows == 0 else []
        l2, count = self.target.l2_bytes, self.tile_count

        def room(tiles: int, share: float) -> bool:
            return self.scratch(Tiling(tiles, rows, vectors, 1)) <= share * l2

        sizes = [rows]
        for tiles in (2 * rows, 3 * rows):
            if tiles <= _MOST_TILES and tiles - rows < count and room(tiles, _SCRATCH_SHARE):
                sizes.append(tiles)
        weights_exceed_l3 = (
            self._weights(vectors) > self.target.costs.l3_share * self.target.l3_bytes
        )
        if weights_exceed_l3 and rows * vectors >= _FULL_TILE:
            for blocks in _LARGE_BLOCKS:
                tiles = ceil_div(ceil_div(count, blocks), rows) * rows
                if tiles > sizes[-1] and room(tiles, _LARGE_SCRATCH):
                    sizes.append(tiles)
        return sizes

    def _weights(self, vectors: int) -> float:
        """Bytes of U."""
        lanes = ceil_div(self.out_vectors, vectors) * vectors * self.kernel.lanes
        return self.points * self.steps * lanes * self.item

    def cycles(self, tiling: Tiling) -> float:
        """Estimated cycles of one core: transforms, products, the stream of weights.

        The last round of chunks leaves cores idle; the estimate is the worst of one, two and four
        cores.
        """
        loads = self._chunk_loads(tiling)
        cycles = total = self._total(tiling)
        idle = self.target.costs.idle_cores
        everything = sum(load * count for load, count in loads)
        for cores in (2, 4):
            busy = [0.0] * cores
            for load, count in loads:
                rounds, more = divmod(count, cores)
                busy = sorted(b + rounds * load for b in busy)
                busy = [b + load * (i < more) for i, b in enumerate(busy)]
            share = max(busy) / everything
            cycles = max(cycles, share * total * min(cores, 2) * idle)
        return cycles * self.handicap

    def _chunk_loads(self, tiling: Tiling) -> list[tuple[int, int]]:
        """The work of chunks, relative to each other, with their number; the largest first.

        The last part may have fewer panels than the others, the last block fewer tiles.
        """
        panels = ceil_div(self.out_vectors, tiling.vectors)
        per_part = ceil_div(panels, tiling.parts)
        whole, rest = divmod(panels, per_part)
        full, last = self._row_panels(tiling)
        blocks, groups = ceil_div(self.tile_count, tiling.tiles), self.kernel.conv.groups
        loads = [
            (size * rows, parts * count * groups)
            for size, parts in ((per_part, whole), (rest, 1))
            for rows, count in ((full, blocks - 1), (last, 1))
            if size and count
        ]
        return sorted(loads, reverse=True)

    def _row_panels(self, tiling: Tiling) -> tuple[int, int]:
        """Register tiles that make up a block, and those of the last one."""
        left = (self.tile_count - 1) % tiling.tiles + 1
        return tiling.tiles // tiling.rows, ceil_div(left, tiling.rows)

    def _one(self, tiling: Tiling, rows: int) -> float:
        """Cycles of one register tile of `rows` rows at one point."""
        target, costs, vectors = self.target, self.target.costs, tiling.vectors
        one = step_cycles(target, rows, vectors, self.work) * self.steps
        one += (costs.store + costs.winograd_sum * (self.sums - 1)) * rows * vectors
        if rows * vectors < 2 * target.fma_units * target.fma_latency:
            one += target.fma_latency * self.sums  # the pipeline drains when a sum ends
        u_bytes = self.steps * vectors * self.kernel.lanes * self.item
        if tiling.tiles > rows and u_bytes > target.l1_bytes:
            one += u_bytes / (_U_RATE * costs.l2_read)
        elif costs.weights_shown and self._weights(vectors) > target.l1_bytes:
            one += costs.weights_shown * min(one, u_bytes / costs.l2_read_beside_fma)
        # A broadcast that is used once is part of the multiply-add.
        folded = vectors == 1 and target.folds_broadcast
        return one * (1 + costs.operand_traffic * (1 / rows + (0 if folded else 1 / vectors)))

    def _integer_stream(self, tiling: Tiling, first: bool) -> float:
        """Least cycles of one register tile's U of integers, of the first of a block or another."""
        u_bytes = self.steps * tiling.vectors * self.kernel.lanes * self.item
        if self.kernel.conv.precision.accumulate.is_float or not (
            first or u_bytes > self.target.l1_bytes
        ):
            return 0.0
        costs = self.target.costs
        return u_bytes / (costs.winograd_integer_stream * costs.l2_read_beside_fma)

    def _total(self, tiling: Tiling) -> float:
        _, _, vectors, parts = tiling
        if tiling[:3] not in self.known:
            self.known[tiling[:3]] = self._products(tiling)
        back = self.back * ceil_div(self.out_vectors, vectors) * vectors
        products = self.known[tiling[:3]]
        return (self.into * parts + products + back) * self.kernel.conv.groups

    def _products(self, tiling: Tiling) -> float:
        """Cycles of the products and the stream of weights, the same for any number of parts."""
        tiles, rows, vectors, _ = tiling
        target, costs = self.target, self.target.costs
        blocks = ceil_div(self.tile_count, tiles)
        panels = ceil_div(self.out_vectors, vectors)
        weights = self._weights(vectors)
        stream = 0.0  # of one point's and panel's weights from L3
        if weights > costs.l2_share * target.l2_bytes:
            rate = costs.l3_or_dram_read(weights, target.l3_bytes)
            stream = weights / rate
            first = dram_cycles(self.problem, target, weights)
            stream += max(0.0, first - weights / rate) / blocks
            stream /= self.points * panels
        full, last = self._row_panels(tiling)
        products = 0.0
        for points, share in self.shares:
            held = math.ceil(tiles * share)
            count = full if held == tiles else ceil_div(held, rows)
            one = self._one(tiling, rows if held == tiles else ceil_div(held, count))
            # The first register tile of a block waits for weights, the others read them from L2.
            slow = max(costs.overlapped(one, stream), self._integer_stream(tiling, True))
            one = max(one, self._integer_stream(tiling, False))
            later = (blocks - 1) * (full - 1) + last - 1 if held == tiles else blocks * (count - 1)
            products += points * (blocks * slow + later * one)
        products *= panels
        if self.scratch(tiling) > target.l2_bytes:
            stream = self.v_bytes * self.tile_count * panels / costs.l3_read
            products = costs.overlapped(products, stream)
        return products
