"""Winograd's gradient of weights: F(r, m), whose outputs are the weights and whose filter is dy.

Along an axis dw[t] is the sum over outputs o of dy[o] · x[o + t]: a tile of m outputs is a filter
of m taps over a tile of m + r - 1 inputs, and its outputs are the r weights. What tiles give is
summed where it is multiplied, at the points, so that all tiles are transformed back once. A
stride's phases are more input channels, a dilation's residues more tiles, and a kernel of many taps
is cut into some taps after others.

Tiles that do not fit the second-level cache come in blocks. Which tiles these are follows from the
shape alone, and so does the order of all sums.

Reading order: `winograd_tiles` (sizes), `winograd_transform` (x and dy to V and U), `winograd_sums`
(products, back to taps), `winograd_blocks` (blocks, costs, kernels), this (the choice of tiles).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from math import prod

from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse
from leanconv.algorithms.magnitudes import LARGEST, Losses, plain_losses
from leanconv.algorithms.parameters import COUNT, TILE, Choice, Parameters, parameter
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.weight_gradient.bias import with_rows_added
from leanconv.algorithms.weight_gradient.winograd_blocks import (
    LEAST_TILES,
    block_cycles,
    block_sizes,
    held_tiles,
    kernel_uses,
    parts_of,
    with_tile,
)
from leanconv.algorithms.weight_gradient.winograd_transform import TileTransform
from leanconv.algorithms.winograd.shape import Pair
from leanconv.algorithms.winograd.sizes import reject_pieces, taps_of
from leanconv.codegen.partial_sums import LENGTH
from leanconv.errors import SpecError
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import DType
from leanconv.winograd.error import error_estimate, largest_growth, lost_inputs, lost_products
from leanconv.winograd.matrices import transform

_MOST_ALPHA, _MOST_POINTS = 9, 16  # along an axis: of what is considered, of what may be given


@dataclass(frozen=True)
class WinogradGradientParameters(Parameters):
    """Parameters of the method.

    Attributes:
        m: outputs of a tile (h, w).
        tiles: tiles of a block, at most.
    """

    m: Pair | None = parameter(TILE)
    tiles: int | None = parameter(COUNT)


_DEFAULT = WinogradGradientParameters()


def _candidate(problem: Problem, target: Target, given: WinogradGradientParameters) -> Candidate:
    _, m, tiles = _best(problem, target, given)
    parts = parts_of(problem, target, m)
    uses = list[KernelUse]()
    for number, part in enumerate(parts):
        sums_dy = problem.sums_dy and number == 0  # the others read the same dy
        uses += kernel_uses(part, held_tiles(part, tiles), target, sums_dy)
    kernels = (use.kernel for use in uses)
    sum_rows = sum(kernel.sum_rows for kernel in kernels if isinstance(kernel, TileTransform))
    temporaries = {"V": 0, "U": 0}
    for part in parts:
        work, held = part.work, held_tiles(part, tiles)
        sizes = {"V": work.elements(held, work.v_row), "U": work.elements(held, work.u_row)}
        if held < part.tiles:
            sizes["M"] = with_tile(part, held, target)[1].m_elements
        for role, size in sizes.items():
            temporaries[role] = max(temporaries.get(role, 0), size * work.dtype.bytes)
    work = parts[0].work
    (rh, rw), tile = (made.m for made in work.transforms), with_tile(parts[0], tiles, target)[1]
    blocks = ceil_div(parts[0].tiles, tiles)
    text = f"F({rh}x{rw}, {work.m[0]}x{work.m[1]}) {parts[0].tiles} tiles in {blocks} block(s)"
    candidate = Candidate(
        Choice("winograd", replace(given, m=m, tiles=tiles), error=_error(problem, m)),
        tuple(uses),
        temporaries=temporaries,
        details=f"{text}, {tile.rows}x{tile.vectors}",
        losses=_losses(problem, m),
    )
    return with_rows_added(candidate, problem, sum_rows)


# -- which tiles ---------------------------------------------------------------------------------
def _error(problem: Problem, m: Pair) -> float:
    """The error to expect with tiles of m outputs."""
    window = problem.conv.window
    taps = taps_of(problem)
    tiles = problem.conv.batch * prod(
        ceil_div(o, a) for o, a in zip(window.out[1:], m, strict=True)
    )
    return _tile_error(taps, m, window.out[1:], tiles, problem.conv.dtype)


@lru_cache(maxsize=1024)
def _tile_error(taps: Pair, m: Pair, out: Pair, tiles: int, dtype: DType) -> float:
    """The error for some taps; tiles at the far edges have fewer outputs, which are a filter's."""
    axes, filters = [], []
    for r, a, o in zip(taps, m, out, strict=True):
        if r > 1 or a > 1:
            axes.append(transform(r, a))
            whole, rest = divmod(o, a)
            filters.append([a] * min(whole, 64) + [rest] * bool(rest))
    return error_estimate(*axes, reduction=tiles, sums=LENGTH, dtype=dtype, filters=filters)


def _losses(problem: Problem, m: Pair) -> Losses:
    """Products, and values transformed in sums of alpha each, weigh as the points say."""
    axes = [transform(r, a) for r, a in zip(taps_of(problem), m, strict=True)]
    plain, filters = plain_losses(problem), prod(made.r for made in axes)
    steps = problem.conv.batch * prod(problem.conv.window.out) / filters
    sums = 2 * LARGEST * steps * math.sqrt(filters)
    inputs = 2 * LARGEST * steps * math.sqrt(steps * filters) * sum(made.alpha for made in axes)
    return Losses(
        sums * lost_products(*axes),
        plain.inputs + inputs * lost_inputs(*axes),
        largest_growth(*axes),
        transforms=True,
    )


def _sizes(problem: Problem) -> list[Pair]:
    """Tiles of outputs worth trying: nearly square ones, as accurate as is asked for."""
    taps, out = taps_of(problem), problem.conv.window.out[1:]
    axes = [
        range(2, max(2, min(_MOST_ALPHA - r + 1, o)) + 1) if r > 1 else (1,)
        for r, o in zip(taps, out, strict=True)
    ]
    sizes = [(a, b) for a in axes[0] for b in axes[1] if min(taps) == 1 or abs(a - b) <= 1]
    within = [m for m in sizes if _error(problem, m) <= problem.max_error]
    return within or sizes[:1]


def _given_size(problem: Problem, m: Pair) -> Pair:
    """The tile that is given, one output along axes of one tap.

    Raises:
        SpecError: it has too many points.
    """
    rh, rw = taps_of(problem)
    m = m[0] if rh > 1 else 1, m[1] if rw > 1 else 1
    if max(m[0] + rh, m[1] + rw) > _MOST_POINTS + 1:
        raise SpecError(
            f"m is too large; expected m + taps - 1 of at most {_MOST_POINTS} points, got "
            f"{m[0]}x{m[1]} with {rh}x{rw} taps"
        )
    return m


def _best(
    problem: Problem, target: Target, given: WinogradGradientParameters
) -> tuple[float, Pair, int]:
    """The fewest estimated cycles with tiles of outputs and tiles of a block."""
    return min(_all(problem, target, given))


def _all(
    problem: Problem, target: Target, given: WinogradGradientParameters
) -> Iterator[tuple[float, Pair, int]]:
    """Estimated cycles, outputs of a tile, tiles of a block."""
    sizes = [_given_size(problem, given.m)] if given.m else _sizes(problem)
    for m in sizes:
        parts = parts_of(problem, target, m)
        blocks = [given.tiles] if given.tiles else block_sizes(parts[0], target)
        for tiles in blocks:
            yield (
                sum(block_cycles(part, held_tiles(part, tiles), target) for part in parts),
                m,
                tiles,
            )


def _choices(problem: Problem, target: Target, lean: bool) -> list[Choice]:
    """Tiles of outputs in blocks, the fastest first; with `lean` also in blocks of few tiles."""
    found = list(_all(problem, target, _DEFAULT))
    if lean:
        for m in {m: None for _, m, _ in found}:
            few = WinogradGradientParameters(m, LEAST_TILES)
            found += _all(problem, target, few)
    return [
        Choice("winograd", WinogradGradientParameters(m, tiles), cycles)
        for cycles, m, tiles in sorted(found)
    ]


def _reject(problem: Problem, target: Target) -> str | None:
    """Why the gradient cannot be computed; None if it can."""
    del target
    window = problem.conv.window
    if not window.is_flat:
        return "a depth axis"
    taps = taps_of(problem)
    if max(taps) < 2:
        return "one tap in each direction: nothing to save"
    return reject_pieces(window)


def _cost(problem: Problem, target: Target) -> float:
    return _best(problem, target, _DEFAULT)[0]


WINOGRAD = Algorithm(
    "winograd",
    WinogradGradientParameters,
    _reject,
    _cost,
    _candidate,
    choices=_choices,
    transforms=True,
)
