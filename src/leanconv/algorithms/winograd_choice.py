"""Which kernel of fused Winograd: blocks, register tile and parts, by estimated cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from leanconv.algorithms.problem import Problem, cold_cycles, plane_cycles
from leanconv.algorithms.winograd_kernel import Pair, WinogradConv, unplanned
from leanconv.codegen.tiling import fits, step_cycles
from leanconv.codegen.types import ITEMSIZE
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_INPUT_CYCLES, _OUTPUT_CYCLES = 7.0, 5.0  # for each vector of V and of M
_PLANAR_CYCLES = 3.0  # more, where vectors are gathered by transposing
_WHOLE_CYCLES = 2.0  # more, where a row of the patch does not fit half a vector
_TURNED_CYCLES = 2.0  # more, where results are turned and stored in pieces of rows
_SUM_CYCLES = 0.8  # of adding one more accumulator to M
_SCRATCH_SHARE = 0.6  # of the second cache that V and M of a block may fill
_MOST_TILES = 20  # of a block of several panels
# Bytes of weights a cycle that one core is given, by the share of the third cache that they fill.
_STREAMS = ((0.5, 16.0), (0.75, 13.0), (0.9, 10.0), (math.inf, 6.0))
_BEHIND = 0.15  # of the shorter of products and stream, that the longer one does not hide
_TRAFFIC = 0.04  # what operands cost beside the arithmetic in tiles of few rows or vectors


class Tiling(NamedTuple):
    """Blocks and register tile of a kernel, as `WinogradConv` has them."""

    tiles: int
    rows: int
    vectors: int
    parts: int


def best_kernel(
    problem: Problem, target: Target, sizes: Mapping[Pair, int], wanted: Mapping[str, int]
) -> tuple[float, WinogradConv] | None:
    """The kernel with the fewest estimated cycles of one core, and these.

    Args:
        problem: what is computed, without dilation.
        target: the machine.
        sizes: outputs of a tile (h, w) to consider, each with the products of a partial sum.
        wanted: those of tiles, rows, vectors and parts that are fixed.

    Returns:
        None if no kernel has what is wanted.
    """
    lanes = target.lanes(problem.spec.dtype)
    kernels = [replace(unplanned(problem, m, lanes), sums=sums) for m, sums in sizes.items()]
    models = sorted(
        (_Model.of(problem, kernel, target) for kernel in kernels), key=lambda m: m.least
    )
    best: tuple[float, Tiling, _Model] | None = None
    for model in models:
        if best and model.least >= best[0]:
            break
        for tiling in model.tilings(wanted):
            cycles = model.cycles(tiling)
            if best is None or cycles < best[0]:
                best = cycles, tiling, model
    if best is None:
        return None
    cycles, tiling, model = best
    cycles += plane_cycles(problem, target)
    return cycles, replace(model.kernel, **tiling._asdict())


def ranked_tilings(
    problem: Problem, target: Target, m: Pair, sums: int
) -> list[tuple[float, Tiling]]:
    """All tilings for tiles of m outputs, the cheapest first, with their estimated cycles."""
    kernel = unplanned(problem, m, target.lanes(problem.spec.dtype))
    model = _Model.of(problem, replace(kernel, sums=sums), target)
    traffic = plane_cycles(problem, target)
    return sorted((model.cycles(tiling) + traffic, tiling) for tiling in model.tilings({}))


@dataclass(frozen=True)
class _Model:
    """Estimates for one size of tiles, as plain numbers: hundreds of tilings are compared.

    Attributes:
        problem: what is computed.
        kernel: whose blocks and register tile are still to be chosen.
        target: the machine.
        steps: length of the reduction, the mean over the points; `sums` partial sums.
        tile_count, points, out_vectors: of the kernel.
        v_bytes, item: bytes of V for each tile, and of one element.
        into, back: cycles of the transforms.
    """

    problem: Problem
    kernel: WinogradConv
    target: Target
    steps: float
    sums: int
    tile_count: int
    points: int
    out_vectors: int
    v_bytes: int
    item: int
    into: float
    back: float

    @staticmethod
    def of(problem: Problem, kernel: WinogradConv, target: Target) -> _Model:
        """The estimates of a kernel."""
        item, vectors = ITEMSIZE[kernel.dtype], ceil_div(kernel.outputs, kernel.lanes)
        per_vector = _INPUT_CYCLES + (_PLANAR_CYCLES if kernel.planar else 0.0)
        if kernel.planar and kernel.grain == 1 and 2 * kernel.alpha[1] > kernel.lanes:
            per_vector += _WHOLE_CYCLES
        back = _OUTPUT_CYCLES + (0.0 if kernel.y.lanes_contiguous else _TURNED_CYCLES)
        each = kernel.tile_count * kernel.points
        return _Model(
            problem,
            kernel,
            target,
            kernel.all_steps / kernel.points,
            ceil_div(kernel.steps, kernel.sums),
            kernel.tile_count,
            kernel.points,
            vectors,
            kernel.points * kernel.channel_blocks * kernel.lanes * item,
            item,
            each * kernel.channel_blocks * per_vector,
            each * back,
        )

    @property
    def least(self) -> float:
        """Fewer cycles than any tiling takes."""
        steps = self.tile_count * self.points * self.out_vectors * self.steps
        products = steps / self.target.fma_units
        return (self.into + self.back * self.out_vectors + products) * self.kernel.groups

    def scratch(self, tiling: Tiling) -> int:
        """Bytes of V and M of a block, nearly."""
        m_bytes = self.points * tiling.vectors * self.kernel.lanes * self.item
        return tiling.tiles * (self.v_bytes + m_bytes)

    def tilings(self, wanted: Mapping[str, int]) -> Iterator[Tiling]:
        """Blocks, register tiles and parts that may be worth it."""
        room = _SCRATCH_SHARE * self.target.l2_bytes
        count = self.tile_count
        for vectors in range(1, min(6, self.out_vectors) + 1):
            panels = ceil_div(self.out_vectors, vectors)
            for rows in range(min(2, count), min(16, count) + 1):
                if not fits(self.target, rows, vectors):
                    break
                for tiles in (rows, 2 * rows, 3 * rows):
                    several = tiles > rows
                    if several and (tiles > _MOST_TILES or tiles - rows >= count):
                        break
                    if several and self.scratch(Tiling(tiles, rows, vectors, 1)) > room:
                        break
                    for parts in (1, 2, 4, 8):
                        tiling = Tiling(tiles, rows, vectors, parts)
                        if parts > panels:
                            break
                        if all(getattr(tiling, name) == value for name, value in wanted.items()):
                            yield tiling

    def cycles(self, tiling: Tiling) -> float:
        """Estimated cycles of one core: transforms, products, the stream of weights.

        The last round of chunks leaves cores idle: judged by what two and four cores would take.
        """
        chunks = tiling.parts * ceil_div(self.tile_count, tiling.tiles) * self.kernel.groups
        cycles = total = self._total(tiling)
        for cores in (2, 4):
            rounds = ceil_div(chunks, cores)
            cycles = max(cycles, rounds * total / chunks * min(cores, 2) * 0.97)
        return cycles

    def _total(self, tiling: Tiling) -> float:
        tiles, rows, vectors, parts = tiling
        target, blocks = self.target, ceil_div(self.tile_count, tiles)
        panels = ceil_div(self.out_vectors, vectors)
        one = step_cycles(target, rows, vectors) * self.steps
        one += (2.0 + _SUM_CYCLES * (self.sums - 1)) * rows * vectors
        products = one * self.points * panels * (tiles // rows) * blocks
        products *= 1 + _TRAFFIC * (1 / rows + 1 / vectors)
        weights = self.points * self.steps * panels * vectors * self.kernel.lanes * self.item
        if weights > target.l2_bytes // 2:
            share = weights / target.l3_bytes if target.l3_bytes else 0.0
            rate = next(bytes_ for most, bytes_ in _STREAMS if share <= most)
            stream = weights * blocks / rate
            first = cold_cycles(self.problem, weights)
            stream += max(0.0, first - weights / rate)
            products = max(products, stream) + _BEHIND * min(products, stream)
        if self.scratch(tiling) > target.l2_bytes:
            products *= 1.3
        back = self.back * panels * vectors
        return (self.into * parts + products + back) * self.kernel.groups
