"""The direct gradient of weights: register tiles over pixels of copied strips.

    for a part of the strips, a group, some blocks of its channels, some panels of its outputs:
        for strip:                         images by rows by columns of the output
            for block:                     `width` channels
                copy x                     [block][image][slab][row][column][channel]
            for panel:                     vectors · lanes outputs
                copy dy                    [image][row][column][output of the panel]
                for block, tap row, tile:  rows of the tile: neighbours in (tap column, channel)
                    for image, row, column:  acc[i][j] += broadcast(x[i]) · dy[j]
                    sums += acc
        write the sums                     [panel][block][tap][channel][output] to rows of dw

x is copied with zeros in the padding. Tiles leave its rows of zeros out, and its columns of zeros,
but where a row of a tile is a tap column and a channel, side by side in the strip (`joined`): so
few channels fill tiles, too. Where nothing is padded, tiles may read x in place, and dy where a
pixel of the output is one panel or two. Slabs are the rows of x that the taps along the depth meet;
with `apart`, those of each tap along the height as well, which then share no rows: for dilations
and strides that leave most rows between unused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

from leanconv.algorithms.naive import channel_offset
from leanconv.algorithms.weight_gradient.bias import PanelSums
from leanconv.algorithms.weight_gradient.direct_chunk import Chunk, Piece, Strip
from leanconv.algorithms.weight_gradient.direct_shape import DirectShape
from leanconv.algorithms.weight_gradient.direct_tiles import (
    Ahead,
    Extents,
    Stream,
    Walk,
    accumulate,
    is_planes,
)
from leanconv.algorithms.weight_gradient.naive import TapOutputs
from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.microkernel import RegisterTile
from leanconv.codegen.tails import each_tile
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target


@dataclass(frozen=True)
class DirectGradient(DirectShape):
    """The sums of all strips, or of each of their parts."""

    VARIES = True

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, strips, blocks, panels, tiles."""
        e, panels = Function(self.NAME), self.panels
        x, dy, out, *rows = e.pointers(self.operands, panels.dtype.llvm).values()
        with e.chunks(*self.grid) as (s, g, cb, kb):
            chunk = _Products(self, e, target, (x, dy), (g, cb, kb))
            sums = chunk.copy_of_dy.at(self.copied[1])
            if self.split:
                number = ((s * self.grid[1] + g) * self.grid[2] + cb) * self.grid[3] + kb
                sums = out.at(number * panels.chunk_elements)
            chunk.clear(sums)
            bias = None
            if self.sums_dy:
                held = chunk.copy_of_dy.at(self.copied[1])
                held = held if self.split else held.at(panels.chunk_elements)
                bias = PanelSums(e, panels, held, rows[0].at(s * self.conv.out_channels), cb)
                bias.clear()
            for strip in chunk.strips(s):
                if not self.in_place:
                    for block in chunk.blocks():
                        chunk.copy_input(strip, block)
                for panel in chunk.panels():
                    if not self.dy_in_place:
                        chunk.copy_gradient(strip, panel)
                    if bias:
                        chunk.sum_gradient(strip, panel, bias)
                    following = chunk.next_gradient(strip, panel) if self.prefetch else None
                    for block in chunk.blocks():
                        to = sums.at(panels.place(block.number, panel.number))
                        chunk.products(strip, block, panel, to, following)
            if not self.split:
                self._write(chunk, sums, out, g)
            if bias:
                for panel in chunk.panels():
                    k = g * panels.outputs + panel.group_number * panels.wide
                    bias.write(panel.number, panel.size, k)
        return e.finish()

    def _write(self, chunk: _Products, sums: Pointer, dw: Pointer, g: Value) -> None:
        """Write the sums of a chunk to rows of the gradient."""
        e, panels = chunk.e, self.panels

        def load(source: Pointer, places: Sequence[Value | int]) -> list[Value]:
            return [e.load(source.at(place), panels.kind) for place in places]

        for block in chunk.blocks():
            table = panels.table(e, block.size)
            for panel in chunk.panels():
                k = g * panels.outputs + panel.group_number * panels.wide
                row = k * panels.inputs + block.group_number * panels.width
                source = sums.at(panels.place(block.number, panel.number))
                result = dw.at(row * panels.taps)
                panels.write(e, partial(load, source), table, result, block.size, panel.size)


class _Products(Chunk):
    """Emits the products of a chunk, too."""

    def products(
        self, strip: Strip, block: Piece, panel: Piece, sums: Pointer, gradient: Stream | None
    ) -> None:
        """Add the products of a strip to the sums of a block and a panel.

        Args:
            strip, block, panel: what is multiplied.
            sums: address of the block's and panel's sums.
            gradient: what to prefetch of dy; None: neither of dy nor of x.
        """
        kernel, e, made, size = self.kernel, self.e, self.made, block.size
        depth, height, width = self.conv.window.kernel
        across = 1 if kernel.joined else width
        span = size * width // across
        planes = kernel.in_place and is_planes(self.conv.x) and span == size
        step = self.conv.x.block_stride if planes else 1
        streams: list[tuple[Stream, Value]] = []
        if gradient:
            before = block.number * kernel.tiles
            panels_before = panel.number * (kernel.blocks_per_chunk * kernel.tiles)
            streams = [(gradient, before), (self.next_input(strip), panels_before + before)]
        with e.loop("kd", depth) as d, e.loop("kh", height) as u, e.loop("kw", across) as v:
            row = (d * height + u) * across + v
            with self._live(strip, u, v) as (extents, low, left):
                x, dy = self._input(strip, block, (d, u, v)), self._gradient(strip, panel)
                x = x.moved(low * x.row + left * x.column)
                dy = dy.moved(low * dy.row + left * dy.column)
                for index, rows in each_tile(e, "tile", span, kernel.tile.rows):
                    number = row * ceil_div(span, kernel.tile.rows) + index
                    ahead = [each.ahead(number + start, dy.address) for each, start in streams]
                    first = index * kernel.tile.rows
                    to = sums.at((row * span + first) * made.wide)
                    self._tile(extents, (x.moved(first * step), dy), step, to, rows, panel, ahead)

    @contextmanager
    def _live(
        self, strip: Strip, u: Value, v: Value
    ) -> Iterator[tuple[Extents, Value | int, Value | int]]:
        """The outputs of a strip at which a tap meets no padding; the first row and column."""
        e, window, (images, rows, columns) = self.e, self.conv.window, strip.extents
        there, low, first = None, e.i64(0), e.i64(0)
        if not window.always_full(1):
            low, rows = self._outputs(1, u, strip.first.row, rows)
            there = rows.compare("ne", 0)
        if not self.kernel.joined and not window.always_full(2):
            first, columns = self._outputs(2, v, strip.first.column, columns)
            some = columns.compare("ne", 0)
            there = some if there is None else there & some
        rows = 1 if window.out[1] == 1 else rows
        columns = 1 if window.out[2] == 1 else columns
        with nullcontext() if there is None else e.when(there):
            yield Extents(images, rows, columns), low, first

    def _outputs(
        self, axis: int, tap: Value, begin: Value, count: Value | int
    ) -> tuple[Value, Value]:
        """The first output of a strip, along an axis, at which a tap meets x; their number."""
        e, outputs = self.e, TapOutputs(self.e, self.conv.window, axis, tap)
        low = e.smin(e.smax(outputs.low - begin, 0), count)
        return low, e.smax(e.smin(outputs.high - begin, count) - low, 0)

    def _input(self, strip: Strip, block: Piece, tap: tuple[Value, Value, Value]) -> Walk:
        """Where the pixels of a block of x are that a tap meets."""
        kernel, window, (d, u, v) = self.kernel, self.conv.window, tap
        access, apart = self.conv.x, window.dilation
        if kernel.in_place:
            place = self.pixel(strip.first) + channel_offset(access, self.channel(block))
            for axis, index in enumerate(tap):
                place = place + index * (apart[axis] * access.spatial[axis])
            steps = (s * a for s, a in zip(window.stride[1:], access.spatial[1:], strict=True))
            return Walk(self.x.at(place), access.image, *steps)
        size, pitch = block.size, strip.in_columns * block.size
        slab = (d * window.kernel[1] + u) * strip.in_rows
        row = window.stride[1]
        if kernel.apart:
            row = 1
        else:
            slab = d * strip.in_rows + u * apart[1]
        address = self.copied_block(block).at(slab * pitch + v * (apart[2] * size))
        column = 1 if window.kernel[2] == 1 else window.stride[2]
        image = strip.in_rows * pitch * kernel.slabs
        return Walk(address, image, pitch * row, column * size)

    def _gradient(self, strip: Strip, panel: Piece) -> Walk:
        """Where the pixels of a panel of dy are."""
        if self.kernel.dy_in_place:
            access = self.conv.y
            at = self.dy.at(self.output(strip.first) + self.output_channel(panel))
            return Walk(at, access.image, access.spatial[1], access.spatial[2])
        wide, (_, rows, columns) = self.wide(panel), strip.extents
        return Walk(self.copy_of_dy, rows * columns * wide, columns * wide, wide)

    def sum_gradient(self, strip: Strip, panel: Piece, bias: PanelSums) -> None:
        """Add a panel of dy of a strip to its sums."""
        e, walk, (images, rows, columns) = self.e, self._gradient(strip, panel), strip.extents
        if not self.kernel.dy_in_place:  # pixels follow each other
            count = e.i64(images * rows * columns)
            bias.add(panel.number, panel.size, walk.address, walk.column, count)
            return
        with e.loop("image", images) as i, e.loop("row", rows) as r:
            row = walk.address.at(i * walk.image + r * walk.row)
            bias.add(panel.number, panel.size, row, walk.column, e.i64(columns))

    def _tile(
        self,
        extents: Extents,
        operands: tuple[Walk, Walk],
        step: int,
        sums: Pointer,
        rows: int,
        panel: Piece,
        ahead: Sequence[Ahead],
    ) -> None:
        """Add the products of one register tile, whose rows are `step` elements apart."""
        e, made = self.e, self.made
        tile = RegisterTile(fma(made.dtype), made.lanes, self.wide(panel) // made.lanes, step)
        acc = [e.zero(made.kind)] * (rows * tile.vectors)
        accumulate(e, tile, acc, range(rows), *operands, extents, ahead)
        for slot, value in enumerate(acc):
            row, vector = divmod(slot, tile.vectors)
            place = sums.at(row * made.wide + vector * made.lanes)
            e.store(e.load(place, made.kind) + value, place)
