"""Which depthwise kernel: columns of a tile, rows of a chunk; what is refused; cost."""

from __future__ import annotations

from math import prod

from leanconv.algorithms.common.kernel_fields import group_fields
from leanconv.algorithms.depthwise.kernel import WEIGHTS_KEPT, DepthwiseConv
from leanconv.algorithms.depthwise.quads import QUAD, DepthwiseCodes
from leanconv.algorithms.interface import (
    Algorithm,
    Candidate,
    is_one_float,
    one_kernel_candidate,
)
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.rounding import sum_error
from leanconv.codegen.dot import group_of, way_of
from leanconv.codegen.tiling import ANY_WIDTH, rows_per_chunk, rows_per_chunk_of_any_width
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import FLOAT32, INT8, INT32, UINT8, Precision

_CHUNKS = 0.75  # of the record's chunk
_STORE_SHARE = 1.5  # stores that a column is worth besides its taps, where chunks are cut


def _reject(problem: Problem, target: Target) -> str | None:
    """Lanes along channels must work for groups of that size in these layouts."""
    lanes = problem.lanes(target)
    inputs, outputs = problem.group_inputs, problem.group_outputs
    if problem.groups == 1:
        return "there is only one group"
    if not problem.precision.x.is_float:
        return _reject_codes(problem, lanes)
    if not (problem.x.lanes_contiguous and problem.y.lanes_contiguous):
        return "channels do not stand next to each other in memory"
    if outputs > lanes:
        return f"groups of {outputs} output channels do not fit {lanes} lanes"
    if problem.y.block > 1 and lanes % outputs:
        return f"groups of {outputs} output channels do not divide {lanes} lanes"
    span = lanes // outputs * inputs
    if span > 2 * lanes or (problem.x.block > 1 and span > lanes and span != 2 * lanes):
        return f"a vector of outputs needs {span} inputs; at most {2 * lanes} can be shuffled"
    if problem.x.block > 1 and span % lanes and lanes % span:
        return f"{span} inputs of a vector straddle blocks of {lanes} channels"
    if problem.y_offset:
        return "the output is written with an offset"
    return None


def _reject_codes(problem: Problem, lanes: int) -> str | None:
    """Quads take one channel to one, in blocks of a vector of sums."""
    if problem.group_inputs != 1 or problem.group_outputs != 1:
        return "groups of codes of more than one channel"
    if problem.x.block != lanes or problem.y.block != lanes:
        return f"codes that are not in blocks of {lanes} channels"
    if problem.epilogue.activation:
        return f"an activation of sums in {problem.precision.accumulate}"
    if problem.precision.y == FLOAT32 and not problem.epilogue.requantise:
        return "float32 made of sums without scales"
    if problem.y_offset:
        return "the output is written with an offset"
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
    window = kernel.window
    most = min(28, max(1, target.registers - _kept(kernel) - 4 - kernel.inputs))
    usual = ANY_WIDTH if any_width else window.out[2]
    tiles = ceil_div(usual, most)
    columns = ceil_div(usual, tiles)
    for wanted in range(min(most, usual), max(0, min(most, usual) // 2), -1):
        if usual % wanted == 0:
            columns = wanted
            break
    taps = kernel.steps
    inside = kernel.blocks if kernel.blocks_inside else 1
    each = taps / target.fma_units + _STORE_SHARE * target.costs.store
    pieces, chunk = kernel.batch * kernel.blocks // inside, _CHUNKS * target.costs.chunk
    count, width = kernel.row_count, window.out[2]
    if any_width:
        rows = rows_per_chunk_of_any_width(count, width, inside * each, pieces, chunk)
    else:
        rows = rows_per_chunk(count, width * inside * each, pieces, chunk)
    return replace(kernel, columns=columns, rows=rows)


def _kernel(problem: Problem, target: Target, any_width: bool) -> DepthwiseConv:
    fields = group_fields(problem, target)
    if problem.precision.x.is_float:
        return DepthwiseConv(**fields, columns=1, rows=1, any_width=any_width)
    way = way_of(problem.precision, target)
    return DepthwiseCodes(**fields, columns=1, rows=1, any_width=any_width, way=way)


def _kept(kernel: DepthwiseConv) -> int:
    """Registers that hold weights in a row of taps."""
    if isinstance(kernel, DepthwiseCodes):
        return min(WEIGHTS_KEPT, len(kernel.forms) * kernel.weight_parts)
    kept = kernel.window.kernel[2] * kernel.inputs
    return kept if kept <= WEIGHTS_KEPT else kernel.inputs


def _cost(problem: Problem, target: Target) -> float:
    kernel = depthwise_kernel(problem, target)
    outputs = kernel.batch * kernel.blocks * prod(kernel.window.out)
    return outputs * (kernel.steps / target.fma_units + target.costs.store)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    kernel = depthwise_kernel(problem, target)
    choice = Choice("depthwise", error=sum_error(problem))
    return one_kernel_candidate(choice, problem, kernel)


DEPTHWISE = Algorithm("depthwise", Parameters, _reject, _cost, _candidate, precisions=_takes)
