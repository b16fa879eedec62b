"""`depthwise` with lanes along the columns of planes (NCHW): nothing is transposed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

from leanconv.algorithms.planar.columns import shared_loads
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
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.shuffles import deinterleave
from leanconv.codegen.tails import where_any
from leanconv.kernels.lane_reduce import across_lanes
from leanconv.records import dataclass
from leanconv.spec.conv import effective_extent
from leanconv.spec.format import ceil_div
from leanconv.symbolic import least, most
from leanconv.target import Target


@dataclass(frozen=True)
class AlongColumns(DepthwiseGradient):
    """Lanes along columns of planes; a strip of x is [row][phase of the stride][column]."""

    @property
    def pieces(self) -> int:
        """Pairs of an output channel and an input channel of its group."""
        return self.conv.out_channels * self.conv.inputs

    @property
    def phases(self) -> tuple[int, ...]:
        """The remainders of taps' columns by the stride: each has columns of its own."""
        window = self.conv.window
        apart, stride = window.dilation[2], window.stride[2]
        return tuple(sorted({v * apart % stride for v in range(window.kernel[2])}))

    @property
    def pitch(self) -> int:
        """Elements of a row of one phase of a strip."""
        window, lanes = self.conv.window, self.lanes
        reach = (window.kernel[2] - 1) * window.dilation[2] // window.stride[2]
        return (ceil_div(window.out[2], lanes) + ceil_div(reach, lanes)) * lanes

    @property
    def strip_row(self) -> int:
        return len(self.phases) * self.pitch

    @property
    def zeros(self) -> int:
        window = self.conv.window
        extent = effective_extent(window.kernel[2], window.dilation[2])
        return ceil_div(extent, self.lanes) * self.lanes + self.span

    @property
    def span(self) -> int:
        """Elements of x of a tile's vectors, for a tap."""
        return self.tile.columns * self.lanes * self.conv.window.stride[2]

    @property
    def line(self) -> int:
        """Elements of a row before its phases are taken apart, if they are."""
        stride = self.conv.window.stride[2]
        return stride * self.pitch if stride > 1 else 0

    @property
    def extra(self) -> int:
        return 0 if self.in_place else self.line + 2 * self.lanes

    def body(self, e: Function, target: Target, pointers: Pointers) -> Body:
        return (_InPlace if self.in_place else _Copied)(e, self, target, pointers)


class _ColumnBody(Body):
    """What both forms have in common."""

    kernel: AlongColumns

    def _planes(self, index: Value, block: Block) -> tuple[Pointer, Pointer]:
        """The plane of x, and the rows of dy, of a pair of channels."""
        conv = self.conv
        k = index // conv.inputs
        c = k // conv.outputs * conv.inputs + index % conv.inputs
        plane = self.x.at(block.source + c * conv.x.block_stride)
        return plane, self.dy.at(block.factor + k * conv.y.block_stride)

    def finish(self, index: Value, sums: Pointer) -> None:
        e, kernel = self.e, self.kernel
        to = self.dw.at(index * kernel.taps)
        with e.loop("tap", kernel.taps) as t:
            value = e.load(sums.at(t * kernel.lanes), self.kind)
            e.store(across_lanes(e, "sum", value), to.at(t))
        if self.db:
            with self.of_first_input(index):
                value = e.load(sums.at(kernel.taps * kernel.lanes), self.kind)
                e.store(across_lanes(e, "sum", value), self.db.at(index // self.conv.inputs))


class _InPlace(_ColumnBody):
    """Planes of x that are read where they lie, columns in the padding under masks.

    Tiles of columns at both ends of a row compute their masks, so that one code is that of all
    widths; the others have none.
    """

    kernel: AlongColumns
    moves_taps = False

    def lines(self, index: Value, block: Block) -> Iterator[Lines]:
        plane, dy = self._planes(index, block)
        lanes, pad = self.kernel.lanes, self.window.pad[2]

        def line(row: Value) -> Line:
            return self.in_image(plane, pad, block.top + row, self.window.stride[2] * lanes)

        yield Lines(dy, self.conv.y.spatial[1], lanes, lanes, line)

    def columns(self, acc: list[Value]) -> Iterator[Columns]:
        e, lanes, window = self.e, self.kernel.lanes, self.window
        vectors = self.kernel.tile.columns
        span, stride = vectors * lanes, window.stride[2]
        tiles = ceil_div(window.out[2], span)
        if tiles == 1:  # its masks are made once
            yield Columns(e.i64(0), vectors, form=_Loads(e, self, e.i64(0)))
            return
        # Tiles that begin in the padding, and those before which all read of the row is in it.
        low = least(ceil_div(max(window.pad[2], 0), span * stride), tiles)
        beyond = max(shared_loads(window)) * window.dilation[2] - window.pad[2]
        inside = most(window.size[2] - beyond, 0) // (span * stride)
        high = most(low, least(inside, window.out[2] // span))
        with e.when(e.i64(low).compare("ult", high), [acc]):
            with e.loop("tile", high, [acc], start=e.i64(low)) as index:
                yield Columns(index * vectors, vectors, form=_Loads(e, self))
        ends = tiles - (high - low)
        for _ in where_any(e, ends, [acc]):
            with e.loop("end", ends, [acc]) as number:
                left = number.compare("ult", low)
                index = e.select(left, number, number + (high - low))
                form = _Loads(e, self, index * span)
                yield Columns(index * vectors, vectors, form=form)

    def input(self, columns: Columns, column: int, tap: int) -> Input:
        loads = columns.form
        assert isinstance(loads, _Loads)
        return (column, tap), lambda at: loads.load(at, column, tap)

    def existing(self, columns: Columns, column: int) -> Value | None:
        loads = columns.form
        assert isinstance(loads, _Loads)
        return loads.existing(column)

    def first_tap(self, tap: Value | int) -> Value | int:
        raise NotImplementedError


class _Loads:
    """Loads of the vectors of x of a tile: a stride takes every s-th lane of s neighbours.

    Args:
        e: the function to append to.
        body: of the kernel.
        first: column of dy of a tile at an end of the row; None: all columns exist.
    """

    def __init__(self, e: Function, body: _InPlace, first: Value | None = None) -> None:
        self.e, self.body, self.window = e, body, body.window
        self.lanes, self._first = body.kernel.lanes, first
        shared = shared_loads(self.window).items()
        self._phases = {kw: (base, phase) for base, taps in shared for kw, phase in taps}
        self._held: dict[tuple[str, int, int], list[Value]] = {}
        self._masks: dict[tuple[int, int], Value] = {}

    def load(self, at: Pointer, column: int, tap: int) -> Value:
        """The vector of a tap's column, from the tile's first address of a row."""
        window, stride = self.window, self.window.stride[2]
        base, phase = self._phases[tap]
        key = at.text, base, column
        if key not in self._held:
            offset = base * window.dilation[2] + column * stride * self.lanes
            parts = range(offset, offset + stride * self.lanes, self.lanes)
            self._held[key] = [self._part(at, part, base) for part in parts]
        return deinterleave(self.e, self._held[key], phase)

    def _part(self, at: Pointer, offset: int, base: int) -> Value:
        """A vector of x; zero in the padding, and where dy has no column: x may be infinite there.

        Args:
            at: the tile's first address of a row.
            offset: of the vector from there.
            base: the first of the taps that share it.
        """
        e, kind, window, place = self.e, self.body.kind, self.window, at.at(offset)
        if self._first is None:
            return e.load(place, kind)
        if (offset, base) not in self._masks:
            step, pad = window.stride[2], window.pad[2]
            met = window.out[2] * step + (base * window.dilation[2] - pad)
            start = self._first * step + (offset - pad)
            size = most(least(window.size[2], met), 0)  # of a tap that meets no column: none
            self._masks[offset, base] = self._below(start, size)
        return e.masked_load(place, kind, self._masks[offset, base])

    def existing(self, column: int) -> Value | None:
        """The mask of the columns of dy that exist; None: all of them."""
        if self._first is None:
            return None
        return self._below(self._first + column * self.lanes, self.window.out[2])

    def _below(self, start: Value, size: int) -> Value:
        """The lanes of positions from `start` on that are at least 0 and below `size`."""
        e, kind = self.e, vector("i32", self.lanes)
        first = e.splat(e.convert("trunc", start, "i32"), self.lanes)
        return (first + e.const(kind, range(self.lanes))).compare("ult", e.const(kind, size))


class _Copied(_ColumnBody):
    """Rows of x that are copied into a strip with zeros for the padding."""

    def lines(self, index: Value, block: Block) -> Iterator[Lines]:
        e, kernel, conv, window = self.e, self.kernel, self.conv, self.window
        plane, dy = self._planes(index, block)
        count = (block.rows - 1) * window.stride[1]
        count = count + effective_extent(window.kernel[1], window.dilation[1])
        with e.loop("copied", count) as j:
            row, to = block.top + j, self.scratch.at(j * kernel.strip_row)
            zeros = partial(self._zeros, to, e.i64(kernel.strip_row))
            inside = row.compare("ult", window.size[1])
            always = window.always_full(1)
            with nullcontext() if always else e.when(inside, otherwise=zeros):
                self._row(plane.at(row * conv.x.spatial[1]), to)

        def line(row: Value) -> Line:
            return self.scratch.at(row * kernel.strip_row), kernel.lanes

        yield Lines(dy, conv.y.spatial[1], kernel.lanes, kernel.lanes, line)

    def _zeros(self, to: Pointer, count: Value) -> None:
        """Write zeros, perhaps a vector less one more than asked for."""
        e = self.e
        with e.when(count.compare("sgt", 0)):
            with e.loop("zeros", count, step=self.kernel.lanes) as i:
                e.store(e.zero(self.kind), to.at(i))

    def _row(self, line: Pointer, to: Pointer) -> None:
        """Copy a row of x, with zeros on both sides; the phases of a stride apart."""
        e, kernel, lanes, stride = self.e, self.kernel, self.kernel.lanes, self.window.stride[2]
        if stride == 1:
            self._padded(line, to, kernel.strip_row)
            return
        held = self.scratch.at(kernel.strip)
        self._padded(line, held, kernel.line)
        with e.loop("column", kernel.pitch, step=lanes) as i:
            source = held.at(i * stride)
            parts = [e.load(source.at(part * lanes), self.kind) for part in range(stride)]
            for number, phase in enumerate(kernel.phases):
                value = deinterleave(e, parts, phase)
                e.store(value, to.at(i + number * kernel.pitch))

    def _padded(self, line: Pointer, to: Pointer, size: int) -> None:
        """Copy a row of x between zeros, `size` elements in all."""
        e, lanes, pad = self.e, self.kernel.lanes, self.window.pad[2]
        low, begin = max(pad, 0), max(-pad, 0)
        count = least(self.window.size[2] - begin, size - low)
        if count <= 0:
            self._zeros(to, e.i64(size))
            return
        if low:
            self._zeros(to, e.i64(low))
        source, at = line.at(begin), to.at(low)
        whole = count // lanes
        for _ in where_any(e, whole):
            with e.loop("column", whole * lanes, step=lanes) as i:
                e.store(e.load(source.at(i), self.kind), at.at(i))
        rest = self.target.lanes_of_tail(count % lanes)
        for _ in where_any(e, rest):
            value = e.load_first(source.at(whole * lanes), self.kind, rest)
            e.store(value, at.at(whole * lanes))
        end = ceil_div(count, lanes) * lanes
        self._zeros(at.at(end), e.i64(size - low - end))

    def columns(self, acc: list[Value]) -> Iterator[Columns]:
        lanes, width = self.kernel.lanes, self.window.out[2]
        whole = width // lanes
        for column, count in column_pieces(self.e, 0, whole, self.kernel.tile.columns, acc):
            yield Columns(column, count)
        rest = self.target.lanes_of_tail(width % lanes)
        for _ in where_any(self.e, rest, [acc]):
            yield Columns(self.e.i64(whole), 1, rest)

    def input(self, columns: Columns, column: int, tap: int) -> Input | None:
        kernel, stride = self.kernel, self.window.stride[2]
        position = tap * self.window.dilation[2]
        phase, column = kernel.phases.index(position % stride), column * kernel.lanes
        offset = phase * kernel.pitch + column + position // stride
        live = kernel.lanes if columns.live is None else columns.live
        key = column + position // stride, phase
        return key, lambda at: self.e.load_first(at.at(offset), self.kind, live)

    @property
    def moves_taps(self) -> bool:
        return self.window.stride[2] == 1

    def first_tap(self, tap: Value | int) -> Value | int:
        return tap * self.window.dilation[2]
