"""Choice of the kernel for tensors in planes: general, depthwise or pointwise, tile and chunks."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from leanconv.algorithms.common.conv import merge_rows
from leanconv.algorithms.interface import Algorithm, Candidate, one_kernel_candidate
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.planar.columns import shared_loads
from leanconv.algorithms.planar.depthwise import (
    PlanarDepthwise,
    good_tiles,
    of_any_size,
    plan_planar_depthwise,
)
from leanconv.algorithms.planar.kernel import PlanarConv, overlapping_vectors
from leanconv.algorithms.planar.pointwise import PlanarPointwise, plan_planar_pointwise
from leanconv.algorithms.planar.pointwise import of_any_size as pointwise_of_any_size
from leanconv.algorithms.problem import (
    Problem,
    beside_weights,
    products,
    sized,
    strided_walk_cycles,
    typical,
    typicals,
    walk_error,
)
from leanconv.codegen.geometry import PhasedAccess, Window
from leanconv.codegen.partial_sums import effective_length
from leanconv.codegen.tiling import Tile, rows_per_chunk, rows_per_chunk_of_any_width
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Symbol
from leanconv.target import Target

_CHUNKS = 0.75  # of the record's chunk
# Cost of reading unpacked weights over that of a packed stream; with a stride and many channels the
# lines of weights and planes exceed L1.
_UNPACKED, _UNPACKED_DEEP, _DEEP = 1.05, 1.35, 16
_LARGEST_STRIDE = 4
# Output channels, phases counted, of a transposed convolution with vectors of columns. 128 to 64
# channels, 2x2 with stride 2 on 64x64: 2.16 ms, by vectors of channels 1.21.
_MOST_PHASED = 32
# Vectors of a tile of any width. One of an odd number makes code for few rows more.
_VECTORS = 8, 6, 4, 3, 2, 1
_STORES = 2  # cost of a tile's prologue and epilogue in stores, for each of its vectors
_PlanarKernel = PlanarConv | PlanarDepthwise | PlanarPointwise
_MOST_TAPS = 512  # along a row
_MOST_MASKED = 128  # of a row with padding, where each may be written out


def plan_planar(kernel: PlanarConv, target: Target) -> PlanarConv:
    """Choose channels and vectors of a tile, and the rows of a chunk."""
    kernel = replace(kernel, conv=merge_rows(kernel.conv))
    width = ceil_div(kernel.conv.window.out[2], kernel.lanes)
    kernel = _with_tile(kernel, min(width, _most_vectors(kernel)), target)
    cycles = width * _vector_cycles(kernel, target)
    wanted = _CHUNKS * target.costs.chunk
    rows = rows_per_chunk(kernel.conv.row_count, cycles, _pieces(kernel), wanted)
    return replace(kernel, rows=rows)


def _most_vectors(kernel: PlanarConv) -> int:
    return 4 if kernel.conv.outputs > 1 or kernel.conv.window.stride[2] > 1 else 8


def _with_tile(kernel: PlanarConv, vectors: int, target: Target) -> PlanarConv:
    """Set a tile of so many vectors, fewer for phases, and the channels that fit."""
    conv = kernel.conv
    room = target.registers - 3
    if isinstance(conv.y, PhasedAccess):
        channels, vectors = _tile_of_phases(conv.outputs, conv.y, vectors, room)
    else:
        fitting = range(2, min(conv.outputs, (room - 1) // vectors - 1) + 1)
        channels = max((c for c in fitting if conv.outputs % c == 0), default=1)
    return replace(kernel, channels=channels, vectors=vectors)


def _vector_cycles(kernel: PlanarConv, target: Target) -> float:
    """Cycles of a vector of columns of a tile's channels, as chunks are cut by."""
    each = kernel.reduction / target.fma_units + _STORES * target.costs.store
    return kernel.channels * each


def _pieces(kernel: PlanarConv) -> int:
    conv = kernel.conv
    return conv.batch * conv.groups * conv.outputs // kernel.channels


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
    conv, x, y = problem.conv, problem.conv.x, problem.conv.y
    if x.block > 1 or y.block > 1:
        return "channels stand in blocks, not in planes"
    neighbours = y.spatial[2] == 1
    if isinstance(y, PhasedAccess):
        neighbours = neighbours or y.interleaves
        if y.phases[1] > (target.registers - 4) // 2:
            return f"{y.phases[1]} phases along rows"
    if x.spatial[2] != 1 or not neighbours or conv.y_offset:
        return "columns are not neighbours in memory"
    if conv.window.stride[2] > _LARGEST_STRIDE:
        return f"a stride of {problem.conv.window.stride[2]} along rows; at most {_LARGEST_STRIDE}"
    most = _MOST_TAPS if conv.window.always_full(2) else _MOST_MASKED
    if conv.window.kernel[2] > most:
        return f"{problem.conv.window.kernel[2]} taps along rows; at most {most}"
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
    conv = merge_rows(problem.conv)
    window = conv.window
    is_row = window.is_pointwise and window.out == (1, 1, window.out[2])
    return window if is_row and not isinstance(conv.y, PhasedAccess) else None


def _is_depthwise(problem: Problem) -> bool:
    """Return whether each of several channels, of two axes, is filtered by itself."""
    conv = merge_rows(problem.conv)
    return conv.inputs == conv.outputs == 1 < conv.groups and conv.window.is_flat


_remembered = lru_cache(maxsize=256)(_planned)


def _of_any_size(problem: Problem, target: Target) -> tuple[_PlanarKernel, float]:
    """Return kernel and cycles for all sizes, with the tile that is best for a usual size."""
    usual = replace(typical(problem), any_size=())
    planned, _ = _remembered(usual, target)
    overlaps = not problem.conv.epilogue.residual
    row = _pointwise_row(problem)
    if row is not None and isinstance(planned, PlanarPointwise):
        flat = replace(_pointwise(problem, row, target), overlaps=overlaps)
        known = replace(sized(problem), any_size=())
        alone = _pointwise(known, merge_rows(known.conv).window, target)
        return pointwise_of_any_size(flat, planned.tile, alone, target)
    if isinstance(planned, PlanarDepthwise) and _is_depthwise(problem):
        kernel = replace(_depthwise(problem, target), overlaps=overlaps)
        tiles = _good_tiles(typical(problem), target, overlaps)
        made = of_any_size(kernel, tiles, _depthwise(sized(problem), target), target)
        if made is not None:
            return made
    return _general_of_any_size(problem, target, overlaps)


@lru_cache(maxsize=256)
def _good_tiles(problem: Problem, target: Target, overlaps: bool) -> list[PlanarDepthwise]:
    """Kernels of few tiles, of which one is good for each of a problem's usual sizes."""
    usual = [_depthwise(each, target) for each in typicals(problem)]
    return good_tiles([replace(each, overlaps=overlaps) for each in usual], target)


def _general_of_any_size(
    problem: Problem, target: Target, overlaps: bool
) -> tuple[PlanarConv, float]:
    """The kernel of few codes for all sizes, with the vectors that are best for a row."""

    def kernel(problem: Problem) -> PlanarConv:
        made = replace(_one_row(problem, target), overlaps=overlaps)
        return replace(made, conv=merge_rows(made.conv))

    known = kernel(replace(sized(problem), any_size=()))
    row, wanted = known.conv.window, [v for v in _VECTORS if v <= _most_vectors(known)]
    fitting = [overlapping_vectors(row, known.lanes, v) or 1 for v in wanted]
    vectors = dict.fromkeys(fitting if overlaps else wanted)
    tiles = [_with_tile(known, each, target) for each in vectors]
    best = min(tiles, key=lambda tile: _cycles(tile, target))
    made = replace(kernel(problem), channels=best.channels, vectors=best.vectors)
    out, chunk = made.conv.window.out, _CHUNKS * target.costs.chunk
    width, cycles = ceil_div(out[2], made.lanes), _vector_cycles(made, target)
    rows = rows_per_chunk_of_any_width(made.conv.row_count, width, cycles, _pieces(made), chunk)
    made = replace(made, rows=rows)
    return made, 0.0 if isinstance(made.row_tiles, Symbol) else _cycles(made, target)


def _cycles(kernel: PlanarConv, target: Target) -> float:
    conv = kernel.conv
    stride, inputs, costs = conv.window.stride[2], conv.inputs, target.costs
    unpacked = _UNPACKED_DEEP if stride > 1 and inputs >= _DEEP else _UNPACKED
    loaded: float = 2 * stride
    if target.masks_are_bits:  # else taking the lanes apart costs what sharing loads saves
        loaded *= len(shared_loads(conv.window)) / conv.window.kernel[2]

    def tile(vectors: int) -> float:
        size = kernel.channels * vectors
        loads = (vectors * loaded + kernel.channels) / costs.loads_per_cycle
        step = max(size / target.fma_units, loads, float(target.fma_latency))
        step += costs.deinterleave[stride] * vectors
        return unpacked * step * kernel.reduction + costs.store * size

    vectors, lanes, rest = kernel.vectors, kernel.lanes, 0
    fitting = overlapping_vectors(conv.window, lanes, vectors) if kernel.overlaps else 0
    if fitting:
        vectors, whole = fitting, ceil_div(conv.window.out[2], fitting * lanes)
    else:
        whole, rest = divmod(ceil_div(conv.window.out[2], lanes), vectors)
    row = whole * tile(vectors) + (tile(rest) if rest else 0.0)
    return _pieces(kernel) * conv.row_count * row


def _pointwise(problem: Problem, row: Window, target: Target) -> PlanarPointwise:
    conv = replace(problem.conv, window=row)
    return PlanarPointwise(
        conv=conv,
        lanes=conv.lanes(target),
        tile=Tile(1, 1),
        column_tiles=1,
        panel_block=1,
        prefetch=False,
    )


def _depthwise(problem: Problem, target: Target) -> PlanarDepthwise:
    return PlanarDepthwise(
        conv=problem.conv,
        lanes=problem.conv.lanes(target),
        planes=1,
        rows=1,
        vectors=1,
        plane_block=1,
        row_block=1,
    )


def _general(problem: Problem, target: Target) -> PlanarConv:
    return plan_planar(_one_row(problem, target), target)


def _one_row(problem: Problem, target: Target) -> PlanarConv:
    """The kernel of few codes, one row and one vector at a time."""
    conv = problem.conv
    return PlanarConv(conv, lanes=conv.lanes(target), channels=1, vectors=1, rows=1)


def _cost(problem: Problem, target: Target) -> float:
    cycles = target.costs.planar_over_model * _planned(problem, target)[1]
    few = prod(problem.conv.window.out) <= target.lanes(problem.conv.precision.accumulate)
    if few:  # no more than a vector of them: each weight that is read serves one product
        cycles = beside_weights(problem, target, cycles)
    return cycles + strided_walk_cycles(problem, target, target.costs.prefetched_line)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    kernel, _ = _planned(problem, target)
    pointwise = isinstance(kernel, PlanarPointwise)
    length = effective_length(kernel.conv.inputs) if pointwise else products(problem)
    choice = Choice("planar", error=walk_error(problem, length))
    details = "" if isinstance(kernel, PlanarConv) else kernel.tile_text
    return one_kernel_candidate(choice, problem, kernel, details)


def _plausible(problem: Problem) -> bool:
    """Return whether it may be fastest: with phases, each tile reads all of the input again."""
    return not isinstance(problem.conv.y, PhasedAccess) or problem.conv.outputs <= _MOST_PHASED


PLANAR = Algorithm(
    "planar", Parameters, _reject, _cost, _candidate, plausible=_plausible, takes_phases=True
)
