"""The input transform of fused Winograd: V = B^T d B, channels in lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leanconv.algorithms.winograd_code import emit_program
from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.shuffles import transpose_groups
from leanconv.codegen.types import ELEMENT
from leanconv.spec.format import ceil_div
from leanconv.winograd.program import compile_matrix

if TYPE_CHECKING:
    from leanconv.algorithms.winograd_kernel import WinogradConv


class InputTransform:
    """Emits the transform of one tile at a time.

    Rows of the patch are transformed along the width as they are loaded, into a small scratch
    [row][point]; then the columns of that along the height, into V. Pixels outside the image are
    loaded as zeros by masks; tiles that lie inside take code without them.

    A block of channels has a number that grows by `block_step` from block to block and by
    `phase_step` from phase to phase; `_place` says where in V a block of a tile lies, `point_step`
    what lies between points. With `gapless` the lanes past the last channel are not written.
    """

    def __init__(
        self, e: Function, conv: WinogradConv, x: Value, g: Value, v: Value, between: Value
    ) -> None:
        self.e, self.conv, self.v, self.between = e, conv, v, between
        self.element = ELEMENT[conv.dtype]
        self.x = x.at(g * conv.x.channel(conv.inputs) + conv.x_offset, self.element)
        self.kind = vector(self.element, conv.lanes)
        height, width = conv.transforms()
        self.along_height = compile_matrix(height.bt)
        self.along_width = compile_matrix(width.bt)
        self.gapless = False
        self.phase_step, self.block_step = ceil_div(conv.inputs, conv.lanes), 1
        self.point_step = conv.point_stride

    def tile(self, index: Value, t: Value) -> None:
        """Transform all channels of tile `index` of the batch, the t-th of the block."""
        conv, e = self.conv, self.e
        rows, columns = conv.grid
        n, inside = index // (rows * columns), index % (rows * columns)
        ty, tx = inside // columns, inside % columns
        y0 = ty * (conv.m[0] * conv.stride[0]) - conv.pad[0]
        x0 = tx * (conv.m[1] * conv.stride[1]) - conv.pad[1]
        image = self.x.at(n * conv.x.image, self.element)
        whole = self._inside(y0, 0) & self._inside(x0, 1)
        with e.when(whole):
            self._channels(image, y0, x0, t, masked=False)
        with e.when(whole.compare("eq", 0)):
            self._channels(image, y0, x0, t, masked=True)

    def _inside(self, start: Value, axis: int) -> Value:
        conv = self.conv
        span = (conv.alpha[axis] - 1) * conv.stride[axis] + conv.phases[axis]
        if axis == 1 and conv.planar:
            span = conv.alpha[1] * conv.stride[1]
        fits = self.e.const("i64", conv.size[axis]) - start
        return start.compare("sge", 0) & fits.compare("sge", span)

    def _channels(self, image: Value, y0: Value, x0: Value, t: Value, masked: bool) -> None:
        if self.conv.planar:
            self._planes(image, y0, x0, t, masked)
        else:
            self._vectors(image, y0, x0, t, masked)

    # -- channels that are neighbours in memory --------------------------------------------
    def _vectors(self, image: Value, y0: Value, x0: Value, t: Value, masked: bool) -> None:
        conv, e = self.conv, self.e
        per_phase = ceil_div(conv.inputs, conv.lanes)
        divided = conv.x.block == 1 or self.gapless
        whole = conv.inputs // conv.lanes if divided else per_phase
        with e.loop("py", conv.phases[0]) as py, e.loop("px", conv.phases[1]) as px:
            first = (py * conv.phases[1] + px) * self.phase_step
            y, x = y0 + py, x0 + px
            if whole:
                with e.loop("cb", whole) as cb:
                    at = image.at(cb * conv.x.channel(conv.lanes), self.element)
                    self._patch(at, y, x, conv.lanes, masked)
                    self._down(first + cb * self.block_step, t)
            if whole < per_phase:
                at = image.at(whole * conv.x.channel(conv.lanes), self.element)
                rest = conv.inputs - whole * conv.lanes
                self._patch(at, y, x, rest, masked)
                self._down(first + whole * self.block_step, t, rest)

    def _patch(self, image: Value, y0: Value, x0: Value, live: int, masked: bool) -> None:
        """Load a patch of vectors row by row and transform each row."""
        conv, e = self.conv, self.e
        step = conv.stride[1] * conv.x.spatial[2]
        columns = [x0 + j * conv.stride[1] for j in range(conv.alpha[1])]
        exist = [c.compare("ult", conv.size[1]) for c in columns] if masked else []
        start = image.at(x0 * conv.x.spatial[2], self.element)
        with e.loop("row", conv.alpha[0]) as i:
            y = y0 + i * conv.stride[0]
            line = start.at(y * conv.x.spatial[1], self.element)
            there = y.compare("ult", conv.size[0]) if masked else None
            pixels = []
            for j in range(conv.alpha[1]):
                at = line.at(j * step, self.element)
                if there is None:
                    pixels.append(e.load_first(at, self.kind, live))
                else:
                    mask = e.splat(there & exist[j], conv.lanes)
                    if live < conv.lanes:
                        mask = mask & e.first_lanes(live, conv.lanes)
                    pixels.append(e.masked_load(at, self.kind, mask))
            self._across(pixels, i)

    # -- channels in planes ----------------------------------------------------------------
    def _planes(self, image: Value, y0: Value, x0: Value, t: Value, masked: bool) -> None:
        conv, e = self.conv, self.e
        lines = conv.lines
        if conv.inputs % lines == 0:
            with e.loop("py", conv.phases[0]) as py, e.loop("cb", conv.inputs // lines) as cb:
                plane = image.at(cb * (lines * conv.x.block_stride), self.element)
                rows = [(r * conv.x.block_stride, py) for r in range(lines)]
                self._lines(plane, rows, y0, x0, masked)
                blocks = conv.inputs // lines
                self._down(py * (blocks * self.block_step) + cb * self.block_step, t)
            return
        every = [(p, c) for p in range(conv.phases[0]) for c in range(conv.inputs)]
        for block in range(ceil_div(len(every), lines)):
            chosen = every[block * lines : (block + 1) * lines]
            rows = [(c * conv.x.block_stride, e.const("i64", p)) for p, c in chosen]
            self._lines(image, rows, y0, x0, masked)
            self._down(e.const("i64", block * self.block_step), t, len(chosen) * conv.grain)

    def _lines(
        self, plane: Value, rows: list[tuple[int, Value]], y0: Value, x0: Value, masked: bool
    ) -> None:
        """Load row pieces of several channels or phases and turn them into vectors of lanes."""
        conv, e = self.conv, self.e
        per = conv.lines
        segments = ceil_div(conv.alpha[1], per)
        counting = e.const(vector("i32", conv.lanes), list(range(conv.lanes)))
        start = plane.at(x0 * conv.x.spatial[2], self.element)
        with e.loop("row", conv.alpha[0]) as i:
            y = y0 + i * conv.stride[0]
            pixels: list[Value] = []
            for q in range(segments):
                needed = min(conv.lanes, (conv.alpha[1] - q * per) * conv.grain)
                columns = None
                if masked:
                    first = e.convert("trunc", x0 + q * conv.lanes, "i32")
                    columns = counting + e.splat(first, conv.lanes)
                vectors = []
                for offset, phase in rows:
                    line_y = y + phase
                    at = start.at(
                        line_y * conv.x.spatial[1] + (offset + q * conv.lanes), self.element
                    )
                    if columns is None:
                        vectors.append(e.load_first(at, self.kind, needed))
                        continue
                    limit = e.select(
                        line_y.compare("ult", conv.size[0]),
                        e.const("i32", conv.size[1]),
                        e.const("i32", 0),
                    )
                    mask = columns.compare("ult", e.splat(limit, conv.lanes))
                    mask = mask & e.first_lanes(needed, conv.lanes)
                    vectors.append(e.masked_load(at, self.kind, mask))
                vectors += [e.zero(self.kind)] * (per - len(vectors))
                pixels += transpose_groups(e, vectors, conv.grain)
            self._across(pixels[: conv.alpha[1]], i)

    # -- the two passes --------------------------------------------------------------------
    def _across(self, pixels: list[Value], row: Value) -> None:
        """Transform one row of the patch along the width."""
        conv, e = self.conv, self.e
        place = self.between.at(row * (conv.alpha[1] * conv.lanes), self.element)
        for j, value in enumerate(emit_program(e, self.along_width, pixels)):
            e.store(value, place.at(j * conv.lanes, self.element))

    def _down(self, block: Value, t: Value, live: int | None = None) -> None:
        """Transform the columns along the height, into V; `live` lanes hold channels (all)."""
        conv, e = self.conv, self.e
        stored = live if live and self.gapless else conv.lanes
        place = self._place(block, t)
        with e.loop("point", conv.alpha[1]) as j:
            column = self.between.at(j * conv.lanes, self.element)
            step = conv.alpha[1] * conv.lanes
            values = [
                e.load(column.at(i * step, self.element), self.kind) for i in range(conv.alpha[0])
            ]
            out = place.at(j * self.point_step, self.element)
            for i, value in enumerate(emit_program(e, self.along_height, values)):
                at = out.at(i * conv.alpha[1] * self.point_step, self.element)
                e.store_first(value, at, stored)

    def _place(self, block: Value, t: Value) -> Value:
        """Address in V of a block of channels of the t-th tile, at the first point."""
        return self.v.at((block * self.conv.tiles + t) * self.conv.lanes, self.element)
