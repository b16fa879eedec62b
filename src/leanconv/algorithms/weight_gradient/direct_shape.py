"""A kernel of the direct gradient of weights as data: blocks, panels, strips, parts."""

from __future__ import annotations

from math import prod

from leanconv.algorithms.weight_gradient.bias import ROWS
from leanconv.algorithms.weight_gradient.naive import GradientKernel
from leanconv.algorithms.weight_gradient.sums import Panels
from leanconv.codegen.tiling import Tile
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count

_NEAR = 2  # panels from one pixel of dy to the next, at most, where it is not copied


@dataclass(frozen=True)
class DirectShape(GradientKernel):
    """The sums of all strips, or of each of their parts.

    Attributes:
        lanes: of a vector.
        tile: rows of a register tile, vectors of a panel.
        width: channels of a block.
        blocks_per_chunk, panels_per_chunk: of a chunk.
        images: of a strip; each depth of the output is an image of its own.
        rows, columns: outputs of a strip; several rows, or images, are whole ones.
        joined: whether a tile has rows of several tap columns; else each tap column leaves out the
            columns in which it meets padding.
        apart: whether each tap along the height has a slab of its own.
        parts: into which the strips are divided.
        split: whether parts are written as they are, for `sums.AddParts`; else there is one.
        in_place: whether tiles read x where it is: windows have no padding, and the rows of a tile
            are neighbours there, or planes.
        prefetch: whether tiles prefetch what is copied, or read, after them.
        sums_dy: whether the gradient of the bias is summed, too, in a row for each part.
    """

    lanes: int
    tile: Tile
    width: int
    blocks_per_chunk: int
    panels_per_chunk: int
    images: Count
    rows: Count
    columns: Count
    joined: bool
    apart: bool
    parts: Count
    split: bool
    in_place: bool
    prefetch: bool
    sums_dy: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, gradient of the output; parts of sums, or gradient of the weights; sums of dy."""
        return ("x", "dy", "parts" if self.split else "dw", *((ROWS,) * self.sums_dy))

    @property
    def result_count(self) -> int:
        """The sums, and those of dy."""
        return 1 + self.sums_dy

    @property
    def panels(self) -> Panels:
        """Where sums lie."""
        conv = self.conv
        return Panels(
            conv.precision.accumulate,
            self.lanes,
            self.tile.vectors,
            conv.inputs,
            conv.outputs,
            prod(conv.window.kernel),
            self.width,
            self.blocks_per_chunk,
            self.panels_per_chunk,
        )

    @property
    def grid(self) -> tuple[int, ...]:
        """Parts, groups, chunks of blocks of channels, chunks of panels."""
        return self.parts, self.conv.groups, *self.panels.chunks

    @property
    def depths(self) -> int:
        """Images of one output row of the depth each."""
        return self.conv.batch * self.conv.window.out[0]

    @property
    def strips(self) -> tuple[int, int, int]:
        """Strips along images, rows and columns."""
        _, height, width = self.conv.window.out
        return (
            ceil_div(self.depths, self.images),
            ceil_div(height, self.rows),
            ceil_div(width, self.columns),
        )

    @property
    def slabs(self) -> int:
        """Runs of rows of x in a strip."""
        depth, height, _ = self.conv.window.kernel
        return depth * height if self.apart else depth

    @property
    def read(self) -> int:
        """Elements of a block of x that a strip reads."""
        _, height, width = self.input_extents(self.rows, self.columns)
        return self.images * self.slabs * height * width * self.width

    @property
    def dy_in_place(self) -> bool:
        """Whether tiles read dy where it is: whole panels, of pixels that are not far apart."""
        access, wide, depths = self.conv.y, self.panels.wide, self.conv.window.out[0]
        near = access.block == access.block_stride == 1 and access.spatial[2] <= _NEAR * wide
        return near and depths == 1 and self.conv.outputs % wide == 0

    @property
    def panel_read(self) -> int:
        """Elements of a panel of dy that a strip reads."""
        return self.images * self.rows * self.columns * self.panels.wide

    @property
    def copied(self) -> tuple[int, int]:
        """Elements of a block of x, in whole vectors, and of a panel of dy that are copied."""
        x = 0 if self.in_place else ceil_div(self.read, self.lanes) * self.lanes
        return x, 0 if self.dy_in_place else self.panel_read

    @property
    def may_join(self) -> bool:
        """Whether tap columns and channels of x, or of its copy, follow each other."""
        window, whole = self.conv.window, self.conv.inputs % self.width == 0
        neighbours = not self.in_place or (self.conv.x.spatial[2] == self.width and whole)
        return window.kernel[2] == 1 or (window.dilation[2] == 1 and neighbours)

    @property
    def span(self) -> int:
        """Rows of the tiles of a tap row, or of a tap."""
        return self.width * (self.conv.window.kernel[2] if self.joined else 1)

    @property
    def tiles(self) -> int:
        """Register tiles of a whole block and a panel."""
        spans = self.panels.taps * self.width // self.span
        return spans * ceil_div(self.span, self.tile.rows)

    def input_extents(self, rows: int, columns: int) -> tuple[int, int, int]:
        """Slabs, rows of a slab and columns of the input that outputs need."""
        window = self.conv.window
        height, width = window.kernel[1:]
        if not self.apart:
            rows = (rows - 1) * window.stride[1] + (height - 1) * window.dilation[1] + 1
        if width > 1:
            columns = (columns - 1) * window.stride[2] + (width - 1) * window.dilation[2] + 1
        return self.slabs, rows, columns

    @property
    def part_elements(self) -> int:
        """Sums of a part: those of all chunks."""
        return prod(self.grid[1:]) * self.panels.chunk_elements

    @property
    def scratch_bytes(self) -> int:
        """Copies of x and dy; the sums, where they are not split."""
        x, dy = self.copied
        sums = 0 if self.split else self.panels.chunk_elements
        sums += self.panels.bias_elements if self.sums_dy else 0
        return (self.blocks_per_chunk * x + dy + sums) * self.panels.dtype.bytes
