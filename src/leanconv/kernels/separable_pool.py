"""MaxPool and AveragePool between plain tensors: lanes along columns, one axis after the other.

    v[w]    = R over the rows of taps of x[p, row, w]              down: R is max or sum
    y[p, o] = R over the taps k of v[o * stride + k * dilation - pad]   across, / count for a mean

Rows of v lie in the scratch between columns of padding that hold what changes nothing. Several rows
of results are computed at once: their rows of v follow each other, and each step across is one loop
over all of them. Where a window has many columns, windows of half its columns are joined:

    v7[w] = R of 7 neighbours,  v15[w] = v7[w] R v7[w + 7] R v[w + 14],  v31 of v15

so that k columns take about 2 log2(k) steps. Maxima of halves may overlap; sums are of parts, never
a difference of running sums, so that NaN, infinities and large numbers stay in their windows, and
the error grows with log2(k). Results do not depend on where a window lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from math import prod

from leanconv.codegen.emitter import Carry, Pointer, Value, vector
from leanconv.kernels.plane_pool import PoolOfRows, RowLoops, joined, start, taps_within
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import most
from leanconv.target import Target
from leanconv.types import INT32

_CHUNK_LOADS = 256 * 1024  # elements; 5 to 10 us
_GROUP = 2048  # elements of the rows of v that are computed at once: a few KiB of L1
_ROUNDED = 16  # elements of a row of v, rounded up: a multiple of all targets' lanes
_MOST_DIRECT = 7  # columns of a window that are joined one by one
_MOST_STRIDE = 8  # columns of larger strides are picked one by one
_MOST_ROWS = 16  # more rows of taps are a loop
_VECTORS = 4  # of a row, that are joined down at once

_Tap = tuple[Pointer, int]  # a row in the scratch, and how far behind a window's first column


@dataclass(frozen=True)
class SeparablePool(PoolOfRows):
    """Pool maps.

    Attributes:
        average: a mean instead of a maximum.
        counted: for a mean, how many cells before and after the input are counted, per axis.
    """

    operands = ("x", "y")

    average: bool
    counted: tuple[tuple[int, int], ...]

    @property
    def group(self) -> int:
        loads = self.pitch * (self.window.kernel[0] * self.window.kernel[1] + 8)
        return ceil_div(_CHUNK_LOADS, loads)

    @property
    def margin(self) -> int:
        """Elements of a row of v before the input's first column, which is aligned."""
        return ceil_div(self.window.pad[2], _ROUNDED) * _ROUNDED

    @property
    def reach(self) -> int:
        """Columns from a window's first to its last."""
        return (self.window.kernel[2] - 1) * self.window.dilation[2]

    @property
    def pitch(self) -> int:
        """Elements from one row of v to the next."""
        w = self.window
        read = self.margin - w.pad[2] + (w.out[2] - 1) * w.stride[2] + self.reach + 1
        return ceil_div(most(self.margin + w.size[2], read), _ROUNDED) * _ROUNDED

    @property
    def rows_at_once(self) -> int:
        """Rows of results that are computed at once."""
        return ceil_div(_GROUP, self.pitch)

    @property
    def lengths(self) -> list[int]:
        """Columns of the windows that are joined one after the other, the last the kernel's."""
        taps, stride = self.window.kernel[2], self.window.stride[2]
        found = [taps]
        direct = _MOST_DIRECT * (stride if stride <= _MOST_STRIDE else 1)
        if taps > direct:
            while found[0] > _MOST_DIRECT:
                found.insert(0, found[0] // 2 if self.average else ceil_div(found[0], 2))
        return found

    @property
    def parts_bytes(self) -> tuple[int, int, int]:
        """Scratch for rows of v, for windows of some of their columns, and for counts."""
        beyond = self.reach + 2 * _ROUNDED * _MOST_STRIDE
        line = aligned((self.rows_at_once * self.pitch + beyond) * self.dtype.bytes)
        counts = aligned(ceil_div(self.window.out[2], _ROUNDED) * _ROUNDED * self.dtype.bytes)
        return line, line * (len(self.lengths) > 1), counts * self.average

    @property
    def scratch_bytes(self) -> int:
        return sum(self.parts_bytes)

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


class _Nest(RowLoops):
    def __init__(self, kernel: SeparablePool, target: Target) -> None:
        super().__init__(kernel, target)
        self.k = kernel
        line, windows, _ = kernel.parts_bytes
        scratch = self.e.scratch
        self.line = scratch.of(self.element)
        self.windows = scratch.at(line).of(self.element)
        self.counts = scratch.at(line + windows).of(self.element)
        self.first = kernel.margin - self.w.pad[2]  # of a row of v: tap 0 of result 0

    def emit(self) -> str:
        e, k = self.e, self.k
        x, y = e.pointer(0, self.element), e.pointer(1, self.element)
        self._clear()
        with k.each_group(e) as (low, high):
            with e.loop("group", high, start=low, step=k.rows_at_once) as group:
                rows = e.smin(high - group, k.rows_at_once)
                with e.loop("row", rows) as row:
                    self._down(x, group + row, self.line.at(row * k.pitch + k.margin))
                taps = self._across(rows * k.pitch)
                with e.loop("row", rows) as row:
                    self._results(taps, row * k.pitch + self.first, group + row, y)
        return e.finish()

    def _clear(self) -> None:
        """Fill the rows of v with what changes nothing, and count the columns of all means."""
        e, k, w = self.e, self.k, self.w
        nothing = start(e, k.dtype, k.average, self.kind)
        with e.loop("cell", k.rows_at_once * k.pitch, step=self.lanes) as cell:
            e.store(nothing, self.line.at(cell))
        if not k.average:
            return
        index = vector(INT32.llvm, self.lanes)
        lane = e.const(index, list(range(self.lanes)))
        with e.loop("column", ceil_div(w.out[2], self.lanes) * self.lanes, step=self.lanes) as o:
            columns = lane + e.splat(e.convert("trunc", o, INT32.llvm), self.lanes)
            e.store(self._count(2, columns, self.kind), self.counts.at(o))

    def _count(self, axis: int, o: Value, kind: str) -> Value:
        """Cells that windows count along an axis, at least one, as floats."""
        before, after = self.k.counted[axis]
        bounds = -before, self.w.size[axis] + after
        low, high = taps_within(self.e, self.w, axis, o, *bounds)
        return self.e.convert("sitofp", self.e.smax(high - low, 1), kind)

    # -- down -----------------------------------------------------------------------------------
    def _down(self, x: Pointer, row: Value, to: Pointer) -> None:
        """Write one row of v: the rows of taps of one row of results, joined."""
        e, w = self.e, self.w
        plane = self.plane(row)
        places = self.place(row, 0), self.place(row, 1)
        x = x.at(plane * prod(w.size))
        begins = [o * w.stride[axis] - w.pad[axis] for axis, o in enumerate(places)]
        bounds = [taps_within(e, w, axis, o, 0, w.size[axis]) for axis, o in enumerate(places)]
        taps = w.kernel[0] * w.kernel[1]
        if taps > _MOST_ROWS:
            self._some_rows(x, begins, bounds, to)
            return
        first = (begins[0] * w.size[1] + begins[1]) * w.size[2]
        if all(w.always_full(axis) for axis in (0, 1)):
            self._all_rows(x.at(first), to)
            return
        touched = [high - low for low, high in bounds]
        full = (touched[0] * touched[1]).compare("eq", taps)
        with e.when(full):
            self._all_rows(x.at(first), to)
        with e.when(full ^ 1):
            self._some_rows(x, begins, bounds, to)

    def _all_rows(self, x: Pointer, to: Pointer) -> None:
        e, k, w = self.e, self.k, self.w
        heights, widths = w.size[1:]
        deep, high = w.dilation[:2]
        for at, vectors, count in self._spans(w.size[2]):
            for v in range(vectors):
                here = at + v * self.lanes
                acc: Value | None = None
                for d, h in product(range(w.kernel[0]), range(w.kernel[1])):
                    row = x.at((d * deep * heights + h * high) * widths)
                    loaded = e.load_first(row.at(here), self.kind, count)
                    acc = loaded if acc is None else joined(e, k.dtype, k.average, acc, loaded)
                assert acc is not None, "a kernel has a tap"
                e.store_first(acc, to.at(here), count)

    def _some_rows(
        self,
        x: Pointer,
        begins: list[Value],
        bounds: list[tuple[Value, Value]],
        to: Pointer,
    ) -> None:
        """The rows of taps that the input has, possibly none."""
        e, k, w = self.e, self.k, self.w
        heights, widths = w.size[1:]
        nothing = start(e, k.dtype, k.average, self.kind)
        (d0, d1), (h0, h1) = bounds
        any_rows = d0.compare("slt", d1) & h0.compare("slt", h1)
        for at, vectors, count in self._spans(w.size[2]):
            acc: Carry = [nothing] * vectors
            with e.when(any_rows, [acc]), e.loop("d", d1, [acc], start=d0) as d:
                plane = (d * w.dilation[0] + begins[0]) * heights
                with e.loop("h", h1, [acc], start=h0) as h:
                    row = x.at((plane + h * w.dilation[1] + begins[1]) * widths + at)
                    for v in range(vectors):
                        loaded = e.load_first(row.at(v * self.lanes), self.kind, count)
                        acc[v] = joined(e, k.dtype, k.average, acc[v], loaded)
            for v in range(vectors):
                e.store_first(acc[v], to.at(at + v * self.lanes), count)

    def _spans(self, total: int) -> Iterator[tuple[Value, int, int]]:
        """Emit the body over a row: the first element, vectors, and elements of each.

        The last vectors may overlap those before; rows of less than a vector are stored in part.
        """
        e, lanes = self.e, self.lanes
        if total < lanes:
            yield e.i64(0), 1, total
            return
        vectors = _VECTORS if total >= _VECTORS * lanes else 1
        size = vectors * lanes
        with e.loop("span", ceil_div(total, size)) as span:
            yield e.smin(span * size, total - size), vectors, lanes

    # -- across ---------------------------------------------------------------------------------
    def _across(self, cells: Value) -> list[_Tap]:
        """Join windows of ever more columns; return what is joined for the results."""
        lengths, step = self.k.lengths, self.w.dilation[2]
        if len(lengths) == 1:
            return [(self.line, tap * step) for tap in range(lengths[0])]
        self._pass([(self.line, tap * step) for tap in range(lengths[0])], cells)
        for before, after in pairwise(lengths[:-1]):
            self._pass(self._halves(before, after), cells)
        return self._halves(*lengths[-2:])

    def _halves(self, before: int, after: int) -> list[_Tap]:
        """Windows of `before` columns that make one of `after`."""
        step = self.w.dilation[2]
        if not self.k.average:
            return [(self.windows, 0), (self.windows, (after - before) * step)]
        odd = [(self.line, 2 * before * step)] if after % 2 else []
        return [(self.windows, 0), (self.windows, before * step), *odd]

    def _pass(self, taps: list[_Tap], cells: Value) -> None:
        """Join at all elements of the rows; what lies behind is read later than it is written."""
        with self.e.loop("cell", cells, step=self.lanes) as cell:
            self.e.store(self._joined(taps, cell, self.kind), self.windows.at(cell))

    def _joined(self, taps: list[_Tap], at: Value, kind: str) -> Value:
        return self._reduced([self.e.load(row.at(at + tap), kind) for row, tap in taps])

    def _reduced(self, values: list[Value]) -> Value:
        """Join values, pair by pair where that is cheaper."""
        e, k = self.e, self.k
        acc = values[0]
        for number in range(1, len(values), 2):
            acc = joined(e, k.dtype, k.average, acc, *values[number : number + 2])
        return acc

    # -- results --------------------------------------------------------------------------------
    def _results(self, taps: list[_Tap], first: Value, row: Value, y: Pointer) -> None:
        """Write a row of results, whose windows begin at `first` of the rows of v."""
        e, k, w = self.e, self.k, self.w
        y = y.at(row * w.out[2])
        around = None
        if k.average:
            places = self.place(row, 0), self.place(row, 1)
            deep, high = (self._count(axis, o, self.element) for axis, o in enumerate(places))
            around = deep * high
        if w.stride[2] > _MOST_STRIDE:
            with e.loop("column", w.out[2]) as o:
                value = self._joined(taps, first + o * w.stride[2], self.element)
                e.store(self._mean(value, around, o), y.at(o))
            return
        for at, vectors, count in self._spans(w.out[2]):
            for v in range(vectors):
                o = at + v * self.lanes
                value = self._strided(taps, first + o * w.stride[2])
                e.store_first(self._mean(value, around, o), y.at(o), count)

    def _strided(self, taps: list[_Tap], at: Value) -> Value:
        """A vector of results: of wide loads every `stride`th element."""
        e, stride = self.e, self.w.stride[2]
        if stride == 1:
            return self._joined(taps, at, self.kind)
        wide = vector(self.element, stride * self.lanes)
        loaded: dict[tuple[str, int], Value] = {}
        found = []
        for row, tap in taps:
            group, phase = divmod(tap, stride)
            key = row.text, group
            if key not in loaded:
                loaded[key] = e.load(row.at(at + group * stride), wide)
            phases = range(phase, stride * self.lanes, stride)
            found.append(e.shuffle(loaded[key], None, phases))
        return self._reduced(found)

    def _mean(self, total: Value, around: Value | None, column: Value) -> Value:
        """Return the total, of a mean divided by the number of cells."""
        if around is None:
            return total
        e = self.e
        counts = e.load(self.counts.at(column), total.kind)
        lanes = self.lanes if total.kind == self.kind else 1
        return total / (counts * e.splat(around, lanes))
