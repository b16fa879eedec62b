"""Dot products of windows, vectors along each window: algorithms 5 and 6 of the im2win thesis.

Algorithm 5, one dot product for each window:

    for k, n, od, oh:  for c, kd, kh:  for ow:
        y[n, k, od, oh, ow] += dot(x[n, c, od·sd + kd·dd - pd, …, window ow], w[k, c, kd, kh, :])

A window is `kw` pieces of `unit` elements; in an im2win tensor they follow each other, so that it
is one run. Each has one accumulator and a sum over its lanes: bound by FMA latency, as in the
thesis. The sums of a row stay in scratch until all channels have been added.

Algorithm 6 as printed, tiles of windows in registers:

    for jj (blocks of output channels), n, od, oh:  for c, kd, kh:  for nn (tiles of windows):
        for vv (tiles of their pieces):
            load the pieces vv of the windows nn
            for j' in jj:  for n' in nn:
                y[n, j', od, oh, n'] += dot(those pieces, w[j', c, …, vv])

The vectors of a tile are loaded once, and each is used for all output channels of a block (line
14). A vector lies along the window's height, as lines 13 and 18 have it, so a kernel of 3 rows
fills 3 of its lanes, and each dot product ends in a sum over lanes. Lines 15 and 20 of the text
leave n' out; each window of a tile has a sum of its own here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from leanconv.algorithms.common.conv import GroupedConv, Taps
from leanconv.algorithms.naive import channel_offset
from leanconv.codegen.activations import finish
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.forms import split
from leanconv.codegen.microkernel import channel_address, start_vectors
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target

_WRITTEN_OUT = 8  # vectors of a window that are unrolled


@dataclass(frozen=True)
class WindowDot(GroupedConv):
    """One convolution; weights are packed in the order of the loops.

    `inputs` is what the loop over c runs over; the window's taps along the width are pieces.

    Attributes:
        unit: elements of a piece, neighbours in x and in the weights.
        lanes: lanes of a vector.
    """

    VARIES = True

    unit: int
    lanes: int

    @property
    def packing(self) -> Hashable:
        """All but the extents: the order of the loops follows the layout."""
        key: Hashable = split(self)[0]
        return key

    @property
    def grid(self) -> tuple[int, ...]:
        """Output channels by images by rows."""
        conv = self.conv
        return conv.groups, conv.outputs, conv.batch, *conv.window.out[:2]

    @property
    def scratch_bytes(self) -> int:
        """The sums of one row."""
        return self.conv.window.out[2] * self.conv.dtype.bytes

    @property
    def reduction(self) -> int:
        """Products of one output, those with padding counted."""
        return super().reduction * self.unit

    def emit(self, target: Target) -> str:
        """Emit the loops: rows of output, channels and taps, windows."""
        conv, e, element = self.conv, Function(self.NAME), self.conv.dtype.llvm
        pointers = self.addresses(e)
        steps = self.reduction
        with e.chunks(*self.grid) as (g, j, n, od, oh):
            k = g * conv.outputs + j
            taps = [Taps(e, conv.window, a, o) for a, o in enumerate((od, oh))]
            place = n * conv.x.image + g * conv.x.channel(conv.inputs)
            for axis, tap in enumerate(taps):
                place = place + tap.start * conv.x.spatial[axis]
            x, w = pointers["x"].at(place), pointers["w"].at(k * steps)
            (start,) = start_vectors(e, element, channel_address(pointers, "bias", k))
            with e.loop("ow", conv.window.out[2]) as ow:
                e.store(start, self._sums(e).at(ow))
            with taps[0].guard(e, []), taps[1].guard(e, []), self._rows(e, x, w, taps) as row:
                self._windows(e, *row)
            place = n * conv.y.image + channel_offset(conv.y, k)
            place = place + od * conv.y.spatial[0] + oh * conv.y.spatial[1]
            self._finish(e, pointers, place, k, self._sums(e))
        return e.finish()

    def _sums(self, e: Function) -> Pointer:
        return e.scratch.of(self.conv.dtype.llvm)

    @contextmanager
    def _rows(
        self, e: Function, x: Pointer, w: Pointer, taps: list[Taps]
    ) -> Iterator[tuple[Pointer, Pointer]]:
        """Loop over channels and rows of taps: addresses of the windows of a row, and weights."""
        conv = self.conv
        kd, kh, kw = conv.window.kernel
        per_row = kw * self.unit
        steps = [conv.window.dilation[a] * conv.x.spatial[a] for a in (0, 1)]
        planes = taps[0].loop("kd", steps[0], kh * per_row)
        lines = taps[1].loop("kh", steps[1], per_row)
        with e.loop("c", conv.inputs) as c:
            x_c = x.at(c * conv.x.block_stride)
            w_c = w.at(c * (kd * kh * per_row))
            with e.loop("kd", planes.extent, start=planes.start) as d:
                with e.loop("kh", lines.extent, start=lines.start) as h:
                    yield (
                        x_c.at(d * planes.a_stride + h * lines.a_stride),
                        w_c.at(d * planes.b_stride + h * lines.b_stride),
                    )

    def _whole(self) -> tuple[int, int]:
        """The first window of a row that is one run, and one past the last."""
        conv = self.conv
        window, width = conv.window, conv.window.out[2]
        one_run = window.dilation[2] * conv.x.spatial[2] == self.unit or window.kernel[2] == 1
        low, high = window.full(2) if one_run else (width, width)
        return (low, high) if low != high else (width, width)

    def _windows(self, e: Function, x: Pointer, w: Pointer) -> None:
        """Emit a row of windows: those inside the input as one run, the others piece by piece."""
        conv = self.conv
        window, width = conv.window, conv.window.out[2]
        low, high = self._whole()
        for first, last, whole in ((0, low, False), (low, high, True), (high, width, False)):
            if first >= last:
                continue
            with e.loop("ow", last, start=first) as ow:
                start = ow * window.stride[2] - window.pad[2]
                at = x.at(start * conv.x.spatial[2])
                result = self._sums(e).at(ow)
                if whole:
                    self._add(e, result, at, w, window.kernel[2] * self.unit)
                else:
                    self._pieces(e, result, at, w, Taps(e, window, 2, ow))

    def _pieces(self, e: Function, result: Pointer, x: Pointer, w: Pointer, taps: Taps) -> None:
        pieces = taps.loop("kw", self.conv.window.dilation[2] * self.conv.x.spatial[2], self.unit)
        with taps.guard(e, []), e.loop("kw", pieces.extent, start=pieces.start) as v:
            a = x.at(v * pieces.a_stride)
            self._add(e, result, a, w.at(v * self.unit), self.unit)

    def _add(self, e: Function, result: Pointer, a: Pointer, b: Pointer, count: int) -> None:
        """Add the dot product of two runs to the element at `result`."""
        kind = vector(self.conv.dtype.llvm, self.lanes)
        acc = [e.zero(kind)]

        def step(at: Value | int, live: int) -> None:
            left = e.load_first(a.at(at), kind, live)
            acc[0] = e.fma(left, e.load_first(b.at(at), kind, live), acc[0])

        whole, rest = divmod(count, self.lanes)
        if whole > _WRITTEN_OUT:
            with e.loop("at", whole * self.lanes, [acc], step=self.lanes) as at:
                step(at, self.lanes)
        else:
            for part in range(whole):
                step(part * self.lanes, self.lanes)
        if rest:
            step(whole * self.lanes, rest)
        e.store(e.load(result) + self._across(e, acc[0]), result)

    def _across(self, e: Function, total: Value) -> Value:
        """The sum over the lanes of a vector, by halves."""
        lanes = self.lanes
        while lanes > 2:
            lanes //= 2
            low, high = range(lanes), range(lanes, 2 * lanes)
            total = e.shuffle(total, None, low) + e.shuffle(total, None, high)
        value = e.extract(total, 0)
        return value + e.extract(total, 1) if lanes == 2 else value

    def _finish(
        self, e: Function, pointers: dict[str, Pointer], row: Value, k: Value, sums: Pointer
    ) -> None:
        """Emit the epilogue of a row of sums of one channel."""
        conv = self.conv
        slopes = e.load(pointers["slope"].at(k)) if "slope" in pointers else None
        with e.loop("ow", conv.window.out[2]) as ow:
            value = e.load(sums.at(ow))
            out = row + ow * conv.y.spatial[2]
            residual = None
            if "residual" in pointers:
                residual = e.load(pointers["residual"].at(out))
            value = finish(e, value, conv.epilogue.activation, slopes, residual)
            e.store(value, pointers["y"].at(out))


@dataclass(frozen=True)
class WindowTile(WindowDot):
    """One convolution; operands and weights as of `WindowDot`.

    Attributes:
        channels: output channels of a block, C_o,b.
        columns: windows of a register tile, W_o,b.
        taps: pieces of each window in a register tile, W_f,b.
    """

    VARIES = True

    channels: Count
    columns: int
    taps: int

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks of output channels by images by rows."""
        conv, blocks = self.conv, ceil_div(self.conv.outputs, self.channels)
        return conv.groups, blocks, conv.batch, *conv.window.out[:2]

    @property
    def scratch_bytes(self) -> int:
        """The sums of one row, for each output channel of a block."""
        return self.channels * self.conv.window.out[2] * self.conv.dtype.bytes

    def emit(self, target: Target) -> str:
        """Emit the loops: blocks of channels, rows of output, channels and taps, tiles."""
        conv, e, element = self.conv, Function(self.NAME), self.conv.dtype.llvm
        pointers = self.addresses(e)
        width = conv.window.out[2]
        with e.chunks(*self.grid) as (g, jj, n, od, oh):
            first = jj * self.channels
            count = e.smin(conv.outputs - first, self.channels)
            k = g * conv.outputs + first
            taps = [Taps(e, conv.window, a, o) for a, o in enumerate((od, oh))]
            place = n * conv.x.image + g * conv.x.channel(conv.inputs)
            for axis, tap in enumerate(taps):
                place = place + tap.start * conv.x.spatial[axis]
            x, w = pointers["x"].at(place), pointers["w"].at(k * self.reduction)
            with e.loop("j", count) as j:
                (start,) = start_vectors(e, element, channel_address(pointers, "bias", k + j))
                with e.loop("ow", width) as ow:
                    e.store(start, self._sum(e, j, ow))
            with taps[0].guard(e, []), taps[1].guard(e, []), self._rows(e, x, w, taps) as row:
                self._tiles(e, *row, count)
            with e.loop("j", count) as j:
                place = n * conv.y.image + channel_offset(conv.y, k + j)
                place = place + od * conv.y.spatial[0] + oh * conv.y.spatial[1]
                self._finish(e, pointers, place, k + j, self._sum(e, j, 0))
        return e.finish()

    def _sum(self, e: Function, j: Value, ow: Value | int) -> Pointer:
        return self._sums(e).at(j * self.conv.window.out[2] + ow)

    def _tiles(self, e: Function, x: Pointer, w: Pointer, count: Value) -> None:
        """Emit a row of windows: those inside the input in tiles, the others piece by piece."""
        conv = self.conv
        window, width = conv.window, conv.window.out[2]
        low, high = self._whole()
        tiles = (high - low) // self.columns
        rest = low + tiles * self.columns
        if tiles:
            with e.loop("nn", tiles) as nn:
                self._tile(e, x, w, nn * self.columns + low, self.columns, count)
        if rest < high:
            with e.loop("nn", high, start=rest) as nn:
                self._tile(e, x, w, nn, 1, count)
        for first, last in ((0, low), (high, width)):
            if first >= last:
                continue
            with e.loop("j", count) as j, e.loop("ow", last, start=first) as ow:
                start = ow * window.stride[2] - window.pad[2]
                at = x.at(start * conv.x.spatial[2])
                w_j = w.at(j * self.reduction)
                self._pieces(e, self._sum(e, j, ow), at, w_j, Taps(e, window, 2, ow))

    def _tile(
        self, e: Function, x: Pointer, w: Pointer, first: Value, columns: int, count: Value
    ) -> None:
        """Emit DOT_PRODUCT: `columns` windows from `first` on, all their pieces."""
        conv = self.conv
        window, kind = conv.window, vector(conv.dtype.llvm, self.lanes)
        kw = window.kernel[2]
        step = window.dilation[2] * conv.x.spatial[2]
        x = x.at((first * window.stride[2] - window.pad[2]) * conv.x.spatial[2])
        vectors = [(at, min(self.lanes, self.unit - at)) for at in range(0, self.unit, self.lanes)]
        for low in range(0, kw, self.taps):
            pieces = range(low, min(low + self.taps, kw))
            loaded = [
                [
                    e.load_first(
                        x.at(n * window.stride[2] * conv.x.spatial[2] + v * step + at), kind, live
                    )
                    for v in pieces
                    for at, live in vectors
                ]
                for n in range(columns)
            ]
            with e.loop("j", count) as j:
                w_j = w.at(j * self.reduction)
                weights = [
                    e.load_first(w_j.at(v * self.unit + at), kind, live)
                    for v in pieces
                    for at, live in vectors
                ]
                for n, row in enumerate(loaded):
                    total = e.zero(kind)
                    for left, right in zip(row, weights, strict=True):
                        total = e.fma(left, right, total)
                    result = self._sum(e, j, first + n)
                    e.store(e.load(result) + self._across(e, total), result)
