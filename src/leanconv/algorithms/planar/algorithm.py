"""Which kernel for tensors in planes: general, depthwise or pointwise, its tile and its chunks."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from leanconv.algorithms.common.kernel_fields import group_fields
from leanconv.algorithms.interface import Algorithm, Candidate, one_kernel_candidate
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.planar.columns import shared_loads
from leanconv.algorithms.planar.depthwise import PlanarDepthwise, in_chunks, plan_planar_depthwise
from leanconv.algorithms.planar.kernel import PlanarConv
from leanconv.algorithms.planar.pointwise import PlanarPointwise, plan_planar_pointwise, with_tile
from leanconv.algorithms.problem import Problem, strided_walk_cycles, typical
from leanconv.algorithms.rounding import products, walk_error
from leanconv.codegen.geometry import PhasedAccess, Window, merge_rows
from leanconv.codegen.partial_sums import effective_length
from leanconv.codegen.tiling import Tile, rows_per_chunk
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_CHUNKS = 0.75  # of the record's chunk
# Cost of reading unpacked weights over that of a packed stream; with a stride and many channels the
# lines of weights and planes exceed L1.
_UNPACKED, _UNPACKED_DEEP, _DEEP = 1.05, 1.35, 16
_MEASURED_OVER_MODEL = 1.05  # measured time of layers over the sum of their tiles
_LARGEST_STRIDE = 4
# Output channels, phases counted, of a transposed convolution with vectors of columns. 128 to 64
# channels, 2x2 with stride 2 on 64x64: 2.16 ms, by vectors of channels 1.21.
_MOST_PHASED = 32
_STORES = 2  # cost of a tile's prologue and epilogue in stores, for each of its vectors
_PlanarKernel = PlanarConv | PlanarDepthwise | PlanarPointwise
_MOST_TAPS = 512  # along a row
_MOST_MASKED = 128  # of a row with padding, where each may be written out


def plan_planar(kernel: PlanarConv, target: Target) -> PlanarConv:
    """Choose channels and vectors of a tile, and the rows of a chunk."""
    window, x, y = merge_rows(kernel.window, kernel.x, kernel.y, lambda total: total)
    width = ceil_div(window.out[2], kernel.lanes)
    room = target.registers - 3
    vectors = min(width, 4 if kernel.outputs > 1 else 8)
    if window.stride[2] > 1:
        vectors = min(vectors, 4)
    if isinstance(y, PhasedAccess):
        channels, vectors = _tile_of_phases(kernel.outputs, y, vectors, room)
    else:
        fitting = range(2, min(kernel.outputs, (room - 1) // vectors - 1) + 1)
        channels = max((c for c in fitting if kernel.outputs % c == 0), default=1)
    each = kernel.reduction / target.fma_units + _STORES * target.costs.store
    cycles = width * channels * each
    pieces = kernel.batch * kernel.groups * kernel.outputs // channels
    wanted = _CHUNKS * target.costs.chunk
    rows = rows_per_chunk(window.out[0] * window.out[1], cycles, pieces, wanted)
    return replace(kernel, window=window, x=x, y=y, channels=channels, vectors=vectors, rows=rows)


def _tile_of_phases(outputs: int, y: PhasedAccess, most: int, room: int) -> tuple[int, int]:
    """Channels and vectors of a tile that has whole rows of phases."""
    across = y.phases[1]
    tiles = [
        (channels, vectors)
        for vectors in range(1, most + 1)
        for channels in range(across, min(outputs, (room - 1) // vectors - 1) + 1, across)
        if outputs % channels == 0 and y.takes_panels(channels)
    ]
    return max(tiles, key=lambda tile: (tile[0] * tile[1], tile[1]), default=(across, 1))


def _reject(problem: Problem, target: Target) -> str | None:
    x, y = problem.x, problem.y
    if x.block > 1 or y.block > 1:
        return "channels stand in blocks, not in planes"
    neighbours = y.spatial[2] == 1
    if isinstance(y, PhasedAccess):
        neighbours = neighbours or y.interleaves
        if y.phases[1] > (target.registers - 4) // 2:
            return f"{y.phases[1]} phases along rows"
    if x.spatial[2] != 1 or not neighbours or problem.y_offset:
        return "columns are not neighbours in memory"
    if problem.window.stride[2] > _LARGEST_STRIDE:
        return f"a stride of {problem.window.stride[2]} along rows; at most {_LARGEST_STRIDE}"
    most = _MOST_TAPS if problem.window.always_full(2) else _MOST_MASKED
    if problem.window.kernel[2] > most:
        return f"{problem.window.kernel[2]} taps along rows; at most {most}"
    return None


def _planned(problem: Problem, target: Target) -> tuple[_PlanarKernel, float]:
    """The kernel for a problem, with its estimated cycles of one core."""
    if problem.any_size:
        return _of_any_size(problem, target)
    row = _pointwise_row(problem)
    if row is not None:
        return plan_planar_pointwise(_pointwise(problem, row, target), target)
    general = _general(problem, target)
    cycles = _cycles(general, target)
    if _is_depthwise(problem):
        planned = plan_planar_depthwise(_depthwise(problem, target), target)
        if planned and planned[1] < cycles:
            return planned
    return general, cycles


def _pointwise_row(problem: Problem) -> Window | None:
    """The window over whole planes as one row, if each output is one pixel times weights."""
    window, *_ = merge_rows(problem.window, problem.x, problem.y, lambda total: total)
    is_row = window.is_pointwise and window.out == (1, 1, window.out[2])
    return window if is_row and not isinstance(problem.y, PhasedAccess) else None


def _is_depthwise(problem: Problem) -> bool:
    """Whether each of several channels, of two axes, is filtered by itself."""
    window, *_ = merge_rows(problem.window, problem.x, problem.y, lambda total: total)
    alone = problem.group_inputs == problem.group_outputs == 1 < problem.groups
    return alone and window.is_flat


_remembered = lru_cache(maxsize=256)(_planned)


def _of_any_size(problem: Problem, target: Target) -> tuple[_PlanarKernel, float]:
    """The same with the tile of maps of the usual sizes, which have no padding."""
    usual = replace(typical(problem), any_size=())
    planned, _ = _remembered(usual, target)
    overlaps = not problem.epilogue.residual
    row = _pointwise_row(problem)
    if row is not None and isinstance(planned, PlanarPointwise):
        kernel = replace(_pointwise(problem, row, target), overlaps=overlaps)
        return with_tile(kernel, planned.tile, target)
    if isinstance(planned, PlanarDepthwise) and _is_depthwise(problem):
        tile = {name: getattr(planned, name) for name in ("lanes", "planes", "rows", "vectors")}
        kept = replace(_depthwise(problem, target), **tile, overlaps=overlaps)
        made = in_chunks(kept, target)
        if made is not None:
            return made
    likely = _general(usual, target)
    general = replace(_general(problem, target), channels=likely.channels, vectors=likely.vectors)
    return general, _cycles(general, target)


def _cycles(kernel: PlanarConv, target: Target) -> float:
    stride, inputs, costs = kernel.window.stride[2], kernel.inputs, target.costs
    unpacked = _UNPACKED_DEEP if stride > 1 and inputs >= _DEEP else _UNPACKED
    loaded: float = 2 * stride
    if target.masks_are_bits:  # else taking the lanes apart costs what sharing loads saves
        loaded *= len(shared_loads(kernel.window)) / kernel.window.kernel[2]

    def tile(vectors: int) -> float:
        size = kernel.channels * vectors
        loads = (vectors * loaded + kernel.channels) / costs.loads_per_cycle
        step = max(size / target.fma_units, loads, float(target.fma_latency))
        step += costs.deinterleave[stride] * vectors
        return unpacked * step * kernel.reduction + costs.store * size

    whole, rest = divmod(ceil_div(kernel.window.out[2], kernel.lanes), kernel.vectors)
    rows = kernel.batch * kernel.groups * kernel.outputs // kernel.channels * kernel.row_count
    return rows * (whole * tile(kernel.vectors) + (tile(rest) if rest else 0.0))


def _pointwise(problem: Problem, row: Window, target: Target) -> PlanarPointwise:
    flat = replace(problem, window=row)
    return PlanarPointwise(
        **group_fields(flat, target),
        tile=Tile(1, 1),
        column_tiles=1,
        panel_block=1,
        prefetch=False,
    )


def _depthwise(problem: Problem, target: Target) -> PlanarDepthwise:
    return PlanarDepthwise(
        **group_fields(problem, target),
        planes=1,
        rows=1,
        vectors=1,
        plane_block=1,
        row_block=1,
    )


def _general(problem: Problem, target: Target) -> PlanarConv:
    kernel = PlanarConv(**group_fields(problem, target), channels=1, vectors=1, rows=1)
    return plan_planar(kernel, target)


def _cost(problem: Problem, target: Target) -> float:
    cycles = _MEASURED_OVER_MODEL * _planned(problem, target)[1]
    return cycles + strided_walk_cycles(problem, target, target.costs.prefetched_line)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    kernel, _ = _planned(problem, target)
    pointwise = isinstance(kernel, PlanarPointwise)
    length = effective_length(kernel.inputs) if pointwise else products(problem)
    choice = Choice("planar", error=walk_error(problem, length))
    details = "" if isinstance(kernel, PlanarConv) else kernel.tile_text
    return one_kernel_candidate(choice, problem, kernel, details)


def _plausible(problem: Problem) -> bool:
    """Whether it may be the fastest: each tile of a few channels reads all of the input again."""
    return not isinstance(problem.y, PhasedAccess) or problem.group_outputs <= _MOST_PHASED


PLANAR = Algorithm(
    "planar", Parameters, _reject, _cost, _candidate, plausible=_plausible, takes_phases=True
)
