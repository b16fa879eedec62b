"""The output transform of fused Winograd: y = A^T M A, then the epilogue and the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

from leanconv.algorithms.common.linear_code import emit_values
from leanconv.algorithms.winograd.edge_tiles import each_place, full_and_edge_tiles, skipped_points
from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.codegen.activations import apply, finish
from leanconv.codegen.dot import dot_of, way_of
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.epilogue import TileOutput, store_tile, with_numbers
from leanconv.codegen.microkernel import RegisterTile, add_start, channel_address, load_channels
from leanconv.codegen.shuffles import halves_fit, halves_of_columns
from leanconv.codegen.tails import Columns, RowPieces
from leanconv.records import replace
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
        shape: the convolution.
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
        shape: WinogradShape,
        target: Target,
        pointers: dict[str, Pointer],
        group: Value,
        m: Pointer,
        between: Pointer,
        *,
        order: Pointer | None = None,
        gapless: bool = False,
    ) -> None:
        conv = shape.conv
        self.e, self.shape, self.pointers, self.m, self.between = (
            e,
            shape,
            pointers,
            m,
            between.of(m.element),
        )
        self.target, self.group, self.order, self.gapless = target, group, order, gapless
        self.kind = vector(conv.precision.accumulate.llvm, shape.lanes)
        (height, width), (edge_height, edge_width) = shape.transforms(), shape.narrow_transforms()
        self.along_height = compile_matrix(height.at), compile_matrix(edge_height.at)
        self.along_width = compile_matrix(width.at), compile_matrix(edge_width.at)
        dot = dot_of(shape.products, way_of(shape.products, target))
        self.tile = RegisterTile(dot, shape.lanes, 1, 0)
        out = TileOutput(
            conv.epilogue,
            conv.y,
            pointers["y"],
            pointers.get("residual"),
            None,
            shape.conv.stored,
            pointers.get("quantisation"),
            factor_step=shape.packed_channels,
        )
        self.out = with_numbers(e, self.tile, out)

    def block(self, first: Value, count: Value, panel: Value, m_first: Value | int = 0) -> None:
        """Finish `count` tiles of the batch from `first` on for one panel of output channels.

        They are the tiles of M from `m_first` on. The loop over vectors of channels is outside and
        that over tiles inside: neighbouring tiles write the same lines.
        """
        conv, shape, e = self.shape.conv, self.shape, self.e
        for j, channels, live in self._each_vector(panel):
            number = panel * shape.vectors + j
            start = conv.y.panel(number, shape.lanes) + conv.y_offset
            start = start + self.group * conv.y.channel(conv.outputs)
            channel = (self.group * (shape.panels * shape.vectors) + number) * shape.lanes
            with each_place(e, shape, first, count, self.order) as (i, (n, ty, tx, narrow)):
                height = e.smin(e.i64(shape.out[0]) - ty * shape.m[0], shape.m[0])
                at = start + n * conv.y.image + ty * (shape.m[0] * conv.y.spatial[1])
                at = at + tx * (shape.m[1] * conv.y.spatial[2])
                self._columns(self._m_address(i + m_first, panel, j), live, narrow)
                self._rows(_Part(at, height, tx, channel, channels, narrow[1]))

    def _each_vector(self, panel: Value) -> Iterator[tuple[Value, int, int]]:
        """Emit the body for the whole vectors of a panel, and for the tail of the last panel.

        Yields:
            The vector's number in the panel, the channels to store, and those that M has.
        """
        conv, shape, e = self.shape.conv, self.shape, self.e
        whole, tail = divmod(conv.outputs, shape.lanes)
        in_blocks = conv.y.block > 1  # the unused lanes of the last vector may be written
        if in_blocks and not self.gapless:
            whole, tail = ceil_div(conv.outputs, shape.lanes), 0
        stop = e.smin(e.i64(whole) - panel * shape.vectors, shape.vectors)
        if whole:
            # The last panel may have no whole vector, and a loop's body runs at least once.
            empty = tail and whole % shape.vectors == 0
            with e.when(stop.compare("sgt", 0)) if empty else nullcontext():
                with e.loop("vector", stop) as j:
                    yield j, shape.lanes, shape.lanes
        if tail:
            with e.when(panel.compare("eq", shape.panels - 1)):
                stored = shape.lanes if in_blocks else tail
                yield e.i64(whole % shape.vectors), stored, tail

    def _m_address(self, t: Value, panel: Value, j: Value) -> Pointer:
        """Address in M of vector j of a panel of the t-th tile, at the first point."""
        shape = self.shape
        if self.gapless:
            return self.m.at(t * shape.conv.outputs + (panel + j) * shape.lanes)
        return self.m.at(t * shape.panel_lanes + j * shape.lanes)

    def _columns(
        self, source: Pointer, live: int, narrow: tuple[Value | None, Value | None]
    ) -> None:
        """Transform a vector along the height, of which M has `live` channels."""
        shape, e = self.shape, self.e
        step = shape.tile_count * shape.conv.outputs if self.gapless else shape.m_stride
        if not self.gapless:
            live = shape.lanes  # panels are whole vectors
        start, width = skipped_points(e, shape, narrow[1]), shape.alpha[1]
        for program in full_and_edge_tiles(e, narrow[0], self.along_height):
            first = (shape.alpha[0] - program.inputs) * width
            with e.loop("point", width, start=start) as point:
                column = source.at((point + first) * step)
                values = [
                    e.load_first(column.at(i * width * step), self.kind, live)
                    for i in range(program.inputs)
                ]
                out = self.between.at(point * shape.lanes)
                for i, value in enumerate(emit_values(e, program, values)):
                    e.store(value, out.at(i * width * shape.lanes))

    def _rows(self, to: _Part) -> None:
        """Emit the rows; the last column of tiles may be narrower."""
        shape, e = self.shape, self.e
        planes = not shape.conv.y.lanes_contiguous and 2 * shape.m[1] <= shape.lanes
        planes = planes and shape.conv.precision.is_uniform
        store = self._planes if planes and halves_fit(self.kind) else self._vectors
        for program in full_and_edge_tiles(e, to.narrow, self.along_width):
            store(to, program)

    def _columns_inside(self, to: _Part) -> Value | None:
        """Columns of a tile inside the output; None if all tiles end with the output or before."""
        shape, e = self.shape, self.e
        if to.narrow or (not shape.any_size and shape.out[1] % shape.m[1] == 0):
            return None
        return e.smin(e.i64(shape.out[1]) - to.tx * shape.m[1], shape.m[1])

    def _row(self, i: Value, program: LinearProgram, bias: Value | None) -> list[Value]:
        """The results of one row, bias added: vectors of channels.

        No accumulator can begin at it: they sum transformed points, and each result is a
        combination of those.
        """
        shape, e = self.shape, self.e
        skipped = shape.alpha[1] - program.inputs
        line = self.between.at((i * shape.alpha[1] + skipped) * shape.lanes)
        points = [e.load(line.at(k * shape.lanes), self.kind) for k in range(program.inputs)]
        outputs = emit_values(e, program, points)
        return [add_start(self._divided(value), bias) for value in outputs]

    def _divided(self, value: Value) -> Value:
        """Return an output of a scaled one, as integers give."""
        division = self.shape.division
        if division is None:
            return value
        value = value * division.inverse
        return value.shifted_right(division.shift)

    def _parameter(self, role: str, to: _Part) -> Value | None:
        """Bias or slope of the vector of channels; None where there is none."""
        return load_channels(self.e, self.kind, channel_address(self.pointers, role, to.first))

    def _vectors(self, to: _Part, program: LinearProgram) -> None:
        """Store the columns of each row with `store_tile`, as all algorithms do."""
        shape, e = self.shape, self.e
        bias, residual = self._parameter("bias", to), self.pointers.get("residual")
        factors = "scale" if shape.conv.epilogue.requantise else "slope"
        factor = channel_address(self.pointers, factors, to.first)
        count, columns = self._columns_inside(to), None
        if count:
            columns = Columns(e, count, shape.m[1], self.kind, self.target)
        with e.loop("row", to.height) as i:
            at = to.place + i * shape.conv.y.spatial[1]
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
        conv, shape, e = self.shape.conv, self.shape, self.e
        bias, slope = self._parameter("bias", to), self._parameter("slope", to)
        residual, activation = self.pointers.get("residual"), conv.epilogue.activation
        dtype = conv.precision.dtype
        kind, line = vector(dtype.llvm, shape.lanes // 2), ALIGNMENT // dtype.bytes
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
        return self.e.shuffle(slopes, None, [channel] * (self.shape.lanes // 2))
