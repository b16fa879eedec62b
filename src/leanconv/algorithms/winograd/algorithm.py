"""Winograd as a method: what it takes, its two forms and what they cost."""

from __future__ import annotations

from leanconv.algorithms.decompose import residue_counts, residue_strides
from leanconv.algorithms.interface import Algorithm, Candidate
from leanconv.algorithms.problem import Problem, split_phases, typical
from leanconv.algorithms.winograd.best import best_shape, best_shapes, choices
from leanconv.algorithms.winograd.candidates import fused, in_stages
from leanconv.algorithms.winograd.cost import staged_cycles
from leanconv.algorithms.winograd.integers import WHOLE, reject_integers, takes_precision
from leanconv.algorithms.winograd.parameters import WinogradParameters
from leanconv.algorithms.winograd.pieces import Piece, is_cut, split, too_many_pieces
from leanconv.algorithms.winograd.shape import Pair, WinogradShape
from leanconv.algorithms.winograd.sizes import (
    LENGTHS,
    least_tile,
    offered_from,
    sizes_of,
    taps_of,
    tile_error,
    tile_losses,
)
from leanconv.codegen.partial_sums import LENGTH
from leanconv.errors import SpecError
from leanconv.records import replace
from leanconv.target import Target

_STAGES_HANDICAP = 2.5  # how much faster stages must be to be chosen without being named


def _reject(problem: Problem, target: Target) -> str | None:
    """Why fused Winograd cannot compute a problem; None if it can."""
    window = problem.window
    if not window.is_flat:
        return "a depth axis"
    if problem.y_offset:
        return "the output is written with an offset"
    if reason := split_phases(problem, target):
        return reason
    for access, channels in ((problem.x, problem.group_inputs), (problem.y, problem.group_outputs)):
        if problem.groups > 1 and channels % access.block:
            return f"groups of {channels} channels do not fill blocks of {access.block}"
    taps = taps_of(problem)
    if max(taps) < 2:
        return "one tap in each direction: nothing to save"
    activation = problem.epilogue.activation
    if activation is not None and activation.before_residual and is_cut(problem.window):
        return "pieces add up in the output, and the activation comes before the residual"
    too_far = any(d > i for d, i in zip(window.dilation, window.size, strict=True))
    if too_far or any(r > o for r, o in zip(residue_counts(window), window.out, strict=True)):
        return f"a dilation of {max(window.dilation)} larger than the image"
    if reason := too_many_pieces(window):
        return reason
    if not problem.precision.accumulate.is_float:
        return reject_integers(problem, target, taps_of(problem))
    if tile_error(problem, least_tile(taps), LENGTHS[-1]) > problem.max_error:
        return f"an error above {problem.max_error:.1e} even with the smallest tiles"
    return None if problem.x.lanes_contiguous else _reject_planes(problem, target)


def _reject_planes(problem: Problem, target: Target) -> str | None:
    """Why vectors of channels cannot be gathered from planes; None if they can."""
    stride = residue_strides(problem.window)[2]
    if stride not in (1, 2, 4):
        return f"a stride of {stride} between channels in planes; 1, 2 or 4 can be gathered"
    if problem.x.spatial[2] * problem.window.dilation[2] != 1 and stride != 1:
        return "a stride between columns that are not neighbours in memory"
    if problem.lanes(target) < stride:
        return f"a stride of {stride} for vectors of {problem.lanes(target)}"
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
    whole = LENGTH if problem.precision.accumulate.is_float else WHOLE
    _, shape = best_shape(pieces[0].problem, target, replace(given, sums=whole))
    shapes = _staged_shapes(pieces, target, shape.m)
    made = in_stages(problem, target, pieces, shapes, tile_error(problem, shape.m, LENGTH))
    return replace(made, losses=tile_losses(problem, shape.m))


def _staged_shapes(pieces: list[Piece], target: Target, m: Pair) -> list[WinogradShape]:
    """The shapes of pieces in stages, for tiles of m outputs of the first one."""
    given = WinogradParameters(m=m)
    return [
        WinogradShape.of(p.problem, sizes_of(p.problem, given)[0], p.problem.lanes(target))
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
