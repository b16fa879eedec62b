"""Common to the unfolding methods: views of an unfolded tensor, candidates, and sizes of blocks.

The product over an unfolded tensor is always `DirectConv` with other strides: im2col, MEC and
im2win differ in their `UnfoldedView`, never in a kernel.

A tensor is unfolded block by block. Chunks are the same for any number of threads. The cost is the
time until the last thread ends, times the threads, averaged over some numbers of threads. Small
blocks mean more passes over the weights, and each part of the output channels unfolds its block
again; large ones leave threads idle at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd

import numpy as np

from leanconv.algorithms.common.conv import Conv, with_conv
from leanconv.algorithms.direct.algorithm import DIRECT, product_cycles
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.direct.plan import plan_direct
from leanconv.algorithms.interface import Candidate, KernelUse, PackingOf, channel_calls
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.planar.pointwise import PlanarPointwise, plan_planar_pointwise
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.unfold.kernels import Block, BlockConv, Product, Unfold
from leanconv.algorithms.unfold.unfolding import Unfolding
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.tiling import Tile, rank_tiles, rows_per_chunk
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.target import Costs, Target


@dataclass(frozen=True)
class UnfoldedView:
    """An unfolded tensor as a convolution reads it: overlapping windows are only strides.

    Attributes:
        window: over the unfolded tensor.
        x: its strides; a block of channels is all channels of a group.
        inputs: elements of the innermost loop.
        by_pixels: whether windows are neighbours, and the elements of each lie in planes.
        order: the axes (channel, kd, kh, kw) = (1, 2, 3, 4) of the weights as the loops need them.
    """

    window: Window
    x: Access
    inputs: int
    order: tuple[int, int, int, int]
    by_pixels: bool = False

    def conv(self, problem: Problem) -> Conv:
        """The convolution over the unfolded tensor that a problem becomes."""
        return replace(problem.conv, window=self.window, x=self.x, inputs=self.inputs)

    def weights(self, w: np.ndarray) -> np.ndarray:
        """Weights (K, C/g, kd, kh, kw) as those of the convolution over the unfolded tensor."""
        shape = (w.shape[0], self.inputs, *self.window.kernel)
        reordered: np.ndarray = w.transpose(0, *self.order).reshape(shape)
        return reordered


# -- what the algorithms make of it ----------------------------------------------------------
def reject(problem: Problem, target: Target) -> str | None:
    """Why no unfolding computes a problem: strided outputs, groups that share blocks."""
    conv = problem.conv
    reason = DIRECT.reject(problem, target)
    if reason:
        return reason
    _, h, w = conv.window.out
    y = conv.y
    if conv.y_offset or conv.x_offset or y.spatial[:2] != (h * w * y.spatial[2], w * y.spatial[2]):
        return "input or output are a part of a tensor"
    return None


def cost(elements: Callable[[Problem], int]) -> Callable[[Problem, Target], float]:
    """Cycles: those of the products, and those of moving the unfolded elements."""

    def cycles(problem: Problem, target: Target) -> float:
        return product_cycles(problem, target) + target.costs.element_move * elements(problem)

    return cycles


def product(problem: Problem, view: UnfoldedView, target: Target) -> DirectConv:
    """The convolution over an unfolded tensor, with no tile yet.

    Its loops over windows are not written out: loads would be hoisted until registers spill.
    """
    return DirectConv(
        conv=view.conv(problem),
        lanes=problem.conv.lanes(target),
        tile=Tile(1, 1),
        rows=1,
        panels_inside=False,
        unroll=0,
        fetch=True,
    )


def product_of_pixels(
    problem: Problem, view: UnfoldedView, target: Target
) -> tuple[PlanarPointwise, float]:
    """The product over an unfolded tensor in planes, with tile and chunks, and its cycles."""
    kernel = PlanarPointwise(
        conv=view.conv(problem),
        lanes=problem.conv.lanes(target),
        tile=Tile(1, 1),
        column_tiles=1,
        panel_block=1,
        prefetch=False,
    )
    return plan_planar_pointwise(kernel, target)


def tiled(kernel: DirectConv, target: Target) -> DirectConv:
    """Plan a product's tile and chunks.

    The choice of the tile counts the transposes of stores. If the weights fit L2 and the unfolded
    tensor does not, all panels are inside a chunk: the tensor is then read once, and not once for
    each panel. Into planes, rows that read less than they write are read again for each panel, so
    that fewer planes are written at a time.
    """
    planned = plan_direct(kernel, target)
    planned = replace(planned, tile=best_tile(planned, target))
    item, panels = kernel.conv.dtype.bytes, planned.panels
    image = kernel.conv.x.image * item
    weights = planned.conv.groups * planned.group_weights * item
    written = planned.conv.window.out[2] * planned.conv.outputs
    if not planned.conv.y.lanes_contiguous and (panels - 1) * _row_elements(planned) < written:
        rows = planned.rows * (panels if planned.panels_inside else 1)
        return replace(planned, panels_inside=False, rows=min(planned.conv.row_count, rows))
    if planned.panels_inside or weights > target.l2_bytes or image < target.l2_bytes:
        return planned
    rows = max(1, planned.rows // panels)
    return replace(planned, panels_inside=True, rows=rows)


def _row_elements(kernel: DirectConv) -> int:
    """Distinct elements that one row of windows reads."""
    conv = kernel.conv
    run = conv.inputs if conv.x.block_stride == 1 else min(conv.x.block, conv.inputs)
    step = min(run, conv.window.stride[2] * conv.x.spatial[2])
    return step * (kernel.reduction // run) * conv.window.out[2]


def best_tile(kernel: DirectConv, target: Target) -> Tile:
    """The cheapest tile; stores to planes transpose squares of lanes by lanes, full or not."""
    return min(_tile_cycles(kernel, target), key=lambda entry: entry[0])[1]


def planned(problem: Problem, view: UnfoldedView, target: Target) -> Product:
    """The product over a whole unfolded tensor, with tile and chunks."""
    if view.by_pixels:
        return product_of_pixels(problem, view, target)[0]
    return tiled(product(problem, view, target), target)


def row_cycles(kernel: DirectConv, target: Target) -> float:
    """Estimated cycles of one row of output with the best tile."""
    return min(cycles for cycles, _ in _tile_cycles(kernel, target))


def _tile_cycles(kernel: DirectConv, target: Target) -> list[tuple[float, Tile]]:
    """Tiles with the cycles of a row, without those whose rows conflict in L1.

    Rows a multiple of `l1_way_bytes` apart are all in one set of L1.
    """
    conv = kernel.conv
    columns, vectors = conv.window.out[2], ceil_div(conv.outputs, kernel.lanes)
    ranked = rank_tiles(target, columns, vectors, kernel.reduction)
    step = conv.window.stride[2] * conv.x.spatial[2] * conv.dtype.bytes
    most = target.l1_bytes // gcd(step, target.costs.l1_way_bytes)
    square = target.costs.shuffle * kernel.lanes * (kernel.lanes.bit_length() - 1)
    if conv.y.lanes_contiguous or kernel.lanes == 1:
        square = 0.0

    def cycles(row: float, tile: Tile) -> float:
        whole, rest = divmod(columns, tile.rows)
        squares = whole * ceil_div(tile.rows, kernel.lanes) + ceil_div(rest, kernel.lanes)
        return row + squares * vectors * square

    return [(cycles(row, tile), tile) for row, tile in ranked if tile.rows <= most]


def packing(kernel: Product, view: UnfoldedView | None, problem: Problem) -> PackingOf:
    """The packing of a convolution over an unfolded tensor (`None`: over the input itself)."""

    def calls(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        seen = (view.weights,) if view and isinstance(kernel, DirectConv) else ()
        weights = kernel.weight_calls(problem.weights_3d(w), *seen)
        return {"w": weights, **channel_calls(kernel, channels)}

    return calls


def unfold_rows(unfolding: Unfolding, pieces: int, costs: Costs) -> int:
    """Rows of one chunk of an `Unfold`."""
    height = unfolding.view.out[1]
    row = unfolding.elements / (height * unfolding.view.out[0])
    return rows_per_chunk(height, row * costs.element_move, pieces, costs.chunk)


def whole_tensor(
    choice: Choice,
    problem: Problem,
    target: Target,
    unfolding: Unfolding,
    strides: tuple[int, int],
    view: UnfoldedView,
    details: str,
) -> Candidate:
    """Unfold the whole batch, then multiply it.

    Args:
        choice, problem, target, unfolding: how what is computed.
        strides: of images and groups in the unfolded tensor.
        view: it, as the product reads it.
        details: text for the user.
    """
    conv, batch, groups = problem.conv, problem.conv.batch, problem.conv.groups
    image, group = strides
    elements = max(image * batch, group * groups)
    rows = unfold_rows(unfolding, batch * groups * unfolding.view.out[0], target.costs)
    unfold = Unfold(unfolding, batch, groups, image, group, rows)
    kernel = planned(problem, view, target)
    return Candidate(
        choice,
        (
            KernelUse(unfold, ("x", "unfolded")),
            KernelUse(kernel, ("unfolded", *kernel.operands[1:])),
        ),
        packing(kernel, view, problem),
        {"unfolded": elements * conv.dtype.bytes},
        f"{details}, {tile_text(kernel)}",
    )


def tile_text(kernel: Product) -> str:
    """The register tile, for people."""
    if isinstance(kernel, PlanarPointwise):
        return kernel.tile_text
    return f"tile {kernel.tile.rows}x{kernel.tile.vectors}"


_THREADS = (1, 2, 4, 8)  # over which the cost is averaged


@dataclass(frozen=True)
class Blocks:
    """A division of the output rows of an image into blocks.

    Attributes:
        unfolding, elements: of a block.
        shape, last: rows and columns of a block, and of the last one.
        view: the unfolded block of that many rows and columns.
        details: text for the user.
        step, overlap: rows of the unfolding from one output row to the next, and how many more than
            that the last output row of a block needs.
    """

    unfolding: Unfolding
    elements: int
    shape: tuple[int, int]
    last: tuple[int, int]
    view: Callable[[int, int], UnfoldedView]
    details: str
    step: int = 1
    overlap: int = 0

    def block(self, shape: tuple[int, int], product: Product) -> Block:
        """One block, with its product."""
        rows, columns = shape
        return Block(rows, columns, product, rows * self.step + self.overlap)


def equal_parts(extent: int, most: int) -> tuple[int, int]:
    """Cut an extent into as few parts of at most that size as possible: their size, the last's."""
    size = ceil_div(extent, ceil_div(extent, most))
    return size, extent % size or size


def sizes_to_try(extent: int, most: int) -> list[int]:
    """Sizes of equal parts, of at most that size, each half of the one before or less."""
    sizes: list[int] = []
    size = min(extent, most)
    while size:
        size = equal_parts(extent, size)[0]
        sizes.append(size)
        size //= 2
    return sizes


@dataclass(frozen=True)
class Cut:
    """A division into blocks and parts of the output channels, with its cost.

    Attributes:
        cost: estimated cycles of all threads together, idle ones counted.
        blocks: of the output rows.
        kernel: for these blocks and some parts of the output channels.
    """

    cost: float
    blocks: Blocks
    kernel: BlockConv


def idle(chunks: int) -> float:
    """Time of some numbers of threads, idle ones counted, over that of the chunks alone."""
    every = [threads * ceil_div(chunks, threads) for threads in _THREADS]
    return sum(every) / (len(every) * chunks)


def cheapest_cut(problem: Problem, target: Target, choices: Sequence[Blocks]) -> Cut:
    """The cheapest of these divisions of the rows, with any parts of the output channels."""
    cuts = (cut for blocks in choices for cut in _cuts(problem, target, blocks))
    return min(cuts, key=lambda cut: cut.cost)


def by_blocks(choice: Choice, problem: Problem, cut: Cut) -> Candidate:
    """The candidate that unfolds and multiplies block by block."""
    kernel, blocks = cut.kernel.whole.product, cut.blocks
    view = blocks.view(*blocks.shape)
    return Candidate(
        choice,
        (KernelUse(cut.kernel, cut.kernel.operands),),
        packing(with_conv(kernel, groups=problem.conv.groups), view, problem),
        details=f"{blocks.details}, {tile_text(kernel)}",
    )


def whole_cost(problem: Problem, target: Target, view: UnfoldedView, elements: int) -> float:
    """The cost, as `Cut.cost`, of first unfolding the whole tensor of `elements` elements."""
    kernel = product(problem, view, target)
    rows = kernel.conv.batch * kernel.conv.groups * kernel.conv.row_count
    work = rows * row_cycles(kernel, target) + elements * target.costs.element_move
    return work + target.costs.chunk


def _of_block(problem: Problem, view: UnfoldedView, target: Target) -> tuple[Product, float]:
    """The product of one group of an unfolded block, and its cycles."""
    of_one = with_conv(problem, batch=1, groups=1)
    if view.by_pixels:
        made, cycles = product_of_pixels(of_one, view, target)
        # All pixels are one chunk of it, those of a smaller last block, too.
        tiles = ceil_div(made.pixels, made.span)
        return replace(made, column_tiles=tiles, panels_outside=True), cycles
    one = product(of_one, view, target)
    one = replace(one, tile=best_tile(one, target))
    return one, row_cycles(one, target) * one.conv.row_count


def block_conv(problem: Problem, target: Target, blocks: Blocks) -> tuple[BlockConv, float]:
    """The kernel with all output channels in one part, and the cycles of a block's product."""
    conv, view = problem.conv, blocks.view(*blocks.shape)
    one, multiply = _of_block(problem, view, target)
    kernel = BlockConv(
        conv.batch,
        conv.groups,
        blocks.unfolding,
        blocks.elements,
        conv.y,
        conv.window.out,
        blocks.block(blocks.shape, one),
        blocks.block(blocks.last, with_conv(one, window=blocks.view(*blocks.last).window)),
        1,
        blocks.step,
    )
    return kernel, multiply


def _cuts(problem: Problem, target: Target, blocks: Blocks) -> Iterator[Cut]:
    """Yield these blocks with the output channels in one part, two, four …"""
    costs = target.costs
    kernel, multiply = block_conv(problem, target, blocks)
    one = kernel.whole.product
    multiply += one.constant_bytes["w"] / costs.l3_read
    if not one.conv.y.lanes_contiguous:
        multiply += one.conv.outputs * costs.plane_return
    unfold = blocks.elements * costs.element_move
    for power in range(one.panels.bit_length()):
        each = ceil_div(one.panels, 1 << power)
        parts = ceil_div(one.panels, each)
        cut = replace(kernel, parts=parts)
        rounds = cut.chunks * idle(cut.chunks)
        yield Cut(rounds * (multiply * each / one.panels + unfold), blocks, cut)
