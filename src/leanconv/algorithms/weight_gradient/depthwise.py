"""The gradient of the weights of depthwise convolution: groups of one or a few input channels."""

from __future__ import annotations

from math import prod

from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import Problem, walk_error
from leanconv.algorithms.weight_gradient.bias import added_rows, with_rows_added
from leanconv.algorithms.weight_gradient.depthwise_channels import AlongChannels
from leanconv.algorithms.weight_gradient.depthwise_columns import AlongColumns
from leanconv.algorithms.weight_gradient.depthwise_kernel import DepthwiseGradient, Tile
from leanconv.codegen.shuffles import power_below
from leanconv.records import replace
from leanconv.spec.conv import effective_extent
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target

_MOST_COLUMNS = 8  # vectors of dy in registers, of one row
_MOST_ROWS = 4  # addresses are in registers, too
_LEAST_VECTORS = 4
_OTHERS = 2  # registers of x
_MOST_INPUTS = 8  # of a group; with more, `direct` multiplies several with a vector of dy
_STRIP_SHARE = 2  # of the parts of L1 that the strip fills, one is left
_MOST_PARTS = 16
_LINES = 4  # cache lines of channels that a chunk reads of each pixel, where they are neighbours
_MOST_ENDS = 12  # columns with taps in the padding, for which code is written
_LEAST_CHUNKS = 16  # unless chunks then have fewer cycles than `costs.least_chunk`


def _reject(problem: Problem, target: Target) -> str | None:
    conv, lanes = problem.conv, problem.conv.lanes(target)
    if conv.inputs > _MOST_INPUTS:
        return f"groups of {conv.inputs} input channels; at most {_MOST_INPUTS}"
    if _along_columns(problem):
        return None
    span = lanes // conv.outputs * conv.inputs
    if conv.inputs > 1 and span > lanes:
        return f"{span} input channels for the outputs of a vector of {lanes}"
    if conv.x.block > 1 and span and lanes % span:
        return f"{span} inputs of a vector straddle blocks of {conv.x.block} channels"
    blocks = [access.block for access in (conv.x, conv.y) if access.block > 1]
    if any(block % lanes for block in blocks):
        return f"blocks of {min(blocks)} channels for vectors of {lanes}"
    if conv.y.block > 1 and lanes % conv.outputs and conv.outputs % lanes:
        return f"groups of {conv.outputs} output channels in blocks of {conv.y.block}"
    return None


def _along_columns(problem: Problem) -> bool:
    """Whether both tensors are planes."""
    conv = problem.conv
    return conv.x.spatial[2] == conv.y.spatial[2] == 1 and not (
        conv.x.lanes_contiguous and conv.y.lanes_contiguous
    )


def depthwise_kernel(problem: Problem, target: Target) -> DepthwiseGradient:
    """The kernel for a problem: tile, blocks of rows, chunks."""
    conv, window, lanes = problem.conv, problem.conv.window, problem.conv.lanes(target)
    columns = _along_columns(problem)
    kind = AlongColumns if columns else AlongChannels
    if columns and 2 not in problem.any_size:
        while lanes > 2 and ceil_div(window.out[2], lanes // 2) == 1:
            lanes //= 2
    alone = window.out[1] == 1 and 1 not in problem.any_size
    tile = _tile(window.kernel, target, not columns or alone)
    in_place = tile.tap_columns == window.kernel[2]
    if columns:
        in_place = in_place and target.runtime_masks
    else:
        first, past = window.full(2)
        ends = first + window.out[2] - past
        channels = conv.x.lanes_contiguous and conv.y.lanes_contiguous
        in_place = in_place and channels and ends <= _MOST_ENDS
    kernel = kind(conv=conv, lanes=lanes, tile=tile, in_place=in_place)
    kernel = replace(kernel, block_rows=_block_rows(kernel, target))
    return _in_chunks(kernel, target)


def _tile(taps: tuple[int, int, int], target: Target, alone: bool) -> Tile:
    """The tile whose sums, vectors of dy and of x fit the registers.

    Args:
        taps: of the kernel.
        target: the machine.
        alone: whether it is one row of dy.
    """
    _, height, width = taps
    most = target.usable_registers - _LEAST_VECTORS - _OTHERS
    columns = ceil_div(width, ceil_div(width, most))
    rows = min(height, max(1, most // columns)) if columns == width else 1
    rows = ceil_div(height, ceil_div(height, rows))
    wanted = ceil_div(target.least_accumulators, rows * columns)
    sets = power_below(min(wanted, most // (rows * columns)), _LEAST_VECTORS)
    left = target.usable_registers - _OTHERS - rows * columns * sets
    if alone:
        return Tile(1, power_below(left, _MOST_COLUMNS), rows, columns, sets)
    return Tile(power_below(left, _MOST_ROWS), 1, rows, columns, sets)


def _block_rows(kernel: DepthwiseGradient, target: Target) -> int:
    """Rows of a block: all, unless x is copied, or read several times, from L1.

    One, where channels are neighbours: all vectors of a chunk then read the same pages in turn.
    """
    window, item = kernel.conv.window, kernel.conv.dtype.bytes
    if kernel.in_place and _has_neighbours(kernel):
        return 1
    if kernel.in_place and kernel.passes == kernel.conv.inputs == 1:
        return window.out[1]
    fits = target.l1_bytes // _STRIP_SHARE // (kernel.strip_row * item)
    extent = effective_extent(window.kernel[1], window.dilation[1])
    rows = max(1, (fits - extent) // window.stride[1] + 1, kernel.tile.rows)
    even = ceil_div(window.out[1], ceil_div(window.out[1], rows))
    return min(window.out[1], ceil_div(even, kernel.tile.rows) * kernel.tile.rows)


def _has_neighbours(kernel: DepthwiseGradient) -> bool:
    """Whether vectors of channels lie side by side."""
    return kernel.conv.x.block == 1 and isinstance(kernel, AlongChannels)


def _cycles(kernel: DepthwiseGradient, target: Target) -> float:
    """Estimated cycles of one vector of channels, or of one channel, of one image."""
    window, vectors = kernel.conv.window, prod(kernel.conv.window.out)
    if isinstance(kernel, AlongColumns):
        vectors = window.out[0] * window.out[1] * ceil_div(window.out[2], kernel.lanes)
    products = vectors * kernel.taps / target.fma_units
    if kernel.in_place:
        return products
    moved = window.stride[2] * kernel.strip / kernel.strip_row / kernel.block_rows
    return products + vectors * moved * target.costs.vector_move


def _in_chunks(kernel: DepthwiseGradient, target: Target) -> DepthwiseGradient:
    """Choose vectors of a chunk, and parts where these are too few chunks."""
    conv = kernel.conv
    total = _cycles(kernel, target) * conv.batch * kernel.pieces
    even = min(_LEAST_CHUNKS, round(total / target.costs.least_chunk))
    wanted = max(1, even, round(total / target.costs.chunk))
    groups = min(kernel.pieces, wanted)
    groups = min(groups, max(1, kernel.pieces // conv.inputs))
    if _has_neighbours(kernel):
        together = conv.inputs * _LINES * ALIGNMENT // (kernel.lanes * conv.dtype.bytes)
        groups = min(groups, max(1, kernel.pieces // together))
    items = conv.batch * conv.window.out[0] * kernel.row_blocks
    parts = 1
    while parts * groups < min(wanted, _LEAST_CHUNKS) and 2 * parts <= min(items, _MOST_PARTS):
        parts *= 2
    return replace(kernel, vectors=ceil_div(kernel.pieces, groups), parts=parts)


def _cost(problem: Problem, target: Target) -> float:
    """Multiply-adds beside the streams of x and dy, each read once."""
    kernel, conv = depthwise_kernel(problem, target), problem.conv
    products = _cycles(kernel, target) * conv.batch * kernel.pieces
    read, costs = conv.input_bytes + conv.output_bytes, target.costs
    rate = (
        costs.l2_read if read <= target.l2_bytes else costs.l3_or_dram_read(read, target.l3_bytes)
    )
    stages = 1 if kernel.parts == 1 else 2
    return costs.overlapped(products, read / rate) + stages * costs.stage


def candidate_of(problem: Problem, kernel: DepthwiseGradient) -> Candidate:
    """The candidate of a kernel: its parts are added by another one."""
    conv = problem.conv
    block = kernel.block_rows * conv.window.out[2]
    blocks = ceil_div(conv.batch * prod(conv.window.out), block)
    choice = Choice("depthwise", error=walk_error(problem, block + blocks))
    kernel = replace(kernel, sums_dy=problem.sums_dy and kernel.may_sum_dy)
    *images, result = kernel.operands[:3]
    rows = kernel.operands[3:]
    if kernel.parts == 1 and not problem.any_size:
        candidate = Candidate(choice, (KernelUse(kernel, (*images, result, *rows)),))
    else:
        elements = conv.out_channels * conv.reduction
        added = added_rows(conv.dtype, kernel.parts, elements, "parts", result)
        candidate = Candidate(
            choice,
            (KernelUse(kernel, (*images, "parts", *rows)), added),
            temporaries={"parts": kernel.parts * elements * conv.dtype.bytes},
        )
    return with_rows_added(candidate, problem, kernel.parts) if rows else candidate


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    return candidate_of(problem, depthwise_kernel(problem, target))


def _plausible(problem: Problem) -> bool:
    """Return whether there are groups: of one, such as a first layer, panels of outputs are faster.

    The planes of 3 channels and 64 outputs took 62 ms where `direct` takes 12.
    """
    return problem.conv.groups > 1


DEPTHWISE = Algorithm("depthwise", Parameters, _reject, _cost, _candidate, plausible=_plausible)
