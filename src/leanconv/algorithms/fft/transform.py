"""The two transforms around the products: input tiles forwards, output tiles back.

Lanes are channels. Forwards: the rows of a tile, one after the other, each read from the tensor
(what lies outside of it is zero, so that padding is nowhere stored) and transformed by
`real_forward`; then the columns of what came out, two real ones and T/2 - 1 complex ones, whose
results go to their bins. Backwards: the columns, of which only the rows that are outputs are kept;
then row by row, cropped, with bias, residual and activation, into the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from leanconv.algorithms.common.linear_code import emit_program
from leanconv.algorithms.fft.layout import FftLayout
from leanconv.algorithms.fft.network import (
    complex_forward,
    complex_inverse,
    real_forward,
    real_inverse,
)
from leanconv.algorithms.fft.overlap_save import Axis
from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.epilogue import TileOutput, store_tile
from leanconv.codegen.microkernel import RegisterTile, add_start, channel_address, load_channels
from leanconv.codegen.shuffles import transpose
from leanconv.codegen.tails import Columns, tile_at
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Symbol
from leanconv.target import Target


@dataclass(frozen=True)
class Place:
    """Position of a tile: image, and residue and number of the tile along height and width."""

    image: Value
    residues: tuple[Value, Value]
    tiles: tuple[Value, Value]


@dataclass(frozen=True)
class Span:
    """Positions start + i * spread for i < T along one axis; low <= i < high exist in the input."""

    start: Value
    low: Value
    high: Value


class Column(NamedTuple):
    """One column of the spectrum: addresses in the half-transformed tile and in the bins."""

    mid: Pointer
    bins: Pointer
    real: bool


class Transforms:
    """Emission of both transforms for one block of one group.

    Args:
        e: the function to append to.
        layout: sizes and offsets.
        target: the machine.
        pointers: operands by role.
        outer: group, or vector of channels if depthwise.
        split: slice of the group's output channels.
        block: image, row and column of the block.
    """

    def __init__(
        self,
        e: Function,
        layout: FftLayout,
        target: Target,
        pointers: dict[str, Pointer],
        outer: Value,
        split: Value,
        block: Sequence[Value],
    ) -> None:
        self.e, self.layout, self.target, self.block = e, layout, target, block
        self.outer, self.split = outer, split
        self.kind = vector(layout.conv.dtype.llvm, layout.lanes)
        mid, row, _ = layout.scratch_offsets
        self.buffer = e.scratch.of(layout.conv.dtype.llvm)
        self.mid = self.buffer.at(mid)
        self.row_buffer = self.buffer.at(row + layout.margin * layout.lanes)
        self.pointers = pointers

    # -- places ----------------------------------------------------------------------------
    def _each_tile(
        self, count: int, width: int, extra: tuple[int, int]
    ) -> Iterator[tuple[Value, Place]]:
        """Loop over the tiles of the block that exist.

        Args:
            count: tiles of the block.
            width: tiles of a row of it.
            extra: tiles that exist beyond those of the outputs (h, w).

        Yields:
            The tile's number in the block, and where it is.
        """
        with self.e.loop("tile", count) as t:
            place, inside = self._place(t, width, extra)
            with self.e.when(inside):
                yield t, place

    def _place(self, t: Value, width: int, extra: tuple[int, int]) -> tuple[Place, Value]:
        """Return the position of the block's tile t, and whether that tile exists."""
        layout = self.layout
        height, across = layout.height, layout.width
        image, down, right = self.block
        if layout.flat:
            number = right * layout.output_tiles + t
            per_image = height.tiles * across.tiles
            inside = number.compare("ult", layout.images * per_image)
            image, rest = number // per_image, number % per_image
            tiles = (rest // across.tiles, rest % across.tiles)
        else:
            tiles = (
                down * layout.block_height + t // width,
                right * layout.block_width + t % width,
            )
            inside = tiles[0].compare("ult", height.tiles + extra[0])
            inside = inside & tiles[1].compare("ult", across.tiles + extra[1])
        rest = image // across.residues
        residues = (rest % height.residues, image % across.residues)
        return Place(rest // height.residues, residues, tiles), inside

    def _span(self, axis: Axis, tile: Value, offset: Value) -> Span:
        e, spread, length = self.e, axis.spread, axis.length
        start = tile * (axis.step * spread) + offset - axis.pad
        low = (e.smax(0 - start, 0) + (spread - 1)) // spread
        high = (e.smax(axis.size - start, 0) + (spread - 1)) // spread
        low, high = e.smin(low, length), e.smin(high, length)
        return Span(start, low, e.smax(high, low))

    # -- forwards --------------------------------------------------------------------------
    def forward(self) -> None:
        """Transform all input tiles of the block into the slots 1 … bins."""
        layout = self.layout
        extra = (layout.height.parts - 1, layout.width.parts - 1)
        for t, place in self._each_tile(layout.input_tiles, layout.input_width, extra):
            self._forward_tile(t, place)

    def _forward_tile(self, t: Value, place: Place) -> None:
        conv, e, layout = self.layout.conv, self.e, self.layout
        slot = self.buffer.at(t * layout.x_tile + layout.slot)
        with e.loop("phase", layout.phases) as phase:
            numbers = phase // layout.width.phases, phase % layout.width.phases
            rows, columns = (
                self._span(
                    axis,
                    place.tiles[i],
                    place.residues[i] * axis.stride + numbers[i] * axis.dilation,
                )
                for i, axis in enumerate((layout.height, layout.width))
            )
            to = slot.at(phase * layout.x_phase)
            image = place.image * conv.x.image + conv.x_offset
            with e.loop("channels", layout.input_vectors) as channels:
                number = self.outer if layout.depthwise else channels
                start = image + number * conv.x.channel(layout.lanes)
                if not layout.depthwise:
                    start = start + self.outer * conv.x.channel(conv.inputs)
                x = self.pointers["x"].at(start)
                self._rows(x, rows, columns, number)
                for column in self._spectrum(to.at(channels * layout.lanes)):
                    self._column_forward(column)

    def _zero(self, line: Pointer) -> None:
        """Zero the T vectors of a row."""
        with self.e.loop("zero", self.layout.length) as i:
            self.e.store(self.e.zero(self.kind), line.at(i * self.layout.lanes))

    def _zero_rows(self, first: Value | int, last: Value | int) -> None:
        """Zero rows first <= i < last of the half-transformed tile; at least one."""
        with self.e.loop("row", last, start=first) as row:
            self._zero(self.mid.at(row * self.layout.mid_row))

    def _rows(self, x: Pointer, rows: Span, columns: Span, number: Value) -> None:
        """Read and transform the rows of one tile."""
        conv, e, layout = self.layout.conv, self.e, self.layout
        length = layout.length
        with e.when(rows.low.compare("ugt", 0)):
            self._zero_rows(0, rows.low)
        with e.when(rows.high.compare("ult", length)):
            self._zero_rows(rows.high, length)
        directly = whole_row = columns.low.compare("eq", 0) & columns.high.compare("eq", length)
        count = conv.groups if layout.depthwise else conv.inputs
        if conv.x.block > 1:
            count = ceil_div(count, layout.lanes) * layout.lanes
        if count % layout.lanes:
            directly = directly & number.compare("ult", count // layout.lanes)
        some = rows.low.compare("ult", rows.high)
        if conv.x.lanes_contiguous:
            step = conv.x.spatial[2] * layout.width.spread
            with e.when(some & directly):
                with e.loop("row", rows.high, start=rows.low) as row:
                    line = self._line(x, rows, columns, row)
                    self._transform_row(row, line, step)
            some = some & (directly ^ 1)
        with e.when(some):
            with e.when(whole_row ^ 1):
                self._zero(self.row_buffer)
            with e.loop("row", rows.high, start=rows.low) as row:
                line = self._line(x, rows, columns, row)
                for live in tile_at(e, number, count, layout.lanes):
                    self._read(line, columns, live)
                self._transform_row(row, self.row_buffer, layout.lanes)

    def _line(self, x: Pointer, rows: Span, columns: Span, row: Value) -> Pointer:
        """The address of a row's first position, which may lie before the tensor."""
        spatial = self.layout.conv.x.spatial
        position = rows.start + row * self.layout.height.spread
        return x.at(position * spatial[1] + columns.start * spatial[2])

    def _transform_row(self, row: Value, source: Pointer, step: int) -> None:
        e, layout = self.e, self.layout
        target = self.mid.at(row * layout.mid_row)
        emit_program(
            e,
            real_forward(layout.length).program,
            lambda i: e.load(source.at(i * step), self.kind),
            lambda i, value: e.store(value, target.at(i * layout.lanes)),
        )

    def _read(self, line: Pointer, columns: Span, live: int) -> None:
        """Copy the positions of a row that exist into the row buffer, lanes along channels."""
        x = self.layout.conv.x
        with self.e.when(columns.low.compare("ult", columns.high)):
            if x.lanes_contiguous or self.layout.width.spread > 1 or x.spatial[2] > 1:
                self._read_columns(line, columns, live)
            else:
                self._read_planes(line, columns, live)

    def _read_columns(self, line: Pointer, columns: Span, live: int) -> None:
        """One position at a time: a vector of channels, or an element of each plane."""
        conv, e, layout = self.layout.conv, self.e, self.layout
        step = conv.x.spatial[2] * layout.width.spread
        with e.loop("column", columns.high, start=columns.low) as column:
            at = line.at(column * step)
            if conv.x.lanes_contiguous:
                value = e.load_first(at, self.kind, live)
            else:
                value = e.zero(self.kind)
                for lane in range(live):
                    place = at.at(conv.x.channel(lane))
                    value = e.insert(value, e.load(place), lane)
            e.store(value, self.row_buffer.at(column * layout.lanes))

    def _read_planes(self, line: Pointer, columns: Span, live: int) -> None:
        """Planes: transpose squares of `lanes` columns by `lanes` channels.

        A square that reaches over an end of the row is moved inside; its columns still land in
        their own places of the row buffer, which has a margin for those that are not the tile's.
        """
        e, layout = self.e, self.layout
        size, lanes, length = layout.width.size, layout.lanes, layout.length
        across = lanes if size >= lanes else self.target.lanes_of_tail(size)
        stored = lanes if isinstance(across, Symbol) else across  # zeros beyond the row
        for first in range(0, length, lanes) if size >= lanes else (0,):
            begin = columns.start + first
            moved = e.smin(e.smax(begin, 0), size - across)
            offset = moved - columns.start
            near = offset.compare("sgt", -lanes) & offset.compare("slt", length)
            with e.when(near):
                at = line.at(offset)
                planes = [
                    e.load_first(at.at(layout.conv.x.channel(c)), self.kind, across)
                    for c in range(live)
                ]
                planes += [e.zero(self.kind)] * (lanes - live)
                to = self.row_buffer.at(offset * lanes)
                for i, value in enumerate(transpose(e, planes)[:stored]):
                    e.store(value, to.at(i * lanes))

    def _column_forward(self, column: Column) -> None:
        """Transform a column of the half-transformed tile into its bins."""
        e, layout = self.e, self.layout
        row, sums = layout.x_row, layout.planes == 3
        real_parts: dict[int, Value] = {}

        def store(i: int, value: Value) -> None:
            at, k = self._bin(column, i, row), i // 2
            e.store(value, at)
            if column.real and i < 2:
                e.store(e.zero(self.kind), at.at(row))
                if sums:
                    e.store(value, at.at(2 * row))
            elif sums and i % 2:
                total = real_parts[k] + value
                e.store(total, column.bins.at(k * layout.slot + 2 * row))
            else:
                real_parts[k] = value

        network = real_forward if column.real else complex_forward
        emit_program(
            e,
            network(layout.length).program,
            lambda i: e.load(self._half_transformed(column, i), self.kind),
            store,
        )

    # -- the spectrum ----------------------------------------------------------------------
    def _spectrum(self, bins: Pointer) -> Iterator[Column]:
        """Loop over the two real columns of the spectrum, then over the complex ones."""
        e, layout = self.e, self.layout
        half, lanes, slot = layout.length // 2, layout.lanes, layout.slot
        with e.loop("real", 2) as i:
            mid = self.mid.at(i * lanes)
            yield Column(mid, bins.at(i * ((half + 1) * slot)), True)
        with e.loop("complex", half - 1) as i:
            mid = self.mid.at(i * (2 * lanes) + 2 * lanes)
            first = i * (layout.length * slot) + 2 * (half + 1) * slot
            yield Column(mid, bins.at(first), False)

    def _half_transformed(self, column: Column, i: int) -> Pointer:
        """Address of number i of a column of the half-transformed tile."""
        layout = self.layout
        if column.real:
            return column.mid.at(i * layout.mid_row)
        return column.mid.at(i // 2 * layout.mid_row + i % 2 * layout.lanes)

    def _bin(self, column: Column, i: int, plane: int) -> Pointer:
        """Address of number i of a column's bins; `plane` elements separate re and im."""
        slot = self.layout.slot
        if column.real and i < 2:
            return column.bins.at(i * (self.layout.length // 2) * slot)
        return column.bins.at(i // 2 * slot + i % 2 * plane)

    # -- backwards -------------------------------------------------------------------------
    def inverse(self) -> None:
        """Transform the slots 0 … bins - 1 back, finish, and store the block's outputs."""
        layout = self.layout
        for t, place in self._each_tile(layout.output_tiles, layout.block_width, (0, 0)):
            self._inverse_tile(t, place)

    def _count(self, axis: Axis, tile: Value, offset: Value) -> Value:
        """Outputs of a tile along an axis; may be 0 or less."""
        of_residue = (axis.out + axis.residue_step - 1 - offset) // axis.residue_step
        return self.e.smin(of_residue - tile * axis.step, axis.step)

    def _inverse_tile(self, t: Value, place: Place) -> None:
        conv, e, layout = self.layout.conv, self.e, self.layout
        rows = self._count(layout.height, place.tiles[0], place.residues[0])
        columns = self._count(layout.width, place.tiles[1], place.residues[1])
        slot = self.buffer.at(t * (2 * layout.y_row))
        start = place.image * conv.y.image + conv.y_offset
        for axis, number in ((layout.height, 0), (layout.width, 1)):
            first = place.tiles[number] * (axis.step * axis.residue_step) + place.residues[number]
            start = start + first * conv.y.spatial[number + 1]
        if not layout.depthwise:
            start = start + self.outer * conv.y.channel(conv.outputs)
        with e.when(rows.compare("sgt", 0) & columns.compare("sgt", 0)):
            with e.loop("channels", layout.output_vectors) as channels:
                number_of = self.outer
                if not layout.depthwise:
                    number_of = self.split * layout.output_vectors + channels
                for column in self._spectrum(slot.at(channels * layout.lanes)):
                    self._column_back(column)
                at = start + number_of * conv.y.channel(layout.lanes)
                self._rows_back(at, rows, columns, number_of)

    def _column_back(self, column: Column) -> None:
        """Transform a column's bins back, as many rows of it as are outputs."""
        e, layout = self.e, self.layout
        network = real_inverse if column.real else complex_inverse
        emit_program(
            e,
            network(layout.length, layout.height.kept).program,
            lambda i: e.load(self._bin(column, i, layout.y_row), self.kind),
            lambda i, value: e.store(value, self._half_transformed(column, i)),
        )

    def _rows_back(self, start: Value, rows: Value, columns: Value, number: Value) -> None:
        """Transform rows back and store them.

        The bias is added to what comes out: accumulators hold sums of spectra.
        """
        e, layout = self.e, self.layout
        lanes = layout.lanes
        parameter = number * lanes
        if not layout.depthwise:
            parameter = parameter + self.outer * (layout.group_vectors * lanes)
        bias = channel_address(self.pointers, "bias", parameter)
        slope = channel_address(self.pointers, "slope", parameter)
        added = load_channels(e, self.kind, bias)
        stored = Columns(e, columns, layout.width.usual, self.kind, self.target)
        with e.loop("row", rows) as row:
            source = self.mid.at(row * layout.mid_row)
            sums: dict[int, Value] = {}
            emit_program(
                e,
                real_inverse(layout.length, layout.width.kept).program,
                lambda i: e.load(source.at(i * lanes), self.kind),
                lambda i, value: sums.__setitem__(i, add_start(value, added)),
            )
            at = start + row * (layout.height.residue_step * layout.conv.y.spatial[1])
            self._store([sums[i] for i in range(len(sums))], at, slope, stored, number)

    def _store(
        self, sums: list[Value], at: Value, slope: Pointer | None, columns: Columns, number: Value
    ) -> None:
        """Store as many columns and channels as there are."""
        conv, e, layout = self.layout.conv, self.e, self.layout
        step = conv.y.spatial[2] * layout.width.residue_step
        access = replace(conv.y, spatial=(*conv.y.spatial[:2], step))
        tile = RegisterTile(fma(conv.dtype), layout.lanes, 1, 0)
        channels = conv.groups if layout.depthwise else conv.outputs
        if conv.y.block > 1:
            channels = ceil_div(channels, layout.lanes) * layout.lanes
        residual = self.pointers.get("residual")
        out = TileOutput(
            conv.epilogue,
            access,
            self.pointers["y"].at(at),
            residual.at(at) if residual else None,
            slope,
        )
        for live in tile_at(e, number, channels, layout.lanes):
            if self.target.runtime_masks or access.lanes_contiguous:
                store_tile(e, tile, sums, out, live, columns)
                continue
            for count in layout.width.counts:
                with e.when(columns.count.compare("eq", count)):
                    store_tile(e, tile, sums[:count], out, live)
