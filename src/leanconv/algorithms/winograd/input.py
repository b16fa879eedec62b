"""The input transform of fused Winograd: V = B^T d B, channels in lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from leanconv.algorithms.common.linear_code import emit_values
from leanconv.algorithms.winograd.edge_tiles import each_place, full_and_edge_tiles, skipped_points
from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.epilogue import widened
from leanconv.codegen.shuffles import columns_of_halves, halves_fit, transpose_groups
from leanconv.codegen.tails import RowPieces, each_tile
from leanconv.spec.format import ceil_div
from leanconv.winograd.program import LinearProgram, compile_matrix


class _Tiles(NamedTuple):
    """Consecutive tiles of the batch: first, count, and the index of the first in V."""

    first: Value
    tile_count: Value
    v_first: Value | int


class _Tile(NamedTuple):
    """One tile: image, row and column of its first pixel, index in V, where it is narrow."""

    image: Pointer
    y0: Value
    x0: Value
    t: Value
    narrow: tuple[Value | None, Value | None]


class _Row(NamedTuple):
    """One row of the image that fills lanes: offset of its channel, and its phase."""

    offset: int
    phase: Value


class InputTransform:
    """Emits the transform of a block of tiles.

    Rows of the patch are transformed along the width as they are loaded, into a small scratch
    [row][point]; then the columns of that along the height, into V. Pixels outside the image are
    loaded as zeros by masks; tiles that lie inside take code without them.

    Args:
        e: the function to append to.
        shape: the convolution.
        x: address of the group's input.
        v, between: addresses of V and of the small scratch.
        order: address of the tiles' indices in the order of blocks, if they are reordered.
        prefetch: whether to prefetch the rows of the next channels: for inputs larger than L2.
        gapless: whether V is that of all tiles, [xi][tile][channel]; else that of a block, where
            channels fill whole vectors (see `kernel`).
    """

    def __init__(
        self,
        e: Function,
        shape: WinogradShape,
        x: Pointer,
        v: Pointer,
        between: Pointer,
        *,
        order: Pointer | None = None,
        prefetch: bool = False,
        gapless: bool = False,
    ) -> None:
        conv = shape.conv
        self.kind = vector(shape.transformed.llvm, shape.lanes)
        self.loaded = vector(conv.precision.x.llvm, shape.lanes)
        self.e, self.shape, self.x, self.v, self.between = e, shape, x, v, between.of(v.element)
        self.order, self.prefetch, self.gapless = order, prefetch, gapless
        self.outside = None if conv.precision.accumulate.is_float else self._outside()
        (height, width), (edge_height, edge_width) = shape.transforms(), shape.narrow_transforms()
        self.along_height = compile_matrix(height.bt), compile_matrix(edge_height.bt)
        self.along_width = compile_matrix(width.bt), compile_matrix(edge_width.bt)
        self.point_step = shape.tile_count * shape.steps if gapless else shape.point_stride
        # A block of channels has an index in V, which grows from block to block and phase to phase.
        columns = shape.reduction.columns_per_group if shape.planar else 1
        self.block_step = shape.lanes if gapless else 1
        self.phase_step = (
            shape.reduction.inputs * columns
            if gapless
            else ceil_div(conv.inputs, shape.lanes // columns)
        )

    def _outside(self) -> Pointer:
        """Return the address of a vector of zeros, read outside the image: loads need no masks."""
        zeros = self.e.local(self.shape.conv.precision.x.llvm, self.shape.lanes)
        self.e.store(self.e.zero(self.loaded), zeros)
        return zeros

    def block(self, first: Value, count: Value, v_first: Value | int = 0) -> None:
        """Transform all channels of `count` tiles of the batch from `first` on.

        The first becomes tile `v_first` of V. The loop over blocks of channels is outermost and
        that over tiles inside: neighbouring tiles read the same lines and write neighbouring ones.
        """
        if self.shape.planar:
            self._planes(_Tiles(first, count, v_first))
        else:
            self._vectors(_Tiles(first, count, v_first))

    def _each(self, tiles: _Tiles) -> Iterator[tuple[_Tile, bool]]:
        """Emit a loop over tiles, the body twice: for those inside the image, and with masks.

        Yields:
            The tile, and whether masks are needed.
        """
        conv, shape, e = self.shape.conv, self.shape, self.e
        with each_place(e, shape, tiles.first, tiles.tile_count, self.order) as (i, at):
            y0 = at.ty * (shape.m[0] * shape.stride[0]) - conv.window.pad[1]
            x0 = at.tx * (shape.m[1] * shape.stride[1]) - conv.window.pad[2]
            image = self.x.at(at.image * conv.x.image)
            tile = _Tile(image, y0, x0, i + tiles.v_first, at.narrow)
            whole = self._inside(tile, 0) & self._inside(tile, 1)
            with e.when(whole):
                yield tile, False
            with e.when(whole.compare("eq", 0)):
                yield tile, True

    def _inside(self, tile: _Tile, axis: int) -> Value:
        shape, start, narrow = self.shape, (tile.y0, tile.x0)[axis], tile.narrow[axis]
        span = (shape.alpha[axis] - 1) * shape.stride[axis] + shape.phases[axis]
        if axis == 1 and shape.planar:
            span = shape.alpha[1] * shape.stride[1]
        fits = self.e.i64(shape.size[axis]) - start
        needed: Value | int = span
        if narrow:
            less = span - shape.dropped_points[axis] * shape.stride[axis]
            needed = self.e.select(narrow, self.e.i64(less), self.e.i64(span))
        return start.compare("sge", 0) & fits.compare("sge", needed)

    def _patch_rows(self, tile: _Tile) -> Value | int:
        e, alpha, narrow = self.e, self.shape.alpha[0], tile.narrow[0]
        if narrow is None:
            return alpha
        less = e.i64(alpha - self.shape.dropped_points[0])
        return e.select(narrow, less, e.i64(alpha))

    # -- channels that are neighbours in memory --------------------------------------------
    def _vectors(self, tiles: _Tiles) -> None:
        shape, e = self.shape, self.e
        channels = shape.reduction.inputs
        if shape.conv.x.block > 1 and not self.gapless:  # with the unused lanes of the last block
            channels = ceil_div(channels, shape.lanes) * shape.lanes
        with e.loop("py", shape.phases[0]) as py, e.loop("px", shape.phases[1]) as px:
            first = (py * shape.phases[1] + px) * self.phase_step
            for cb, live in each_tile(e, "cb", channels, shape.lanes):
                for tile, masked in self._each(tiles):
                    at = tile.image.at(cb * shape.conv.x.channel(shape.lanes))
                    moved = tile._replace(image=at, y0=tile.y0 + py, x0=tile.x0 + px)
                    for program in full_and_edge_tiles(e, tile.narrow[1], self.along_width):
                        self._patch(moved, program, live, masked)
                    self._down(first + cb * self.block_step, tile, live)

    def _patch(self, tile: _Tile, program: LinearProgram, live: int, masked: bool) -> None:
        """Load a patch of vectors row by row and transform each row."""
        conv, shape, e = self.shape.conv, self.shape, self.e
        step = shape.stride[1] * conv.x.spatial[2]
        columns = [tile.x0 + j * shape.stride[1] for j in range(program.inputs)]
        exist = [c.compare("ult", shape.size[1]) for c in columns] if masked else []
        start = tile.image.at(tile.x0 * conv.x.spatial[2]).frozen()
        with e.loop("row", self._patch_rows(tile)) as i:
            y = tile.y0 + i * shape.stride[0]
            line = start.at(y * conv.x.spatial[1])
            there = y.compare("ult", shape.size[0]) if masked else None
            pixels = []
            for j in range(program.inputs):
                inside = there & exist[j] if there else None
                pixels.append(self._pixel(line.at(j * step), live, inside))
            self._across(pixels, i, program)

    def _pixel(self, at: Pointer, live: int, inside: Value | None) -> Value:
        """Load a vector of channels, of which `live` are there, if it lies inside the image."""
        shape, e = self.shape, self.e
        if self.outside:  # codes, in whole blocks
            codes = e.load(e.select(inside, at, self.outside) if inside else at, self.loaded)
            return widened(e, codes, shape.conv.precision.x, shape.transformed)
        if inside is None:
            return e.load_first(at, self.kind, live)
        mask = e.splat(inside, shape.lanes)
        if live < shape.lanes:
            mask = mask & e.first_lanes(live, shape.lanes)
        return e.masked_load(at, self.kind, mask)

    # -- channels in planes ----------------------------------------------------------------
    def _planes(self, tiles: _Tiles) -> None:
        conv, shape, e = self.shape.conv, self.shape, self.e
        step, per_vector = conv.x.block_stride, shape.reduction.rows_per_vector
        if shape.reduction.packs_phases:
            every = [
                _Row(c * step, e.i64(p)) for p in range(shape.phases[0]) for c in range(conv.inputs)
            ]
            for block, first_row in enumerate(range(0, len(every), per_vector)):
                rows = every[first_row : first_row + per_vector]
                self._vector(tiles, 0, rows, e.i64(block * self.block_step))
            return
        with e.loop("py", shape.phases[0]) as py:
            first = py * self.phase_step
            rows = [_Row(r * step, py) for r in range(per_vector)]
            for cb, channels in each_tile(e, "cb", conv.inputs, per_vector):
                offset = cb * (per_vector * step)
                self._vector(tiles, offset, rows[:channels], first + cb * self.block_step)

    def _vector(self, tiles: _Tiles, offset: Value | int, rows: list[_Row], block: Value) -> None:
        """Transform the rows, `offset` elements further on, that fill one vector."""
        for tile, masked in self._each(tiles):
            for program in full_and_edge_tiles(self.e, tile.narrow[1], self.along_width):
                image = tile.image.at(offset)
                self._lines(tile._replace(image=image), program, rows, masked)
            self._down(block, tile, len(rows) * self.shape.reduction.columns_per_group)

    def _lines(self, tile: _Tile, program: LinearProgram, rows: list[_Row], masked: bool) -> None:
        """Load row pieces of several channels or phases and transpose them: lanes are channels."""
        conv, shape, e, width = self.shape.conv, self.shape, self.e, program.inputs
        columns_per_group = shape.reduction.columns_per_group
        halves = columns_per_group == 1 and 2 * width <= shape.lanes and halves_fit(self.kind)
        # Lanes of a piece of a row, and pieces that make up one vector of each column.
        lanes, per = shape.lanes, shape.reduction.rows_per_vector
        if halves:
            lanes, per = shape.lanes // 2, shape.lanes
        step = conv.x.spatial[2]
        start = tile.image.at(tile.x0 * step).frozen()
        with e.loop("row", self._patch_rows(tile)) as i:
            y = tile.y0 + i * shape.stride[0]
            pixels: list[Value] = []
            for q in range(ceil_div(width, lanes // columns_per_group)):
                needed = min(lanes, width * columns_per_group - q * lanes)
                first = e.convert("trunc", tile.x0 + q * lanes, "i32")
                columns = RowPieces(e, vector(conv.precision.x.llvm, lanes), step, needed)
                masks: dict[str, list[Value]] = {}
                pieces = []
                for row in rows:
                    line = y + row.phase
                    if row.phase.text not in masks:
                        limit = self._columns_of(line) if masked else None
                        masks[row.phase.text] = columns.masks(first, limit)
                    at = start.at(line * conv.x.spatial[1])
                    at = at.at(row.offset).at(q * lanes * step)
                    pieces.append(columns.load(at, masks[row.phase.text]))
                    if self.prefetch and q == 0:
                        ahead = at.at(len(rows) * conv.x.block_stride)
                        e.prefetch(ahead, locality=2)
                pieces += [e.zero(columns.kind)] * (per - len(pieces))
                transposed = columns_of_halves(e, pieces) if halves else None
                pixels += transposed or transpose_groups(e, pieces, columns_per_group)
            self._across(pixels[:width], i, program)

    def _columns_of(self, line: Value) -> Value:
        """The number of columns that exist in a line: none outside the image."""
        e, size = self.e, self.shape.size
        inside = line.compare("ult", size[0])
        return e.select(inside, e.const("i32", size[1]), e.const("i32", 0))

    # -- the two passes --------------------------------------------------------------------
    def _across(self, pixels: list[Value], row: Value, program: LinearProgram) -> None:
        """Transform one row of the patch along the width."""
        shape, e = self.shape, self.e
        skipped = shape.alpha[1] - program.inputs
        place = self.between.at((row * shape.alpha[1] + skipped) * shape.lanes)
        for j, value in enumerate(emit_values(e, program, pixels)):
            e.store(value, place.at(j * shape.lanes))

    def _down(self, block: Value, tile: _Tile, live: int) -> None:
        """Transform the columns along the height, into V; `live` lanes hold channels."""
        shape, e = self.shape, self.e
        stored = live if self.gapless else shape.lanes
        v, step = self._v_address(block, tile.t), shape.alpha[1] * shape.lanes
        start = skipped_points(e, shape, tile.narrow[1])
        for program in full_and_edge_tiles(e, tile.narrow[0], self.along_height):
            first = (shape.alpha[0] - program.inputs) * shape.alpha[1]
            with e.loop("point", shape.alpha[1], start=start) as j:
                column = self.between.at(j * shape.lanes)
                values = [e.load(column.at(i * step), self.kind) for i in range(program.inputs)]
                out = v.at((j + first) * self.point_step)
                for i, value in enumerate(emit_values(e, program, values)):
                    at = out.at(i * shape.alpha[1] * self.point_step)
                    e.store_first(value, at, stored)

    def _v_address(self, block: Value, t: Value) -> Pointer:
        """Address in V of a block of channels of the t-th tile, at the first point."""
        shape = self.shape
        if self.gapless:
            return self.v.at(t * shape.steps + block)
        if shape.tiles == shape.v_rows:
            return self.v.at((block * shape.tiles + t) * shape.lanes)
        panel, row = t // shape.rows, t % shape.rows
        line = (panel * shape.channel_blocks + block) * shape.rows + row
        return self.v.at(line * shape.lanes)
