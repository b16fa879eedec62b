"""The depthwise kernel: chunks, rows of one vector of channels, tiles of a few columns."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from math import prod

import numpy as np

from leanconv.algorithms.common.conv import GroupedConv, Taps
from leanconv.algorithms.common.weight_runs import packing_call
from leanconv.codegen.column_tiles import (
    ColumnTile,
    each_tile_of_row,
    overlapping_tiles,
    tiles_of_one_code,
    written_tiles,
)
from leanconv.codegen.dot import Dot, fma
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.epilogue import TileOutput, store_tile
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, channel_address, start_vectors
from leanconv.codegen.tails import each_tile, tile_at
from leanconv.kernels.packing import KnownOrder, Order, channels, panels
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target
from leanconv.types import FLOATS

WEIGHTS_KEPT = 8  # weight vectors of one tap row that are held in registers
_KERNEL_UNROLLED = 9  # taps along a row that are written out
_SHARED_TAPS = 9  # of a row that take an input pixel together, once it is loaded
_MOST_RUNS = 64  # of the taps of all columns that are written out; 31 taps, padded, have 33


@dataclass(frozen=True)
class _TapByTap(KnownOrder):
    """[kd][kh][kw][ig][lane] of weights (k, ig, kd, kh, kw) of at most so many lanes."""

    lanes: int

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        taps = numbers.transpose(2, 3, 4, 1, 0)
        return np.pad(taps, [*[(0, 0)] * 4, (0, self.lanes - len(numbers))])


@dataclass(frozen=True, kw_only=True)
class DepthwiseConv(GroupedConv):
    """One grouped convolution's code, lanes along channels on both sides.

    Attributes:
        lanes: lanes of a vector; they are contiguous in x and y.
        columns: output columns of one tile.
        rows: output rows of one chunk.
        ring: rows of x that are kept: row i lies where row i % ring would; 0: all of them.
        any_width: whether the code is that of all widths: tiles overlap at the end of a row.
        one_code: whether the narrowest rows, and all remainders of strides, have that code, too.
    """

    VARIES = True

    lanes: int
    columns: int
    rows: Count
    ring: int = 0
    any_width: bool = False
    one_code: bool = False

    @property
    def width(self) -> int:
        """Output channels in one vector: as many whole groups as fit."""
        return self.lanes // self.conv.outputs * self.conv.outputs

    @property
    def blocks(self) -> int:
        """Vectors of output channels."""
        return ceil_div(self.conv.out_channels, self.width)

    @property
    def span(self) -> int:
        """Input channels that feed one vector of output channels."""
        return self.lanes // self.conv.outputs * self.conv.inputs

    @property
    def blocks_inside(self) -> bool:
        """True if a chunk computes all channels of its rows, as where channels are neighbours."""
        return self.conv.x.block == 1

    @property
    def grid(self) -> tuple[int, ...]:
        """Images by vectors of channels (unless they are inside) by blocks of rows."""
        blocks = 1 if self.blocks_inside else self.blocks
        return self.conv.batch, blocks, ceil_div(self.conv.row_count, self.rows)

    @property
    def row_weights(self) -> int:
        """Elements of one row of taps of one vector of output channels."""
        return self.conv.window.kernel[2] * self.conv.inputs * self.lanes

    @property
    def vector_weights(self) -> int:
        """Elements of all taps of one vector of output channels."""
        return self.conv.window.kernel[0] * self.conv.window.kernel[1] * self.row_weights

    @property
    def steps(self) -> float:
        """Multiply-adds of one vector of outputs."""
        return prod(self.conv.window.kernel) * self.conv.inputs

    @property
    def shared_taps(self) -> int:
        """Taps of a row that share pixels moved to lanes, with weights in memory; 0: none.

        It pays where two taps or more meet an input pixel, each of another column.
        """
        conv = self.conv
        taps, window = conv.window.kernel[2], conv.window
        moved = conv.inputs * conv.outputs > 1 and taps * conv.inputs > WEIGHTS_KEPT
        met = 2 * window.stride[2] <= taps and window.dilation[2] == 1
        return min(taps, _SHARED_TAPS) if moved and met else 0

    @property
    def row_tiles(self) -> list[ColumnTile]:
        """The tiles of a row of output columns."""
        # Where a residual may be in place, no column may be computed twice.
        conv = self.conv
        if self.one_code:
            return tiles_of_one_code(conv.window, self.columns)
        if self.any_width and not conv.epilogue.residual:
            return overlapping_tiles(conv.window, self.columns, once=False)
        return written_tiles(conv.window, self.columns, _MOST_RUNS)

    @property
    def packing(self) -> Hashable:
        """Channels, taps and lanes."""
        return super().packing, self.lanes

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Whole vectors of channels, as they are packed below."""
        conv = self.conv
        weights = self.blocks * self.vector_weights * conv.precision.w.bytes
        lanes = self.blocks * self.lanes
        return {"w": weights, **conv.epilogue.channel_bytes(conv.precision.accumulate, lanes)}

    def weight_calls(self, w: np.ndarray) -> list[PackCall]:
        """Return the calls that pack (K, ig, kd, kh, kw) as [vector][kd][kh][kw][ig][lane]."""
        size, dtype = self.vector_weights, self.conv.precision.w
        return panels(w[np.newaxis], self.width, self.packed_vector, lambda _: size, dtype)

    def changing_weight_calls(self, w: np.ndarray) -> list[PackCall]:
        """Return the same calls for weights that change: of floats, squares are transposed."""
        dtype, call = self.conv.precision.w, None
        if self.width == self.lanes > 1 and dtype in FLOATS and w.dtype == dtype.numpy:
            call = packing_call(w, 1, 1, self.lanes)
        return self.weight_calls(w) if call is None else [call]

    @property
    def packed_vector(self) -> Order:
        """The order of the weights of a vector of channels, or fewer."""
        return _TapByTap(self.lanes)

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """Return the calls that pack one or more numbers per channel, then zeros."""
        return channels(values, self.width, self.lanes)

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, rows, tiles."""
        conv, e = self.conv, Function(self.NAME)
        pointers = self.addresses(e)
        with e.chunks(*self.grid) as (n, block, part):
            first = part * self.rows
            last = e.smin(first + self.rows, conv.row_count)
            if self.blocks_inside:
                with e.loop("row", last, start=first) as row:
                    self._all_blocks(e, pointers, n, row)
            else:
                self.emit_rows(e, pointers, n, block, first, last)
        return e.finish()

    def emit_rows(
        self,
        e: Function,
        pointers: dict[str, Pointer],
        image: Value,
        block: Value,
        first: Value,
        last: Value,
    ) -> None:
        """Emit the output rows first … last - 1 (one at least) of one vector of channels."""
        channels = self.conv.out_channels if self.conv.y.block == 1 else self.blocks * self.width
        for live in tile_at(e, block, channels, self.width):
            body = self.vector_rows(e, pointers, image, block, live)
            with e.loop("row", last, start=first) as row:
                body.row(row)

    def _all_blocks(self, e: Function, pointers: dict[str, Pointer], n: Value, row: Value) -> None:
        for block, live in each_tile(e, "block", self.conv.out_channels, self.width):
            self.vector_rows(e, pointers, n, e.i64(block), live).row(row)

    def vector_rows(
        self, e: Function, pointers: dict[str, Pointer], n: Value, block: Value, live: int
    ) -> VectorRows:
        """Make the emitter of rows of one vector of output channels, of which `live` exist."""
        return VectorRows(e, self, pointers, n, block, live)


def _loop_over(
    e: Function, loop: ReductionLoop, acc: list[Value]
) -> AbstractContextManager[Value | None]:
    """A loop over taps that carries the accumulators; no loop and no index for one tap."""
    if loop.extent == 1 and loop.start == 0:
        return nullcontext()
    return e.loop(loop.label, loop.extent, [acc], start=loop.start)


class VectorRows:
    """Emission of some rows of one vector of output channels."""

    def __init__(
        self,
        e: Function,
        kernel: DepthwiseConv,
        pointers: dict[str, Pointer],
        n: Value,
        block: Value,
        live: int,
    ) -> None:
        conv = kernel.conv
        self.e, self.kernel, self.live = e, kernel, live
        self.kind = vector(conv.precision.accumulate.llvm, kernel.lanes)
        self.w = pointers["w"].at(block * kernel.vector_weights)
        channel = block * kernel.span
        place = n * conv.x.image
        if conv.x.block > 1 and kernel.span % kernel.lanes == 0:
            place = place + block * conv.x.channel(kernel.span)
        elif conv.x.block > 1:
            place = place + channel // conv.x.block * conv.x.block_stride + channel % conv.x.block
        else:
            place = place + channel * conv.x.block_stride
        self.x = pointers["x"].at(place)
        self.above = self._above(block)
        out = n * conv.y.image + block * conv.y.channel(kernel.width) + conv.y_offset
        self.y = pointers["y"].at(out)
        residual = pointers.get("residual")
        self.residual = residual.at(out) if residual else None
        lanes = block * kernel.lanes
        self.starts = start_vectors(e, self.kind, channel_address(pointers, "bias", lanes))
        factors = "scale" if conv.epilogue.requantise else "slope"
        self.factors = channel_address(pointers, factors, lanes)
        self.quantisation = pointers.get("quantisation")

    def _above(self, block: Value) -> Value | int:
        """Return the offset from the first vector of input channels to the second, if two are read.

        In blocks of an odd number the last vector of outputs has no second one: it reads the first
        twice, for weights that are zero.
        """
        conv, kernel, e = self.kernel.conv, self.kernel, self.e
        count = ceil_div(conv.groups * conv.inputs, kernel.lanes)
        if conv.x.block == 1 or kernel.span <= kernel.lanes or count % 2 == 0:
            return conv.x.channel(kernel.lanes)
        first = block * 2
        return (e.smin(first + 1, count - 1) - first) * conv.x.channel(kernel.lanes)

    def row(self, row: Value) -> None:
        """Emit one row of output columns."""
        conv, kernel, e, window = self.kernel.conv, self.kernel, self.e, self.kernel.conv.window
        od, oh = e.split(row, *window.out[:2])
        self.taps = [Taps(e, window, axis, o, kernel.one_code) for axis, o in ((0, od), (1, oh))]
        start = self.taps[0].start * conv.x.spatial[0]
        if not kernel.ring:
            start = start + self.taps[1].start * conv.x.spatial[1]
        row_x = self.x.at(start)
        place = od * conv.y.spatial[0] + oh * conv.y.spatial[1]
        for column, run in each_tile_of_row(e, kernel.row_tiles):
            self.tile(row_x, place, column, run)

    def tile(self, row_x: Pointer, place: Value, column: Value, run: ColumnTile) -> None:
        """Emit one tile: start values, taps, epilogue, store."""
        conv, kernel, e, window = self.kernel.conv, self.kernel, self.e, self.kernel.conv.window
        step = conv.x.spatial[2]
        at = column * (window.stride[2] * step) - window.pad[2] * step
        x = row_x.at(at).frozen()
        acc = self.starts * run.pixels
        depth, height = self.taps
        per_row = kernel.row_weights
        across = Taps(e, window, 2, column, kernel.one_code) if run.computed else None
        with depth.guard(e, acc), height.guard(e, acc):
            planes = depth.loop("kd", window.dilation[0] * conv.x.spatial[0], window.kernel[1])
            lines = height.loop("kh", window.dilation[1] * conv.x.spatial[1], 1)
            with _loop_over(e, planes, acc) as kd:
                with e.loop(lines.label, lines.extent, [acc], start=lines.start) as kh:
                    down = kh * lines.a_stride
                    if kernel.ring:
                        row = height.start + kh * window.dilation[1]
                        down = row % kernel.ring * conv.x.spatial[1]
                    before = kh
                    if kd:
                        down = kd * planes.a_stride + down
                        before = kd * planes.b_stride + kh
                    line = x.at(down)
                    taps = self.w.at(before * per_row)
                    if across:
                        with across.guard(e, acc):
                            self.taps_between(across.low, across.high, acc, line, taps, (0,))
                    else:
                        self.tap_row(run, acc, line, taps)
        out, types = place + column * conv.y.spatial[2], conv.precision
        residual = self.residual.at(out) if self.residual else None
        y, stored = self.y.at(out), None if types.y == types.accumulate else types.y
        tile = RegisterTile(self.dot, kernel.lanes, 1, 0)
        output = TileOutput(
            conv.epilogue,
            conv.y,
            y,
            residual,
            self.factors,
            stored,
            self.quantisation,
            factor_step=kernel.blocks * kernel.lanes,
        )
        store_tile(e, tile, acc, output, self.live)

    @property
    def dot(self) -> Dot:
        """Multiply-add of one tap."""
        return fma(self.kernel.conv.dtype)

    def tap_row(self, run: ColumnTile, acc: list[Value], line: Pointer, taps: Pointer) -> None:
        """Add a row of taps to the columns of a tile that they meet.

        Args:
            run: the tile.
            acc: the sums of its columns.
            line: address that the tile's first column reads at the first tap.
            taps: the weights of the row.
        """
        kernel, window = self.kernel, self.kernel.conv.window
        short = window.kernel[2] <= _KERNEL_UNROLLED
        if short and (kernel.shared_taps or window.kernel[2] * kernel.conv.inputs <= WEIGHTS_KEPT):
            self._sliding(run, acc, line, taps)
            return
        for low, high, columns in run.runs:
            if kernel.shared_taps:
                self._in_parts(low, high, acc, line, taps, columns)
            elif short:
                for kw in range(low, high):
                    self._one_tap(acc, line, taps, self.e.i64(kw), columns)
            else:
                self.taps_between(low, high, acc, line, taps, columns)

    def taps_between(
        self,
        low: Value | int,
        high: Value | int,
        acc: list[Value],
        line: Pointer,
        taps: Pointer,
        columns: tuple[int, ...],
    ) -> None:
        """Add the taps low … high - 1 (one at least) of a row to these columns of the tile."""
        with self.e.loop("kw", high, [acc], start=low) as index:
            self._one_tap(acc, line, taps, index, columns)

    def _sliding(self, run: ColumnTile, acc: list[Value], line: Pointer, taps: Pointer) -> None:
        """Load each input vector once, and use it for every tap and column that meets it."""
        window = self.kernel.conv.window
        met: dict[int, list[tuple[int, int]]] = {}
        for low, high, columns in run.runs:
            for kw in range(low, high):
                for p in columns:
                    position = p * window.stride[2] + kw * window.dilation[2]
                    met.setdefault(position, []).append((p, kw))
        self._meet(met, acc, line, self._row_weights(taps, window.kernel[2]))

    def _in_parts(
        self,
        low: int,
        high: int,
        acc: list[Value],
        line: Pointer,
        taps: Pointer,
        columns: tuple[int, ...],
    ) -> None:
        """Add the taps low … high - 1 to these columns, `shared_taps` at a time.

        Weights are read from memory where they are multiplied. However the taps are cut, a column
        adds them in one order.
        """
        conv, kernel, e, most = self.kernel.conv, self.kernel, self.e, self.kernel.shared_taps
        wide, step = conv.inputs * kernel.lanes, conv.x.spatial[2]

        def part(first: Value | int, count: int) -> None:
            met: dict[int, list[tuple[int, int]]] = {}
            for p in columns:
                for kw in range(count):
                    met.setdefault(p * conv.window.stride[2] + kw, []).append((p, kw))
            weights = self._row_weights(taps.at(first * wide), count)
            self._meet(met, acc, line.at(first * step), weights)

        whole, rest = divmod(high - low, most)
        if whole == 1:
            part(low, most)
        elif whole:
            with e.loop("part", whole, [acc]) as index:
                part(index * most + low, most)
        if rest:
            part(low + whole * most, rest)

    def _row_weights(self, taps: Pointer, count: int) -> list[list[Value]]:
        """The weights of the first taps of a row, by tap and input."""
        return [
            [self._weight(taps, kw, j) for j in range(self.kernel.conv.inputs)]
            for kw in range(count)
        ]

    def _meet(
        self,
        met: dict[int, list[tuple[int, int]]],
        acc: list[Value],
        line: Pointer,
        weights: list[list[Value]],
    ) -> None:
        """Load each input pixel once, for all (column, tap) that meet it."""
        for position, uses in sorted(met.items()):
            sources = self._inputs(line.at(position * self.kernel.conv.x.spatial[2]))
            for j, source in enumerate(sources):
                for p, kw in uses:
                    acc[p] = self.e.fma(source, weights[kw][j], acc[p])

    def _one_tap(
        self, acc: list[Value], line: Pointer, taps: Pointer, kw: Value, columns: tuple[int, ...]
    ) -> None:
        conv, kernel, e, window = self.kernel.conv, self.kernel, self.e, self.kernel.conv.window
        wide = conv.inputs * kernel.lanes
        at = line.at(kw * (window.dilation[2] * conv.x.spatial[2]))
        here = taps.at(kw * wide)
        weights = [self._weight(here, 0, j) for j in range(conv.inputs)]
        for p in columns:
            place = at.at(p * window.stride[2] * conv.x.spatial[2])
            for j, source in enumerate(self._inputs(place)):
                acc[p] = e.fma(source, weights[j], acc[p])

    def _weight(self, taps: Pointer, kw: int, j: int) -> Value:
        kernel = self.kernel
        offset = (kw * kernel.conv.inputs + j) * kernel.lanes
        return self.e.load(taps.at(offset), self.kind)

    def _inputs(self, address: Pointer) -> list[Value]:
        """The vectors that output lanes multiply with, one for each input of a group."""
        conv, kernel, e = self.kernel.conv, self.kernel, self.e
        span, lanes = kernel.span, kernel.lanes
        plain = conv.x.block == 1
        live = self.live // conv.outputs * conv.inputs if plain else span
        if conv.inputs == conv.outputs == 1:
            return [e.load_first(address, self.kind, live)]
        if span <= lanes:
            low = e.load_first(address, self.kind, live)
            high = None
        else:
            low = e.load_first(address, self.kind, min(live, lanes))
            above = address.at(self.above)
            high = e.load_first(above, self.kind, live - lanes) if live > lanes else None
        picks = [
            [
                lane // conv.outputs * conv.inputs + j if lane < kernel.width else -1
                for lane in range(lanes)
            ]
            for j in range(conv.inputs)
        ]
        return [e.shuffle(low, high, pick) for pick in picks]
