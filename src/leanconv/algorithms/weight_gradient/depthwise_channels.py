"""`depthwise` with lanes along channels: NHWC, blocks of channels, and what is copied to that."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leanconv.algorithms.naive import channel_offset
from leanconv.algorithms.weight_gradient.depthwise_kernel import (
    Block,
    Body,
    Columns,
    DepthwiseGradient,
    Input,
    Line,
    Lines,
    Pointers,
    column_pieces,
)
from leanconv.algorithms.weight_gradient.strips import StripCopy
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.tails import tile_at
from leanconv.records import dataclass
from leanconv.spec.conv import effective_extent
from leanconv.spec.format import ceil_div
from leanconv.symbolic import fixed
from leanconv.target import Target


@dataclass(frozen=True)
class AlongChannels(DepthwiseGradient):
    """Lanes along output channels; a strip of x is [row][column][lane]."""

    @property
    def width(self) -> int:
        """Output channels of a vector: whole groups, or a part of one."""
        outputs = self.conv.outputs
        return self.lanes // outputs * outputs if outputs < self.lanes else self.lanes

    @property
    def panels(self) -> int:
        """Vectors of the outputs of one group, where these exceed one."""
        return ceil_div(self.conv.outputs, self.lanes)

    @property
    def pieces(self) -> int:
        """Pairs of a vector of output channels and an input of each of their groups."""
        vectors = ceil_div(self.conv.out_channels, self.width)
        if self.panels > 1:
            vectors = self.conv.groups * self.panels
        return vectors * self.conv.inputs

    @property
    def strip_columns(self) -> int:
        """Input columns of a row of outputs."""
        return self._reach(self.conv.window.out[2])

    @property
    def strip_row(self) -> int:
        return self.strip_columns * self.lanes

    @property
    def zeros(self) -> int:
        return (self._reach(self.tile.columns) - 1) * self.conv.x.spatial[2] + self.lanes

    def _reach(self, columns: int) -> int:
        window = self.conv.window
        extent = effective_extent(window.kernel[2], window.dilation[2])
        return (columns - 1) * window.stride[2] + extent

    @property
    def copies_dy(self) -> bool:
        """Whether rows of dy, in planes, are copied."""
        return not self.conv.y.lanes_contiguous

    @property
    def extra(self) -> int:
        return self.conv.window.out[2] * self.lanes * self.block_rows if self.copies_dy else 0

    def body(self, e: Function, target: Target, pointers: Pointers) -> Body:
        return (_InPlace if self.in_place else _Copied)(e, self, target, pointers)


class _ChannelBody(Body):
    """What both forms have in common."""

    kernel: AlongChannels

    def _places(self, index: Value) -> Iterator[tuple[Value, Value, int]]:
        """The first input channel of a vector, which others of its groups follow; its outputs."""
        kernel, conv = self.kernel, self.conv
        number, j = index // conv.inputs, index % conv.inputs
        if kernel.panels == 1:
            for live in tile_at(self.e, number, conv.out_channels, kernel.width):
                self.channels = self._reached(live)
                first = number * (kernel.width // conv.outputs * conv.inputs)
                yield self._place(first) + j, number * kernel.width, live
            return
        group, panel = number // kernel.panels, number % kernel.panels
        for live in tile_at(self.e, panel, conv.outputs, kernel.lanes):
            self.channels = 1
            k = group * conv.outputs + panel * kernel.lanes
            yield self._place(group * conv.inputs + j), k, live

    def _reached(self, outputs: int) -> int:
        """Input channels from that of a vector's first output to that of its last one."""
        return (ceil_div(outputs, self.conv.outputs) - 1) * self.conv.inputs + 1

    def _place(self, channel: Value) -> Value:
        """What the first input channel is given as: its number, or its place in memory."""
        return channel

    def _spread(self, value: Value) -> Value:
        """Move input channels to the lanes of their outputs."""
        conv = self.conv
        if conv.outputs == conv.inputs == 1:
            return value
        lanes = range(self.kernel.lanes)
        reached = [lane // conv.outputs * conv.inputs for lane in lanes]
        return self.e.shuffle(value, None, [at if at < len(lanes) else -1 for at in reached])

    def finish(self, index: Value, sums: Pointer) -> None:
        e, kernel, inputs = self.e, self.kernel, self.conv.inputs
        for _, k, live in self._places(index):
            to = self.dw.at((k * inputs + index % inputs) * kernel.taps)
            with e.loop("tap", kernel.taps) as t:
                for lane in range(live):
                    value = e.load(sums.at(t * kernel.lanes + lane), kernel.conv.dtype.llvm)
                    e.store(value, to.at(t + lane * (inputs * kernel.taps)))
            if self.db:
                with self.of_first_input(index):
                    value = e.load(sums.at(kernel.taps * kernel.lanes), self.kind)
                    e.store_first(value, self.db.at(k), live)


class _InPlace(_ChannelBody):
    """Channels of x that are read where they lie; columns in the padding are left out."""

    moves_taps = False

    def lines(self, index: Value, block: Block) -> Iterator[Lines]:
        conv, pixel = self.conv, self.conv.x.spatial[2]
        before, step = self.window.pad[2] * pixel, self.window.stride[2] * pixel
        for c, k, live in self._places(index):
            whole = conv.x.block > 1 and conv.inputs == conv.outputs == 1
            self.live = self.kernel.lanes if whole else self.channels
            plane = self.x.at(block.source + c)

            def line(row: Value, plane: Pointer = plane) -> Line:
                return self.in_image(plane, before, block.top + row, step)

            dy = self.dy.at(block.factor + channel_offset(conv.y, k))
            lanes = live if conv.y.block == 1 else self.kernel.lanes
            yield Lines(dy, conv.y.spatial[1], conv.y.spatial[2], lanes, line)

    def _place(self, channel: Value) -> Value:
        return channel_offset(self.conv.x, channel)

    def columns(self, acc: list[Value]) -> Iterator[Columns]:
        e, window, width = self.e, self.window, self.window.out[2]
        first, past = window.full(2)
        if first == past:  # no column that all taps touch
            first = past = fixed(width)
        yield from (self._single(o) for o in range(fixed(first)))
        for column, count in column_pieces(e, first, past - first, self.kernel.tile.columns, acc):
            yield Columns(column, count)
        yield from (self._single(past + o) for o in range(fixed(width - past)))

    def _single(self, column: int) -> Columns:
        return Columns(self.e.i64(column), 1, form=fixed(self.window.taps(2, column)))

    def input(self, columns: Columns, column: int, tap: int) -> Input | None:
        if isinstance(columns.form, tuple) and not columns.form[0] <= tap < columns.form[1]:
            return None
        position = column * self.window.stride[2] + tap * self.window.dilation[2]
        offset = position * self.conv.x.spatial[2]

        def load(at: Pointer) -> Value:
            return self._spread(self.e.load_first(at.at(offset), self.kind, self.live))

        return (position,), load

    def first_tap(self, tap: Value | int) -> Value | int:
        raise NotImplementedError


class _Copied(_ChannelBody):
    """Channels of x, of any layout, that are copied into a strip with zeros for the padding."""

    moves_taps = True

    def lines(self, index: Value, block: Block) -> Iterator[Lines]:
        e, kernel, conv, window = self.e, self.kernel, self.conv, self.window
        count = (block.rows - 1) * window.stride[1]
        count = count + effective_extent(window.kernel[1], window.dilation[1])
        for c, k, live in self._places(index):
            grain = kernel.width // conv.outputs if kernel.panels == conv.inputs == 1 else 1
            given = e, self.target, conv.x, self.kind, self.channels, kernel.lanes
            copy = StripCopy(*given, grain=grain)
            with e.loop("copied", count) as j:
                row = block.top + j
                always = window.always_full(1)
                copy.row(
                    self.x.at(block.source + row * conv.x.spatial[1]),
                    self.scratch.at(j * kernel.strip_row),
                    c,
                    first=-window.pad[2],
                    columns=kernel.strip_columns,
                    size=window.size[2],
                    inside=None if always else row.compare("ult", window.size[1]),
                )
            if conv.outputs > 1:
                with e.loop("spread", count * kernel.strip_columns) as i:
                    at = self.scratch.at(i * kernel.lanes)
                    e.store(self._spread(e.load(at, self.kind)), at)
            yield self._lines(k, block, live)

    def _lines(self, k: Value, block: Block, live: int) -> Lines:
        e, kernel, conv, window = self.e, self.kernel, self.conv, self.window
        line = partial(self._line, window.stride[2] * kernel.lanes)
        if not kernel.copies_dy:
            lanes = kernel.lanes if conv.y.block > 1 else live
            at = self.dy.at(block.factor + channel_offset(conv.y, k))
            return Lines(at, conv.y.spatial[1], conv.y.spatial[2], lanes, line)
        held = self.scratch.at(kernel.strip)
        step = window.out[2] * kernel.lanes
        copy = StripCopy(e, self.target, conv.y, self.kind, live, kernel.lanes)
        with e.loop("row", block.rows) as r:
            source = self.dy.at(block.factor + r * conv.y.spatial[1])
            copy.pixels(source, held.at(r * step), k, e.i64(window.out[2]))
        return Lines(held, step, kernel.lanes, kernel.lanes, line)

    def _line(self, step: int, row: Value) -> Line:
        return self.scratch.at(row * self.kernel.strip_row), step

    def columns(self, acc: list[Value]) -> Iterator[Columns]:
        pieces = column_pieces(self.e, 0, self.window.out[2], self.kernel.tile.columns, acc)
        yield from (Columns(column, count) for column, count in pieces)

    def input(self, columns: Columns, column: int, tap: int) -> Input | None:
        del columns
        position = column * self.window.stride[2] + tap * self.window.dilation[2]
        offset = position * self.kernel.lanes
        return (position,), lambda at: self.e.load(at.at(offset), self.kind)

    def first_tap(self, tap: Value | int) -> Value | int:
        return tap * (self.window.dilation[2] * self.kernel.lanes)
