"""What the lowering algorithms share: views of a lowered tensor, and candidates made of them.

However windows are laid out, the product over them is `DirectConv` with other strides: what im2col,
MEC and im2win differ in is a `LoweredView`, never a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from leanconv.algorithms.direct import DIRECT, plan_direct
from leanconv.algorithms.direct_kernel import DirectConv
from leanconv.algorithms.lowering_kernels import Block, BlockConv, LowerTensor
from leanconv.algorithms.problem import Candidate, Pack, Parameters, Piece, Problem, sum_error
from leanconv.algorithms.unfolding import Unfolding
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.tiling import Tile, rank_tiles, rows_per_chunk
from leanconv.codegen.types import ITEMSIZE
from leanconv.errors import SpecError
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_CHUNK_CYCLES = 40_000.0  # about 10 us
_SHUFFLE_CYCLES = 0.5  # of a transposition, beside the next tile's multiply-adds
MOVE_CYCLES = 0.7  # for each element that is lowered
_LEAST_CHUNKS = 16  # so that any number of threads is kept busy
_LEAST_PANELS = 4  # of a chunk: lowering is repeated for each part of the output channels


@dataclass(frozen=True)
class LoweredView:
    """A lowered tensor as a convolution reads it: overlapping windows are only strides.

    Attributes:
        window: over the lowered tensor.
        x: where its elements lie; a block of channels is all channels of a group.
        inputs: what the innermost loop runs over.
        order: the axes (channel, kd, kh, kw) = (1, 2, 3, 4) of the weights as the loops need them.
    """

    window: Window
    x: Access
    inputs: int
    order: tuple[int, int, int, int]

    def weights(self, w: np.ndarray) -> np.ndarray:
        """Weights (K, C/g, kd, kh, kw) as those of the convolution over the lowered tensor."""
        shape = (w.shape[0], self.inputs, *self.window.kernel)
        turned: np.ndarray = w.transpose(0, *self.order).reshape(shape)
        return turned


# -- what the algorithms make of it ----------------------------------------------------------
def reject(problem: Problem, target: Target) -> str | None:
    """What no lowering computes: outputs apart from each other, groups that share blocks."""
    reason = DIRECT.reject(problem, target)
    if reason:
        return reason
    _, h, w = problem.window.out
    y = problem.y
    if (
        problem.y_offset
        or problem.x_offset
        or y.spatial[:2] != (h * w * y.spatial[2], w * y.spatial[2])
    ):
        return "input or output are a part of a tensor"
    return None


def cost(elements: Callable[[Problem], int]) -> Callable[[Problem, Target], float]:
    """Cycles: those of the products, and those of moving the lowered elements."""

    def cycles(problem: Problem, target: Target) -> float:
        return DIRECT.cost(problem, target) + MOVE_CYCLES * elements(problem)

    return cycles


def product(problem: Problem, view: LoweredView, target: Target) -> DirectConv:
    """The convolution over a lowered tensor, with no tile yet.

    Its loops over windows are not written out: loads would be hoisted until registers spill.
    """
    spec = problem.spec
    return DirectConv(
        batch=spec.batch,
        groups=spec.groups,
        inputs=view.inputs,
        outputs=problem.group_outputs,
        window=view.window,
        x=view.x,
        y=problem.y,
        dtype=spec.dtype,
        lanes=target.lanes(spec.dtype),
        tile=Tile(1, 1),
        rows=1,
        panels_inside=False,
        epilogue=problem.epilogue,
        unroll=0,
    )


def tiled(conv: DirectConv, target: Target) -> DirectConv:
    """Plan a product's tile and chunks.

    Results that are turned before they are stored count in the choice of the tile. Weights that
    stay in the second cache pass by each row, if what is lowered does not stay there: it is read
    once then, and not once for each panel.
    """
    planned = plan_direct(conv, target)
    planned = replace(planned, tile=_best_tile(planned, target))
    item = ITEMSIZE[conv.dtype]
    image = conv.x.image * item
    weights = planned.groups * planned.group_weights * item
    if planned.panels_inside or weights > target.l2_bytes // 2 or image < target.l2_bytes:
        return planned
    rows = max(1, planned.rows // planned.panels)
    return replace(planned, panels_inside=True, rows=rows)


def _best_tile(conv: DirectConv, target: Target) -> Tile:
    """The cheapest tile; planes take results in squares of lanes by lanes, whole or not."""
    columns, vectors = conv.window.out[2], ceil_div(conv.outputs, conv.lanes)
    ranked = rank_tiles(target, columns, vectors, conv.reduction)
    if conv.y.lanes_contiguous or conv.lanes == 1:
        return ranked[0][1]
    square = _SHUFFLE_CYCLES * conv.lanes * (conv.lanes.bit_length() - 1)

    def cycles(entry: tuple[float, Tile]) -> float:
        whole, rest = divmod(columns, entry[1].rows)
        squares = whole * ceil_div(entry[1].rows, conv.lanes) + ceil_div(rest, conv.lanes)
        return entry[0] + squares * vectors * square

    return min(ranked, key=cycles)[1]


def packing(conv: DirectConv, view: LoweredView | None, problem: Problem) -> Pack:
    """The packing of a convolution over a lowered tensor (`None`: over the input itself)."""

    def pack(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        packed = {name: conv.pack_channels(values) for name, values in channels.items()}
        taps = problem.weights_3d(w)
        return {"w": conv.pack_weights(view.weights(taps) if view else taps), **packed}

    return pack


def lower_rows(unfolding: Unfolding, pieces: int) -> int:
    """Rows of one chunk of a `LowerTensor`."""
    height = unfolding.view.out[1]
    row = unfolding.elements / (height * unfolding.view.out[0])
    return rows_per_chunk(height, row * MOVE_CYCLES, pieces, _CHUNK_CYCLES)


def whole_tensor(
    name: str,
    problem: Problem,
    target: Target,
    unfolding: Unfolding,
    view: LoweredView,
    parameters: str,
) -> Candidate:
    """Lower the whole batch, then multiply it; images of one group lie one after the other."""
    spec = problem.spec
    image, group = unfolding.elements, unfolding.elements * spec.batch
    rows = lower_rows(unfolding, spec.batch * spec.groups * unfolding.view.out[0])
    lower = LowerTensor(unfolding, spec.batch, spec.groups, image, group, rows)
    conv = tiled(product(problem, view, target), target)
    return Candidate(
        name,
        (
            Piece(lower, ("x", "lowered")),
            Piece(conv, ("lowered", *conv.operands[1:])),
        ),
        packing(conv, view, problem),
        sum_error(problem),
        {"lowered": group * spec.groups * spec.itemsize},
        f"{parameters}, tile {conv.tile.rows}x{conv.tile.vectors}",
    )


def by_blocks(
    name: str,
    problem: Problem,
    target: Target,
    unfolding: Unfolding,
    block_elements: int,
    shapes: tuple[tuple[int, int], tuple[int, int]],
    view_of: Callable[[int, int], LoweredView],
    parameters: str,
) -> Candidate:
    """Lower and multiply block by block.

    Args:
        name: the algorithm's.
        problem, target: what is computed, on what.
        unfolding, block_elements: of a block.
        shapes: (rows, columns) of a block and of the last one.
        view_of: the lowered block of that many rows and columns.
        parameters: what was chosen, for people.
    """
    spec = problem.spec
    view = view_of(*shapes[0])
    one = replace(product(problem, view, target), batch=1, groups=1)
    vectors = ceil_div(one.outputs, one.lanes)
    tile = _best_tile(one, target)
    blocks = [
        Block(rows, columns, replace(one, window=view_of(rows, columns).window, tile=tile))
        for rows, columns in shapes
    ]
    kernel = BlockConv(
        spec.batch,
        spec.groups,
        unfolding,
        block_elements,
        problem.y,
        problem.window.out,
        blocks[0],
        blocks[1],
        1,
    )
    panels = ceil_div(vectors, tile.vectors)
    wanted = min(ceil_div(_LEAST_CHUNKS, kernel.chunks), max(1, panels // _LEAST_PANELS))
    kernel = replace(kernel, parts=ceil_div(panels, ceil_div(panels, wanted)))
    whole = replace(blocks[0].product, groups=spec.groups)
    return Candidate(
        name,
        (Piece(kernel, kernel.operands),),
        packing(whole, view, problem),
        sum_error(problem),
        parameters=f"{parameters}, tile {tile.rows}x{tile.vectors}",
    )


def count_of(parameters: Parameters, key: str, algorithm: str) -> int | None:
    """A parameter that is a count, None if it is not given.

    Raises:
        SpecError: it is no whole number of at least 1.
    """
    text = parameters.get(key)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(
            f"algorithm {algorithm}: {key} is {text!r}; expected a whole number of at least 1"
        )
    return int(text)


def choice_of(
    parameters: Parameters, key: str, algorithm: str, choices: tuple[str, ...]
) -> str | None:
    """A parameter that is one of some words, None if it is not given.

    Raises:
        SpecError: it is none of them.
    """
    text = parameters.get(key)
    if text is not None and text not in choices:
        raise SpecError(
            f"algorithm {algorithm}: {key} is {text!r}; expected {' or '.join(choices)}"
        )
    return text
