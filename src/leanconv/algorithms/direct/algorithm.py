"""Direct convolution as a method: what it takes and costs, its parameter, and its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.direct.plan import plan_any_size, plan_direct, ranked_tiles, tile_work
from leanconv.algorithms.direct.pointwise import DirectPointwise, plan_direct_pointwise
from leanconv.algorithms.direct.shape import PackedConv
from leanconv.algorithms.interface import Algorithm, Candidate, one_kernel_candidate
from leanconv.algorithms.magnitudes import TWO_GROUPS
from leanconv.algorithms.parameters import Choice, Kind, Parameters, one_of, parameter
from leanconv.algorithms.problem import (
    Problem,
    beside_weights,
    products,
    split_phases,
    strided_walk_cycles,
    walk_error,
    walk_steps,
)
from leanconv.codegen.dot import Way, group_of, has_dot, pairs_pay, takes_bytes, way_of
from leanconv.codegen.geometry import PhasedAccess, Window
from leanconv.codegen.half_stored import PIECES
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.partial_sums import effective_length
from leanconv.codegen.tiling import Tile
from leanconv.errors import SpecError
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import FLOAT16, FLOAT32, HALVES, INT8, INT16, UINT8, UINT16, Precision

NONE = "none"
_HALVES: Kind[int | str] = one_of(NONE, *PIECES)


@dataclass(frozen=True)
class DirectParameters(Parameters):
    """Parameters of direct convolutions, for operands in float16 alone.

    Attributes:
        halves: products that are summed in float16, at most, before float32 takes over; `"none"`:
            all sums are float32.
    """

    halves: int | str | None = parameter(_HALVES)


def takes_pieces(problem: Problem, target: Target) -> bool:
    """Return whether operands are float16, and the target sums their products in float16."""
    types = problem.conv.precision
    halves = types.x == types.w == FLOAT16 and types.accumulate == FLOAT32
    return halves and "fp16" in target.extensions and target.costs.f16_products is not None


def piece_error(problem: Problem, piece: int) -> float:
    """Expected error of sums of pieces of so many products; 0: of sums in float32.

    The errors of pieces are independent, as the pieces are: relative to their sum they are as those
    of one piece relative to that.
    """
    length = products(problem)
    if not piece:
        return walk_error(problem, effective_length(problem.conv.reduction))
    within = FLOAT16.roundoff * walk_steps(min(piece, length))
    return within + walk_error(problem, effective_length(length / piece))


def chosen_piece(problem: Problem, target: Target, given: DirectParameters) -> int:
    """The longest piece whose error is accepted, or the one that is given; 0 for none."""
    if given.halves is not None:
        return 0 if given.halves == NONE else int(given.halves)
    if takes_pieces(problem, target):
        for piece in PIECES:
            if piece_error(problem, piece) <= problem.max_error:
                return piece
    return 0


_RESIDUAL_SHARE = 3 / 8  # of L2 that a residual fills when tiles prefetch it
_PREFETCHED_SHARE = 0.2  # of a prefetched line's cycles, where a tile reads a part of the channels

# Factor by which weights that are used once are prefetched nearer: of 25088 to 4096 bytes, on two
# threads, 2 KiB ahead took 0.92 of the time that 16 KiB took.
_NEARER = 8
_PANELS_OF_L2 = 4  # at least, where tiles prefetch the next one
_NARROW = (INT8, UINT8, INT16, UINT16)  # types in which sums of integers may be stored
_SUMMED_BY = {"bytes": "twos", "fours": "fours"}
_OPEN = DirectParameters()


def _takes(precision: Precision) -> bool:
    """Floats and halves; integers, whose sums are stored as they are, saturated or scaled."""
    saturated = precision.accumulate.kind == "int" and precision.y in (*_NARROW, FLOAT32)
    halved = precision.accumulate == FLOAT32 and precision.y in HALVES
    return has_dot(precision) and (saturated or halved or precision.y == precision.accumulate)


def _reject(problem: Problem, target: Target) -> str | None:
    conv = problem.conv
    if reason := split_phases(problem, target):
        return reason
    group = group_of(conv.precision)
    if conv.x.block % group:
        return f"blocks of {problem.conv.x.block} channels; dot products take {group} of a block"
    if conv.epilogue.activation and not conv.precision.accumulate.is_float:
        return f"an activation of sums in {problem.conv.precision.accumulate}"
    unscaled = not conv.epilogue.requantise
    sums = conv.precision.accumulate
    if unscaled and not sums.is_float and conv.precision.y == FLOAT32:
        return "sums of integers as float32 without scales"
    if conv.groups == 1:
        return None
    for access, channels, side in (
        (conv.x, conv.inputs, "input"),
        (conv.y, conv.outputs, "output"),
    ):
        if channels % access.block:
            return (
                f"groups of {channels} {side} channels do not fill blocks of {access.block} "
                "channels"
            )
    return None


def _cost(problem: Problem, target: Target, given: DirectParameters = _OPEN) -> float:
    cycles = product_cycles(problem, target, given)
    return target.costs.overlapped(cycles, _read_again(problem, target, given))


def product_cycles(problem: Problem, target: Target, given: DirectParameters = _OPEN) -> float:
    """Estimated cycles of one core, where L2 holds what a chunk reads of the input."""
    kernel, cycles = _planned(problem, target, chosen_piece(problem, target, given))
    costs, line = target.costs, None
    if isinstance(kernel, DirectPointwise):
        line = _PREFETCHED_SHARE * costs.prefetched_line
    elif isinstance(kernel, DirectConv) and kernel.channels_ahead:
        line = costs.prefetched_line
    planes = strided_walk_cycles(problem, target, line)
    return beside_weights(problem, target, target.costs.direct_over_model * cycles) + planes


def _read_again(problem: Problem, target: Target, given: DirectParameters) -> float:
    """Cycles in which input comes from L3 for each panel anew: of 1x1 kernels with a stride.

    Pixels that the stride skips are in the lines that are read, or beside them.
    """
    conv, window = problem.conv, problem.conv.window
    if prod(window.kernel) > 1 or window.stride[2] == 1 or conv.x.block == 1:
        return 0.0
    rows = window.out[0] * window.out[1] * window.size[2]
    read = conv.inputs * rows * conv.precision.x.bytes
    if read <= target.costs.l2_share * target.l2_bytes:
        return 0.0
    kernel, _ = _planned(problem, target, chosen_piece(problem, target, given))
    if not isinstance(kernel, DirectConv) or kernel.panels_inside:
        return 0.0
    times = conv.batch * conv.groups * (kernel.panels - 1)
    return times * read / target.costs.l3_read_unprefetched


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
    window = kernel.conv.window
    vectors = ceil_div(kernel.conv.outputs, kernel.lanes)
    cycles, _ = ranked_tiles(kernel, target)[0]
    y = kernel.conv.y
    if not y.lanes_contiguous:
        each = target.costs.transposed_store
        if y.spatial[2] != 1 and not (isinstance(y, PhasedAccess) and y.interleaves):
            each += kernel.lanes * target.costs.store  # element by element
        cycles += each * window.out[2] * vectors
    cycles *= (
        kernel.conv.batch
        * kernel.conv.groups
        * kernel.conv.row_count
        * _live_share(problem.conv.window)
    )
    pointwise = None if piece else plan_direct_pointwise(kernel, target)
    return pointwise if pointwise and pointwise[1] < cycles else (kernel, cycles)


def _kernel(problem: Problem, target: Target, piece: int) -> DirectConv:
    conv = problem.conv
    kernel = DirectConv(
        conv=conv,
        lanes=target.lanes(FLOAT16) if piece else conv.lanes(target),
        piece=piece,
        tile=Tile(1, 1),
        rows=1,
        panels_inside=False,
        one_code=bool(problem.any_size and problem.weights_change),
        way=_way(problem, target),
        folded=folds(problem),
    )
    kernel = with_excess(problem, kernel, target)
    if problem.any_size:
        known = len(problem.usual_sizes) > 1
        planned = plan_any_size(kernel, target, problem.weights_from_dram, known)
    else:
        planned = plan_direct(kernel, target, problem.weights_from_dram)
    single_tap, blocks = prod(planned.conv.window.kernel) == 1, planned.conv.x.block > 1
    any_size, l2_bytes = bool(problem.any_size), target.l2_bytes
    large = any_size or conv.output_bytes >= _RESIDUAL_SHARE * l2_bytes
    large = large and planned.conv.y.lanes_contiguous
    return replace(
        planned,
        **_prefetches(problem, planned, target),
        channels_ahead=_channels_ahead(planned, target),
        fetch=single_tap and blocks and (any_size or conv.input_bytes > target.l2_bytes),
        prefetches_residual=conv.epilogue.residual and large,
    )


def folds(problem: Problem) -> bool:
    """Return whether the bias may take off the surplus of a shift: no tap is in the padding."""
    window = problem.conv.window
    return problem.folds_shift and all(window.always_full(axis) for axis in range(3))


def fitting_way(problem: Problem, target: Target) -> Way:
    """Return the way of the target for weights of which this is known (`Problem.excess`)."""
    types, excess = problem.conv.precision, problem.excess
    fits = excess is not None and not excess.twos and (types.x == UINT8 or folds(problem))
    return "bytes" if fits and takes_bytes(types, target) else way_of(types, target)


def with_excess(problem: Problem, kernel: DirectConv, target: Target) -> DirectConv:
    """The kernel that adds what exceeds in weights behind the others, where that is faster."""
    conv, types, excess = problem.conv, problem.conv.precision, problem.excess
    if not excess or conv.groups > 1 or not takes_bytes(types, target):
        return kernel
    if types.x != UINT8 and not kernel.folded:
        return kernel
    found, whole = [kernel], conv.inputs > group_of(types) and conv.x.block % TWO_GROUPS == 0
    # Weights that are used once are waited for, however they are multiplied.
    once = not problem.any_size and (kernel.weight_uses or 0) <= 1
    if excess.twos:
        found.append(replace(kernel, way="bytes", excess=excess.twos))
    elif excess.fours is not None and whole and not (once and excess.fours):
        found.append(replace(kernel, way="fours", excess=excess.fours))
    usable = (each for each in found if each.has_places or not each.excess)
    return max(usable, key=lambda each: tile_work(each, target).dots_per_cycle or 0.0)


def _way(problem: Problem, target: Target) -> Way:
    """Return how a step multiplies and adds.

    Pairs of bfloat16 have to lie beside each other; what is beyond the last channel may be NaN.
    """
    conv = problem.conv
    apart = conv.inputs % 2 or conv.x.block % 2
    if apart or not pairs_pay(conv.precision, target):
        return fitting_way(problem, target)
    return "brain"


def _weights_ahead(problem: Problem, kernel: DirectConv, target: Target) -> int:
    """Elements from the weights that are loaded to those that are prefetched; 0: none.

    Weights that all panels of a row read again stay near.
    """
    far = problem.weights_from_dram or problem.conv.weight_bytes > target.l2_bytes
    if kernel.panels_inside or kernel.panels == 1 or not far:
        return 0
    uses = None if problem.any_size else kernel.weight_uses
    nearer = _NEARER if uses is not None and uses <= 1 else 1
    return target.costs.direct_prefetch_bytes // (nearer * kernel.conv.precision.w.bytes)


def _prefetches(problem: Problem, kernel: DirectConv, target: Target) -> dict[str, Any]:
    """Choose the weights that a tile prefetches: some of its own, or some of the next panel's.

    Where it prefetches its own, the first tile of a panel waits for this stream, and the others
    leave it idle. Two panels have to stay in L2, and tiles be enough for all lines of a step.
    """
    ahead = _weights_ahead(problem, kernel, target)
    panel = kernel.packed_reduction * kernel.panel_lanes * kernel.conv.precision.w.bytes
    if not ahead or kernel.piece or _PANELS_OF_L2 * panel > target.l2_bytes:
        return {"weights_ahead": ahead}
    if problem.any_size:
        return {"weights_ahead": ahead, "panel_ahead": True}
    enough = kernel.conv.row_count * kernel.tiles_across >= kernel.step_lines
    return {"weights_ahead": 0, "panel_ahead": True} if enough else {"weights_ahead": ahead}


def _channels_ahead(kernel: DirectConv, target: Target) -> int:
    """Return how many channels ahead input in planes is prefetched; 0 for other layouts."""
    return 0 if kernel.conv.x.lanes_contiguous else target.costs.channels_ahead


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    assert isinstance(parameters, DirectParameters)
    piece = chosen_piece(problem, target, parameters)
    if piece and not takes_pieces(problem, target):
        raise SpecError(
            f"algorithm direct: halves={piece} for {problem} of {problem.conv.precision} on "
            f"{target.cpu}; expected float16 operands and a processor that sums in float16"
        )
    made = (
        _kernel(problem, target, piece) if problem.any_size else _planned(problem, target, piece)[0]
    )
    found = DirectParameters(halves=piece) if piece else parameters
    choice = Choice("direct", found, error=piece_error(problem, piece))
    details = f"pieces of {piece} products in float16" if piece else ""
    if isinstance(made, DirectConv) and made.way in _SUMMED_BY:
        share = f", {made.excess_share:.1%} exceed" if made.excess else ""
        details = f"bytes by {_SUMMED_BY[made.way]}{share}"
    candidate = one_kernel_candidate(choice, problem, made, details)
    if not isinstance(made, DirectConv) or not made.excess:
        return candidate
    from leanconv.algorithms.direct.excess import calls_apart

    def packing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        return {**candidate.packing(w, channels), **calls_apart(made, w)}

    return replace(candidate, packing=packing, of_values=True)


def _choices(problem: Problem, target: Target, lean: bool) -> list[Choice]:
    """Sums in float32, and in float16 where that is accepted."""
    del lean
    ways: list[DirectParameters] = [DirectParameters()]
    if takes_pieces(problem, target):
        ways = [DirectParameters(halves=way) for way in (*PIECES, NONE)]
    return [Choice("direct", way, _cost(problem, target, way)) for way in ways]


def _offered_from(problem: Problem) -> list[float]:
    """The errors of sums in float16."""
    types = problem.conv.precision
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
