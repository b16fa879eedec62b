"""The best kernels of Winograd for a problem: tile of outputs, blocks, register tile, parts."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from leanconv.algorithms.common.good_choices import good_choices
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem, typical, typicals
from leanconv.algorithms.winograd.cost import Tiling, best_kernel, ranked_tilings, shape_cycles
from leanconv.algorithms.winograd.integers import exact_sizes
from leanconv.algorithms.winograd.parameters import WinogradParameters
from leanconv.algorithms.winograd.pieces import Piece, split
from leanconv.algorithms.winograd.shape import Pair, WinogradShape
from leanconv.algorithms.winograd.sizes import MOST_ALPHA, sizes_of, sums_of, taps_of, within_bytes
from leanconv.errors import SpecError
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.symbolic import least
from leanconv.target import Target

# Of maps of any size: chunks below which there are more parts.
_FEW_CHUNKS = 2
_FEW_TILES = 8  # of many blocks: each reads all weights, which takes longer than is estimated
_MOST_SIZES, _MOST_SHAPES = 4, 3  # tiles of outputs worth trying, and kernels for each


def best_shape(
    problem: Problem, target: Target, given: WinogradParameters
) -> tuple[float, WinogradShape]:
    """The best shape of a piece, with its cycles.

    Padding and offsets do not affect the choice, and many pieces differ only in these; without them
    one cached result serves all.
    """
    if problem.any_size:
        return _best_of_any_size(problem, target, given)
    window = replace(problem.window, pad=(0, 0, 0))
    anywhere = replace(problem, window=window, x_offset=0, y_offset=0)
    cycles, shape = _best_anywhere(anywhere, target, given)
    pad = problem.window.pad[1:]
    return cycles, replace(shape, pad=pad, x_offset=problem.x_offset, y_offset=problem.y_offset)


def _best_of_any_size(
    problem: Problem, target: Target, given: WinogradParameters
) -> tuple[float, WinogradShape]:
    """The shape whose tiles are those for maps of the usual sizes, the best of these for its own.

    Parts are as few as keep cores busy. Symbols have no cost.
    """
    good = _good_shapes(typical(problem), target, given)
    shapes = [_like(usual, problem, given) for usual in good]
    shape = shapes[0]
    if len(shapes) > 1:
        rare = [one for one in shapes if one.tiles >= _FEW_TILES or one.blocks <= _FEW_CHUNKS]
        shape = min(rare or shapes, key=lambda shape: shape_cycles(problem, shape, target))
    counts = isinstance(shape.tile_count, int)
    return shape_cycles(problem, shape, target) if counts else 0.0, shape


def _like(usual: WinogradShape, problem: Problem, given: WinogradParameters) -> WinogradShape:
    """The shape of a problem with the tiles of another one."""
    shape = WinogradShape.of(problem, usual.m, usual.lanes, usual.sums)
    chosen = {name: getattr(usual, name) for name in ("rows", "vectors", "tiles", "narrow")}
    shape = replace(shape, **chosen)
    busy = ceil_div(_FEW_CHUNKS, shape.groups * shape.blocks)
    return replace(shape, parts=given.parts or least(busy, shape.panels))


@lru_cache(maxsize=256)
def _good_shapes(
    problem: Problem, target: Target, given: WinogradParameters
) -> list[WinogradShape]:
    """Few shapes, of which one is good for each of a problem's usual sizes."""
    return good_choices(
        typicals(problem),
        lambda problem: _best_anywhere(problem, target, given)[1],
        lambda problem, usual: shape_cycles(problem, _like(usual, problem, given), target),
    )


@lru_cache(maxsize=256)
def _best_anywhere(
    problem: Problem, target: Target, given: WinogradParameters
) -> tuple[float, WinogradShape]:
    found = within_bytes(problem, target, sizes_of(problem, given))
    sizes = {m: given.sums or sums_of(problem, m) for m in found}
    best = best_kernel(problem, target, sizes, given)
    if best is None:
        raise SpecError(f"{problem}: no fused Winograd kernel has {given}; leave some of these out")
    return best


def best_shapes(
    pieces: list[Piece], target: Target, given: WinogradParameters
) -> list[tuple[float, WinogradShape]]:
    """The best shape of every piece; all share m and the panels, and so the packed weights."""
    if len(pieces) > 1:  # they share the packing, but not the edges
        given = replace(given, edges="whole")
    first = best_shape(pieces[0].problem, target, given)
    _, shape = first
    shared = WinogradParameters(
        m=shape.m, sums=shape.sums, edges=shape.edges, vectors=shape.vectors
    )
    return [first, *(best_shape(piece.problem, target, shared) for piece in pieces[1:])]


def choices(problem: Problem, target: Target, lean: bool) -> list[Choice]:
    """The best tiles of outputs, each with the register tiles that are estimated best."""
    pieces = split(problem)
    first, taps = pieces[0].problem, taps_of(problem)
    edges = "whole" if len(pieces) > 1 else None
    square = problem.window.out[1] == problem.window.out[2] and taps[0] == taps[1]
    found = [
        (m, _ranked(first, target, m, edges))
        for m in within_bytes(first, target, sizes_of(first, WinogradParameters()))
        if not (square and m[0] > m[1])  # the same as with height and width exchanged
    ]
    found.sort(key=lambda size: size[1][0].cycles)
    chosen = []
    for _, ranked in found[:_MOST_SIZES]:
        shapes: dict[tuple[int, int], _Ranked] = {}
        for one in ranked:
            shapes.setdefault((one.tiling.rows, one.tiling.vectors), one)
        chosen += list(shapes.values())[: _MOST_SHAPES if len(pieces) == 1 else 1]
    if lean:
        chosen += _leaner(first, target, edges, found)
    if first.any_size:  # kernels for any size are those for maps of the usual ones
        chosen = [one for one in chosen if one.exists(typical(first), target)]
    return [one.choice(len(pieces)) for one in chosen]


class _Ranked(NamedTuple):
    """A kernel for tiles of m outputs: estimated cycles, its blocks and register tile."""

    cycles: float
    tiling: Tiling
    packing: WinogradParameters

    def choice(self, pieces: int) -> Choice:
        """The choice, for a problem of this number of pieces."""
        return Choice("winograd", self._given, self.cycles * pieces)

    @property
    def _given(self) -> WinogradParameters:
        return replace(self.packing, **self.tiling._asdict())

    def exists(self, problem: Problem, target: Target) -> bool:
        """Whether a fused kernel for another problem may have all the same parameters."""
        m, sums = self.packing.m, self.packing.sums
        assert m is not None
        assert sums is not None
        return best_kernel(problem, target, {m: sums}, self._given) is not None


def _ranked(problem: Problem, target: Target, m: Pair, edges: str | None) -> list[_Ranked]:
    """The kernels for tiles of m outputs, the cheapest first; `edges` None: with both kinds."""
    sums = sums_of(problem, m)
    return [
        _Ranked(cycles, tiling, WinogradParameters(m=m, sums=sums, edges=edge))
        for cycles, tiling, edge in ranked_tilings(problem, target, m, sums, edges)
    ]


def _leaner(
    problem: Problem,
    target: Target,
    edges: str | None,
    found: list[tuple[Pair, list[_Ranked]]],
) -> list[_Ranked]:
    """Kernels of fewer weights than the fastest ones, each with smaller and smaller blocks.

    Args:
        problem, target, edges: as of `_ranked`.
        found: tiles of outputs, the fastest first, with their kernels.
    """
    taps = taps_of(problem)

    def points(m: Pair) -> int:
        return (m[0] + taps[0] - 1) * (m[1] + taps[1] - 1)

    widths = range(2, min(4, problem.window.out[2], MOST_ALPHA - taps[1] + 1) + 1)
    along = [(1, m) for m in widths if min(taps) > 1]
    if not problem.precision.accumulate.is_float:
        along = [m for m in along if m in exact_sizes(problem, taps)]
    lines = [(m, _ranked(problem, target, m, edges)) for m in along if m not in dict(found)]
    rest = sorted(found[_MOST_SIZES:] + lines, key=lambda size: size[1][0].cycles)
    fewest = min((points(m) for m, _ in found[:_MOST_SIZES]), default=0)
    chosen = []
    for m, ranked in rest:
        if points(m) < fewest:
            fewest, tiles = points(m), math.inf
            for one in ranked:
                if one.tiling.tiles < tiles:
                    tiles = one.tiling.tiles
                    chosen.append(one)
    return chosen
