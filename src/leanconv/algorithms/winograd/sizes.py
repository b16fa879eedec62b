"""Pieces and tiles of outputs of Winograd: parameters, what may be taken, partial sums, errors.

A problem is split into pieces without dilation and with few taps each (`split`). Each residue of a
dilation is a convolution of its own. Where a phase of its stride has more than `LARGEST_TAPS` taps
along an axis, the kernel is cut, and the pieces add up in the output. Residues that differ only in
where they read and write are one kernel.

Integers are exact or refused. What decides it are the sums of products: y, without its bias, has at
most `Problem.sum_bits` bits, found from the weights (`magnitudes`). Tiles whose division leaves
fewer are left out.
"""

from __future__ import annotations

import math
from functools import lru_cache

from leanconv.algorithms.decompose import (
    Range,
    part_count,
    part_ranges,
    phase_count,
    phase_taps,
    residue_counts,
    residue_strides,
    with_taps,
    without_dilation,
)
from leanconv.algorithms.magnitudes import LARGEST, Losses, plain_losses
from leanconv.algorithms.parameters import COUNT, TILE, Parameters, one_of, parameter
from leanconv.algorithms.problem import Problem, most_weight_bytes
from leanconv.algorithms.winograd.shape import Pair, WinogradShape
from leanconv.codegen.geometry import Triple, Window
from leanconv.errors import SpecError
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOATS, INT8, INT16, INT32, UINT8, UINT16, DType, Precision
from leanconv.winograd.error import error_estimate, largest_growth, lost_inputs, lost_products
from leanconv.winograd.matrices import transform
from leanconv.winograd.variants import division, integer_transform, operands_fit

LARGEST_TAPS = 7  # of one phase along one axis; with more, rounding grows faster than speed
MOST_RESIDUES, MOST_CUTS = 2048, 64  # each is a stage of its own; cuts add up in the output
ADDED = 1.7  # factor of the error where pieces add up in y: each rounds y once more


@dataclass(frozen=True)
class Piece:
    """One of the convolutions.

    Attributes:
        problem: without dilation, with at most `LARGEST_TAPS` taps; if it is one of several that
            add up, with `max_error` divided by `ADDED`.
        taps: its taps of the filter: first and one past the last, along height and width.
        cut: number of these taps among the cuts of the kernel.
    """

    problem: Problem
    taps: tuple[Range, Range]
    cut: int

    @property
    def adds_up(self) -> bool:
        """True if the piece adds to the output of the pieces before it."""
        return self.cut > 0

    @property
    def weights(self) -> str:
        """The role of its packed weights, which residues share."""
        return f"w{self.cut or ''}"


def split(problem: Problem) -> list[Piece]:
    """Split a problem into pieces: only one if it has no dilation and few taps."""
    pieces = []
    for residue in without_dilation(problem):
        ranges = [(rows, columns) for rows in _cuts(residue, 1) for columns in _cuts(residue, 2)]
        if len(ranges) > 1:
            residue = replace(residue, max_error=residue.max_error / ADDED)
        for cut, taps in enumerate(ranges):
            first, last = cut == 0, cut == len(ranges) - 1
            pieces.append(Piece(with_taps(residue, taps, first, last), taps, cut))
    return pieces


def reject_pieces(window: Window) -> str | None:
    """Why a dilation reaches too far or there would be too many pieces; None if neither is so."""
    counts, strides = residue_counts(window), residue_strides(window)
    too_far = any(d > i for d, i in zip(window.dilation, window.size, strict=True))
    if too_far or any(r > o for r, o in zip(counts, window.out, strict=True)):
        return f"a dilation of {max(window.dilation)} larger than the image"
    residues, cuts = counts[1] * counts[2], 1
    for axis in (1, 2):
        kernel = window.kernel[axis]
        each = _taps_of_piece(kernel, strides[axis])
        cuts *= part_count(kernel, each, each)
    if residues > MOST_RESIDUES:
        return f"{residues} pieces without dilation; at most {MOST_RESIDUES}"
    if cuts > MOST_CUTS:
        return f"{cuts} pieces of a long kernel; at most {MOST_CUTS}"
    return None


def is_cut(window: Window) -> bool:
    """Return whether the filter is cut into pieces that add up."""
    return _is_cut(window.kernel, residue_strides(window))


@lru_cache(maxsize=256)
def _is_cut(kernel: Triple, stride: Triple) -> bool:
    axes = zip(kernel, stride, strict=True)
    return any(phase_taps(taps, step) > LARGEST_TAPS for taps, step in axes)


def _cuts(problem: Problem, axis: int) -> list[Range]:
    """Ranges of taps along an axis, whole phases each."""
    kernel = problem.conv.window.kernel[axis]
    return part_ranges(kernel, _taps_of_piece(kernel, problem.conv.window.stride[axis]))


def _taps_of_piece(kernel: int, stride: int) -> int:
    """Taps of all phases of one piece along an axis."""
    taps = phase_taps(kernel, stride)
    return ceil_div(taps, ceil_div(taps, LARGEST_TAPS)) * stride


@dataclass(frozen=True)
class WinogradParameters(Parameters):
    """Parameters of the fused form; separate stages take `m` alone.

    Attributes:
        form: one kernel, or a kernel for each stage.
        m: outputs of a tile (h, w).
        sums: products of one partial sum.
        edges: whether tiles at the far edges are whole or narrow.
        rows, vectors: of the register tile.
        tiles: of a block.
        parts: into which the output channels are split.
    """

    form: str | None = parameter(one_of("fused", "stages"))
    m: tuple[int, int] | None = parameter(TILE)
    sums: int | None = parameter(COUNT)
    edges: str | None = parameter(one_of("whole", "narrow"))
    rows: int | None = parameter(COUNT)
    vectors: int | None = parameter(COUNT)
    tiles: int | None = parameter(COUNT)
    parts: int | None = parameter(COUNT)


WHOLE = 1 << 30  # products of one partial sum: sums of integers are not cut

_STORED = (INT8, UINT8, INT16, UINT16, INT32, FLOAT32)
_MOST_OUTPUTS = 5  # of a tile along an axis


def takes_precision(precision: Precision) -> bool:
    """One float for everything; or bytes by int8, with sums in int32."""
    if precision.is_uniform:
        return precision.x in FLOATS
    integers = precision.x in (INT8, UINT8) and precision.w == INT8
    return integers and precision.accumulate == INT32 and precision.y in _STORED


def reject_integers(problem: Problem, target: Target, taps: Pair) -> str | None:
    """Why integers of a problem without depth cannot be computed; None if they can."""
    conv = problem.conv
    block = target.channel_block(conv.precision.x)
    if {conv.x.block, conv.y.block} != {block}:
        return f"integers that are not in blocks of {block} channels"
    if conv.epilogue.activation:
        return f"an activation of sums in {problem.conv.precision.accumulate}"
    if conv.precision.y == FLOAT32 and not conv.epilogue.requantise:
        return "sums of integers as float32 without scales"
    if is_cut(conv.window):
        return "integers of a kernel that is cut into pieces"
    if not exact_sizes(problem, taps):
        return f"sums of {problem.sum_bits} bits; no tile of integers is exact with so many"
    return None


def exact_sizes(problem: Problem, taps: Pair) -> list[Pair]:
    """All tiles of outputs with which a problem of integers is exact."""
    axes = [range(1, _MOST_OUTPUTS + 1) if r > 1 else range(1, 2) for r in taps]
    return [
        (h, w) for h in axes[0] for w in axes[1] if h * w > 1 and _is_exact(problem, (h, w), taps)
    ]


def named_size(sizes: list[Pair], m: Pair) -> list[Pair]:
    """The tile that is given, one output along axes of one tap, if it is one of the exact ones.

    Raises:
        SpecError: it is not.
    """
    most = [max(m_of_axis) for m_of_axis in zip(*sizes, strict=True)]
    found = m[0] if most[0] > 1 else 1, m[1] if most[1] > 1 else 1
    if found in sizes:
        return [found]
    exact = ", ".join(f"{h}x{w}" for h, w in sizes)
    raise SpecError(f"m is {m[0]}x{m[1]}; with these integers expected one of {exact}")


def _is_exact(problem: Problem, m: Pair, taps: Pair) -> bool:
    codes = problem.conv.precision.x
    return problem.sum_bits <= _most_bits(m, taps, int(codes.low), int(codes.high))


@lru_cache(maxsize=1024)
def _most_bits(m: Pair, taps: Pair, low: int, high: int) -> int:
    """The most bits of sums with which a tile is exact for codes from `low` to `high`; 0: none."""
    height, width = map(integer_transform, m, taps)
    if height is None or width is None:
        return 0
    fit = operands_fit(height.exact, width.exact, low, high)
    return division(height.scale * width.scale).bits if fit else 0


MOST_ALPHA = 9  # points along an axis; more amplify rounding beyond the default error
_EXACT_ALPHA = 8  # points up to which partial sums are shortened until `_AIM` is met
# Products of one partial sum; above the error `_AIM` shorter sums are chosen.
LENGTHS = (128, 64, 32, 16)
_SMALL_IMAGE = 16  # outputs along an axis, up to which tiles along one axis are considered
_MEDIUM_IMAGE = 64  # outputs along an axis, up to which m_h and m_w may differ by two
_AIM = 1e-5  # in float32


def taps_of(problem: Problem) -> Pair:
    """Taps of one phase's filter (h, w), those of the largest piece of a long kernel."""
    window = problem.conv.window
    return _taps(window.kernel, residue_strides(window))


@lru_cache(maxsize=256)
def _taps(kernel: Triple, stride: Triple) -> Pair:
    h, w = (
        min(phase_taps(k, s), phase_taps(k, s * ceil_div(phase_taps(k, s), LARGEST_TAPS)))
        for k, s in zip(kernel[1:], stride[1:], strict=True)
    )
    return h, w


def least_tile(taps: Pair) -> Pair:
    """The smallest tile of outputs that saves anything."""
    return 2 if taps[0] > 1 else 1, 2 if taps[1] > 1 else 1


def tile_error(problem: Problem, m: Pair, sums: int) -> float:
    """The error to expect with tiles of m outputs and partial sums of `sums` products."""
    conv = problem.conv
    if not conv.precision.accumulate.is_float:
        return 0.0
    window = conv.window
    stride = residue_strides(window)
    exact = not problem.weights_change
    error = _error(window.kernel, stride, conv.inputs, conv.dtype, m, sums, exact)
    return error * ADDED if is_cut(window) else error


@lru_cache(maxsize=1024)  # of all maps alike
def _error(
    kernel: Triple,
    stride: Triple,
    inputs: int,
    dtype: DType,
    m: Pair,
    sums: int,
    exact_weights: bool,
) -> float:
    taps = _taps(kernel, stride)
    height, width = transform(m[0], taps[0]), transform(m[1], taps[1])
    phases = math.prod(phase_count(k, s) for k, s in zip(kernel[1:], stride[1:], strict=True))
    pairs = zip((height, width), kernel[1:], stride[1:], strict=True)
    axes = [(made, _filters(kernel, s, made.r)) for made, kernel, s in pairs if made.alpha > 1]
    return error_estimate(
        *(made for made, _ in axes),
        reduction=inputs * phases,
        sums=sums,
        dtype=dtype,
        filters=[taps for _, taps in axes],
        exact_weights=exact_weights,
    )


def tile_losses(problem: Problem, m: Pair) -> Losses | None:
    """Products, and inputs transformed in sums of alpha each, weigh as the points say.

    Integers lose nothing.
    """
    conv = problem.conv
    if not conv.precision.accumulate.is_float:
        return None
    axes = [transform(each, taps) for each, taps in zip(m, taps_of(problem), strict=True)]
    plain, steps = plain_losses(problem), conv.reduction / math.prod(made.r for made in axes)
    sums = 2 * LARGEST * steps * math.sqrt(math.prod(made.r for made in axes))
    inputs = 2 * LARGEST * steps * math.sqrt(conv.reduction) * sum(made.alpha for made in axes)
    products, lost, growth = _transform_losses(m, taps_of(problem))
    return Losses(sums * products, plain.inputs + inputs * lost, growth, transforms=True)


@lru_cache(maxsize=256)
def _transform_losses(m: Pair, taps: Pair) -> tuple[float, float, float]:
    """Return the losses near zero of products and of inputs, and the growth of large numbers."""
    axes = [transform(each, r) for each, r in zip(m, taps, strict=True)]
    return lost_products(*axes), lost_inputs(*axes), largest_growth(*axes)


def _filters(kernel: int, stride: int, most: int) -> list[int]:
    """Taps of the phases of a kernel, and of those of its pieces where it is cut."""
    cuts = [stop - first for first, stop in part_ranges(kernel, most * stride)]
    return [phase_taps(k, stride, p) for k in cuts for p in range(phase_count(k, stride))]


def sums_of(problem: Problem, m: Pair) -> int:
    """Products of one partial sum: as many as the error allows; all of integers."""
    if not problem.conv.precision.accumulate.is_float:
        return WHOLE
    most = max(a + r - 1 for a, r in zip(m, taps_of(problem), strict=True))
    aim = problem.max_error
    if most <= _EXACT_ALPHA:
        aim = min(aim, problem.conv.dtype.scaled_error(_AIM))
    return next((s for s in LENGTHS if tile_error(problem, m, s) <= aim), LENGTHS[-1])


def sizes_of(problem: Problem, given: WinogradParameters) -> list[Pair]:
    """The tiles of outputs to consider: the one that is given, or all within the default error."""
    taps = taps_of(problem)
    if not problem.conv.precision.accumulate.is_float:
        exact = exact_sizes(problem, taps)
        if given.m:
            return named_size(exact, given.m)
        return [m for m in exact if _worth(problem, m)] or exact
    if given.m:
        # Along axes of one tap nothing is saved.
        sizes = [(given.m[0] if taps[0] > 1 else 1, given.m[1] if taps[1] > 1 else 1)]
    else:
        sizes = [m for m in _all_sizes(taps) if _worth(problem, m)]
        sums = given.sums or LENGTHS[-1]
        within = [m for m in sizes if tile_error(problem, m, sums) <= problem.max_error]
        sizes = within or [least_tile(taps)]
    if max(m + r - 1 for pair in sizes for m, r in zip(pair, taps, strict=True)) > 16:
        most = " and ".join(f"{17 - r} with {r} taps" for r in dict.fromkeys(taps) if r > 1)
        raise SpecError(
            f"m is too large; expected m + taps - 1 of at most 16 points: at most {most}"
        )
    return sizes


def _all_sizes(taps: Pair) -> list[Pair]:
    axes = [range(1, MOST_ALPHA - r + 2) if r > 1 else range(1, 2) for r in taps]
    return [(a, b) for a in axes[0] for b in axes[1]]


def within_bytes(problem: Problem, target: Target, sizes: list[Pair]) -> list[Pair]:
    """Return the sizes whose transformed weights keep the default limit; all if none does."""
    lanes, most = problem.conv.lanes(target), most_weight_bytes(problem)
    return [m for m in sizes if WinogradShape.of(problem, m, lanes).weight_bytes <= most] or sizes


def _worth(problem: Problem, m: Pair) -> bool:
    """Return whether tiles of m outputs may be the best: nearly square, or 1 output along an axis.

    The latter have as many points as taps along that axis, and the fewest weights: they are for
    small images, which are bound by the traffic of weights.
    """
    taps, out = taps_of(problem), problem.conv.window.out[1:]
    if max(m) == 1 or any(a > o + 1 for a, o in zip(m, out, strict=True)):
        return max(m) > 1 and m == least_tile(taps)
    if 1 in m:
        return min(taps) == 1 or max(out) <= _SMALL_IMAGE
    return abs(m[0] - m[1]) <= (2 if max(out) <= _MEDIUM_IMAGE else 1)


def offered_from(problem: Problem) -> set[float]:
    """The errors of all tiles with all partial sums: what is accepted is compared with these."""
    taps = taps_of(problem)
    if not problem.conv.window.is_flat or max(taps) < 2:
        return set()
    return {tile_error(problem, m, sums) for m in _all_sizes(taps) for sums in LENGTHS}
