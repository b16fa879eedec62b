"""Depthwise convolution as a method: its kernel's tile and chunks, what it refuses, its cost."""

from __future__ import annotations

from math import prod

from leanconv.algorithms.depthwise.kernel import WEIGHTS_KEPT, DepthwiseConv
from leanconv.algorithms.depthwise.quads import QUAD, DepthwiseCodes
from leanconv.algorithms.interface import (
    Algorithm,
    Candidate,
    is_one_float,
    one_kernel_candidate,
)
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import Problem, sum_error
from leanconv.codegen.dot import group_of, takes_bytes, way_of
from leanconv.codegen.tiling import rows_per_chunk, rows_per_chunk_of_any_width
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.spec.typical import ANY_COUNT
from leanconv.target import Target
from leanconv.types import FLOAT32, INT8, INT32, UINT8, Precision

_CHUNKS = 0.75  # of the record's chunk
_SHARED_COLUMNS = 12  # of a tile whose weights are in memory
_COLUMNS = 28, 24, 16, 12, 8, 6, 4  # of a tile for a width that is known; the most that fit, too
_LEAST_COLUMNS = 4  # of a tile, so that sums do not wait for each other
_STORE_SHARE = 1.5  # stores that a column is worth besides its taps, where chunks are cut


def _reject(problem: Problem, target: Target) -> str | None:
    """Lanes along channels must work for groups of that size in these layouts."""
    conv, lanes = problem.conv, problem.conv.lanes(target)
    inputs, outputs = conv.inputs, conv.outputs
    if conv.groups == 1:
        return "there is only one group"
    if not conv.precision.x.is_float:
        return _reject_codes(problem, lanes)
    if not (conv.x.lanes_contiguous and conv.y.lanes_contiguous):
        return "channels do not stand next to each other in memory"
    if outputs > lanes:
        return f"groups of {outputs} output channels do not fit {lanes} lanes"
    if conv.y.block > 1 and lanes % outputs:
        return f"groups of {outputs} output channels do not divide {lanes} lanes"
    span = lanes // outputs * inputs
    if span > 2 * lanes or (conv.x.block > 1 and span > lanes and span != 2 * lanes):
        return f"a vector of outputs needs {span} inputs; at most {2 * lanes} can be shuffled"
    if conv.x.block > 1 and span % lanes and lanes % span:
        return f"{span} inputs of a vector straddle blocks of {lanes} channels"
    return None


def _reject_codes(problem: Problem, lanes: int) -> str | None:
    """Quads take one channel to one, in blocks of a vector of sums."""
    conv = problem.conv
    if conv.inputs != 1 or conv.outputs != 1:
        return "groups of codes of more than one channel"
    if conv.x.block != lanes or conv.y.block != lanes:
        return f"codes that are not in blocks of {lanes} channels"
    if conv.epilogue.activation:
        return f"an activation of sums in {problem.conv.precision.accumulate}"
    if conv.precision.y == FLOAT32 and not conv.epilogue.requantise:
        return "float32 made of sums without scales"
    return None


def _takes(precision: Precision) -> bool:
    """Floats of one type; codes whose quads the target's instructions add up."""
    return is_one_float(precision) or (
        group_of(precision) == QUAD and precision.y in (INT8, UINT8, INT32, FLOAT32)
    )


def depthwise_kernel(problem: Problem, target: Target) -> DepthwiseConv:
    """The kernel for a problem: the columns of a tile and the rows of a chunk."""
    any_width = bool(problem.any_size)
    kernel = _kernel(problem, target, any_width)
    window = kernel.conv.window
    most = min(28, max(_LEAST_COLUMNS, target.registers - _kept(kernel, target)))
    usual = ANY_COUNT if any_width else window.out[2]
    tiles = ceil_div(usual, most)
    columns = ceil_div(usual, tiles)
    for wanted in range(min(most, usual), max(0, min(most, usual) // 2), -1):
        if usual % wanted == 0:
            columns = wanted
            break
    if any_width and len(problem.usual_sizes) > 1:  # the width is known
        several = dict.fromkeys(min(most, each) for each in _COLUMNS)
        columns = min(several, key=lambda each: _row_cycles(kernel, each, target))
    taps = kernel.steps
    inside = kernel.blocks if kernel.blocks_inside else 1
    each = taps / target.fma_units + _STORE_SHARE * target.costs.store
    pieces, chunk = kernel.conv.batch * kernel.blocks // inside, _CHUNKS * target.costs.chunk
    count, width = kernel.conv.row_count, window.out[2]
    if any_width:
        rows = rows_per_chunk_of_any_width(count, width, inside * each, pieces, chunk)
    else:
        rows = rows_per_chunk(count, width * inside * each, pieces, chunk)
    return replace(kernel, columns=columns, rows=rows)


def _row_cycles(kernel: DepthwiseConv, columns: int, target: Target) -> float:
    """Cycles of a row of any width in tiles of so many columns."""
    cycles = 0.0
    for tile in replace(kernel, columns=columns).row_tiles:
        if tile.needed > 0:
            each = kernel.steps / target.fma_units + target.costs.store
            weights = kernel.steps / target.costs.loads_per_cycle
            waits = kernel.steps * target.fma_latency / 2  # the next tile hides some
            cycles += tile.count * max(tile.pixels * each + weights, waits)
    return cycles


def _kernel(problem: Problem, target: Target, any_width: bool) -> DepthwiseConv:
    conv, lanes = problem.conv, problem.conv.lanes(target)
    if conv.precision.x.is_float:
        one_code = any_width and problem.weights_change
        code = {"any_width": any_width, "one_code": one_code}
        return DepthwiseConv(conv=conv, lanes=lanes, columns=1, rows=1, **code)
    way = way_of(conv.precision, target)
    fits = problem.excess is not None and not problem.excess.twos
    if fits and conv.precision.x == UINT8 and takes_bytes(conv.precision, target):
        way = "bytes"
    return DepthwiseCodes(conv=conv, lanes=lanes, columns=1, rows=1, any_width=any_width, way=way)


def _kept(kernel: DepthwiseConv, target: Target) -> int:
    """Registers that hold no sums in a row of taps: weights, inputs, and four others."""
    conv = kernel.conv
    if isinstance(kernel, DepthwiseCodes):
        return min(WEIGHTS_KEPT, len(kernel.forms) * kernel.weight_parts) + 4 + conv.inputs
    if kernel.shared_taps:  # more columns are no faster, but their code is long
        return target.registers - min(_SHARED_COLUMNS, target.registers - 8)
    kept = conv.window.kernel[2] * conv.inputs
    return (kept if kept <= WEIGHTS_KEPT else conv.inputs) + 4 + conv.inputs


def _cost(problem: Problem, target: Target) -> float:
    kernel = depthwise_kernel(problem, target)
    outputs = kernel.conv.batch * kernel.blocks * prod(kernel.conv.window.out)
    return outputs * (_column_cycles(kernel, target) + target.costs.store)


def _column_cycles(kernel: DepthwiseConv, target: Target) -> float:
    """Cycles of the taps of one vector of outputs: multiply-adds, and shuffles of their inputs."""
    conv, steps, window = kernel.conv, kernel.steps, kernel.conv.window
    if conv.inputs * conv.outputs == 1 or isinstance(kernel, DepthwiseCodes):
        return steps / target.fma_units
    taps, step = window.kernel[2], window.stride[2]
    kept = window.dilation[2] == 1 and taps * conv.inputs <= WEIGHTS_KEPT
    at_once = kernel.shared_taps or (taps if kept else 1)
    # Pixels that a column moves to lanes for these taps.
    pixels = min(float(at_once), step + (at_once - step) / kernel.columns)
    shuffles = steps * pixels / at_once * target.costs.shuffle
    waits = steps * target.fma_latency / kernel.columns
    return max(target.costs.depthwise_over_model * (steps / target.fma_units + shuffles), waits)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    kernel = depthwise_kernel(problem, target)
    choice = Choice("depthwise", error=sum_error(problem))
    return one_kernel_candidate(choice, problem, kernel)


DEPTHWISE = Algorithm("depthwise", Parameters, _reject, _cost, _candidate, precisions=_takes)
