"""Winograd as a method: what it takes, its two forms, what they cost, and its best kernels.

A kernel is chosen by tile of outputs, blocks, register tile and parts.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.decompose import residue_strides
from leanconv.algorithms.interface import Algorithm, Candidate, good_choices
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem, split_phases, typical, typicals
from leanconv.algorithms.winograd.candidates import fused, in_stages
from leanconv.algorithms.winograd.cost import (
    Tiling,
    best_kernel,
    ranked_tilings,
    shape_cycles,
    staged_cycles,
    transforming_cycles,
)
from leanconv.algorithms.winograd.shape import Pair, WinogradShape
from leanconv.algorithms.winograd.sizes import (
    LENGTHS,
    MOST_ALPHA,
    WHOLE,
    Piece,
    WinogradParameters,
    exact_sizes,
    is_cut,
    least_tile,
    offered_from,
    reject_integers,
    reject_pieces,
    sizes_of,
    split,
    sums_of,
    takes_precision,
    taps_of,
    tile_error,
    tile_losses,
    within_bytes,
)
from leanconv.codegen.partial_sums import LENGTH
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
    window = replace(problem.conv.window, pad=(0, 0, 0))
    anywhere = with_conv(problem, window=window, x_offset=0, y_offset=0)
    cycles, shape = _best_anywhere(anywhere, target, given)
    return cycles, replace(shape, conv=problem.conv)


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
    busy = ceil_div(_FEW_CHUNKS, shape.conv.groups * shape.blocks)
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
    square = problem.conv.window.out[1] == problem.conv.window.out[2] and taps[0] == taps[1]
    found = [
        (m, _ranked(first, target, m, edges))
        for m in within_bytes(first, target, sizes_of(first, WinogradParameters()))
        if not (square and m[0] > m[1])  # the same as with height and width exchanged
    ]

    def cycles(size: tuple[Pair, list[_Ranked]]) -> float:
        shape = WinogradShape.of(first, size[0], first.conv.lanes(target), sums_of(first, size[0]))
        return size[1][0].cycles + transforming_cycles(first, shape, target)

    found.sort(key=cycles)
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
        return Choice("winograd", self._given, self.cycles * pieces)

    @property
    def _given(self) -> WinogradParameters:
        return replace(self.packing, **self.tiling._asdict())

    def exists(self, problem: Problem, target: Target) -> bool:
        """Return whether a fused kernel for another problem may have all the same parameters."""
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

    widths = range(2, min(4, problem.conv.window.out[2], MOST_ALPHA - taps[1] + 1) + 1)
    along = [(1, m) for m in widths if min(taps) > 1]
    if not problem.conv.precision.accumulate.is_float:
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


_STAGES_HANDICAP = 2.5  # how much faster stages must be to be chosen without being named


def _reject(problem: Problem, target: Target) -> str | None:
    """Why fused Winograd cannot compute a problem; None if it can."""
    conv, window = problem.conv, problem.conv.window
    if not window.is_flat:
        return "a depth axis"
    if reason := split_phases(problem, target):
        return reason
    for access, channels in ((conv.x, conv.inputs), (conv.y, conv.outputs)):
        if conv.groups > 1 and channels % access.block:
            return f"groups of {channels} channels do not fill blocks of {access.block}"
    taps = taps_of(problem)
    if max(taps) < 2:
        return "one tap in each direction: nothing to save"
    activation = conv.epilogue.activation
    if activation is not None and activation.before_residual and is_cut(conv.window):
        return "pieces add up in the output, and the activation comes before the residual"
    if reason := reject_pieces(window):
        return reason
    if not conv.precision.accumulate.is_float:
        return reject_integers(problem, target, taps_of(problem))
    if tile_error(problem, least_tile(taps), LENGTHS[-1]) > problem.max_error:
        return f"an error above {problem.max_error:.1e} even with the smallest tiles"
    return None if conv.x.lanes_contiguous else _reject_planes(problem, target)


def _reject_planes(problem: Problem, target: Target) -> str | None:
    """Why vectors of channels cannot be gathered from planes; None if they can."""
    conv = problem.conv
    stride = residue_strides(conv.window)[2]
    if stride not in (1, 2, 4):
        return f"a stride of {stride} between channels in planes; 1, 2 or 4 can be gathered"
    if conv.x.spatial[2] * conv.window.dilation[2] != 1 and stride != 1:
        return "a stride between columns that are not neighbours in memory"
    if conv.lanes(target) < stride:
        return f"a stride of {stride} for vectors of {problem.conv.lanes(target)}"
    if not target.runtime_masks:
        return "masks computed at run time, which this target lacks"
    return None


def _cost(problem: Problem, target: Target) -> float:
    return min(_form_cycles(problem, target).values())


def _form_cycles(problem: Problem, target: Target) -> dict[str, float]:
    """Estimated cycles of both forms, of `stages` with a handicap for their memory."""
    pieces = split(problem)
    chosen = best_shapes(pieces, target, WinogradParameters())
    staged = staged_cycles(_staged_shapes(pieces, target, chosen[0][1].m), target)
    return {"fused": sum(cycles for cycles, _ in chosen), "stages": _STAGES_HANDICAP * staged}


def _candidate(problem: Problem, target: Target, given: WinogradParameters) -> Candidate:
    form = given.form
    if given == WinogradParameters():
        cycles = _form_cycles(typical(problem) if problem.any_size else problem, target)
        form = min(cycles, key=lambda name: cycles[name])
    given = replace(given, form=None)
    return (_stages if form == "stages" else _fused)(problem, target, given)


def _stages(problem: Problem, target: Target, given: WinogradParameters) -> Candidate:
    """The separate stages, with the tiles of outputs that the fused form would take."""
    wrong = [name for name in given.given() if name != "m"]
    if wrong:
        raise SpecError(
            f"algorithm winograd: {wrong[0]} goes with form=fused; expected m alone beside "
            "form=stages"
        )
    pieces = split(problem)
    whole = LENGTH if problem.conv.precision.accumulate.is_float else WHOLE
    _, shape = best_shape(pieces[0].problem, target, replace(given, sums=whole))
    shapes = _staged_shapes(pieces, target, shape.m)
    made = in_stages(problem, target, pieces, shapes, tile_error(problem, shape.m, LENGTH))
    return replace(made, losses=tile_losses(problem, shape.m))


def _staged_shapes(pieces: list[Piece], target: Target, m: Pair) -> list[WinogradShape]:
    """The shapes of pieces in stages, for tiles of m outputs of the first one."""
    given = WinogradParameters(m=m)
    return [
        WinogradShape.of(p.problem, sizes_of(p.problem, given)[0], p.problem.conv.lanes(target))
        for p in pieces
    ]


def _fused(problem: Problem, target: Target, given: WinogradParameters) -> Candidate:
    pieces = split(problem)
    shapes = [shape for _, shape in best_shapes(pieces, target, given)]
    made = fused(problem, pieces, shapes, tile_error(problem, shapes[0].m, shapes[0].sums))
    return replace(made, losses=tile_losses(problem, shapes[0].m))


WINOGRAD = Algorithm(
    "winograd",
    WinogradParameters,
    _reject,
    _cost,
    _candidate,
    choices=choices,
    precisions=takes_precision,
    transforms=True,
    takes_phases=True,
    offered_from=offered_from,
)
