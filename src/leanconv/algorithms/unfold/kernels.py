"""Kernels of the unfolding methods: unfold a tensor, multiply it, or both block by block."""

from __future__ import annotations

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.planar.pointwise import PlanarPointwise
from leanconv.algorithms.unfold.unfolding import Mover, Unfolding
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.geometry import Access
from leanconv.codegen.kernel import Kernel, of_wrapped
from leanconv.codegen.tails import last_or_other
from leanconv.records import dataclass, replace
from leanconv.spec.conv import sum_flops
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count, Extent, Sizes
from leanconv.target import Target
from leanconv.types import INT64

Product = DirectConv | PlanarPointwise  # the latter over a matrix whose rows are planes


@dataclass(frozen=True)
class Unfold(Kernel):
    """Unfold whole images.

    Attributes:
        unfolding: the map from input to unfolded tensor.
        batch, groups: N and g.
        image, group: strides in the unfolded tensor.
        rows: of one chunk.
        one_image: whether only one image is unfolded; its index is an operand.
        first: the first image that is unfolded.
    """

    VARIES = True

    unfolding: Unfolding
    batch: Extent
    groups: int
    image: Extent
    group: Extent
    rows: Count
    one_image: bool = False
    first: Extent = 0

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, the image's number if there is only one, unfolded tensor."""
        return ("x", "image", "unfolded") if self.one_image else ("x", "unfolded")

    @property
    def constant_bytes(self) -> dict[str, int]:
        """The image's number."""
        return {"image": INT64.bytes} if self.one_image else {}

    @property
    def grid(self) -> tuple[int, ...]:
        """Images by groups by depth by blocks of rows."""
        depth, height, _ = self.unfolding.view.out
        return self.batch, self.groups, depth, ceil_div(height, self.rows)

    def emit(self, target: Target) -> str:
        """Emit the loops over chunks and rows."""
        e, u = Function(self.NAME), self.unfolding
        element, (_, height, width) = u.dtype.llvm, u.view.out
        x, y = e.pointer(0, element), e.pointer(len(self.operands) - 1, element)
        x = x.at(self.first * u.x.image)
        if self.one_image:
            x = x.at(e.load_index(e.pointer(1, "i64")) * u.x.image)
        mover = Mover(e, u)
        with e.chunks(*self.grid) as (n, g, d, block):
            first = block * self.rows
            last = e.smin(first + self.rows, height)
            x_n = x.at(n * u.x.image + g * u.x.channel(u.inputs))
            y_n = y.at(n * self.image + g * self.group + d * u.position[0])
            with e.loop("row", last, start=first) as h:
                mover.row(x_n, y_n.at(h * u.position[1]), d, h, 0, width)
        return e.finish()


@dataclass(frozen=True)
class ImageProduct(Kernel):
    """A product over the one image that is unfolded; the image's index is an operand.

    Attributes:
        product: the convolution over the unfolded tensor, of one image.
        image: elements between the images of the output.
    """

    VARIES = True

    product: Product
    image: Extent

    @property
    def operands(self) -> tuple[str, ...]:
        """Unfolded tensor, image's number, and what the product needs besides."""
        return ("x", "image", *self.product.operands[1:])

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Bytes of the image's number and of the product's constants."""
        return {"image": INT64.bytes, **self.product.constant_bytes}

    @property
    def grid(self) -> tuple[int, ...]:
        return self.product.grid

    @property
    def flops(self) -> int:
        return self.product.flops

    def emit(self, target: Target) -> str:
        """Emit the product at the image's place in the output."""
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, self.product.conv.dtype.llvm, image="i64")
        start = e.load_index(pointers["image"]) * self.image
        for name in ("y", "residual"):
            if name in pointers:
                pointers[name] = pointers[name].at(start)
        self.product.emit_chunks(e, target, pointers)
        return e.finish()


@dataclass(frozen=True)
class Block:
    """Some output rows, or a part of one, whose windows are unfolded together.

    Attributes:
        rows, columns: of the output.
        product: the convolution over the unfolded block, of one image and group.
        lines: rows of the unfolding that they need; as many as rows where windows are unfolded
            along the height, and those of the input where they are not.
    """

    rows: Count
    columns: Count
    product: Product
    lines: Count


@dataclass(frozen=True)
class BlockConv(Kernel):
    """Unfold a block into scratch and multiply it: the unfolded block stays in the core's L2.

    Attributes:
        batch, groups: N and g.
        unfolding: the map from input to unfolded block.
        block_elements: of the unfolded block.
        y: strides of the output.
        out: output extents.
        whole, last: the blocks of a row or column of blocks; the last one is smaller or the same.
        parts: into how many the output channels are cut; each unfolds the block for itself.
        step: rows of the unfolding from one row of the output to the next.
        overlaps: whether the last block of a row has as many columns as the others, and begins
            where these end: one code serves all wider rows. It adds no residual, which may
            lie in y.
    """

    VARIES = True

    batch: Extent
    groups: int
    unfolding: Unfolding
    block_elements: Extent
    y: Access
    out: Sizes
    whole: Block
    last: Block
    parts: int
    step: int = 1
    overlaps: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """Operands of a convolution, as the product has them."""
        return self.whole.product.operands

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Bytes of the product's constants, for each group."""
        sizes = self.whole.product.constant_bytes
        return {name: self.groups * size for name, size in sizes.items()}

    @property
    def scratch_bytes(self) -> int:
        """The unfolded block, whatever the height of the image."""
        return self.block_elements * self.unfolding.dtype.bytes

    @property
    def row_blocks(self) -> int:
        """Blocks along the height."""
        return ceil_div(self.out[1], self.whole.rows)

    @property
    def column_blocks(self) -> int:
        """Blocks along a row; more than one only if a block has one row."""
        return ceil_div(self.out[2], self.whole.columns)

    @property
    def grid(self) -> tuple[int, ...]:
        """Images by groups by depth by blocks by parts of the output channels."""
        blocks = self.row_blocks, self.column_blocks
        return self.batch, self.groups, self.out[0], *blocks, self.parts

    @property
    def flops(self) -> int:
        """Operations of the plain sum, padding counted."""
        kernel = self.whole.product
        return sum_flops(self.batch, self.groups * kernel.conv.outputs, self.out, kernel.reduction)

    def emit(self, target: Target) -> str:
        """Emit the loop over chunks: a block is unfolded, then multiplied."""
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, self.unfolding.dtype.llvm)
        with e.chunks(*self.grid) as (n, g, d, row, column, part):
            along_rows = self.whole.rows != self.last.rows
            index, count = (row, self.row_blocks) if along_rows else (column, self.column_blocks)
            for size in last_or_other(e, index, count, self.last, self.whole):
                first = row * self.whole.rows, column * self.whole.columns
                if self.overlaps:
                    first = first[0], e.smin(first[1], self.out[2] - self.whole.columns)
                place = n, g, d, *first
                self.unfold(e, pointers, size, place)
                self.multiply(e, target, pointers, size, place, part)
        return e.finish()

    def unfold(
        self, e: Function, pointers: dict[str, Pointer], block: Block, place: tuple[Value, ...]
    ) -> None:
        """Emit the unfolding of the block at image, group, depth, row and column."""
        n, g, d, first_row, first_column = place
        u = self.unfolding
        whole_rows = not (self.overlaps or (u.unfolded[2] and block.columns != u.view.out[2]))
        x = pointers["x"].at(n * u.x.image + g * u.x.channel(u.inputs))
        mover, unfolded = Mover(e, u), e.scratch.of(u.dtype.llvm)
        with e.loop("row", block.lines) as r:
            row = unfolded.at(r * u.position[1])
            start: Value | int = 0 if whole_rows else first_column
            count = u.view.out[2] if whole_rows else block.columns
            mover.row(x, row, d, first_row * self.step + r, start, count)

    def multiply(
        self,
        e: Function,
        target: Target,
        pointers: dict[str, Pointer],
        block: Block,
        place: tuple[Value, ...],
        part: Value,
    ) -> None:
        """Emit the product over the unfolded block, for one part of the output channels."""
        n, g, d, first_row, first_column = place
        kernel = block.product
        out = n * self.y.image + g * self.y.channel(kernel.conv.outputs) + d * self.y.spatial[0]
        out = out + first_row * self.y.spatial[1] + first_column * self.y.spatial[2]
        if isinstance(kernel, PlanarPointwise):
            channels = kernel.conv.outputs
            weights = channels * kernel.conv.inputs
        else:
            channels, weights = kernel.panels * kernel.panel_lanes, kernel.group_weights
        moved = {
            "x": e.scratch.of(self.unfolding.dtype.llvm),
            "w": pointers["w"].at(g * weights),
        }
        for name in ("y", "residual"):
            if name in pointers:
                moved[name] = pointers[name].at(out)
        for name in ("bias", "slope"):
            if name in pointers:
                moved[name] = pointers[name].at(g * channels)
        each = ceil_div(kernel.panels, self.parts)
        if isinstance(kernel, PlanarPointwise):
            zero = e.i64(0)
            some = replace(kernel, panel_block=each)
            some.emit_chunk(e, target, moved, (zero, zero, zero, part))
            return
        low = part * each
        kernel.emit_panels(e, moved, low, e.smin(low + each, kernel.panels))


@dataclass(frozen=True)
class Serial(Kernel):
    """Another kernel's whole grid as one chunk, to measure the gain of threads."""

    chunks = 1
    operands = of_wrapped("operands")
    constant_bytes = of_wrapped("constant_bytes")
    scratch_bytes = of_wrapped("scratch_bytes")
    flops = of_wrapped("flops")

    kernel: Kernel

    def emit(self, target: Target) -> str:
        """Emit the kernel under another name, and a call."""
        arguments = "ptr %args, i64 %lo, i64 %hi, ptr %scratch"
        inner = self.kernel.emit(target).replace(f"@{self.NAME}(", "@one_chunk_of(")
        return inner.replace("define void", "define internal void") + (
            f"define void @{self.NAME}({arguments}) nounwind {{\n"
            f"  call void @one_chunk_of(ptr %args, i64 0, i64 {self.kernel.chunks}, ptr %scratch)\n"
            "  ret void\n}\n"
        )
