"""Choosing the parameters of Winograd: form, tile of outputs, blocks, register tile, parts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from leanconv.algorithms.decompose import (
    part_ranges,
    phase_count,
    phase_taps,
    residue_counts,
    residue_strides,
)
from leanconv.algorithms.interface import Algorithm, Candidate
from leanconv.algorithms.magnitudes import LARGEST, Losses, plain_losses
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem, most_weight_bytes, split_phases, typical
from leanconv.algorithms.winograd.candidates import fused, in_stages
from leanconv.algorithms.winograd.cost import (
    Tiling,
    best_kernel,
    ranked_tilings,
    shape_cycles,
    staged_cycles,
)
from leanconv.algorithms.winograd.integers import (
    WHOLE,
    exact_sizes,
    named_size,
    reject_integers,
    takes_precision,
)
from leanconv.algorithms.winograd.parameters import WinogradParameters
from leanconv.algorithms.winograd.pieces import (
    ADDED,
    LARGEST_TAPS,
    Piece,
    is_cut,
    split,
    too_many_pieces,
)
from leanconv.algorithms.winograd.shape import Pair, WinogradShape
from leanconv.codegen.partial_sums import LENGTH
from leanconv.errors import SpecError
from leanconv.spec.format import ceil_div
from leanconv.symbols import by_numbers, least
from leanconv.target import Target
from leanconv.winograd.error import (
    error_estimate,
    largest_growth,
    lost_inputs,
    lost_products,
)
from leanconv.winograd.matrices import transform

MOST_ALPHA = 9  # points along an axis; more amplify rounding beyond the default error
_EXACT_ALPHA = 8  # points up to which partial sums are shortened until `_AIM` is met
# Products of one partial sum; above the error `_AIM` shorter sums are chosen.
_LENGTHS = (128, 64, 32, 16)
_SMALL_IMAGE = 16  # outputs along an axis, up to which tiles along one axis are considered
_MEDIUM_IMAGE = 64  # outputs along an axis, up to which m_h and m_w may differ by two
# Of maps of any size: chunks below which there are more parts.
_FEW_CHUNKS = 8
_STAGES_HANDICAP = 2.5  # how much faster stages must be to be chosen without being named
_AIM = 1e-5  # in float32


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
    taps = _taps(problem)
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
        return reject_integers(problem, target, _taps(problem))
    if _error(problem, _least(taps), _LENGTHS[-1]) > problem.max_error:
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


def _taps(problem: Problem) -> Pair:
    """Taps of one phase's filter (h, w), those of the largest piece of a long kernel."""
    window = problem.window
    h, w = (
        min(phase_taps(k, s), phase_taps(k, s * ceil_div(phase_taps(k, s), LARGEST_TAPS)))
        for k, s in zip(window.kernel[1:], residue_strides(window)[1:], strict=True)
    )
    return h, w


def _least(taps: Pair) -> Pair:
    """The smallest tile of outputs that saves anything."""
    return 2 if taps[0] > 1 else 1, 2 if taps[1] > 1 else 1


def _error(problem: Problem, m: Pair, sums: int) -> float:
    """The error to expect with tiles of m outputs and partial sums of `sums` products."""
    if not problem.precision.accumulate.is_float:
        return 0.0
    window, taps = problem.window, _taps(problem)
    height, width = transform(m[0], taps[0]), transform(m[1], taps[1])
    stride = residue_strides(window)
    phases = math.prod(
        phase_count(k, s) for k, s in zip(window.kernel[1:], stride[1:], strict=True)
    )
    steps = problem.group_inputs * phases
    pairs = zip((height, width), window.kernel[1:], stride[1:], strict=True)
    axes = [(made, _filters(kernel, s, made.r)) for made, kernel, s in pairs if made.alpha > 1]
    error = error_estimate(
        *(made for made, _ in axes),
        reduction=steps,
        sums=sums,
        dtype=problem.dtype,
        filters=[taps for _, taps in axes],
    )
    return error * ADDED if is_cut(window) else error


def _losses(problem: Problem, m: Pair) -> Losses | None:
    """Products, and inputs transformed in sums of alpha each, weigh as the points say.

    Integers lose nothing.
    """
    if not problem.precision.accumulate.is_float:
        return None
    axes = [transform(each, taps) for each, taps in zip(m, _taps(problem), strict=True)]
    plain, steps = plain_losses(problem), problem.reduction / math.prod(made.r for made in axes)
    sums = 2 * LARGEST * steps * math.sqrt(math.prod(made.r for made in axes))
    inputs = 2 * LARGEST * steps * math.sqrt(problem.reduction) * sum(made.alpha for made in axes)
    return Losses(
        sums * lost_products(*axes),
        plain.inputs + inputs * lost_inputs(*axes),
        largest_growth(*axes),
        transforms=True,
    )


def _filters(kernel: int, stride: int, most: int) -> list[int]:
    """Taps of the phases of a kernel, and of those of its pieces where it is cut."""
    cuts = [stop - first for first, stop in part_ranges(kernel, most * stride)]
    return [phase_taps(k, stride, p) for k in cuts for p in range(phase_count(k, stride))]


def _sums(problem: Problem, m: Pair) -> int:
    """Products of one partial sum: as many as the error allows; all of integers."""
    if not problem.precision.accumulate.is_float:
        return WHOLE
    most = max(a + r - 1 for a, r in zip(m, _taps(problem), strict=True))
    aim = problem.max_error
    if most <= _EXACT_ALPHA:
        aim = min(aim, problem.dtype.scaled_error(_AIM))
    return next((s for s in _LENGTHS if _error(problem, m, s) <= aim), _LENGTHS[-1])


def _sizes(problem: Problem, given: WinogradParameters) -> list[Pair]:
    """The tiles of outputs to consider: the one that is given, or all within the default error."""
    taps = _taps(problem)
    if not problem.precision.accumulate.is_float:
        exact = exact_sizes(problem, taps)
        if given.m:
            return named_size(exact, given.m)
        return [m for m in exact if _worth(problem, m)] or exact
    if given.m:
        # Along axes of one tap nothing is saved.
        sizes = [(given.m[0] if taps[0] > 1 else 1, given.m[1] if taps[1] > 1 else 1)]
    else:
        sizes = [m for m in _all_sizes(taps) if _worth(problem, m)]
        sums = given.sums or _LENGTHS[-1]
        within = [m for m in sizes if _error(problem, m, sums) <= problem.max_error]
        sizes = within or [_least(taps)]
    if max(m + r - 1 for pair in sizes for m, r in zip(pair, taps, strict=True)) > 16:
        raise SpecError("m is too large; expected m + taps - 1 of at most 16 points")
    return sizes


def _all_sizes(taps: Pair) -> list[Pair]:
    """All tiles of outputs for a filter."""
    axes = [range(1, MOST_ALPHA - r + 2) if r > 1 else range(1, 2) for r in taps]
    return [(a, b) for a in axes[0] for b in axes[1]]


def _within_bytes(problem: Problem, target: Target, sizes: list[Pair]) -> list[Pair]:
    """Those whose transformed weights keep the default limit; all if none does."""
    lanes, most = problem.lanes(target), most_weight_bytes(problem)
    return [m for m in sizes if WinogradShape.of(problem, m, lanes).weight_bytes <= most] or sizes


def _worth(problem: Problem, m: Pair) -> bool:
    """Whether tiles of m outputs may be the best: nearly square, or one output along an axis.

    The latter have as many points as taps along that axis, and the fewest weights: they are for
    small images, which are bound by the traffic of weights.
    """
    taps, out = _taps(problem), problem.window.out[1:]
    if max(m) == 1 or any(a > o + 1 for a, o in zip(m, out, strict=True)):
        return max(m) > 1 and m == _least(taps)
    if 1 in m:
        return min(taps) == 1 or max(out) <= _SMALL_IMAGE
    return abs(m[0] - m[1]) <= (2 if max(out) <= _MEDIUM_IMAGE else 1)


def _best(
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
    """The shape for which tiles are chosen as for maps of the usual sizes.

    Parts are as few as keep cores busy. Symbols have no cost.
    """
    usual = _best_anywhere(typical(problem), target, given)[1]
    shape = WinogradShape.of(problem, usual.m, usual.lanes, usual.sums)
    chosen = {name: getattr(usual, name) for name in ("rows", "vectors", "tiles", "narrow")}
    shape = replace(shape, **chosen)
    busy = ceil_div(_FEW_CHUNKS, shape.groups * shape.blocks)
    parts = given.parts or least(busy, shape.panels)
    shape = replace(shape, parts=parts)
    counts = isinstance(shape.tile_count, int)
    return shape_cycles(problem, shape, target) if counts else 0.0, shape


@by_numbers(maxsize=256)
def _best_anywhere(
    problem: Problem, target: Target, given: WinogradParameters
) -> tuple[float, WinogradShape]:
    found = _within_bytes(problem, target, _sizes(problem, given))
    sizes = {m: given.sums or _sums(problem, m) for m in found}
    best = best_kernel(problem, target, sizes, given)
    if best is None:
        raise SpecError(f"{problem}: no fused Winograd kernel has {given}; leave some of these out")
    return best


def _cost(problem: Problem, target: Target) -> float:
    return min(_form_cycles(problem, target).values())


def _form_cycles(problem: Problem, target: Target) -> dict[str, float]:
    """Estimated cycles of both forms, of `stages` with a handicap for their memory."""
    pieces = split(problem)
    chosen = _all_best(pieces, target, WinogradParameters())
    staged = staged_cycles(_staged_shapes(pieces, target, chosen[0][1].m), target)
    return {"fused": sum(cycles for cycles, _ in chosen), "stages": _STAGES_HANDICAP * staged}


def _all_best(
    pieces: list[Piece], target: Target, given: WinogradParameters
) -> list[tuple[float, WinogradShape]]:
    """The best shape of every piece; all share m and the panels, and so the packed weights."""
    if len(pieces) > 1:  # they share the packing, but not the edges
        given = replace(given, edges="whole")
    first = _best(pieces[0].problem, target, given)
    _, shape = first
    shared = WinogradParameters(
        m=shape.m, sums=shape.sums, edges=shape.edges, vectors=shape.vectors
    )
    return [first, *(_best(piece.problem, target, shared) for piece in pieces[1:])]


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
    _, shape = _best(pieces[0].problem, target, replace(given, sums=whole))
    shapes = _staged_shapes(pieces, target, shape.m)
    made = in_stages(problem, target, pieces, shapes, _error(problem, shape.m, LENGTH))
    return replace(made, losses=_losses(problem, shape.m))


def _staged_shapes(pieces: list[Piece], target: Target, m: Pair) -> list[WinogradShape]:
    """The shapes of pieces in stages, for tiles of m outputs of the first one."""
    given = WinogradParameters(m=m)
    return [
        WinogradShape.of(p.problem, _sizes(p.problem, given)[0], p.problem.lanes(target))
        for p in pieces
    ]


def _fused(problem: Problem, target: Target, given: WinogradParameters) -> Candidate:
    pieces = split(problem)
    shapes = [shape for _, shape in _all_best(pieces, target, given)]
    made = fused(problem, pieces, shapes, _error(problem, shapes[0].m, shapes[0].sums))
    return replace(made, losses=_losses(problem, shapes[0].m))


_MOST_SIZES, _MOST_SHAPES = 4, 3  # tiles of outputs worth trying, and kernels for each


def _choices(problem: Problem, target: Target, lean: bool) -> list[Choice]:
    """The best tiles of outputs, each with the register tiles that are estimated best."""
    pieces = split(problem)
    first, taps = pieces[0].problem, _taps(problem)
    edges = "whole" if len(pieces) > 1 else None
    square = problem.window.out[1] == problem.window.out[2] and taps[0] == taps[1]
    found = [
        (m, _ranked(first, target, m, edges))
        for m in _within_bytes(first, target, _sizes(first, WinogradParameters()))
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
    sums = _sums(problem, m)
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
    taps = _taps(problem)

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


def _offered_from(problem: Problem) -> set[float]:
    """The errors of all tiles with all partial sums: what is accepted is compared with these."""
    taps = _taps(problem)
    if not problem.window.is_flat or max(taps) < 2:
        return set()
    return {_error(problem, m, sums) for m in _all_sizes(taps) for sums in _LENGTHS}


WINOGRAD = Algorithm(
    "winograd",
    WinogradParameters,
    _reject,
    _cost,
    _candidate,
    choices=_choices,
    precisions=takes_precision,
    transforms=True,
    takes_phases=True,
    offered_from=_offered_from,
)
