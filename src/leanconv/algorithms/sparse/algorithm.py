"""Streams of nonzero weights, and the tile, the block of channels and the cost of their kernel.

A stream is that of one output channel, or of a few neighbours that share its places. Group by
group, block by block of input channels, stream by stream come the weights that are not 0, by
ascending channel and tap: the order in which a plain sum adds their products. A weight's place is
`channel of the block · taps + tap`. A head is the first output channel of a stream, counted in its
group, and the number of its first place. No size of a map is in them.

Few pixels have a kernel, a packing and a cost of their own (`sliced_plan`); the cheaper is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod

import numpy as np

from leanconv.algorithms.common.conv import merge_rows
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse, channel_calls
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import Problem, dram_cycles, products, typical, walk_error
from leanconv.algorithms.sparse import sliced_plan
from leanconv.algorithms.sparse.kernel import SparseConv
from leanconv.algorithms.sparse.sliced import SlicedConv
from leanconv.codegen.lowered import PackCall
from leanconv.graph.zeros import LEAST, TOGETHER
from leanconv.kernels.packing import Order, copied, rearranged
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import as_dtype
from leanconv.units import counted

_LARGEST_STRIDE = 4
_MOST_PLACES = 2**15  # of a block: they are int16
_VECTORS = 8, 6, 12  # the most of a tile that are tried
_TIMES = 1, 2, 4  # blocks over what L1 takes that are tried
_L1_SHARE, _L2_SHARE = 0.7, 0.25  # of a block's input, of the sums between blocks
_LEAST_CHUNKS = 32  # to balance any number of threads, unless below `costs.least_chunk` cycles
_ALONE = 4  # times `costs.least_chunk`, from which on no chunk is the only one, whatever is copied
_COPIES = 0.05  # of a chunk's other cycles, that copying may take where outputs are divided
# Times of loads and of FMAs over what the record says; cycles of a stream's begin and end, of a
# vector that is copied, and of one that is not; the part of what L2 takes that shows beside FMAs.
_LOADS, _FMAS, _STREAM, _COPY, _READ, _L2_BESIDE = 1.2, 1.15, 6.0, 4.0, 2.0, 0.7
_LEAST_PIXELS = 8  # of a map: fewer leave most lanes empty
_MOST_ENTRIES, _MOST_TOGETHER = 0.5, 0.65  # of the weights: of streams of one output, and of four


def _reject(problem: Problem, target: Target) -> str | None:
    del target
    if problem.weights_change:
        return "weights that are data"
    return _refused(problem) if sliced_plan.refused(problem) else None


def _refused(problem: Problem) -> str | None:
    """Why lanes cannot run along pixels of planes; None if they can."""
    conv, x, y = problem.conv, problem.conv.x, problem.conv.y
    if x.block > 1 or y.block > 1:
        return "channels stand in blocks, not in planes"
    if x.spatial[2] != 1 or y.spatial[2] != 1 or conv.x_offset or conv.y_offset:
        return "columns are not neighbours in memory"
    if conv.window.stride[2] > _LARGEST_STRIDE:
        return f"a stride of {conv.window.stride[2]} along rows; at most {_LARGEST_STRIDE}"
    if prod(conv.window.kernel) > _MOST_PLACES:
        return f"{prod(conv.window.kernel)} taps; at most {_MOST_PLACES}"
    return None


def _streams(problem: Problem) -> Iterator[tuple[int, int]]:
    """Outputs of a stream, and the places of all streams."""
    conv, zeros = problem.conv, problem.zeros
    yield 1, zeros.nonzeros if zeros else conv.out_channels * conv.reduction
    if zeros and zeros.blocks and conv.outputs % TOGETHER == 0:
        yield TOGETHER, zeros.blocks


def _planned(problem: Problem, target: Target) -> tuple[SparseConv, float]:
    """The kernel for a problem, with its estimated cycles of one core.

    Extents may be symbols: tiles are those of a usual size, and the cycles, too.
    """
    usual = replace(typical(problem), any_size=()) if problem.any_size else problem
    kernel, cycles = _tiled(usual, target)
    return replace(kernel, conv=merge_rows(problem.conv)), cycles


@lru_cache(maxsize=256)
def _tiled(problem: Problem, target: Target) -> tuple[SparseConv, float]:
    """The kernel of the least cycles for one size, with these."""
    conv = merge_rows(problem.conv)
    tried = [
        replace(made, rows=rows, columns=columns, block=block)
        for together, entries in _streams(problem)
        for made in [SparseConv(conv, conv.lanes(target), 1, 1, 1, together, conv.outputs, entries)]
        for rows, columns in _tiles(made, target)
        for block in _blocks(made, target)
    ]
    kernel = min(tried, key=lambda kernel: _cycles(kernel, target))
    kernel = replace(kernel, streams_each=_streams_each(kernel, target))
    return kernel, _cycles(kernel, target)


def _tiles(kernel: SparseConv, target: Target) -> set[tuple[int, int]]:
    """Rows and columns of tiles: neighbouring vectors of one row, or one vector of some rows."""
    conv, lanes = kernel.conv, kernel.lanes
    _, height, width = conv.window.out
    # Beside sums a vector of x, and each output's weight where several share it.
    fitting = (target.registers - 2 - kernel.together) // kernel.together
    numbers = {min(most, fitting) for most in _VECTORS}
    if conv.window.kernel == (1, 1, 1) and height == 1:
        vectors = ceil_div(width, lanes)
        return {(1, _even(vectors, most) * lanes) for most in numbers}
    columns = lanes
    while columns > 1 and columns // 2 >= width:
        columns //= 2
    return {(_even(height, most * lanes // columns), columns) for most in numbers}


def _even(count: int, most: int) -> int:
    """Items of a part, where parts have about as many each, and at most so many."""
    return ceil_div(count, ceil_div(count, most))


def _blocks(kernel: SparseConv, target: Target) -> set[int]:
    """Input channels of a block: as many as L1 takes of usual tiles, or some times as many."""
    conv, inputs = kernel.conv, kernel.conv.inputs
    down = (conv.window.kernel[1] - 1) * conv.window.dilation[1]
    vectors = prod(conv.window.kernel[::2]) * (_VECTORS[0] + down)
    fitting = int(_L1_SHARE * target.l1_bytes) // (vectors * kernel.lanes * conv.dtype.bytes)
    each = ceil_div(max(1, fitting), 4) * 4
    most = min(inputs, _MOST_PLACES // kernel.taps, _TIMES[-1] * each)
    return {min(most, each * times) for times in _TIMES}


def _streams_each(kernel: SparseConv, target: Target) -> int:
    """Streams of a chunk: all of a group, unless threads or the cache want fewer."""
    conv, chunks = kernel.conv, prod(kernel.grid)
    tile = kernel.strip.vectors * kernel.lanes * conv.dtype.bytes
    parts = 1
    if kernel.blocks > 1:
        parts = ceil_div(conv.outputs * tile, int(_L2_SHARE * target.l2_bytes))
    each, copied = _chunk_cycles(kernel, target)
    worth = min((each - copied) / target.costs.least_chunk, _COPIES * (each - copied) / copied)
    two = 2 if chunks == 1 and each > _ALONE * target.costs.least_chunk else 1
    parts = max(parts, min(ceil_div(_LEAST_CHUNKS, chunks), int(worth)), two)
    return ceil_div(kernel.streams, parts)


def _chunk_cycles(kernel: SparseConv, target: Target) -> tuple[float, float]:
    """Estimated cycles of a chunk, and of its copy."""
    conv, costs, strip = kernel.conv, target.costs, kernel.strip
    vectors, item, together = strip.vectors, conv.dtype.bytes, kernel.together
    streams = min(kernel.streams_each, kernel.streams)
    loads = vectors + together + (kernel.taps > 1)  # a tap's offset is loaded
    step = _LOADS * loads / costs.loads_per_cycle
    held = min(kernel.block, conv.inputs) * strip.channel * item
    missing = max(0.0, 1 - _L1_SHARE * target.l1_bytes / held)
    step += missing * vectors * kernel.lanes * item / costs.l2_read * _L2_BESIDE
    step = max(step, _FMAS * vectors * together / target.fma_units, float(target.fma_latency))
    stream = _STREAM * kernel.blocks + costs.store * vectors * together
    stream += (costs.store + 1) * vectors * together * (kernel.blocks - 1)
    entries = kernel.entries / conv.groups * streams / kernel.streams
    in_place = kernel.in_place and conv.window.out[2] % kernel.lanes == 0
    copied = conv.inputs * strip.channel / kernel.lanes * conv.window.stride[2]
    copied *= _READ if in_place else _COPY
    return step * entries + streams * stream + copied, copied


def _cycles(kernel: SparseConv, target: Target) -> float:
    """Estimated cycles of one core."""
    return prod(kernel.grid) * _chunk_cycles(kernel, target)[0]


def _cost(problem: Problem, target: Target) -> float:
    kernel, cycles = _best(problem, target)
    if isinstance(kernel, SlicedConv):
        return sliced_plan.cost(problem, kernel, cycles, target)
    return cycles + dram_cycles(problem, target, sum(kernel.constant_bytes.values()))


def _best(problem: Problem, target: Target) -> tuple[SparseConv | SlicedConv, float]:
    """The kernel of the least cycles of those that a problem can have, with these."""
    found: list[tuple[SparseConv | SlicedConv, float]] = []
    if sliced_plan.refused(problem) is None:
        found.append(sliced_plan.planned(problem, target))
    if _refused(problem) is None:
        found.append(_planned(problem, target))
    return min(found, key=lambda each: each[1])


def _stream_calls(
    w: np.ndarray, groups: int, block: int, together: int, everything: bool
) -> dict[str, list[PackCall]]:
    """Return the calls that pack weights, by role.

    Args:
        w: (K, C/g, kd, kh, kw), any view.
        groups: of channels.
        block: input channels of a block.
        together: neighbouring output channels of a stream, which has the places where one of them
            has a weight that is not 0.
        everything: whether zeros are packed, too.
    """
    dtype, (outputs, inputs) = as_dtype(w.dtype), (len(w) // groups, w.shape[1])
    values, places, firsts, counts = list[PackCall](), [], [], []
    for group in range(groups):
        of_group = w[group * outputs : (group + 1) * outputs]
        there = np.not_equal(of_group, 0)
        there |= everything
        there = there.reshape(-1, together, *there.shape[1:]).any(axis=1)
        # Those of about as many places follow each other: a core then foresees where loops end.
        order = np.argsort(there.reshape(len(there), -1).sum(axis=1), kind="stable")
        for first in range(0, inputs, block):
            part = of_group[:, first : first + block]
            mask = there[order, first : first + block].reshape(len(order), -1)
            firsts.append(order * together)
            counts.append(mask.sum(axis=1))
            places.append(np.nonzero(mask)[1])
            if size := int(counts[-1].sum()) * together:
                taken = _taken(mask, order, together)
                values.append(rearranged(part[np.newaxis, np.newaxis], taken, size, dtype))
    heads = np.zeros((sum(map(len, firsts)) + 1, 2), np.int32)
    heads[:-1, 0] = np.concatenate(firsts)
    heads[1:, 1] = np.cumsum(np.concatenate(counts))
    found = np.concatenate(places).astype(np.int16)
    return {"w": values, "places": copied(found), "heads": copied(heads)}


def _taken(mask: np.ndarray, order: np.ndarray, together: int) -> Order:
    """The order that takes streams in an order of theirs, and of each the weights at its places."""

    def taken(numbers: np.ndarray) -> np.ndarray:
        streams = numbers.reshape(len(order), together, -1)[order].transpose(0, 2, 1)
        found: np.ndarray = streams[mask]
        return found

    return taken


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    kernel, _ = _best(problem, target)
    conv, zeros = kernel.conv, problem.zeros

    def packing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        w = problem.weights_3d(w)
        everything = problem.zeros is None
        if isinstance(kernel, SlicedConv):
            streams = sliced_plan.weight_calls(w, kernel.span, int(kernel.steps), everything)
        else:
            streams = _stream_calls(w, conv.groups, kernel.block, kernel.together, everything)
        packed = sum(call.bytes for call in streams["w"])
        assert packed == kernel.constant_bytes["w"], f"{packed} bytes of weights that are not 0"
        return {**streams, **channel_calls(kernel, channels)}

    choice = Choice("sparse", error=walk_error(problem, products(problem)))
    details = f"{_share(problem):.1%} of the weights are 0, {kernel.tile}"
    use, pattern = KernelUse(kernel, kernel.operands), zeros.pattern if zeros else ""
    return Candidate(choice, (use,), packing, details=details, pattern=pattern)


def _share(problem: Problem) -> float:
    """The part of the weights that is 0, as far as that is known."""
    zeros, conv = problem.zeros, problem.conv
    return 1 - zeros.nonzeros / (conv.out_channels * conv.reduction) if zeros else 0.0


def _plausible(problem: Problem) -> bool:
    zeros, conv = problem.zeros, problem.conv
    if zeros is None:
        return False
    weights = conv.out_channels * conv.reduction
    few = zeros.nonzeros <= _MOST_ENTRIES * weights
    together = 0 < zeros.blocks * TOGETHER <= _MOST_TOGETHER * weights
    pixels = bool(problem.any_size) or prod(conv.window.out) >= _LEAST_PIXELS
    return (pixels and (few or together)) or (few and sliced_plan.refused(problem) is None)


def _unlikely(problem: Problem) -> str:
    zeros, conv = problem.zeros, problem.conv
    if zeros is None:
        return f"fewer than {LEAST:.0%} of the weights are 0"
    few_pixels = not problem.any_size and prod(conv.window.out) < _LEAST_PIXELS
    if few_pixels and sliced_plan.refused(problem) is not None:
        pixels = counted(prod(conv.window.out), "pixel")
        return f"{pixels}; at least {_LEAST_PIXELS} where kernels slide, for full vectors"
    return (
        f"{_share(problem):.1%} of the weights are 0; at least {1 - _MOST_ENTRIES:.0%}, or "
        f"{1 - _MOST_TOGETHER:.0%} where {TOGETHER} neighbouring outputs share them"
    )


SPARSE = Algorithm(
    "sparse",
    Parameters,
    _reject,
    _cost,
    _candidate,
    plausible=_plausible,
    unlikely=_unlikely,
    takes_halves=False,
)
