"""Tile, strip and cost of the kernel of separable filters, and the packing of their factors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse, channel_calls
from leanconv.algorithms.magnitudes import LARGEST, Losses, factors_in
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import (
    Problem,
    factors_error,
    strided_walk_cycles,
    typical,
    walk_error,
    walk_steps,
)
from leanconv.algorithms.separable.kernel import SeparableConv
from leanconv.algorithms.separable.shape import SETS, as_rows, numbers_of_column
from leanconv.codegen.geometry import Access
from leanconv.codegen.lowered import PackCall
from leanconv.errors import InputError
from leanconv.graph.factors import LEAST_TAPS, MOST_TERMS, factors_of_all
from leanconv.kernels.packing import copied
from leanconv.records import replace
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target
from leanconv.units import counted

_ROWS = 8, 6, 4, 3, 2, 1  # of a tile that are tried
_STRIP_BYTES = 2048  # of a row of a strip: what rows of a tile read and write stays in L1
_REACHES = 4  # of taps, which strips share, in a row of a strip at least
_SCRATCH_BYTES = 2**18  # at most
_MOST_WRITTEN = 2500  # multiply-adds
_LEAST_CHUNKS = 32  # to balance any number of threads, unless below `costs.least_chunk` cycles
# Cycles of a tile and of a row of it; slots of a vector that crosses lines, loaded or shuffled, one
# as often as the other; stores over the record's; cycles of an input row whose line left L1, of a
# tap along the depth, of a part of a vector whose columns are parted. Estimates of others are above
# what they take by as much as the factors, of one term and of several, where maps are in L1.
_STRIP, _ROW, _LINE, _STORE, _DISPLACED = 60.0, 10.0, 1.35, 0.4, 5.0
_DEPTH, _PARTED = 1.6, 1.0
_OVER_MODEL, _SEVERAL = 1.1, 1.1


def _reject(problem: Problem, target: Target) -> str | None:
    conv, window = problem.conv, problem.conv.window
    if problem.weights_change:
        return "weights that are data"
    if conv.inputs != 1:
        return f"{conv.inputs} input channels a group; it takes one"
    if sum(taps > 1 for taps in window.kernel) < 2:
        return "taps along one axis, or none"
    step = numbers_of_column(conv)
    if conv.outputs > 1 and conv.y.lanes_contiguous and step != 1:
        return f"{conv.outputs} filters of a channel, where channels are neighbours in memory"
    if not step or conv.x_offset or conv.y_offset:
        return "columns that are not neighbours in memory, or not alike in input and output"
    if problem.factors is None:
        return f"fewer than {LEAST_TAPS} taps along each axis, or weights that are not finite"
    if problem.factors.rank > MOST_TERMS:
        which = "the filter has" if conv.out_channels == 1 else "a filter has"
        return f"{which} rank {problem.factors.rank}"
    if not list(_kernels(problem, target)):
        return f"a kernel of {'x'.join(map(str, window.kernel))}, too large for scratch or code"
    return None


def _kernels(problem: Problem, target: Target) -> Iterator[SeparableConv]:
    """Kernels of all tiles whose scratch and code are small enough."""
    step, conv = numbers_of_column(problem.conv), as_rows(problem.conv)
    lanes, (_, height, width) = conv.lanes(target), conv.window.out
    terms, stride = problem.factors.rank if problem.factors else 1, conv.window.stride[2]
    reach = conv.dtype.bytes * (conv.window.kernel[2] - 1) * conv.window.dilation[2]
    strips = ceil_div(width * stride * conv.dtype.bytes, max(_STRIP_BYTES, _REACHES * reach))
    parted = step == 1 and lanes % stride == 0
    aparts = [stride if parted else 1]
    if step == stride == 1 and lanes * conv.dtype.bytes == ALIGNMENT:
        aparts.append(2)
    for rows, apart in product(_ROWS, aparts):
        kernel = SeparableConv(conv, lanes, step, terms, rows, 1, apart, 1)
        whole = lanes * kernel.kinds * kernel.vectors_of_set * (SETS if strips > 1 else 1)
        kernel = replace(kernel, columns=ceil_div(ceil_div(width, strips), whole) * whole)
        small = kernel.scratch_bytes <= _SCRATCH_BYTES and kernel.written <= _MOST_WRITTEN
        if rows <= max(1, height) and small:
            yield kernel


def _planned(problem: Problem, target: Target) -> tuple[SeparableConv, float]:
    """The kernel for a problem, with its estimated cycles of one core.

    Extents may be symbols: tiles are those of a usual size, and the cycles, too.
    """
    kernel, cycles = _tiled(_usual(problem) if problem.any_size else problem, target)
    return replace(kernel, conv=as_rows(problem.conv)), cycles


def _usual(problem: Problem) -> Problem:
    """The problem at a usual size, in the layout that `numbers_of_column` finds in its own.

    An image of one pixel may be of planes or have channels last; here it is of planes.
    """
    usual = replace(typical(problem), any_size=())
    if numbers_of_column(problem.conv) > 1:
        return usual
    conv, window = usual.conv, usual.conv.window
    x = Access.planes((1, conv.in_channels, *window.size))
    y = Access.planes((1, conv.out_channels, *window.out))
    return with_conv(usual, x=x, y=y)


@lru_cache(maxsize=256)
def _tiled(problem: Problem, target: Target) -> tuple[SeparableConv, float]:
    """The kernel of the least cycles for one size, with these."""
    kernel = min(_kernels(problem, target), key=lambda kernel: _cycles(kernel, target))
    tiles, each = prod(kernel.grid), _cycles(kernel, target) / prod(kernel.grid)
    most = ceil_div(kernel.conv.window.out[1], kernel.rows)
    wanted = max(_LEAST_CHUNKS, int(tiles * each / target.costs.chunk))
    together = min(ceil_div(tiles, wanted), most)
    together = max(together, min(most, ceil_div(int(target.costs.least_chunk), max(1, int(each)))))
    return replace(kernel, tiles=together), _cycles(kernel, target)


def _cycles(kernel: SeparableConv, target: Target) -> float:
    """Estimated cycles of one core."""
    conv, costs, rows, terms = kernel.conv, target.costs, kernel.rows, kernel.terms
    window, lanes = conv.window, kernel.lanes
    (kd, kh, kw), height = window.kernel, window.out[1]
    images, channels, depth, _, strips = kernel.grid
    units, loads, store = target.fma_units, costs.loads_per_cycle, _STORE * costs.store
    held = kh + rows + 1 <= target.usable_registers
    read = len(kernel.uses) / loads
    down = max(rows * kh / units, read + (0 if held else rows * kh / loads)) + rows * store
    if kd > 1:
        down += kernel.span * (_DEPTH * kd + store)
    elif conv.x.spatial[1] * conv.dtype.bytes % costs.l1_way_bytes == 0:
        # Rows whose lines share a set of L1 displace each other before they are read.
        over = max(0, len(kernel.uses) - costs.l1_ways + 2)
        down += min(_DISPLACED * len(kernel.uses), 3 * _DISPLACED * over)
    if kernel.apart > 1:
        down += rows * _PARTED * kernel.apart
    each, part = kernel.vectors_of_set, costs.unaligned_part
    if kernel.step % lanes == 0:
        part = 1.0
    elif lanes * conv.dtype.bytes == ALIGNMENT:
        part = min(costs.unaligned_line, _LINE)
    if kernel.gathers:
        part = window.stride[2] * costs.unaligned_line
    across = terms * max(each * kw / units, len(kernel.reads) * part / loads) + each * store
    columns = min(kernel.vectors, ceil_div(window.size[2], lanes))
    tile = _STRIP + terms * columns * down
    row = _ROW + ceil_div(min(window.out[2], kernel.columns), lanes * each) * across
    planes = images * channels * depth * strips
    factor = _OVER_MODEL if terms == 1 else _SEVERAL
    return factor * planes * (ceil_div(height, rows) * tile + height * row)


def _cost(problem: Problem, target: Target) -> float:
    cycles = _planned(problem, target)[1]
    return cycles + strided_walk_cycles(problem, target, target.costs.prefetched_line)


def _plausible(problem: Problem) -> bool:
    """Whether there are fewer products: those along columns are of all that are read.

    Where a stride leaves some out along rows, columns are parted, which takes as long as two.
    """
    if problem.factors is None or not problem.factors.pays:
        return False
    (kd, kh, kw), (_, sh, sw) = problem.conv.window.kernel, problem.conv.window.stride
    depth = kd * sh if kd > 1 else 0
    height = kh + 2 * (sw > 1) if kh > 1 else 0
    return problem.factors.rank * ((depth + height) * sw + kw) < kd * kh * kw


def _error(problem: Problem) -> float:
    """Roundings of the sums along all axes and of factors, and what the terms leave."""
    conv, factors = problem.conv, problem.factors
    assert factors is not None
    kd, kh, kw = conv.window.kernel
    own = walk_error(problem, kd + kh + factors.rank * kw)
    if not factors.error:
        return own
    return own + factors_error(conv.precision.accumulate) + factors.error


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    kernel, _ = _planned(problem, target)
    conv, factors = kernel.conv, problem.factors
    assert factors is not None

    def packing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        known, w = factors_in(w, 1), problem.weights_3d(w)
        if known is None or (known.rank, known.error) > (factors.rank, factors.error):
            needs = "are not finite" if known is None else f"need {counted(known.rank, 'term')}"
            raise InputError(
                f"the filters in w {needs}; algorithm 'separable' was planned for those that need "
                f"at most {counted(factors.rank, 'term')} and err by {factors.error:.1e}: plan it "
                "once more"
            )
        steps = walk_steps(prod(conv.window.kernel))
        packed = factors_of_all(w, factors.rank, steps)
        packed = np.moveaxis(kernel.spread(packed), 1, -1)
        return {"w": copied(packed), **channel_calls(kernel, channels)}

    taps = sum(conv.window.kernel)
    choice = Choice("separable", error=_error(problem))
    inputs = LARGEST * prod(conv.window.kernel) ** 1.5
    losses = Losses(2 * LARGEST * taps * factors.rank, inputs, growth=2.0 * taps)
    details = f"rank {factors.rank}, tile {kernel.rows}x{kernel.columns}"
    use = KernelUse(kernel, kernel.operands)
    return Candidate(choice, (use,), packing, details=details, of_values=True, losses=losses)


SEPARABLE = Algorithm(
    "separable",
    Parameters,
    _reject,
    _cost,
    _candidate,
    plausible=_plausible,
    unlikely=lambda _: "as many products as taps, or whole numbers that would be rounded",
    takes_halves=False,
)
