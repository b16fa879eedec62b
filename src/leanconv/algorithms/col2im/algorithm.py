"""col2im as a method: which transposed convolutions it takes, what it costs, its kernel.

Its problem has the window of the transposed convolution: input and output extents, kernel, stride,
dilation and padding of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import product
from math import lcm, prod
from typing import NamedTuple

import numpy as np

from leanconv.algorithms.col2im.kernel import Col2Im
from leanconv.algorithms.col2im.layout import run_table
from leanconv.algorithms.decompose import transposed_taps
from leanconv.algorithms.interface import Candidate, KernelUse, is_one_float
from leanconv.algorithms.magnitudes import losses_of_sums
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem, dram_cycles, walk_error
from leanconv.codegen.geometry import PhasedAccess, Window
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.tiling import Tile, fits, tile_cycles
from leanconv.kernels.packing import channels as packed_channels
from leanconv.kernels.packing import copied, rearranged
from leanconv.spec.conv import sum_flops
from leanconv.spec.format import ceil_div
from leanconv.spec.typical import ANY_COUNT
from leanconv.symbolic import least, most
from leanconv.target import Target
from leanconv.types import as_dtype

NAME = "col2im"

_MOST_VECTORS, _MOST_ROWS = 8, 28
_CHUNK_FLOPS = 8 << 20
_HALOS = 32  # a band has at least so many times the positions that are computed again
_RUN_VECTORS = 8  # vectors whose sums take as long as finding the place of a run
_SUM_STORES = 2  # stores of results that adding a vector to y takes as long as
_PANEL_SHARE = 12  # a panel of more than this part of L2 costs its stream, too
_PACKED_PANELS = 16  # that read x again, so that packing it pays


def refusal(problem: Problem, target: Target) -> str | None:
    """Why a problem cannot be computed this way; None if it can."""
    conv = problem.conv
    if not is_one_float(conv.precision):
        return f"{problem.conv.precision} operands; expected float32 or float64"
    lanes = conv.lanes(target)
    for access, channels, side in (
        (conv.x, conv.inputs, "input"),
        (conv.y, conv.outputs, "output"),
    ):
        if access.block > 1 and conv.groups > 1 and channels % access.block:
            return f"groups of {channels} {side} channels do not fill blocks of {access.block}"
    if conv.y.block not in (1, lanes) or isinstance(conv.y, PhasedAccess):
        return f"blocks of {problem.conv.y.block} output channels; expected {lanes}, or none"
    if conv.y.block == 1 and conv.y.spatial[2] != 1:
        return "output channels that lie beside each other; expected planes or blocks"
    return None


class _Plan(NamedTuple):
    """Division of a group's outputs into units, and the register tile that computes them.

    Attributes:
        unit: blocks of outputs of a unit, which has panels of its own.
        tile: pixels and vectors of a register tile.
        cycles: estimated for one group of one image, without what bands compute again.
    """

    unit: int
    tile: Tile
    cycles: float


def _plan(problem: Problem, target: Target) -> _Plan:
    """The cheapest tile and unit."""
    conv = problem.conv
    window, lanes, any_size = conv.window, conv.lanes(target), problem.any_size
    axis = _band_axis(window)
    pixels = prod(window.size)
    if any_size:
        pixels = int(pixels) if pixels < _MOST_ROWS else ANY_COUNT
    positions = (pixels, 1, 0) if any_size else (window.size[axis], _inner(window), _halo(window))
    blocks = ceil_div(conv.outputs, conv.y.block)
    columns = conv.y.block * prod(window.kernel)
    sizes = blocks, columns, _run(problem), conv.inputs
    return _cheapest(target, pixels, positions, sizes, lanes, conv.dtype.bytes)


@lru_cache(maxsize=512)
def _cheapest(
    target: Target,
    pixels: int,
    positions: tuple[int, int, int],
    sizes: tuple[int, int, int, int],
    lanes: int,
    itemsize: int,
) -> _Plan:
    """The cheapest plan.

    Args:
        target: the machine.
        pixels: of an image.
        positions: along the axis of the bands, pixels of one, and how many bands compute again.
        sizes: blocks of outputs of a group, columns of one, of a run, inputs.
        lanes: of a vector.
        itemsize: bytes of an element.
    """
    blocks, columns, run, inputs = sizes
    size, inner, halo = positions
    costs, found = target.costs, list[_Plan]()
    for unit in (n for n in range(1, blocks + 1) if blocks % n == 0):
        units, vectors = blocks // unit, ceil_div(unit * columns, lanes)
        flops = sum_flops(1, unit * columns, (pixels,), inputs)
        bands = _bands(flops, size, halo)
        of_band = (ceil_div(size, bands) + halo) * inner
        for wide in range(min(2, vectors), min(_MOST_VECTORS, vectors) + 1):
            panels, stream = ceil_div(vectors, wide), inputs * wide * lanes * itemsize
            ends = _end_cycles(target, wide, lanes, run)
            for rows in range(1, min(_MOST_ROWS, pixels) + 1):
                if not fits(target, rows, wide):
                    break
                if rows < pixels and 3 * rows * wide < 2 * target.usable_registers:
                    continue  # fewer sums wait for panels from L2
                each = tile_cycles(target, rows, wide, inputs) + rows * ends
                each *= 1 + costs.operand_traffic * (1 / rows + 1 / wide)
                if stream * _PANEL_SHARE > target.l2_bytes:
                    each = costs.overlapped(each, stream / costs.l2_read)
                cycles = units * panels * bands * ceil_div(of_band, rows) * each
                found.append(_Plan(unit, Tile(rows, wide), cycles))
        if unit * columns >= _MOST_VECTORS * lanes:
            break  # larger units fill their panels no better
    return min(found, key=lambda plan: plan.cycles)


def _end_cycles(target: Target, vectors: int, lanes: int, run: int) -> float:
    """Cycles to add one pixel's columns of a panel to y."""
    runs = ceil_div(vectors * lanes, run)
    return target.costs.store * (_SUM_STORES * max(vectors, runs) + _RUN_VECTORS * runs)


def kernel_of(problem: Problem, target: Target) -> Col2Im:
    """The kernel of a problem that is not refused."""
    conv = problem.conv
    window, x, y, lanes = conv.window, conv.x, conv.y, conv.lanes(target)
    plan = _plan(problem, target)
    units = ceil_div(conv.outputs, y.block) // plan.unit
    columns, width = plan.unit * y.block * prod(window.kernel), plan.tile.vectors * lanes
    panels = ceil_div(columns, width)
    flops = sum_flops(1, columns, window.size, conv.inputs)
    axis = _band_axis(window)
    return Col2Im(
        dtype=conv.dtype,
        lanes=lanes,
        batch=conv.batch,
        groups=conv.groups,
        inputs=conv.inputs,
        units=units,
        unit=plan.unit,
        panels=panels,
        runs=_run_count(columns, _run(problem), width),
        axis=axis,
        bands=_bands(flops, window.size[axis], _halo(window)),
        window=window,
        x=x,
        y=y,
        epilogue=conv.epilogue,
        tile=plan.tile,
        packed=x.block == 1 == x.spatial[2] and panels >= _PACKED_PANELS,
    )


def _run(problem: Problem) -> int:
    """Columns of a run: those of a row of taps, if they lie beside each other."""
    window = problem.conv.window
    return problem.conv.y.block * (window.kernel[2] if window.dilation[2] == 1 else 1)


def _run_count(columns: int, run: int, width: int) -> int:
    """Runs of so many columns, cut at panels."""
    both = ceil_div(columns, lcm(run, width))
    return ceil_div(columns, run) + ceil_div(columns, width) - both


def _band_axis(window: Window) -> int:
    """The first axis that is longer than one, so that a band's outputs lie beside each other."""
    long = (axis for axis in (0, 1) if window.size[axis] != 1 or window.out[axis] != 1)
    return next(long, 2)


def _inner(window: Window) -> int:
    """Pixels of one position along the axis of the bands."""
    return prod(window.size[_band_axis(window) + 1 :])


def _halo(window: Window) -> int:
    """Positions along the axis of the bands that two bands compute."""
    axis = _band_axis(window)
    return (window.kernel[axis] - 1) * window.dilation[axis] // window.stride[axis]


def _bands(flops: int, size: int, halo: int) -> int:
    """Return the number of bands: chunks worth claiming that recompute little.

    Args:
        flops: operations of a unit of one image.
        size: positions along the axis of the bands.
        halo: positions that two bands compute.
    """
    bands: int = least(flops // _CHUNK_FLOPS + 1, most(size // max(1, _HALOS * halo), 1))
    return bands


def cost(problem: Problem, target: Target) -> float:
    """Estimated cycles of one core."""
    conv, plan, costs = problem.conv, _plan(problem, target), target.costs
    results = conv.out_channels * prod(conv.window.out) / conv.lanes(target)
    passes = 1 + (conv.epilogue.activation is not None)
    pixels = prod(conv.window.size)
    times = pixels / ANY_COUNT if problem.any_size and pixels >= _MOST_ROWS else 1
    cycles = conv.groups * plan.cycles * times + costs.store * passes * results
    return conv.batch * cycles + dram_cycles(problem, target, conv.weight_bytes)


def candidate(problem: Problem, target: Target) -> Candidate:
    """The kernel of a problem that is not refused, with its packing."""
    conv, kernel, window = problem.conv, kernel_of(problem, target), problem.conv.window
    axes = zip(window.kernel, window.stride, window.dilation, strict=True)
    taps = prod(transposed_taps(*axis) for axis in axes)  # of one output, at most
    products = conv.inputs * taps
    # One after the other within a tap, then tap by tap.
    error = walk_error(problem, conv.inputs + taps)
    losses = losses_of_sums(products)

    def packing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        width = kernel.units * kernel.unit * kernel.y.block
        numbers = {n: packed_channels(v, w.shape[1], width) for n, v in channels.items()}
        bounds, runs = run_table(
            window.kernel, window.dilation, kernel.y.block, kernel.unit, kernel.width
        )
        table = np.concatenate([bounds.reshape(-1), runs.reshape(-1)])
        return {"w": weight_calls(kernel, w), **numbers, "runs": copied(table)}

    details = f"tile {kernel.tile.rows}x{kernel.tile.vectors}" + ", packed" * kernel.packed
    uses = (KernelUse(kernel, kernel.operands),)
    return Candidate(Choice(NAME, error=error), uses, packing, details=details, losses=losses)


def weight_calls(kernel: Col2Im, w: np.ndarray) -> list[PackCall]:
    """Return the calls that pack weights for a kernel, one panel after the other.

    Args:
        kernel: whose panels are packed.
        w: (C, K / groups, taps…), with all three kernel axes or fewer.
    """
    block, width, dtype = kernel.y.block, kernel.width, as_dtype(w.dtype)
    each, inputs = kernel.unit * block, kernel.inputs
    places = list(product(range(0, kernel.units * each, each), range(kernel.panels)))

    def panel(numbers: np.ndarray, number: int) -> np.ndarray:
        """Columns (c, unit, taps, block) of some outputs (c, k, taps…), those of a panel."""
        c, k, *_ = numbers.shape
        filled = np.pad(numbers.reshape(c, k, -1), [(0, 0), (0, each - k), (0, 0)])
        columns = filled.reshape(c, kernel.unit, block, -1).swapaxes(2, 3).reshape(c, -1)
        some = columns[:, number * width : (number + 1) * width]
        return np.pad(some, [(0, 0), (0, width - some.shape[1])])

    if kernel.groups > 1:

        def order(numbers: np.ndarray) -> np.ndarray:
            parts = (panel(numbers[:, k : k + each], number) for k, number in places)
            return np.concatenate([part.reshape(-1) for part in parts])

        grouped = w.reshape(kernel.groups, 1, inputs, *w.shape[1:])
        return [rearranged(grouped, order, len(places) * inputs * width, dtype)]
    return [
        rearranged(w[np.newaxis, :, k : k + each], partial(_row, panel, number), width, dtype)
        for k, number in places
    ]


def _row(
    panel: Callable[[np.ndarray, int], np.ndarray], number: int, numbers: np.ndarray
) -> np.ndarray:
    return panel(numbers[np.newaxis], number)
