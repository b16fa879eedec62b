"""Direct convolution, register-tiled, for every dense or grouped shape and layout.

    y[n, k, od, oh, ow] = act(bias[k] + residual[…] +
        sum over kd, kh, kw, c of  x[n, c, id, ih, iw] · w[k, c, kd, kh, kw])

One tile is `rows` output columns by `vectors` vectors of output channels. Input elements are
broadcast, so the input may stand in any layout; weights stand packed as one straight stream
[group][panel][kd][kh][kw][c][vectors·lanes].

Padding is not stored anywhere: the loops over kd and kh run over the taps that touch the input at
this row, and the columns at both ends of a row are tiles of their own whose code leaves out the
products with zeros (18 % of all products of a 3x3 layer on a 7x7 map).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

import numpy as np

from leanconv.algorithms.common.grouped_conv import GroupedConv
from leanconv.algorithms.common.prefetch import lines_ahead
from leanconv.algorithms.common.taps import Taps
from leanconv.codegen.column_tiles import ColumnTile, bounded_tiles
from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.epilogue import store_tile
from leanconv.codegen.microkernel import (
    UNROLL_LIMIT,
    Fetch,
    ReductionLoop,
    RegisterTile,
    multiply_accumulate,
)
from leanconv.codegen.partial_sums import LENGTH, PartialSums, sum_in_two_parts
from leanconv.codegen.tails import each_tile, tile_at
from leanconv.codegen.tiling import Tile
from leanconv.codegen.types import ELEMENT
from leanconv.dtypes import ITEMSIZE
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_PIECE_ELEMENTS = 64 * 1024  # of the weights of small groups, which are packed at once


@dataclass(frozen=True)
class DirectConv(GroupedConv):
    """One convolution's code.

    Attributes:
        lanes: lanes of a vector.
        tile: the register tile.
        rows: output rows of one chunk.
        panels_inside: whether a chunk computes all panels of its rows (weights small), or one.
        phases: how many convolutions there are that differ in nothing but their weights, which
            follow each other, and in where they write: so many elements from the output's start
            on as an operand of 64-bit numbers says.
        bands: equal parts of an image's rows. All chunks of one come before those of the next, so
            that two threads that claim from both ends share two bands by their pixels.
        y_offset: elements from the output's start to the first one written.
        unroll: most steps of the reduction's inner loops that are written out.
        fetch: whether the next tile's input is asked for while a tile is computed.
        residual_ahead: whether a tile asks for its residual before it begins its sums.
        following: bytes of one more operand, weights that a later stage reads once: they are asked
            for into the second cache, line by line with the steps of the reduction. 0: none.
    """

    lanes: int
    tile: Tile
    rows: int
    panels_inside: bool
    y_offset: int = 0
    unroll: int = UNROLL_LIMIT
    fetch: bool = False
    residual_ahead: bool = False
    following: int = 0
    bands: int = 1
    phases: int = 1

    # -- facts -----------------------------------------------------------------------------
    @property
    def operands(self) -> tuple[str, ...]:
        """Input, packed weights, what the epilogue needs, places, what is asked for, output."""
        *before, y = super().operands
        asked = ("offsets",) * (self.phases > 1) + ("following",) * (self.following > 0)
        return (*before, *asked, y)

    @property
    def flops(self) -> int:
        """Operations of the plain sums, padding counted."""
        return self.phases * super().flops

    @property
    def band_rows(self) -> int:
        """Output rows of one band."""
        return self.row_count // self.bands

    @property
    def row_blocks(self) -> int:
        """Chunks along the rows of one band."""
        return ceil_div(self.band_rows, self.rows)

    @property
    def panel_lanes(self) -> int:
        """Output channels of one panel."""
        return self.tile.vectors * self.lanes

    @property
    def panels(self) -> int:
        """Panels of one group's output channels, the last one perhaps narrower."""
        return ceil_div(self.outputs, self.panel_lanes)

    @property
    def last_vectors(self) -> int:
        """Vectors of the last panel."""
        rest = self.outputs - (self.panels - 1) * self.panel_lanes
        return ceil_div(rest, self.lanes)

    @property
    def two_parts(self) -> bool:
        """Whether a sum is one run of channels, of two partial sums: one tap, inside the input."""
        inside = all(self.window.always_full(axis) for axis in range(3))
        run = inside and prod(self.window.kernel) == 1 and self.inputs % self.x.block == 0
        return run and LENGTH < self.inputs <= 2 * LENGTH and LENGTH % self.x.block == 0

    @property
    def group_weights(self) -> int:
        """Packed weight elements of one group."""
        vectors = (self.panels - 1) * self.tile.vectors + self.last_vectors
        return self.reduction * vectors * self.lanes

    @property
    def chunks(self) -> int:
        """Phases by images by groups by bands by panels (unless inside) by blocks of rows."""
        panels = 1 if self.panels_inside else self.panels
        return self.phases * self.batch * self.groups * self.bands * panels * self.row_blocks

    # -- packing ---------------------------------------------------------------------------
    def pack_weights(self, w: np.ndarray) -> np.ndarray:
        """Pack weights (K, C/g, kd, kh, kw) into the stream that the kernel reads."""
        packed = np.empty(self.groups * self.group_weights, w.dtype)
        end = 0
        for piece in self.weight_pieces(w):
            packed[end : end + piece.size] = piece
            end += piece.size
        return packed

    def weight_pieces(self, w: np.ndarray) -> Iterator[np.ndarray]:
        """The panels of `pack_weights`, one after the other: [kd][kh][kw][c][lane] each.

        A piece is one panel, or several groups where these are small.
        """
        grouped = w.reshape(self.groups, self.outputs, self.inputs, *self.window.kernel)
        together = max(1, _PIECE_ELEMENTS // self.group_weights)
        if together > 1:
            for first in range(0, self.groups, together):
                some = grouped[first : first + together]
                panels = [self._packed(some, p) for p in range(self.panels)]
                yield np.concatenate(panels, axis=1).reshape(-1)
            return
        for group in range(self.groups):
            for panel in range(self.panels):
                yield self._packed(grouped[group : group + 1], panel).reshape(-1)

    def _packed(self, grouped: np.ndarray, panel: int) -> np.ndarray:
        """One panel of some groups' weights (g, K/g, C/g, kd, kh, kw), as (g, elements)."""
        part = grouped[:, panel * self.panel_lanes : (panel + 1) * self.panel_lanes]
        vectors = self.last_vectors if panel == self.panels - 1 else self.tile.vectors
        taps = part.transpose(0, 3, 4, 5, 2, 1)
        packed = np.zeros((*taps.shape[:5], vectors * self.lanes), grouped.dtype)
        packed[..., : part.shape[1]] = taps
        return packed.reshape(len(grouped), -1)

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """Pack one number for each output channel (bias, slope), zero past the last."""
        packed = np.zeros((self.groups, self.panels * self.panel_lanes), values.dtype)
        packed[:, : self.outputs] = values.reshape(self.groups, self.outputs)
        return packed.reshape(-1)

    # -- code ------------------------------------------------------------------------------
    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, panels, rows, tiles."""
        e = Function(self.NAME)
        self.emit_chunks(e, {name: e.pointer(i) for i, name in enumerate(self.operands)})
        return e.finish()

    def emit_chunks(self, e: Function, pointers: dict[str, Value]) -> None:
        """Emit the loop over the chunks of a function, with the operands at these addresses."""
        panels = 1 if self.panels_inside else self.panels
        extents = self.batch, self.groups, self.bands, panels, self.row_blocks
        with e.chunks(*extents) as (n, g, band, panel, block):
            start = band * self.band_rows
            first = start + block * self.rows
            last = e.smin(first + self.rows, start + self.band_rows)
            moved, n = self.of_phase(e, pointers, n)
            body = _Body(e, self, moved, n, g)
            if self.panels_inside:
                with e.loop("row", last, start=first) as row:
                    self._all_panels(e, body, row)
            else:
                self._one_panel(e, body, panel, first, last)

    def of_phase(
        self, e: Function, pointers: dict[str, Value], n: Value
    ) -> tuple[dict[str, Value], Value]:
        """The operands' addresses and the image for an index over phases and images."""
        if self.phases == 1:
            return pointers, n
        phase, n = (n, e.const("i64", 0)) if self.batch == 1 else (n // self.batch, n % self.batch)
        element = ELEMENT[self.dtype]
        offset = e.load(pointers["offsets"].at(phase, "i64"), "i64", align=8)
        weights = pointers["w"].at(phase * (self.groups * self.group_weights), element)
        return {**pointers, "w": weights, "y": pointers["y"].at(offset, element)}, n

    def emit_panels(
        self, e: Function, pointers: dict[str, Value], first: Value | int, last: Value | int
    ) -> None:
        """Emit the panels first … last - 1 (one at least) of all rows of image 0, group 0."""
        zero = e.const("i64", 0)
        body = _Body(e, self, pointers, zero, zero)
        with e.loop("panel", last, start=first) as panel:
            self._one_panel(e, body, panel, zero, e.const("i64", self.row_count))

    def emit_rows(
        self,
        e: Function,
        pointers: dict[str, Value],
        image: Value,
        panel: Value,
        first: Value,
        last: Value,
    ) -> None:
        """Emit the output rows first … last - 1 (one at least) of one panel of one image."""
        body = _Body(e, self, pointers, image, e.const("i64", 0))
        self._one_panel(e, body, panel, first, last)

    def _all_panels(self, e: Function, body: _Body, row: Value) -> None:
        for panel, channels in each_tile(e, "panel", self.outputs, self.panel_lanes):
            body.row(row, e.i64(panel), channels)

    def _one_panel(self, e: Function, body: _Body, panel: Value, first: Value, last: Value) -> None:
        for channels in tile_at(e, panel, self.outputs, self.panel_lanes):
            with e.loop("row", last, start=first) as row:
                body.row(row, panel, channels)


class _Body:
    """Emission of one row of output for one panel."""

    def __init__(
        self, e: Function, conv: DirectConv, pointers: dict[str, Value], n: Value, g: Value
    ) -> None:
        self.e, self.conv = e, conv
        self.element = ELEMENT[conv.dtype]
        self.x = pointers["x"].at(n * conv.x.image + g * conv.x.channel(conv.inputs), self.element)
        self.w = pointers["w"].at(g * conv.group_weights, self.element)
        self.y = self._output(pointers["y"], n, g)
        residual = pointers.get("residual")
        self.residual = self._output(residual, n, g) if residual else None
        self.bias = self._channels(pointers.get("bias"), g)
        self.slope = self._channels(pointers.get("slope"), g)
        self.image, self.following = n, pointers.get("following")

    def _output(self, pointer: Value, n: Value, g: Value) -> Value:
        access = self.conv.y
        start = n * access.image + g * access.channel(self.conv.outputs) + self.conv.y_offset
        return pointer.at(start, self.element)

    def _channels(self, pointer: Value | None, g: Value) -> Value | None:
        if pointer is None:
            return None
        return pointer.at(g * (self.conv.panels * self.conv.panel_lanes), self.element)

    def row(self, row: Value, panel: Value, channels: int) -> None:
        """Emit one row of output columns.

        Args:
            row: index over depth and height.
            panel: index of the panel.
            channels: its output channels.
        """
        conv, e, window = self.conv, self.e, self.conv.window
        od, oh = row // window.out[1], row % window.out[1]
        steps = conv.reduction * conv.panel_lanes
        self.panel_w = self.w.at(panel * steps, self.element)
        first = panel * conv.panel_lanes
        self.panel_bias = self.bias.at(first, self.element) if self.bias else None
        self.panel_slope = self.slope.at(first, self.element) if self.slope else None
        channel = panel * conv.y.channel(conv.panel_lanes)
        place = od * conv.y.spatial[0] + oh * conv.y.spatial[1] + channel
        self.row_y = self.y.at(place, self.element)
        self.row_residual = self.residual.at(place, self.element) if self.residual else None
        self.taps = [Taps(e, window, axis, o) for axis, o in ((0, od), (1, oh))]
        starts = [t.start * conv.x.spatial[axis] for axis, t in enumerate(self.taps)]
        self.row_x = self.x.at(starts[0] + starts[1], self.element)
        self.row_tiles = (self.image * conv.row_count + row) * self._tiles_across
        for run in bounded_tiles(window, conv.tile.rows):
            if run.count == 1:
                self.tile(e.const("i64", run.first), run, channels)
            else:
                with e.loop("tile", run.count) as index:
                    column = index * run.pixels + run.first
                    self.tile(column, run, channels)

    def tile(self, column: Value, run: ColumnTile, channels: int) -> None:
        """Emit one register tile: start values, reduction, epilogue, store."""
        conv, e, window = self.conv, self.e, self.conv.window
        vectors = ceil_div(channels, conv.lanes)
        kind = vector(self.element, conv.lanes)
        step_x = conv.x.spatial[2]
        tile = RegisterTile(
            self.element,
            kind,
            conv.lanes,
            vectors,
            window.stride[2] * step_x,
            asked=self._asked(column),
        )
        a = self.row_x.at(
            column * (window.stride[2] * step_x) - window.pad[2] * step_x, self.element
        )
        acc = self._start(kind, run.pixels, vectors)
        place = column * conv.y.spatial[2]
        residual = self.row_residual.at(place, self.element) if self.row_residual else None
        if conv.residual_ahead and residual:
            for j in range(vectors):
                for i in range(run.pixels):
                    line = conv.y.channel(j * conv.lanes) + i * conv.y.spatial[2]
                    # For writing: the output usually takes the residual's place.
                    e.prefetch(residual.at(line, self.element), write=True)
        self._reduce(tile, acc, run, column, a)
        store_tile(
            e,
            tile,
            conv.epilogue,
            conv.y,
            acc,
            self.row_y.at(place, self.element),
            residual,
            self.panel_slope,
            channels,
        )

    @property
    def _tiles_across(self) -> int:
        return ceil_div(self.conv.window.out[2], self.conv.tile.rows)

    def _asked(self, column: Value) -> tuple[Value, ...]:
        """Distances of the lines of what follows that each step of a tile asks for."""
        if self.following is None:
            return ()
        conv = self.conv
        sizes = conv.following, conv.group_weights, conv.panel_lanes
        tiles = conv.batch * conv.row_count * self._tiles_across
        tile = self.row_tiles + column // conv.tile.rows
        item = ITEMSIZE[conv.dtype]
        return lines_ahead(self.e, self.following, self.w, sizes, tiles, tile, item)

    def _start(self, kind: str, pixels: int, vectors: int) -> list[Value]:
        e, lanes = self.e, self.conv.lanes
        if self.panel_bias is None:
            return [e.zero(kind)] * (pixels * vectors)
        bias = [e.load(self.panel_bias.at(j * lanes, self.element), kind) for j in range(vectors)]
        return bias * pixels

    def _reduce(
        self, tile: RegisterTile, acc: list[Value], run: ColumnTile, column: Value, a: Value
    ) -> None:
        """Emit the reduction: taps along depth and height, runs of taps along the row, channels."""
        conv, e, window = self.conv, self.e, self.conv.window
        width = tile.vectors * conv.lanes
        if conv.two_parts:
            ((_, loops),) = self._channel_loops(width)
            fetch = self._next_input(run.pixels, loops[-1], a)
            acc[:] = sum_in_two_parts(e, tile, acc, a, self.panel_w, loops, conv.unroll, fetch)
            return
        per_column = conv.inputs * width
        per_row = window.kernel[2] * per_column
        per_plane = window.kernel[1] * per_row
        depth, height = self.taps
        outer = [
            depth.loop("kd", window.dilation[0] * conv.x.spatial[0], per_plane),
            height.loop("kh", window.dilation[1] * conv.x.spatial[1], per_row),
        ]

        across = Taps(e, window, 2, column) if run.computed else None
        runs: list[tuple[Value | int, Value | int, tuple[int, ...]]] = list(run.runs)
        if across:
            runs = [(across.low, across.high, (0,))]

        def columns(a: Value, b: Value) -> None:
            step = window.dilation[2] * conv.x.spatial[2]
            for low, high, pixels in runs:
                kw = ReductionLoop("kw", high, step, per_column, start=low)
                for offset, channels in self._channel_loops(width):
                    a_c = a.at(conv.x.channel(offset), self.element)
                    b_c = b.at(offset * width, self.element)
                    loops = [kw, *channels]
                    fetch = self._next_input(run.pixels, channels[-1], a_c)
                    if parts:
                        parts.add(pixels, a_c, b_c, loops, fetch)
                    else:
                        multiply_accumulate(
                            e, tile, acc, pixels, a_c, b_c, loops, conv.unroll, fetch=fetch
                        )

        parts = PartialSums(e, tile, acc, conv.unroll) if conv.reduction > LENGTH else None
        carried = [] if parts else acc
        with ExitStack() as guards:
            for taps in (depth, height, across):
                if taps:
                    guards.enter_context(taps.guard(e, carried))
            self._nest(outer, carried, a, self.panel_w, columns)
        if parts:
            acc[:] = parts.values()

    def _next_input(self, pixels: int, loop: ReductionLoop, a: Value) -> Fetch | None:
        """What the next tiles read in this innermost loop, if their channels are neighbours."""
        step = self.conv.window.stride[2] * self.conv.x.spatial[2]
        assert isinstance(loop.extent, int)
        if not self.conv.fetch or loop.a_stride != 1:
            return None
        if step > loop.extent:  # pixels with gaps: a line of one at each step, the nearest first
            blocks = self.conv.x.block > 1
            return Fetch(a.at(pixels * step, self.element), step) if blocks else None
        end = (pixels - 1) * step + loop.extent
        return Fetch(a.at(end, self.element), ceil_div(pixels * step, loop.extent))

    def _nest(
        self,
        loops: list[ReductionLoop],
        acc: list[Value],
        a: Value,
        b: Value,
        inside: Callable[[Value, Value], None],
    ) -> None:
        if not loops:
            inside(a, b)
            return
        loop = loops[0]
        if loop.extent == 1 and loop.start == 0:
            self._nest(loops[1:], acc, a, b, inside)
            return
        with self.e.loop(loop.label, loop.extent, [acc], start=loop.start) as index:
            a_i = a.at(index * loop.a_stride, self.element)
            b_i = b.at(index * loop.b_stride, self.element)
            self._nest(loops[1:], acc, a_i, b_i, inside)

    def _channel_loops(self, width: int) -> list[tuple[int, list[ReductionLoop]]]:
        """Loops over the input channels: whole blocks, then what is left of the last."""
        access, count = self.conv.x, self.conv.inputs
        if access.block == 1:
            return [(0, [ReductionLoop("c", count, access.block_stride, width)])]
        blocks, rest = divmod(count, access.block)
        parts = []
        if blocks:
            over_blocks = ReductionLoop("cb", blocks, access.block_stride, access.block * width)
            inside = ReductionLoop("c", access.block, 1, width)
            parts.append((0, [over_blocks, inside] if blocks > 1 else [inside]))
        if rest:
            parts.append((blocks * access.block, [ReductionLoop("c", rest, 1, width)]))
        return parts
