"""Cost of a fused chain: cycles, with rows that are computed twice, and bytes moved."""

from __future__ import annotations

from collections.abc import Iterator

from leanconv.algorithms.depthwise.kernel import DepthwiseConv
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.direct.plan import converting, tile_work
from leanconv.algorithms.fused.block import BlockKernels, input_rows
from leanconv.algorithms.fused.forms import Chain, ChainKernels, Form, possible_parts
from leanconv.codegen.tiling import TileWork, panel_cycles
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_RUNS = 2  # runs of strips in all, each of which computes its first rows anew
_STEPS = (1, 2, 4)
_BESIDE_FMA = 1.5  # of the rates of L2 and L3: arithmetic hides a third of what is moved
_PARTIAL_SUMS = 1.75  # of the rate of L3, where partial results are added


def possible_forms(chain: Chain, target: Target) -> Iterator[Form]:
    """The forms worth considering, of each kind also the one of fewest bytes."""
    height = chain.depthwise.output_size[0]
    steps = sorted({min(step, height) for step in _STEPS})
    if chain.expand is not None:
        for step in steps:
            yield Form("rows", step, step)
    for step in sorted({*steps, ceil_div(height, 4), ceil_div(height, 2), height}):
        yield Form("panel", step, step)
    for parts in possible_parts(chain, target):
        yield Form("split", height, height, parts)


def form_cycles(
    chain: Chain, form: Form, kernels: ChainKernels, target: Target, halves: bool = False
) -> float:
    """Estimated cycles of one core for a form; input, output and weights may be in halves."""
    fused = kernels.chain
    batch, block = fused.batch, fused.block
    height = block.depthwise.conv.row_count
    steps = batch * ceil_div(height, form.rows) * ceil_div(form.rows, form.step)
    cycles, costs = 0.0, target.costs
    if block.expand is not None:
        rows = batch * _inner_rows(block, form)
        if block.keeps_expanded:
            window = block.depthwise.conv.window
            shared = max(0, block.input_rows - window.stride[1])
            rows += max(0, _RUNS - batch) * shared
        each = expand_row_cycles(block, target, halves) + table_cycles(block, "expand", target)
        cycles += rows * each
        cycles += steps * image_cycles(block, rows / steps, target)
    each = block_row_cycles(block, target, halves) + table_cycles(block, "depthwise", target)
    cycles += batch * height * each
    weights = sum(spec.weight_bytes for spec in chain.specs) // form.parts
    passes = steps if weights > target.costs.l2_share * target.l2_bytes else 1
    total = form.parts * (cycles + passes * weights_cycles(weights, target))
    if kernels.temporaries:
        total += 2 * sum(kernels.temporaries.values()) / (_PARTIAL_SUMS * costs.l3_read)
    if block.scratch_bytes > target.l2_bytes:
        total += form.parts * steps * 2 * block.scratch_bytes / (_BESIDE_FMA * costs.l3_read)
    elif chain.has_codes and block.scratch_bytes > target.l1_bytes:
        # Sums of codes take so little time that what they read of L2 shows.
        total += steps * 2 * block.scratch_bytes / (_BESIDE_FMA * costs.l2_read)
    filled = height / (ceil_div(height, form.rows) * form.rows)
    return total * imbalance(fused.chunks) / filled


def expand_row_cycles(block: BlockKernels, target: Target, halves: bool = False) -> float:
    """Estimated cycles of one row of e; x and weights may be in halves."""
    work = converting(halves, halves) if halves else None
    return _dense_row_cycles(block.expand, target, work) if block.expand else 0.0


def table_cycles(block: BlockKernels, stage: str, target: Target) -> float:
    """Estimated cycles of looking the codes of a row up, if a stage has a table."""
    if stage not in block.tables:
        return 0.0
    row = block.depthwise.conv.x if stage == "expand" else block.depthwise.conv.y
    return block.depthwise.blocks * row.spatial[1] / target.costs.copy


def image_cycles(block: BlockKernels, rows: float, target: Target) -> float:
    """Estimated cycles of making the image rows that so many expanded rows of a step read."""
    image, expand = block.image, block.expand
    if image is None or expand is None:
        return 0.0
    read = (rows - 1) * expand.conv.window.stride[1] + input_rows(expand.conv.window)
    moved = image.channels * image.size[1] * image.x.bytes + image.row_bytes
    return max(0.0, read) * moved / target.costs.copy


def block_row_cycles(block: BlockKernels, target: Target, halves: bool = False) -> float:
    """Estimated cycles of one row of d and y; weights may be in halves."""
    work = converting(False, halves) if halves else None
    projected = sum(_dense_row_cycles(project, target, work) for project in block.projects)
    return projected + _depthwise_row_cycles(block.depthwise, target)


def weights_cycles(size: int, target: Target) -> float:
    """Estimated cycles of reading weights of so many bytes, which other layers have pushed out."""
    return size / (_BESIDE_FMA * target.costs.l3_read)


def imbalance(chunks: int) -> float:
    """Factor by which threads wait for others, for two threads and for four."""
    return sum(ceil_div(chunks, threads) * threads / chunks for threads in (2, 2, 4)) / 3


def between_cycles(size: int, target: Target) -> float:
    """Estimated cycles of writing and reading so many bytes between two convolutions."""
    costs = target.costs
    rate = costs.l2_read if size <= target.l2_bytes else costs.l3_read
    return 2 * size / (_BESIDE_FMA * rate)


def _inner_rows(block: BlockKernels, form: Form) -> int:
    """Rows of e that are computed for one image."""
    window = block.depthwise.conv.window
    out, stride, pad = window.out[1], window.stride[1], window.pad[1]
    height, step = window.size[1], form.step
    if form.name == "rows" and block.input_rows >= stride:  # each row once
        step = out
    whole, rest = divmod(out, step)
    length = (step - 1) * stride + block.input_rows
    total = _rows_inside(height, -pad, length, whole, step * stride)
    if rest:
        first, length = whole * step * stride - pad, (rest - 1) * stride + block.input_rows
        total += _rows_inside(height, first, length, 1, 1)
    return total


def _rows_inside(height: int, first: int, length: int, count: int, apart: int) -> int:
    """Rows of 0 … height - 1 in ranges of that length, the first of which begins at `first`."""

    def below(end: int) -> int:
        whole = min(count, max(0, (end - length - first) // apart + 1))
        some = min(count, max(whole, ceil_div(end - first, apart)))
        cut = some - whole
        return whole * length + cut * (end - first) - apart * (whole + some - 1) * cut // 2

    return below(height) - below(0)


def _dense_row_cycles(
    kernel: DirectConv, target: Target, converts: TileWork | None = None
) -> float:
    conv = kernel.conv
    columns, steps = conv.window.out[2], kernel.steps
    work = converts or tile_work(kernel, target)
    tile, whole = kernel.tile, conv.outputs // kernel.panel_lanes
    cycles = whole * panel_cycles(target, columns, tile, tile.vectors, steps, work)
    if whole < kernel.panels:
        cycles += panel_cycles(target, columns, tile, kernel.last_vectors, steps, work)
    return cycles * kernel.lanes / target.lanes(conv.precision.accumulate)


def _depthwise_row_cycles(kernel: DepthwiseConv, target: Target) -> float:
    each = kernel.steps / target.fma_units + target.costs.store
    return kernel.blocks * kernel.conv.window.out[2] * each
