"""What the lowering algorithms share: lower a tensor, multiply it, or both block by block.

However windows are laid out, the product over them is `DirectConv` with other strides: what im2col,
MEC and im2win differ in is a `LoweredView`, never a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from leanconv.algorithms.direct import DIRECT, DirectConv, plan_direct
from leanconv.algorithms.problem import Candidate, Pack, Parameters, Piece, Problem, sum_error
from leanconv.algorithms.unfolding import Mover, Unfolding
from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tiling import Tile, rank_tiles, rows_per_chunk
from leanconv.codegen.types import ELEMENT, ITEMSIZE
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


@dataclass(frozen=True)
class LowerTensor(Kernel):
    """Lower whole images.

    Attributes:
        unfolding: what goes where.
        batch, groups: N and g.
        image, group: strides in the lowered tensor.
        rows: of one chunk.
        one_image: whether only one image is lowered, whose number is an operand.
    """

    unfolding: Unfolding
    batch: int
    groups: int
    image: int
    group: int
    rows: int
    one_image: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, the image's number if there is only one, lowered tensor."""
        return ("x", "image", "lowered") if self.one_image else ("x", "lowered")

    @property
    def chunks(self) -> int:
        """Images by groups by depth by blocks of rows."""
        depth, height, _ = self.unfolding.view.out
        return self.batch * self.groups * depth * ceil_div(height, self.rows)

    def emit(self, target: Target) -> str:
        """Emit the loops over chunks and rows."""
        del target
        e, u = Function(self.NAME), self.unfolding
        element, (depth, height, width) = ELEMENT[u.dtype], u.view.out
        x, y = e.pointer(0), e.pointer(len(self.operands) - 1)
        if self.one_image:
            x = x.at(e.load(e.pointer(1), "i64", align=8) * u.x.image, element)
        blocks = ceil_div(height, self.rows)
        mover = Mover(e, u)
        with e.chunks(self.batch, self.groups, depth, blocks) as (n, g, d, block):
            first = block * self.rows
            last = e.smin(first + self.rows, height)
            x_n = x.at(n * u.x.image + g * u.x.channel(u.inputs), element)
            y_n = y.at(n * self.image + g * self.group + d * u.position[0], element)
            with e.loop("row", last, start=first) as h:
                mover.row(x_n, y_n.at(h * u.position[1], element), d, h, 0, width)
        return e.finish()


@dataclass(frozen=True)
class ImageProduct(Kernel):
    """A product over the one image that is lowered at this time; its number is an operand.

    Attributes:
        product: the convolution over the lowered tensor, of one image.
        image: elements between the images of the output.
    """

    product: DirectConv
    image: int

    @property
    def operands(self) -> tuple[str, ...]:
        """Lowered tensor, image's number, and what the product needs besides."""
        return ("x", "image", *self.product.operands[1:])

    @property
    def chunks(self) -> int:
        """Those of the product."""
        return self.product.chunks

    @property
    def flops(self) -> int:
        """Those of the product."""
        return self.product.flops

    def emit(self, target: Target) -> str:
        """Emit the product at the image's place in the output."""
        del target
        e = Function(self.NAME)
        pointers = {name: e.pointer(i) for i, name in enumerate(self.operands)}
        start = e.load(pointers["image"], "i64", align=8) * self.image
        for name in ("y", "residual"):
            if name in pointers:
                pointers[name] = pointers[name].at(start, ELEMENT[self.product.dtype])
        self.product.emit_chunks(e, pointers)
        return e.finish()


@dataclass(frozen=True)
class Block:
    """Some output rows, or a part of one, whose windows are lowered together.

    Attributes:
        rows, columns: of the output.
        product: the convolution over the lowered block, of one image and group.
    """

    rows: int
    columns: int
    product: DirectConv


@dataclass(frozen=True)
class BlockConv(Kernel):
    """Lower a block into scratch, multiply it, go on: what is lowered never leaves the core.

    Attributes:
        batch, groups: N and g.
        unfolding: what goes where in a block.
        block_elements: of the lowered block.
        y: where the output lies.
        out: output extents.
        whole, last: the blocks of a row or column of blocks; the last one is smaller or the same.
        parts: into how many the output channels are cut; each lowers the block for itself.
    """

    batch: int
    groups: int
    unfolding: Unfolding
    block_elements: int
    y: Access
    out: tuple[int, int, int]
    whole: Block
    last: Block
    parts: int

    @property
    def operands(self) -> tuple[str, ...]:
        """Those of a convolution."""
        return self.whole.product.operands

    @property
    def scratch_bytes(self) -> int:
        """The lowered block; the image's height plays no part."""
        return self.block_elements * ITEMSIZE[self.unfolding.dtype]

    @property
    def row_blocks(self) -> int:
        """Blocks along the height."""
        return ceil_div(self.out[1], self.whole.rows)

    @property
    def column_blocks(self) -> int:
        """Blocks along a row; more than one only if a block has one row."""
        return ceil_div(self.out[2], self.whole.columns)

    @property
    def chunks(self) -> int:
        """Images by groups by depth by blocks by parts of the output channels."""
        blocks = self.row_blocks * self.column_blocks
        return self.batch * self.groups * self.out[0] * blocks * self.parts

    @property
    def flops(self) -> int:
        """Operations of the plain sum, padding counted."""
        conv = self.whole.product
        positions = self.out[0] * self.out[1] * self.out[2]
        return 2 * self.batch * self.groups * positions * conv.outputs * conv.reduction

    def emit(self, target: Target) -> str:
        """Emit the loop over chunks: a block is lowered, then multiplied."""
        del target
        e = Function(self.NAME)
        pointers = {name: e.pointer(i) for i, name in enumerate(self.operands)}
        grid = (self.out[0], self.row_blocks, self.column_blocks, self.parts)
        with e.chunks(self.batch, self.groups, *grid) as (n, g, d, row, column, part):
            if self.whole == self.last:
                self._block(e, pointers, self.whole, (n, g, d, row, column, part))
            else:
                along_rows = self.whole.rows != self.last.rows
                index, count = (row, grid[1]) if along_rows else (column, grid[2])
                is_last = index.compare("eq", count - 1)
                with e.when(is_last):
                    self._block(e, pointers, self.last, (n, g, d, row, column, part))
                with e.when(is_last ^ 1):
                    self._block(e, pointers, self.whole, (n, g, d, row, column, part))
        return e.finish()

    def _block(
        self, e: Function, pointers: dict[str, Value], block: Block, chunk: tuple[Value, ...]
    ) -> None:
        n, g, d, row, column, part = chunk
        u, conv, element = self.unfolding, block.product, ELEMENT[self.unfolding.dtype]
        whole_rows = block.columns == u.view.out[2] or not u.unfolded[2]
        first_row, first_column = row * self.whole.rows, column * self.whole.columns
        x = pointers["x"].at(n * u.x.image + g * u.x.channel(u.inputs), element)
        mover = Mover(e, u)
        with e.loop("row", block.rows) as r:
            place = e.scratch.at(r * u.position[1], element)
            start: Value | int = 0 if whole_rows else first_column
            count = u.view.out[2] if whole_rows else block.columns
            mover.row(x, place, d, first_row + r, start, count)
        out = n * self.y.image + g * self.y.channel(conv.outputs) + d * self.y.spatial[0]
        out = out + first_row * self.y.spatial[1] + first_column * self.y.spatial[2]
        moved = {
            "x": e.scratch,
            "w": pointers["w"].at(g * conv.group_weights, element),
        }
        for name in ("y", "residual"):
            if name in pointers:
                moved[name] = pointers[name].at(out, element)
        for name in ("bias", "slope"):
            if name in pointers:
                moved[name] = pointers[name].at(g * (conv.panels * conv.panel_lanes), element)
        each = ceil_div(conv.panels, self.parts)
        low = part * each
        conv.emit_panels(e, moved, low, e.smin(low + each, conv.panels))


@dataclass(frozen=True)
class Serial(Kernel):
    """Another kernel's whole grid as one chunk: what threads bring is seen without them."""

    kernel: Kernel

    @property
    def operands(self) -> tuple[str, ...]:
        """Those of the kernel."""
        return self.kernel.operands

    @property
    def chunks(self) -> int:
        """One."""
        return 1

    @property
    def scratch_bytes(self) -> int:
        """That of the kernel."""
        return self.kernel.scratch_bytes

    @property
    def flops(self) -> int:
        """Those of the kernel."""
        return self.kernel.flops

    def emit(self, target: Target) -> str:
        """Emit the kernel under another name, and a call."""
        arguments = "ptr %args, i64 %lo, i64 %hi, ptr %scratch"
        inner = self.kernel.emit(target).replace(f"@{self.NAME}(", "@one_chunk_of(")
        return inner.replace("define void", "define internal void") + (
            f"define void @{self.NAME}({arguments}) nounwind {{\n"
            f"  call void @one_chunk_of(ptr %args, i64 0, i64 {self.kernel.chunks}, ptr %scratch)\n"
            "  ret void\n}\n"
        )


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
    """Plan a product's tile and chunks; results that are turned before they are stored count."""
    planned = plan_direct(conv, target)
    return replace(planned, tile=_best_tile(planned, target))


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
