"""Chunks of the direct gradient of weights: their blocks, panels and strips, and what is copied."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from math import gcd, prod
from typing import NamedTuple

from leanconv.algorithms.naive import channel_offset
from leanconv.algorithms.weight_gradient.direct_shape import DirectShape
from leanconv.algorithms.weight_gradient.direct_tiles import Extents, Stream
from leanconv.algorithms.weight_gradient.strips import StripCopy
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.tails import tiles_of_chunk
from leanconv.spec.format import ceil_div
from leanconv.target import Target


class Piece(NamedTuple):
    """A block or a panel: its number in the group and in the chunk, its channels."""

    group_number: Value
    number: Value
    size: int


class Corner(NamedTuple):
    """The first output of a strip."""

    image: Value
    row: Value
    column: Value


class Strip(NamedTuple):
    """Outputs of a strip, and what of x is copied for them.

    Attributes:
        first, following: corners of the strip and of the next one.
        extents: images, rows and columns.
        in_rows, in_columns: rows of a slab of x, and columns.
    """

    first: Corner
    following: Corner
    extents: Extents
    in_rows: Value
    in_columns: Value


class Chunk:
    """Emits the parts of a chunk of a kernel.

    Args:
        kernel: what is emitted.
        e: the function to append to.
        target: the machine.
        operands: x and dy.
        place: group, chunk of the blocks and chunk of the panels of the group.
    """

    def __init__(
        self,
        kernel: DirectShape,
        e: Function,
        target: Target,
        operands: tuple[Pointer, Pointer],
        place: tuple[Value, Value, Value],
    ) -> None:
        self.kernel, self.e, self.target = kernel, e, target
        self.conv, self.made = kernel.conv, kernel.panels
        self.x, self.dy = operands[0].at(self.conv.x_offset), operands[1].at(self.conv.y_offset)
        self.group, self.cb, self.kb = place
        self.copy_of_x = e.scratch.of(self.made.dtype.llvm)
        self.copy_of_dy = self.copy_of_x.at(kernel.blocks_per_chunk * kernel.copied[0])

    def blocks(self) -> Iterator[Piece]:
        """Emit the loop over the blocks of the chunk."""
        made, per = self.made, self.made.blocks_per_chunk
        yield from self._pieces("block", self.cb, per, made.inputs, made.width)

    def panels(self) -> Iterator[Piece]:
        """Emit the loop over the panels of the chunk."""
        made, per = self.made, self.made.panels_per_chunk
        yield from self._pieces("panel", self.kb, per, made.outputs, made.wide)

    def _pieces(
        self, label: str, chunk: Value, per_chunk: int, total: int, size: int
    ) -> Iterator[Piece]:
        for index, count in tiles_of_chunk(self.e, label, chunk, per_chunk, total, size):
            yield Piece(self.e.i64(index), index - chunk * per_chunk, count)

    def clear(self, sums: Pointer) -> None:
        """Begin all sums of the chunk with zero."""
        e, made = self.e, self.made
        with e.loop("clear", made.chunk_elements, step=made.lanes) as at:
            e.store(e.zero(made.kind), sums.at(at))

    def strips(self, part: Value) -> Iterator[Strip]:
        """Emit the loop over the strips of a part."""
        kernel, e, window = self.kernel, self.e, self.conv.window
        total = prod(kernel.strips)
        per = ceil_div(total, kernel.parts)
        first = part * per
        stop = e.smin(first + per, total)
        with e.loop("strip", stop, start=first) as t:
            corner = self._corner(t)
            images = e.smin(e.i64(kernel.depths) - corner.image, kernel.images)
            rows = e.smin(e.i64(window.out[1]) - corner.row, kernel.rows)
            columns = e.smin(e.i64(window.out[2]) - corner.column, kernel.columns)
            in_rows, in_columns = rows, columns
            (_, height, width), step, apart = window.kernel, window.stride, window.dilation
            if not kernel.apart:
                in_rows = (rows - 1) * step[1] + ((height - 1) * apart[1] + 1)
            if width > 1:
                in_columns = (columns - 1) * step[2] + ((width - 1) * apart[2] + 1)
            extents = Extents(images, rows, columns)
            following = self._corner(e.smin(t + 1, stop - 1))
            yield Strip(corner, following, extents, in_rows, in_columns)

    def _corner(self, t: Value) -> Corner:
        kernel = self.kernel
        image, row, column = self.e.split(t, *kernel.strips)
        return Corner(image * kernel.images, row * kernel.rows, column * kernel.columns)

    # -- x ---------------------------------------------------------------------------------
    def channel(self, block: Piece) -> Value:
        """The first channel of a block."""
        return self.group * self.conv.inputs + block.group_number * self.kernel.width

    def copy_input(self, strip: Strip, block: Piece) -> None:
        """Copy the pixels of a block of x that a strip's outputs touch."""
        kernel, conv, e, window = self.kernel, self.conv, self.e, self.conv.window
        step = window.stride[2] if window.kernel[2] == 1 else 1
        access, kind, size = conv.x, self.made.kind, block.size
        grain = gcd(conv.inputs if conv.groups > 1 else 0, kernel.width)
        copy = StripCopy(e, self.target, access, kind, size, size, step=step, grain=grain)
        to_block = self.copied_block(block)
        pitch, (image, row, column) = strip.in_columns * size, strip.first
        with e.loop("image", strip.extents.image) as i, e.loop("slab", kernel.slabs) as slab:
            n, depth = e.split(image + i, conv.batch, window.out[0])
            rows_of_taps = window.kernel[1] if kernel.apart else 1
            tap, u = e.split(slab, window.kernel[0], rows_of_taps)
            d = depth * window.stride[0] + tap * window.dilation[0] - window.pad[0]
            first = row * window.stride[1] + u * window.dilation[1] - window.pad[1]
            with e.loop("row", strip.in_rows) as r:
                h = first + r * (window.stride[1] if kernel.apart else 1)
                place = n * access.image + d * access.spatial[0] + h * access.spatial[1]
                to = to_block.at(((i * kernel.slabs + slab) * strip.in_rows + r) * pitch)
                copy.row(
                    self.x.at(place),
                    to,
                    self.channel(block),
                    first=column * window.stride[2] - window.pad[2],
                    columns=strip.in_columns,
                    size=window.size[2],
                    inside=self._inside(d, h),
                    full=window.always_full(2),
                )

    def copied_block(self, block: Piece) -> Pointer:
        """The address of a block's copy."""
        return self.copy_of_x.at(block.number * self.kernel.copied[0])

    def pixel(self, corner: Corner, row: int = 0) -> Value:
        """The offset of the pixel of x at the first tap of an output, `row` rows further down."""
        conv, e, window = self.conv, self.e, self.conv.window
        n, depth = e.split(corner.image, conv.batch, window.out[0])
        d = depth * window.stride[0] - window.pad[0]
        h = corner.row * window.stride[1] + (row - window.pad[1])
        w = corner.column * window.stride[2] - window.pad[2]
        spatial = conv.x.spatial
        return n * conv.x.image + d * spatial[0] + h * spatial[1] + w * spatial[2]

    def next_input(self, strip: Strip) -> Stream:
        """What the next strip reads of x, and this one does not, for the tiles of all panels."""
        kernel, window, access = self.kernel, self.conv.window, self.conv.x
        reach = 0 if kernel.apart else (window.kernel[1] - 1) * window.dilation[1] + 1
        rows = 1 if kernel.apart else min(window.stride[1], reach)
        panels = min(self.made.panels_per_chunk, self.made.count)
        corner = self.pixel(strip.following, max(0, reach - rows))
        per_chunk = kernel.blocks_per_chunk * kernel.width
        first = self.group * self.conv.inputs + self.cb * per_chunk
        channels = min(per_chunk, self.conv.inputs)
        return Stream(
            self.e,
            access,
            self.x.at(corner + channel_offset(access, first)),
            self.made.dtype.bytes,
            channels,
            channels == self.conv.in_channels,
            panels * kernel.blocks_per_chunk * kernel.tiles,
            (window.stride[1], rows),
            window.stride[2],
            strip.extents,
        )

    def _inside(self, d: Value, h: Value) -> Value | None:
        """Return whether x has a row; None where it always does."""
        window = self.conv.window
        found = [
            place.compare("ult", window.size[axis])
            for axis, place in ((0, d), (1, h))
            if not window.always_full(axis)
        ]
        return reduce(lambda a, b: a & b, found) if found else None

    # -- dy --------------------------------------------------------------------------------
    def output(self, corner: Corner) -> Value:
        """The offset of an output."""
        access = self.conv.y
        n, d = self.e.split(corner.image, self.conv.batch, self.conv.window.out[0])
        place = n * access.image + d * access.spatial[0] + corner.row * access.spatial[1]
        return place + corner.column * access.spatial[2]

    def output_channel(self, panel: Piece) -> Value:
        """The first output channel of a panel."""
        return self.group * self.conv.outputs + panel.group_number * self.made.wide

    def copy_gradient(self, strip: Strip, panel: Piece) -> None:
        """Copy the pixels of a panel of dy of a strip."""
        conv, e, (images, rows, columns) = self.conv, self.e, strip.extents
        access, wide, made = conv.y, self.wide(panel), self.made
        grain = gcd(conv.outputs if conv.groups > 1 else 0, made.wide)
        copy = StripCopy(e, self.target, access, made.kind, panel.size, wide, grain=grain)
        channel = self.output_channel(panel)
        with e.loop("image", images) as i:
            source = self.dy.at(self.output(strip.first._replace(image=strip.first.image + i)))
            to = self.copy_of_dy.at(i * (rows * columns * wide))
            if access.spatial[1] == conv.window.out[2] * access.spatial[2]:
                copy.pixels(source, to, channel, rows * columns)  # strips of rows are whole rows
                return
            with e.loop("row", rows) as r:
                at = to.at(r * (columns * wide))
                copy.pixels(source.at(r * access.spatial[1]), at, channel, columns)

    def next_gradient(self, strip: Strip, panel: Piece) -> Stream:
        """What the next panel of this strip reads of dy, or the first of the next strip."""
        e, made, per = self.e, self.made, self.made.panels_per_chunk
        first = self.kb * per
        last = (panel.number + 1).compare("uge", e.smin(e.i64(made.count) - first, per))
        index = e.select(last, first, panel.group_number + 1)
        place = e.select(last, self.output(strip.following), self.output(strip.first))
        channel = self.group * made.outputs + index * made.wide
        address = self.dy.at(place + channel_offset(self.conv.y, channel))
        all_channels = panel.size == self.conv.out_channels
        tiles = self.kernel.blocks_per_chunk * self.kernel.tiles
        args = made.dtype.bytes, panel.size, all_channels, tiles, (1, 1), 1, strip.extents
        return Stream(e, self.conv.y, address, *args)

    def wide(self, panel: Piece) -> int:
        """Elements of a pixel of dy: whole vectors."""
        return ceil_div(panel.size, self.made.lanes) * self.made.lanes
