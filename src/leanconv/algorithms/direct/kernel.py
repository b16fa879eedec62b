"""The general kernel of direct convolution: loops over chunks, panels, rows, tiles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

from leanconv.algorithms.common.conv import Taps
from leanconv.algorithms.direct.shape import DirectShape, panel_ahead, prefetch_offsets
from leanconv.codegen.column_tiles import (
    ColumnTile,
    bounded_tiles,
    each_tile_of_row,
    overlapping_tiles,
    tiles_of_any_row,
    tiles_of_one_code,
)
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.epilogue import TileOutput, store_columns, store_tile
from leanconv.codegen.half_stored import HalfSums, in_floats
from leanconv.codegen.microkernel import (
    Fetch,
    ReductionLoop,
    RegisterTile,
    multiply_accumulate,
    start_tile,
)
from leanconv.codegen.partial_sums import PartialSums, sum_in_two_parts
from leanconv.codegen.tails import each_tile, tile_at
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_Runs = list[tuple[Value | int, Value | int, tuple[int, ...]]]  # low, high, columns


class PanelRows:
    """Emits rows of output columns, one panel of output channels each."""

    def __init__(
        self, e: Function, kernel: DirectShape, pointers: dict[str, Pointer], n: Value, g: Value
    ) -> None:
        conv = kernel.conv
        self.e, self.kernel = e, kernel
        image = n * conv.x.image + g * conv.x.channel(conv.inputs)
        self.x = pointers["x"].at(image)
        self.w = pointers["w"].at(g * kernel.group_weights)
        self.y = self._output(pointers["y"], n, g)
        residual = pointers.get("residual")
        self.residual = self._output(residual, n, g) if residual else None
        self.bias = self._channels(pointers.get("bias"), g)
        self.factors = self._channels(pointers.get("slope") or pointers.get("scale"), g)
        self.quantisation = pointers.get("quantisation")
        self.excess = (pointers["excess"], pointers["places"]) if kernel.excess else None
        self.image, self.prefetched = n, pointers.get("prefetched")

    def _output(self, pointer: Pointer, n: Value, g: Value) -> Pointer:
        conv, access = self.kernel.conv, self.kernel.conv.y
        start = n * access.image + g * access.channel(conv.outputs) + conv.y_offset
        return pointer.at(start)

    def _channels(self, pointer: Pointer | None, g: Value) -> Pointer | None:
        if pointer is None:
            return None
        first = g * (self.kernel.panels * self.kernel.panel_lanes)
        return pointer.at(first)

    def row(self, row: Value, panel: Value, channels: int) -> None:
        """Emit one row of output columns.

        Args:
            row: index over depth and height.
            panel: index of the panel.
            channels: its output channels.
        """
        _PanelRow(self, row, panel, channels).emit()


class _PanelRow:
    """Emission of one row of output columns of one panel, which has `channels` output channels."""

    def __init__(self, of: PanelRows, row: Value, panel: Value, channels: int) -> None:
        self.e, self.kernel = of.e, of.kernel
        self.channels, self.prefetched, self.group_w = channels, of.prefetched, of.w
        kernel, window = self.kernel, self.kernel.conv.window
        od, oh = self.e.split(row, *window.out[:2])
        self.oh = oh
        self.w = of.w.at(panel * (kernel.packed_reduction * kernel.panel_lanes)).frozen()
        first = panel * kernel.panel_lanes
        self.bias = of.bias.at(first) if of.bias else None
        self.factors = of.factors.at(first) if of.factors else None
        self.quantisation = of.quantisation
        self.excess = (*of.excess, panel * kernel.panel_vectors) if of.excess else None
        channel = kernel.conv.y.panel(panel, kernel.panel_lanes)
        place = od * kernel.conv.y.spatial[0] + oh * kernel.conv.y.spatial[1] + channel
        self.y = of.y.at(place)
        self.residual = of.residual.at(place) if of.residual else None
        self.taps = [
            Taps(self.e, window, axis, o, kernel.one_code) for axis, o in ((0, od), (1, oh))
        ]
        starts = [t.start * kernel.conv.x.spatial[axis] for axis, t in enumerate(self.taps)]
        self.x = of.x.at(starts[0] + starts[1])
        self.first_tile = (of.image * kernel.conv.row_count + row) * kernel.tiles_across

    def emit(self) -> None:
        for column, run in each_tile_of_row(self.e, self._tiles()):
            self._tile(column, run)

    def _tiles(self) -> list[ColumnTile]:
        kernel, window, pixels = self.kernel, self.kernel.conv.window, self.kernel.tile.rows
        if kernel.columns:
            width = self.e.smin(kernel.columns - self.oh * window.out[2], window.out[2])
            return tiles_of_any_row(width, pixels)
        if kernel.one_code:
            return tiles_of_one_code(window, pixels)
        if kernel.any_width:
            return overlapping_tiles(window, pixels, kernel.conv.epilogue.residual)
        return bounded_tiles(window, pixels)

    def _tile(self, column: Value, run: ColumnTile) -> None:
        """Emit one register tile: start values, reduction, epilogue, store."""
        conv, kernel, e, window = self.kernel.conv, self.kernel, self.e, self.kernel.conv.window
        vectors = ceil_div(self.channels, kernel.lanes)
        step_x = conv.x.spatial[2]
        tile = RegisterTile(
            kernel.dot,
            kernel.lanes,
            vectors,
            window.stride[2] * step_x,
            b_prefetch_distance=self._weights_ahead(),
            a_prefetch_offsets=self._later_planes(run.pixels),
            prefetch_offsets=self._prefetch_offsets(column),
            by_lane=kernel.by_lane,
        )
        first = column * (window.stride[2] * step_x) - window.pad[2] * step_x
        a = self.x.at(first).frozen()
        sums = tile
        if kernel.piece:
            sums = in_floats(tile, ceil_div(self.channels, kernel.sum_lanes))
        acc = start_tile(e, self._totals_of(tile), run.pixels, self.bias)
        place = column * conv.y.spatial[2]
        residual = self.residual.at(place) if self.residual else None
        if kernel.prefetches_residual and residual:
            for j in range(sums.vectors):
                lines = residual.at(conv.y.channel(j * sums.lanes))
                for i in range(run.pixels):
                    # For writing: the output usually takes the residual's place.
                    e.prefetch(lines.at(i * conv.y.spatial[2]), write=True)
        self._reduce(tile, acc, run, column, a)
        y = self.y.at(place)
        output = TileOutput(
            conv.epilogue,
            conv.y,
            y,
            residual,
            self.factors,
            conv.stored,
            self.quantisation,
            factor_step=kernel.packed_channels,
        )
        if isinstance(run.done, int) and run.done == 0:
            store_tile(e, sums, acc, output, self.channels)
        else:
            store_columns(e, sums, acc, output, self.channels, run.done, mostly_all=run.once)

    def _totals_of(self, tile: RegisterTile) -> RegisterTile:
        """The tile of the totals of a tile: of float16 sums twice as many vectors of float32."""
        return in_floats(tile, 2 * tile.vectors) if self.kernel.piece else tile

    def _later_planes(self, pixels: int) -> tuple[int, ...]:
        """Distances of a tile's first and last line in a later channel."""
        conv, kernel = self.kernel.conv, self.kernel
        if not kernel.channels_ahead:
            return ()
        first = kernel.channels_ahead * conv.x.block_stride
        last = (pixels - 1) * conv.window.stride[2] * conv.x.spatial[2]
        return (first, first + last) if last else (first,)

    def _prefetch_offsets(self, column: Value) -> tuple[Value, ...]:
        """Distances of the lines that each step prefetches for a later stage, or panel."""
        kernel, e = self.kernel, self.e
        if self.prefetched is None and not kernel.panel_ahead:
            return ()
        tile = self.first_tile + column // kernel.tile.rows
        if self.prefetched is None:
            return (panel_ahead(e, kernel, tile, kernel.step_lines),)
        tiles = kernel.conv.batch * kernel.conv.row_count * kernel.tiles_across
        return prefetch_offsets(e, kernel, self.prefetched, self.group_w, tiles, tile)

    def _weights_ahead(self) -> Value | int:
        """Elements from the weights that a step loads to those of this panel that it prefetches."""
        kernel, e = self.kernel, self.e
        if not (kernel.panel_ahead and kernel.weights_ahead):
            return kernel.weights_ahead
        few = e.i64(kernel.conv.row_count * kernel.tiles_across).compare("ult", kernel.step_lines)
        return e.select(few, e.i64(kernel.weights_ahead), e.i64(0))

    def _reduce(
        self, tile: RegisterTile, acc: list[Value], run: ColumnTile, column: Value, a: Pointer
    ) -> None:
        """Emit the reduction: taps along depth and height, runs of taps along the row, channels."""
        kernel, e, window = self.kernel, self.e, self.kernel.conv.window
        width = tile.vectors * kernel.lanes
        if kernel.two_parts:
            ((_, loops),) = self._channel_loops(width)
            fetch = self._next_input(run.pixels, loops[-1], a)
            acc[:] = sum_in_two_parts(e, tile, acc, a, self.w, loops, kernel.unroll, fetch)
            return
        across = Taps(e, window, 2, column, kernel.one_code) if run.computed else None
        runs: _Runs = [(across.low, across.high, (0,))] if across else list(run.runs)
        if kernel.piece:
            halves = HalfSums(e, tile, acc, kernel.piece, kernel.unroll)
            self._multiply(tile, [], runs, across, a, run.pixels, halves)
            with e.when(halves.overflowed()):
                self._sum_in_floats(halves, tile, run.pixels, column, a)
            acc[:] = halves.values(ceil_div(self.channels, kernel.sum_lanes))
            return
        parts = PartialSums(e, tile, acc, kernel.unroll) if kernel.in_parts else None
        self._multiply(tile, [] if parts else acc, runs, across, a, run.pixels, parts)
        self._add_excess(tile, acc, runs, across, a)
        if parts:
            acc[:] = parts.values()

    def _add_excess(
        self,
        tile: RegisterTile,
        acc: list[Value],
        runs: _Runs,
        across: Taps | None,
        a: Pointer,
    ) -> None:
        """Add the products with what exceeds in weights: of taps of a row, or of whole rows."""
        kernel, e, (depth, height) = self.kernel, self.e, self.taps
        if self.excess is None:
            return
        from leanconv.algorithms.direct.excess import add_excess  # for few machines alone

        _, rows, width = kernel.conv.window.kernel
        with ExitStack() as guards:
            for taps in (depth, height, across):
                if taps:
                    guards.enter_context(taps.guard(e, acc))
            with self._each("kd", depth, acc) as kd:
                for low, high, columns in runs:
                    given = kernel, tile, acc, columns, a, self.excess
                    if (low, high) == (0, width):
                        first, last = ((kd * rows + kh) * width for kh in (height.low, height.high))
                        add_excess(e, *given, (first, last))
                        continue
                    with self._each("kh", height, acc) as kh:
                        first = (kd * rows + kh) * width
                        add_excess(e, *given, (first + low, first + high))

    def _each(self, label: str, taps: Taps, acc: list[Value]) -> AbstractContextManager[Value]:
        """Run a body for each of these taps."""
        if (taps.low, taps.high) == (0, 1):
            return nullcontext(self.e.i64(0))
        return self.e.loop(label, taps.high, [acc], start=taps.low)

    def _sum_in_floats(
        self, halves: HalfSums, tile: RegisterTile, pixels: int, column: Value, a: Pointer
    ) -> None:
        """Compute the totals of a tile anew, column by column, in float32."""
        kernel, e, window = self.kernel, self.e, self.kernel.conv.window
        one = self._totals_of(tile)
        with e.loop("pixel", pixels) as i:
            across = Taps(e, window, 2, column + i)
            parts = PartialSums(e, one, start_tile(e, one, 1, self.bias), kernel.unroll)
            runs: _Runs = [(across.low, across.high, (0,))]
            self._multiply(one, [], runs, across, a.at(i * tile.row_stride), 0, parts)
            to = halves.place(0).at(i * (one.vectors * one.lanes))
            for j, value in enumerate(parts.values()):
                e.store(value, to.at(j * one.lanes))

    def _multiply(
        self,
        tile: RegisterTile,
        acc: list[Value],
        runs: _Runs,
        across: Taps | None,
        a: Pointer,
        fetched: int,
        parts: PartialSums | None,
    ) -> None:
        """Emit the loops of the reduction.

        Args:
            tile: types and strides.
            acc: accumulators; none where there are `parts`, to which products are added.
            runs: taps of the row, and the tile's columns that they touch.
            across: bounds of a row's taps, if they are computed.
            a: the input of the tile's first column.
            fetched: columns of the tile, behind which input is prefetched; 0: none is.
            parts: of the sums.
        """
        conv, kernel, e, window = self.kernel.conv, self.kernel, self.e, self.kernel.conv.window
        width = tile.vectors * tile.lanes
        per_column = kernel.packed_inputs * width
        per_row = window.kernel[2] * per_column
        per_plane = window.kernel[1] * per_row
        depth, height = self.taps
        outer = [
            depth.loop("kd", window.dilation[0] * conv.x.spatial[0], per_plane),
            height.loop("kh", window.dilation[1] * conv.x.spatial[1], per_row),
        ]

        def columns(a: Pointer, b: Pointer) -> None:
            step = window.dilation[2] * conv.x.spatial[2]
            taps = ReductionLoop("kw", window.kernel[2], step, per_column)
            # Channels outside: a column's products come in one order, whichever runs it has.
            for offset, channels in self._channel_loops(width):
                a_c = a.at(conv.x.channel(offset))
                b_c = b.at(offset * width)
                fetch = self._next_input(fetched, channels[-1], a_c) if fetched else None
                if parts:
                    parts.add_row(runs, taps, a_c, b_c, channels, fetch)
                    continue
                for low, high, pixels in runs:
                    loops = [replace(taps, start=low, extent=high), *channels]
                    multiply_accumulate(
                        e, tile, acc, pixels, a_c, b_c, loops, kernel.unroll, fetch=fetch
                    )

        with ExitStack() as guards:
            for taps in (depth, height, across):
                if taps:
                    guards.enter_context(taps.guard(e, acc))
            self._nest(outer, acc, a, self.w, columns)

    def _next_input(self, pixels: int, loop: ReductionLoop, a: Pointer) -> Fetch | None:
        """Return the prefetch of the next tiles' input if its channels are neighbours."""
        conv = self.kernel.conv
        step = conv.window.stride[2] * conv.x.spatial[2]
        assert isinstance(loop.extent, int)
        if not self.kernel.fetch or loop.a_stride != 1:
            return None
        if step > loop.extent:  # pixels with gaps: a line of one at each step, the nearest first
            blocks = conv.x.block > 1
            return Fetch(a.at(pixels * step), step) if blocks else None
        end = (pixels - 1) * step + loop.extent
        return Fetch(a.at(end), ceil_div(pixels * step, loop.extent))

    def _nest(
        self,
        loops: list[ReductionLoop],
        acc: list[Value],
        a: Pointer,
        b: Pointer,
        inside: Callable[[Pointer, Pointer], None],
    ) -> None:
        if not loops:
            inside(a, b)
            return
        loop = loops[0]
        if loop.extent == 1 and loop.start == 0:
            self._nest(loops[1:], acc, a, b, inside)
            return
        with self.e.loop(loop.label, loop.extent, [acc], start=loop.start) as index:
            a_i = a.at(index * loop.a_stride)
            b_i = b.at(index * loop.b_stride)
            self._nest(loops[1:], acc, a_i, b_i, inside)

    def _channel_loops(self, width: int) -> list[tuple[int, list[ReductionLoop]]]:
        """Loops over the input channels: whole blocks, then the rest of the last."""
        access, count, group = self.kernel.conv.x, self.kernel.conv.inputs, self.kernel.dot_group
        if access.block == 1:  # groups are of neighbours
            steps, stride = ceil_div(count, group), group * access.block_stride
            return [(0, [ReductionLoop("c", steps, stride, group * width)])]
        blocks, rest = divmod(count, access.block)
        parts = []
        if blocks:
            over_blocks = ReductionLoop("cb", blocks, access.block_stride, access.block * width)
            inside = ReductionLoop("c", access.block // group, group, group * width)
            parts.append((0, [over_blocks, inside] if blocks > 1 else [inside]))
        if rest:
            steps = ceil_div(rest, group)
            inside = ReductionLoop("c", steps, group, group * width)
            parts.append((blocks * access.block, [inside]))
        return parts


@dataclass(frozen=True, kw_only=True)
class DirectConv(DirectShape):
    """The code of one convolution of any window, dense or grouped, in any layout."""

    VARIES = True

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, panels, rows, tiles."""
        e = Function(self.NAME)
        self.emit_chunks(e, target, self.addresses(e))
        return e.finish()

    def emit_chunks(self, e: Function, target: Target, pointers: dict[str, Pointer]) -> None:
        """Emit the loop over the chunks of a function, with the operands at these addresses."""
        del target
        with e.chunks(*self.grid) as place:
            n, g, band, panel, block = place
            if self.images_inside:
                g, panel, n, band, block = place
            start = band * self.band_rows
            first = start + block * self.rows
            last = e.smin(first + self.rows, start + self.band_rows)
            moved, n = self.of_phase(e, pointers, n)
            body = PanelRows(e, self, moved, n, g)
            if self.panels_inside:
                with e.loop("row", last, start=first) as row:
                    self._all_panels(e, body, row)
            else:
                self._one_panel(e, body, panel, first, last)

    def emit_panels(
        self, e: Function, pointers: dict[str, Pointer], first: Value | int, last: Value | int
    ) -> None:
        """Emit the panels first … last - 1 (one at least) of all rows of image 0, group 0."""
        zero = e.i64(0)
        body = PanelRows(e, self, pointers, zero, zero)
        with e.loop("panel", last, start=first) as panel:
            self._one_panel(e, body, panel, zero, e.i64(self.conv.row_count))

    def emit_rows(
        self,
        e: Function,
        pointers: dict[str, Pointer],
        image: Value,
        panel: Value,
        first: Value,
        last: Value,
    ) -> None:
        """Emit the output rows first … last - 1 (one at least) of one panel of one image."""
        body = PanelRows(e, self, pointers, image, e.i64(0))
        self._one_panel(e, body, panel, first, last)

    def _all_panels(self, e: Function, body: PanelRows, row: Value) -> None:
        for panel, channels in each_tile(e, "panel", self.conv.outputs, self.panel_lanes):
            body.row(row, e.i64(panel), channels)

    def _one_panel(
        self, e: Function, body: PanelRows, panel: Value, first: Value, last: Value
    ) -> None:
        for channels in tile_at(e, panel, self.conv.outputs, self.panel_lanes):
            with e.loop("row", last, start=first) as row:
                body.row(row, panel, channels)
