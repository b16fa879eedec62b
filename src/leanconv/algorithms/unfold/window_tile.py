"""Tiles of windows in registers, vectors along each: algorithm 6 of the im2win thesis as printed.

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

from leanconv.algorithms.common.taps import Taps
from leanconv.algorithms.naive import channel_offset
from leanconv.algorithms.unfold.window_dot import WindowDot
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.extents import Count
from leanconv.codegen.microkernel import channel_address, start_vectors
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target


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
    def chunks(self) -> int:
        """Blocks of output channels by images by rows."""
        blocks = self.groups * ceil_div(self.outputs, self.channels)
        return blocks * self.batch * self.row_count

    @property
    def scratch_bytes(self) -> int:
        """The sums of one row, for each output channel of a block."""
        return self.channels * self.window.out[2] * self.dtype.bytes

    def emit(self, target: Target) -> str:
        """Emit the loops: blocks of channels, rows of output, channels and taps, tiles."""
        del target
        e, element = Function(self.NAME), self.dtype.llvm
        pointers = self.addresses(e)
        depth, height, width = self.window.out
        blocks = ceil_div(self.outputs, self.channels)
        with e.chunks(self.groups, blocks, self.batch, depth, height) as (g, jj, n, od, oh):
            first = jj * self.channels
            count = e.smin(self.outputs - first, self.channels)
            k = g * self.outputs + first
            taps = [Taps(e, self.window, a, o) for a, o in enumerate((od, oh))]
            place = n * self.x.image + g * self.x.channel(self.inputs)
            for axis, tap in enumerate(taps):
                place = place + tap.start * self.x.spatial[axis]
            x, w = pointers["x"].at(place), pointers["w"].at(k * self.reduction)
            with e.loop("j", count) as j:
                (start,) = start_vectors(e, element, channel_address(pointers, "bias", k + j))
                with e.loop("ow", width) as ow:
                    e.store(start, self._sum(e, j, ow))
            with taps[0].guard(e, []), taps[1].guard(e, []), self._rows(e, x, w, taps) as row:
                self._tiles(e, *row, count)
            with e.loop("j", count) as j:
                place = n * self.y.image + channel_offset(self.y, k + j)
                place = place + od * self.y.spatial[0] + oh * self.y.spatial[1]
                self._finish(e, pointers, place, k + j, self._sum(e, j, 0))
        return e.finish()

    def _sum(self, e: Function, j: Value, ow: Value | int) -> Pointer:
        """The address of one channel's sum of one window."""
        return self._sums(e).at(j * self.window.out[2] + ow)

    def _tiles(self, e: Function, x: Pointer, w: Pointer, count: Value) -> None:
        """Emit a row of windows: those inside the input in tiles, the others piece by piece."""
        window, width = self.window, self.window.out[2]
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
                at = x.at(start * self.x.spatial[2])
                w_j = w.at(j * self.reduction)
                self._pieces(e, self._sum(e, j, ow), at, w_j, Taps(e, window, 2, ow))

    def _tile(
        self, e: Function, x: Pointer, w: Pointer, first: Value, columns: int, count: Value
    ) -> None:
        """Emit DOT_PRODUCT: `columns` windows from `first` on, all their pieces."""
        window, kind = self.window, vector(self.dtype.llvm, self.lanes)
        kw = window.kernel[2]
        step = window.dilation[2] * self.x.spatial[2]
        x = x.at((first * window.stride[2] - window.pad[2]) * self.x.spatial[2])
        vectors = [(at, min(self.lanes, self.unit - at)) for at in range(0, self.unit, self.lanes)]
        for low in range(0, kw, self.taps):
            pieces = range(low, min(low + self.taps, kw))
            loaded = [
                [
                    e.load_first(
                        x.at(n * window.stride[2] * self.x.spatial[2] + v * step + at), kind, live
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
