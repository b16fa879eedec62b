"""Depthwise convolution of codes: dot products of four neighbouring pixels of each channel.

A row of x in blocks of l channels has four pixels beside each other in one register of bytes. One
shuffle brings the four numbers of a channel together in a lane of 32 bits, a *quad*:

    x:     p0 c0 c1 c2 …| p1 c0 c1 c2 …| p2 c0 c1 c2 …| p3 c0 c1 c2 …
    quad:  c0 p0 p1 p2 p3| c1 p0 p1 p2 p3| …                              l lanes
    acc[column][lane] += dot(quad[lane], weights of the column's taps at these pixels [lane])

Quads begin at every `step`-th pixel. A column whose taps begin `shift` pixels after the quad's
first takes weights that are moved by as many bytes, so that columns share quads: a row of three
taps is one dot product for each of two columns of one quad. Weights are packed for each pair of a
shift and the number of a quad, a *form*. What lies beside the row is loaded as zero.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

import numpy as np

from leanconv.algorithms.depthwise.kernel import DepthwiseConv, VectorRows
from leanconv.codegen.column_tiles import ColumnTile
from leanconv.codegen.dot import Dot, Parts, Way, dot_of
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.kernels.packing import Order
from leanconv.records import cached_property, dataclass
from leanconv.spec.format import ceil_div
from leanconv.types import INT32

QUAD = 4  # pixels of a dot product
_MOST_TAPS = 12  # of a row that is written out


@lru_cache(64)
def quad_step(taps: int, stride: int, dilation: int) -> int:
    """Return the pixels between quads for the fewest dot products and shuffles of a column."""
    if dilation > 1:
        return 1
    return min((1, 2, 4), key=lambda step: operations(taps, stride, step))


def operations(taps: int, stride: int, step: int) -> float:
    """Dot products and shuffles of a column for a row of taps."""
    shifts = {column * stride % step for column in range(step)}
    dots = sum(ceil_div(shift + taps, QUAD) for shift in shifts) / len(shifts)
    # Quads of a step of four are shared by the columns that begin at them and before them.
    columns = max(1.0, step / stride)
    quads = stride / QUAD if step == QUAD else ceil_div(taps, QUAD) / columns
    return dots + min(quads, dots)


@dataclass(frozen=True, kw_only=True)
class DepthwiseCodes(DepthwiseConv):
    """One depthwise convolution of codes, lanes along channels in blocks.

    Attributes:
        way: of the target to add up a quad's products.
    """

    way: Way

    @cached_property
    def dot(self) -> Dot:
        """Dot product of one quad."""
        return dot_of(self.conv.precision, self.way)

    @property
    def step(self) -> int:
        """Pixels from one quad to the next; of dilated rows each column has its own."""
        window = self.conv.window
        return quad_step(window.kernel[2], window.stride[2], window.dilation[2])

    @property
    def forms(self) -> tuple[tuple[int, int], ...]:
        """The shifts and quads of a row's taps for which weights are packed."""
        shifts = {column * self.conv.window.stride[2] % self.step for column in range(self.step)}
        return tuple(
            (shift, quad)
            for shift in sorted({0, *shifts})
            for quad in range(ceil_div(shift + self.conv.window.kernel[2], QUAD))
        )

    @property
    def steps(self) -> float:
        depth, height, width = self.conv.window.kernel
        return depth * height * operations(width, self.conv.window.stride[2], self.step)

    @property
    def weight_parts(self) -> int:
        """Registers of the weights of a form."""
        return {"pairs": 2, "wasm": 2, "lanes": QUAD}.get(self.way, 1 + (self.way == "dotprod"))

    @property
    def row_weights(self) -> int:
        return len(self.forms) * self.lanes * QUAD

    @property
    def packing(self) -> Hashable:
        return super().packing, self.forms

    @property
    def packed_vector(self) -> Order:
        """The order of weights (k, 1, kd, kh, kw): [kd][kh][form][lane][pixel of the quad]."""
        return self._by_quads

    def _by_quads(self, w: np.ndarray) -> np.ndarray:
        rows, width = w[:, 0].transpose(1, 2, 0, 3), self.conv.window.kernel[2]
        packed = np.zeros((*rows.shape[:2], len(self.forms), self.lanes, QUAD), w.dtype)
        for number, (shift, quad) in enumerate(self.forms):
            for pixel in range(QUAD):
                tap = QUAD * quad + pixel - shift
                if 0 <= tap < width:
                    packed[:, :, number, : len(w), pixel] = rows[..., tap]
        return packed

    def vector_rows(
        self, e: Function, pointers: dict[str, Pointer], n: Value, block: Value, live: int
    ) -> VectorRows:
        return _QuadRows(e, self, pointers, n, block, live)


class _QuadRows(VectorRows):
    """Emission of some rows of one block of channels."""

    kernel: DepthwiseCodes

    @property
    def dot(self) -> Dot:
        return self.kernel.dot

    def tap_row(self, run: ColumnTile, acc: list[Value], line: Pointer, taps: Pointer) -> None:
        kernel, window = self.kernel, self.kernel.conv.window
        if window.kernel[2] > _MOST_TAPS:
            for low, high, columns in run.runs:
                self.taps_between(low, high, acc, line, taps, columns)
            return
        met, stride, apart = set[int](), window.stride[2], window.dilation[2]
        for low, high, columns in run.runs:
            met |= {p * stride + kw * apart for p in columns for kw in range(low, high)}
        quads, weights = dict[int, Parts](), dict[tuple[int, int], Parts]()
        for p in sorted({p for *_, columns in run.runs for p in columns}):
            shift = p * stride % kernel.step
            for form in (form for form in kernel.forms if form[0] == shift):
                first = p * stride - shift + form[1] * QUAD * apart
                there = self._pixels_met(first, met)
                if not there:
                    continue
                if first not in quads:
                    quads[first] = self._quad(line, first, there)
                if form not in weights:
                    weights[form] = self._weights(taps, self.e.i64(kernel.forms.index(form)))
                acc[p] = self.dot.add(self.e, acc[p], quads[first], weights[form])

    def _pixels_met(self, first: int, met: set[int]) -> range:
        """The pixels of a quad from the first to the last that any tap of the tile meets."""
        apart = self.kernel.conv.window.dilation[2]
        found = [i for i in range(QUAD) if first + i * apart in met]
        return range(found[0], found[-1] + 1) if found else range(0)

    def _quad(self, line: Pointer, first: int, there: range) -> Parts:
        """Load a quad; zero for pixels that are not there."""
        kernel, e = self.kernel, self.e
        step, lanes, apart = kernel.conv.x.spatial[2], kernel.lanes, kernel.conv.window.dilation[2]
        if apart == 1 and step == lanes:
            share = lanes // QUAD
            mask = [int(lane // share in there) for lane in range(lanes)]
            at = line.at(first * step)
            words = (
                e.load(at, self.kind, align=1)
                if all(mask)
                else e.masked_load(at, self.kind, e.const(vector("i1", lanes), mask))
            )
            pixels = e.convert("bitcast", words, vector("i8", QUAD * lanes))
        else:
            kind = vector("i8", lanes)
            each = [
                e.load(line.at((first + i * apart) * step), kind) if i in there else e.zero(kind)
                for i in range(QUAD)
            ]
            both = [e.shuffle(each[i], each[i + 1], range(2 * lanes)) for i in (0, 2)]
            pixels = e.shuffle(both[0], both[1], range(QUAD * lanes))
        order = [i * lanes + channel for channel in range(lanes) for i in range(QUAD)]
        words = e.convert("bitcast", e.shuffle(pixels, None, order), self.kind)
        return self.dot.first_factor(e, words)

    def _weights(self, taps: Pointer, form: Value) -> Parts:
        size = self.kernel.lanes * QUAD
        return self.dot.load(self.e, taps.at(form * size), self.kind, self.kernel.lanes)

    def _one_tap(
        self, acc: list[Value], line: Pointer, taps: Pointer, kw: Value, columns: tuple[int, ...]
    ) -> None:
        """A dot product of one pixel each: its tap's weight is moved to the first of a quad."""
        conv, kernel, e, window = self.kernel.conv, self.kernel, self.e, self.kernel.conv.window
        quad, size = kw // QUAD, kernel.lanes * QUAD
        words = e.load(taps.at(quad * size), self.kind, align=1)
        bits = e.splat(e.convert("trunc", kw % QUAD * 8, INT32.llvm), kernel.lanes)
        words = e.define(f"lshr {words}, {bits.text}", self.kind) & 0xFF
        weights = self.dot.second_factor(e, words)
        at = line.at(kw * (window.dilation[2] * conv.x.spatial[2]))
        for p in columns:
            pixel = at.at(p * window.stride[2] * conv.x.spatial[2])
            loaded = e.load(pixel, vector("i8", kernel.lanes))
            x = self.dot.first_factor(e, e.convert("zext", loaded, self.kind))
            acc[p] = self.dot.add(e, acc[p], x, weights)
