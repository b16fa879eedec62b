"""The output transform of fused Winograd: y = A^T M A, then the epilogue and the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

from leanconv.algorithms.common.linear_code import emit_values
from leanconv.algorithms.winograd.edge_tiles import each_place, full_and_edge_tiles, skipped_points
from leanconv.algorithms.winograd.plane_rows import RowPieces
from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.codegen.activations import apply, finish
from leanconv.codegen.dot import dot_of, way_of
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.epilogue import TileOutput, store_tile, with_numbers
from leanconv.codegen.microkernel import RegisterTile, add_start, channel_address, load_channels
from leanconv.codegen.shuffles import halves_fit, halves_of_columns
from leanconv.codegen.tails import Columns
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target
from leanconv.winograd.program import LinearProgram, compile_matrix


class _Part(NamedTuple):
    """The part of the output that one tile computes for one vector of channels.

    Attributes:
        place: offset of its first element in the output.
        height: rows of the tile inside the output.
        tx: the tile's column in the grid of tiles.
        first: index of the first channel in packed bias and slopes.
        channels: number of channels.
        narrow: whether the tile is narrow along the width.
    """

    place: Value
    height: Value
    tx: Value
    first: Value
    channels: int
    narrow: Value | None


class OutputTransform:
    """Emits the transform of a block of tiles and one panel of output channels.

    The columns of M are transformed along the height into a small scratch [row][point]; then each
    row inside the output along the width; then the epilogue, and the store.

    Args:
        e: the function to append to.
        conv: the convolution.
        target: the machine.
        pointers: addresses of the operands, by role.
        group: number of the group.
        m, between: addresses of M and of the small scratch.
        order: address of the tiles' indices in the order of blocks, if they are reordered.
        gapless: whether M is that of all tiles and channels, [xi][tile][channel], panels of one
            vector; else that of a block and a panel.
    """

    def __init__(
        self,
        e: Function,
        conv: WinogradShape,
        target: Target,
        pointers: dict[str, Pointer],
        group: Value,
        m: Pointer,
        between: Pointer,
        *,
        order: Pointer | None = None,
        gapless: bool = False,
    ) -> None:
        self.e, self.conv, self.pointers, self.m, self.between = (
            e,
            conv,
            pointers,
            m,
            between.of(m.element),
        )
        self.target, self.group, self.order, self.gapless = target, group, order, gapless
        self.kind = vector(conv.precision.accumulate.llvm, conv.lanes)
        (height, width), (edge_height, edge_width) = conv.transforms(), conv.narrow_transforms()
        self.along_height = compile_matrix(height.at), compile_matrix(edge_height.at)
        self.along_width = compile_matrix(width.at), compile_matrix(edge_width.at)
        dot = dot_of(conv.products, way_of(conv.products, target))
        self.tile = RegisterTile(dot, conv.lanes, 1, 0)
        out = TileOutput(
            conv.epilogue,
            conv.y,
            pointers["y"],
            pointers.get("residual"),
            None,
            conv.stored,
            pointers.get("quantisation"),
            factor_step=conv.packed_channels,
        )
        self.out = with_numbers(e, self.tile, out)

    def block(self, first: Value, count: Value, panel: Value, m_first: Value | int = 0) -> None:
        """Finish `count` tiles of the batch from `first` on for one panel of output channels.

        They are the tiles of M from `m_first` on. The loop over vectors of channels is outside and
        that over tiles inside: neighbouring tiles write the same lines.
        """
        conv, e = self.conv, self.e
        for j, channels, live in self._each_vector(panel):
            number = panel * conv.vectors + j
            start = conv.y.panel(number, conv.lanes) + conv.y_offset
            start = start + self.group * conv.y.channel(conv.outputs)
            channel = (self.group * (conv.panels * conv.vectors) + number) * conv.lanes
            with each_place(e, conv, first, count, self.order) as (i, (n, ty, tx, narrow)):
                height = e.smin(e.i64(conv.out[0]) - ty * conv.m[0], conv.m[0])
                at = start + n * conv.y.image + ty * (conv.m[0] * conv.y.spatial[1])
                at = at + tx * (conv.m[1] * conv.y.spatial[2])
                self._columns(self._m_address(i + m_first, panel, j), live, narrow)
                self._rows(_Part(at, height, tx, channel, channels, narrow[1]))

    def _each_vector(self, panel: Value) -> Iterator[tuple[Value, int, int]]:
        """Emit the body for the whole vectors of a panel, and for the tail of the last panel.

        Yields:
            The vector's number in the panel, the channels to store, and those that M has.
        """
        conv, e = self.conv, self.e
        whole, tail = divmod(conv.outputs, conv.lanes)
        in_blocks = conv.y.block > 1  # the unused lanes of the last vector may be written
        if in_blocks and not self.gapless:
            whole, tail = ceil_div(conv.outputs, conv.lanes), 0
        stop = e.smin(e.i64(whole) - panel * conv.vectors, conv.vectors)
        if whole:
            # The last panel may have no whole vector, and a loop's body runs at least once.
            empty = tail and whole % conv.vectors == 0
            with e.when(stop.compare("sgt", 0)) if empty else nullcontext():
                with e.loop("vector", stop) as j:
                    yield j, conv.lanes, conv.lanes
        if tail:
            with e.when(panel.compare("eq", conv.panels - 1)):
                stored = conv.lanes if in_blocks else tail
                yield e.i64(whole % conv.vectors), stored, tail

    def _m_address(self, t: Value, panel: Value, j: Value) -> Pointer:
        """Address in M of vector j of a panel of the t-th tile, at the first point."""
        conv = self.conv
        if self.gapless:
            return self.m.at(t * conv.outputs + (panel + j) * conv.lanes)
        return self.m.at(t * conv.panel_lanes + j * conv.lanes)

    def _columns(
        self, source: Pointer, live: int, narrow: tuple[Value | None, Value | None]
    ) -> None:
        """Transform a vector along the height, of which M has `live` channels."""
        conv, e = self.conv, self.e
        step = conv.tile_count * conv.outputs if self.gapless else conv.m_stride
        if not self.gapless:
            live = conv.lanes  # panels are whole vectors
        start, width = skipped_points(e, conv, narrow[1], 1), conv.alpha[1]
        for program in full_and_edge_tiles(e, narrow[0], self.along_height):
            first = (conv.alpha[0] - program.inputs) * width
            with e.loop("point", width, start=start) as point:
                column = source.at((point + first) * step)
                values = [
                    e.load_first(column.at(i * width * step), self.kind, live)
                    for i in range(program.inputs)
                ]
                out = self.between.at(point * conv.lanes)
                for i, value in enumerate(emit_values(e, program, values)):
                    e.store(value, out.at(i * width * conv.lanes))

    def _rows(self, to: _Part) -> None:
        """Emit the rows; the last column of tiles may be narrower."""
        conv, e = self.conv, self.e
        planes = not conv.y.lanes_contiguous and 2 * conv.m[1] <= conv.lanes
        planes = planes and conv.precision.is_uniform
        store = self._planes if planes and halves_fit(self.kind) else self._vectors
        for program in full_and_edge_tiles(e, to.narrow, self.along_width):
            store(to, program)

    def _columns_inside(self, to: _Part) -> Value | None:
        """Columns of a tile inside the output; None if all tiles end with the output or before."""
        conv, e = self.conv, self.e
        if to.narrow or (not conv.any_size and conv.out[1] % conv.m[1] == 0):
            return None
        return e.smin(e.i64(conv.out[1]) - to.tx * conv.m[1], conv.m[1])

    def _row(self, i: Value, program: LinearProgram, bias: Value | None) -> list[Value]:
        """The results of one row, bias added: vectors of channels.

        No accumulator can begin at it: they sum transformed points, and each result is a
        combination of those.
        """
        conv, e = self.conv, self.e
        skipped = conv.alpha[1] - program.inputs
        line = self.between.at((i * conv.alpha[1] + skipped) * conv.lanes)
        points = [e.load(line.at(k * conv.lanes), self.kind) for k in range(program.inputs)]
        outputs = emit_values(e, program, points)
        return [add_start(self._divided(value), bias) for value in outputs]

    def _divided(self, value: Value) -> Value:
        """An output of the scaled one that integers give."""
        division = self.conv.division
        if division is None:
            return value
        value = value * division.inverse
        return value.shifted_right(division.shift)

    def _parameter(self, role: str, to: _Part) -> Value | None:
        """Bias or slope of the vector of channels; None where there is none."""
        return load_channels(self.e, self.kind, channel_address(self.pointers, role, to.first))

    def _vectors(self, to: _Part, program: LinearProgram) -> None:
        """Store the columns of each row with `store_tile`, as all algorithms do."""
        conv, e = self.conv, self.e
        bias, residual = self._parameter("bias", to), self.pointers.get("residual")
        factors = "scale" if conv.epilogue.requantise else "slope"
        factor = channel_address(self.pointers, factors, to.first)
        count, columns = self._columns_inside(to), None
        if count:
            columns = Columns(e, count, conv.m[1], self.kind, self.target)
        with e.loop("row", to.height) as i:
            at = to.place + i * conv.y.spatial[1]
            outputs = self._row(i, program, bias)
            out = replace(
                self.out,
                y=self.out.y.at(at),
                residual=residual.at(at) if residual else None,
                factors=factor,
            )
            store_tile(e, self.tile, outputs, out, to.channels, columns)

    # -- channels in planes ----------------------------------------------------------------
    def _planes(self, to: _Part, program: LinearProgram) -> None:
        """Transpose each row so that lanes run along columns, and store a piece for each channel.

        The next line of each channel's row is prefetched: the next tile writes it. One core, batch
        1: 7 to 10 % of cv8, 9 to 12 % of cv1, 3 to 10 % of cv3, 2 % of cv4, nothing where the
        output stays in L2; a distance of two or four lines gains less.
        """
        conv, e = self.conv, self.e
        bias, slope = self._parameter("bias", to), self._parameter("slope", to)
        residual, activation = self.pointers.get("residual"), conv.epilogue.activation
        dtype = conv.precision.dtype
        kind, line = vector(dtype.llvm, conv.lanes // 2), ALIGNMENT // dtype.bytes
        count, columns = len(program.outputs), self._columns_inside(to)
        pieces = RowPieces(e, kind, conv.y.spatial[2], count)
        masks = pieces.masks(limit=e.convert("trunc", columns, "i32") if columns else None)
        with e.loop("row", to.height) as i:
            outputs = self._row(i, program, bias)
            if not residual:
                outputs = [apply(e, value, activation, slope) for value in outputs]
            at = to.place + i * conv.y.spatial[1]
            y = self.pointers["y"].at(at)
            other = residual.at(at) if residual else None
            for channel, value in enumerate(halves_of_columns(e, outputs)[: to.channels]):
                offset = conv.y.channel(channel)
                if other:
                    added = pieces.load(other.at(offset), masks)
                    own = self._slope_of(slope, channel, kind)
                    value = finish(e, value, activation, own, added)
                pieces.store(value, y.at(offset), masks)
                next_line = y.at(offset).at(line)
                e.prefetch(next_line, write=True)

    def _slope_of(self, slopes: Value | None, channel: int, kind: str) -> Value | None:
        if slopes is None:
            return None
        return self.e.shuffle(slopes, None, [channel] * (self.conv.lanes // 2))
