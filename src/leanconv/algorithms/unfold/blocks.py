"""Unfolding block by block: how large a block is, and into how many parts its products are cut.

Chunks are the same for any number of threads. The cost is the time until the last thread ends,
times the threads, averaged over some numbers of threads. Small blocks mean more passes over the
weights, and each part of the output channels unfolds its block again; large ones leave threads idle
at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.interface import Candidate, KernelUse
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.unfold.candidates import (
    UnfoldedView,
    best_tile,
    packing,
    product,
    row_cycles,
)
from leanconv.algorithms.unfold.kernels import Block, BlockConv
from leanconv.algorithms.unfold.unfolding import Unfolding
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target

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

    def block(self, shape: tuple[int, int], product: DirectConv) -> Block:
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
        blocks: how the rows are cut.
        kernel: for these blocks and some parts of the output channels.
    """

    cost: float
    blocks: Blocks
    kernel: BlockConv


def cheapest_cut(problem: Problem, target: Target, choices: Sequence[Blocks]) -> Cut:
    """The cheapest of these divisions of the rows, with any parts of the output channels."""
    cuts = (cut for blocks in choices for cut in _cuts(problem, target, blocks))
    return min(cuts, key=lambda cut: cut.cost)


def by_blocks(choice: Choice, problem: Problem, cut: Cut) -> Candidate:
    """The candidate that unfolds and multiplies block by block."""
    conv, blocks = cut.kernel.whole.product, cut.blocks
    view = blocks.view(*blocks.shape)
    return Candidate(
        choice,
        (KernelUse(cut.kernel, cut.kernel.operands),),
        packing(replace(conv, groups=problem.groups), view, problem),
        details=f"{blocks.details}, tile {conv.tile.rows}x{conv.tile.vectors}",
    )


def whole_cost(problem: Problem, target: Target, view: UnfoldedView, elements: int) -> float:
    """The cost, as `Cut.cost`, of first unfolding the whole tensor of `elements` elements."""
    conv = product(problem, view, target)
    rows = conv.batch * conv.groups * conv.row_count
    work = rows * row_cycles(conv, target) + elements * target.costs.element_move
    return work + target.costs.chunk


def _cuts(problem: Problem, target: Target, blocks: Blocks) -> Iterator[Cut]:
    """These blocks with the output channels in one part, two, four …"""
    view, costs = blocks.view(*blocks.shape), target.costs
    one = replace(product(problem, view, target), batch=1, groups=1)
    one = replace(one, tile=best_tile(one, target))
    kernel = BlockConv(
        problem.batch,
        problem.groups,
        blocks.unfolding,
        blocks.elements,
        problem.y,
        problem.window.out,
        blocks.block(blocks.shape, one),
        blocks.block(blocks.last, replace(one, window=blocks.view(*blocks.last).window)),
        1,
        blocks.step,
    )
    multiply = row_cycles(one, target) * one.row_count
    multiply += one.group_weights * one.dtype.bytes / costs.l3_read
    if not one.y.lanes_contiguous:
        multiply += one.outputs * costs.plane_return
    unfold = blocks.elements * costs.element_move
    for power in range(one.panels.bit_length()):
        each = ceil_div(one.panels, 1 << power)
        parts = ceil_div(one.panels, each)
        cut = replace(kernel, parts=parts)
        every = [threads * ceil_div(cut.chunks, threads) for threads in _THREADS]
        rounds = sum(every) / len(every)
        yield Cut(rounds * (multiply * each / one.panels + unfold), blocks, cut)
