"""Resample of two axes that follow each other: two banded products in one kernel.

    v[s, c] = sum over t < taps of the columns  of  weights[c, t] * x[o, s, first[c] + t]   columns
    y[o, r, c] = sum over t < taps of the rows  of  weights[r, t] * v[first[r] + t, c]      rows

and the other way round where rows become fewer. A chunk is a rectangle of the result. What lies
between the two products is in the scratch: the rows of v that the rectangle reads, or, where rows
come first, a few rows of it. Elements behind the two axes (`inner`) stay beside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.shuffles import power_below
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Extent
from leanconv.target import Target
from leanconv.types import DType

_LINES = 4  # that are done together: independent sums
_WRITTEN_OUT = 8  # taps; more are a loop
_BLOCK = 1024  # elements of a row of a rectangle: a row is 4 KiB of L1
_SOURCE_ROWS = 32  # of a rectangle, about: with their columns 128 KiB of L2
_MOST_ROWS = 128
ROUNDED = 16  # elements of a line of the scratch, rounded up: a multiple of all targets' lanes


@dataclass(frozen=True)
class Side:
    """One of the two axes.

    Attributes:
        extent, size: before and after.
        taps: cells that one of the result mixes.
        part: cells of the result in a rectangle.
        reach: most cells that a rectangle reads.
    """

    extent: Extent
    size: Extent
    taps: Extent
    part: Extent
    reach: Extent

    @property
    def parts(self) -> int:
        return ceil_div(self.size, self.part)


@dataclass(frozen=True)
class ResampleMaps(Kernel):
    """Windows of two axes.

    Attributes:
        dtype: of the elements.
        outer, inner: extents before the two axes and behind them.
        rows, columns: the axes.
        rows_first: whether rows are mixed before columns.
    """

    VARIES = True

    dtype: DType
    outer: Extent
    rows: Side
    columns: Side
    inner: Extent
    rows_first: bool

    @property
    def operands(self) -> tuple[str, ...]:
        """The input; of each axis first cells, weights, and what parts read; the result."""
        return ("x", *(f"{side}_{table}" for side in ("rows", "columns") for table in TABLES), "y")

    @property
    def grid(self) -> tuple[int, ...]:
        return self.outer, self.rows.parts, self.columns.parts

    @property
    def pitch(self) -> int:
        """Elements of a line of the scratch."""
        cells = self.columns.reach if self.rows_first else self.columns.part
        return ceil_div(cells * self.inner, ROUNDED) * ROUNDED

    @property
    def scratch_bytes(self) -> int:
        lines = _LINES if self.rows_first else self.rows.reach
        return aligned(lines * self.pitch * self.dtype.bytes)

    @property
    def flops(self) -> int:
        rows, columns = self.rows, self.columns
        across = rows.size if self.rows_first else rows.extent
        down = columns.extent if self.rows_first else columns.size
        mixed = across * columns.size * columns.taps + rows.size * down * rows.taps
        return 2 * self.outer * self.inner * mixed

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


TABLES = ("first", "weights", "reads")


def of_maps(
    dtype: DType,
    outer: int,
    inner: int,
    sizes: Sequence[tuple[int, int]],
    windows: Sequence[tuple[np.ndarray, np.ndarray]],
    rows_first: bool,
) -> tuple[ResampleMaps, dict[str, np.ndarray]]:
    """The kernel of two axes, and its tables by name.

    Args:
        dtype: of the elements.
        outer, inner: extents before the two axes and behind them.
        sizes: extents of rows and columns, each before and after.
        windows: of both, first cells (int64 of shape (size,)) and weights of shape (size, taps).
        rows_first: whether rows are mixed before columns.
    """
    rows = most_rows(sizes[0][1], sizes[0][0])
    sides: list[Side] = []
    tables: dict[str, np.ndarray] = {}
    for name, axis, (first, weights), most in zip(
        ("rows", "columns"), sizes, windows, (rows, max(1, _BLOCK // inner)), strict=True
    ):
        part, taps = int(min(axis[1], most)), weights.shape[1]
        reads, reach = reads_of(first, first + (taps - 1), part)
        sides.append(Side(*axis, taps, part, reach))
        found = (first, weights, reads)
        tables |= {f"{name}_{table}": a for table, a in zip(TABLES, found, strict=True)}
    return ResampleMaps(dtype, outer, sides[0], sides[1], inner, rows_first), tables


def most_rows(size: int, extent: int) -> int:
    """Rows of a rectangle, of an axis of `extent` rows before and `size` after."""
    return int(min(size, _MOST_ROWS, max(_LINES, _SOURCE_ROWS * size // extent)))


def reads_of(first: np.ndarray, last: np.ndarray, part: int) -> tuple[np.ndarray, int]:
    """Return the range of cells that each part of an axis reads.

    Args:
        first, last: the cells of each window.
        part: windows of a part.

    Returns:
        (reads, reach): for each part the first cell and how many, int64 of shape (parts, 2); and
        the most that one reads.
    """
    starts = np.arange(0, len(first), part)
    low = np.minimum.reduceat(first, starts)
    count = np.maximum.reduceat(last, starts) + 1 - low
    return np.stack([low, count], axis=1), int(count.max())


def lines_of(e: Function, count: Value) -> Iterator[tuple[Value, int]]:
    """Emit the body for a few lines at once, then for each that is left."""
    whole = count // _LINES
    with e.when(whole.compare("ne", 0)), e.loop("lines", whole) as group:
        yield group * _LINES, _LINES
    done = whole * _LINES
    with e.when(done.compare("ne", count)), e.loop("line", count, start=done) as line:
        yield line, 1


class _Nest:
    def __init__(self, kernel: ResampleMaps, target: Target) -> None:
        self.k, self.e = kernel, Function(kernel.NAME)
        element = kernel.dtype.llvm
        self.lanes = target.lanes(kernel.dtype)
        self.across = power_below(kernel.inner, self.lanes) if kernel.inner > 1 else 1
        kinds = {f"{side}_{table}": "i64" for side in ("rows", "columns") for table in TABLES[::2]}
        self.at = self.e.pointers(kernel.operands, element, **kinds)
        self.scratch = self.e.scratch.of(element)

    def emit(self) -> str:
        e, k = self.e, self.k
        with e.chunks(*k.grid) as (o, band, block):
            x = self.at["x"].at(o * (k.rows.extent * k.columns.extent * k.inner))
            y = self.at["y"].at(o * (k.rows.size * k.columns.size * k.inner))
            row, column = band * k.rows.part, block * k.columns.part
            rows = e.smin(row + k.rows.part, k.rows.size) - row
            columns = e.smin(column + k.columns.part, k.columns.size) - column
            y = y.at((row * k.columns.size + column) * k.inner)
            place = (row, rows, column, columns)
            read = (*self._reads("rows", band), *self._reads("columns", block))
            (self._rows_first if k.rows_first else self._columns_first)(x, y, place, read)
        return e.finish()

    def _reads(self, side: str, part: Value) -> tuple[Value, Value]:
        """First cell and count of what a part reads."""
        table = self.at[f"{side}_reads"].at(part * 2)
        return self.e.load_index(table), self.e.load_index(table.at(1))

    def _columns_first(
        self, x: Pointer, y: Pointer, place: tuple[Value, ...], read: tuple[Value, ...]
    ) -> None:
        """All rows that the rectangle reads into the scratch, then its rows one by one."""
        e, k = self.e, self.k
        (row, rows, column, columns), (begin, count, *_) = place, read
        width = k.columns.extent * k.inner
        for line, lines in lines_of(e, count):
            sources = [x.at((begin + line + u) * width) for u in range(lines)]
            results = [self.scratch.at((line + u) * k.pitch) for u in range(lines)]
            self._mix_columns(sources, results, column, columns)
        with e.loop("row", rows) as r:
            first = e.load_index(self.at["rows_first"].at(row + r)) - begin
            source, result = self.scratch.at(first * k.pitch), y.at(r * (k.columns.size * k.inner))
            self._mix_rows(source, k.pitch, result, row + r, columns * k.inner, inside=True)

    def _rows_first(
        self, x: Pointer, y: Pointer, place: tuple[Value, ...], read: tuple[Value, ...]
    ) -> None:
        """A few rows of the rectangle, as wide as their columns read, in the scratch at a time."""
        e, k = self.e, self.k
        (row, rows, column, columns), (*_, begin, count) = place, read
        width = k.columns.extent * k.inner
        for line, lines in lines_of(e, rows):
            between = [self.scratch.at(u * k.pitch) for u in range(lines)]
            for u, result in enumerate(between):
                at = row + line + u
                first = e.load_index(self.at["rows_first"].at(at))
                source = x.at(first * width + begin * k.inner)
                self._mix_rows(source, width, result, at, count * k.inner, inside=False)
            results = [y.at((line + u) * (k.columns.size * k.inner)) for u in range(lines)]
            self._mix_columns(between, results, column, columns, begin)

    # -- rows -----------------------------------------------------------------------------------
    def _mix_rows(
        self, x: Pointer, stride: int, y: Pointer, row: Value, count: Value, inside: bool
    ) -> None:
        """Mix rows `stride` apart to one; `inside` the scratch, whole vectors may be read."""
        e, taps = self.e, self.k.rows.taps
        weights, kind = self.at["rows_weights"].at(row * taps), self._kind(self.lanes)
        whole = count // self.lanes
        with e.when(whole.compare("ne", 0)), e.loop("vector", whole) as v:
            at = v * self.lanes

            def tap(t: Value | int, total: list[Value]) -> None:
                loaded = e.load(x.at(e.i64(t) * stride + at), kind)
                total[0] = e.fma(loaded, e.broadcast(weights.at(t), kind), total[0])

            e.store(self._sums(taps, kind, 1, tap)[0], y.at(at))
        at, left = whole * self.lanes, count - whole * self.lanes
        with e.when(left.compare("ne", 0)):

            def tail(t: Value | int, total: list[Value]) -> None:
                source = x.at(e.i64(t) * stride + at)
                loaded = e.load(source, kind) if inside else e.load_first(source, kind, left)
                total[0] = e.fma(loaded, e.broadcast(weights.at(t), kind), total[0])

            e.store_first(self._sums(taps, kind, 1, tail)[0], y.at(at), left)

    # -- columns --------------------------------------------------------------------------------
    def _mix_columns(
        self,
        sources: list[Pointer],
        results: list[Pointer],
        column: Value,
        columns: Value,
        begin: Value | int = 0,
    ) -> None:
        """Mix the columns of some lines, which begin with the cell `begin` of the axis."""
        e, inner, taps = self.e, self.k.inner, self.k.columns.taps
        firsts = self.at["columns_first"].at(column)
        weights = self.at["columns_weights"].at(column * taps)
        with e.loop("column", columns) as c:
            first = (e.load_index(firsts.at(c)) - begin) * inner
            own = weights.at(c * taps)
            for at, lanes in self._inside():
                self._mix_cells(sources, results, first + at, c * inner + at, own, lanes)

    def _mix_cells(
        self,
        sources: list[Pointer],
        results: list[Pointer],
        place: Value,
        to: Value,
        weights: Pointer,
        lanes: int,
    ) -> None:
        """Mix the cells from `place` on to one, whose elements are `lanes` or are as many."""
        e, k, kind = self.e, self.k, self._kind(lanes)

        def tap(t: Value | int, total: list[Value]) -> None:
            weight, at = e.broadcast(weights.at(t), kind), place + e.i64(t) * k.inner
            for u, source in enumerate(sources):
                total[u] = e.fma(e.load(source.at(at), kind), weight, total[u])

        sums = self._sums(k.columns.taps, kind, len(sources), tap)
        for result, value in zip(results, sums, strict=True):
            e.store(value, result.at(to))

    def _inside(self) -> Iterator[tuple[Value, int]]:
        """Emit the body for the elements of a cell; the last vector overlaps the one before."""
        e, inner, lanes = self.e, self.k.inner, self.across
        if inner == 1:
            yield e.i64(0), 1
            return
        vectors = ceil_div(inner, lanes)
        with e.loop("inner", vectors) as v:
            yield e.smin(v * lanes, inner - lanes), lanes

    def _kind(self, lanes: int) -> str:
        return vector(self.k.dtype.llvm, lanes)

    def _sums(
        self, taps: int, kind: str, count: int, tap: Callable[[Value | int, list[Value]], None]
    ) -> list[Value]:
        """Sums over taps, to which `tap` adds one."""
        total = [self.e.zero(kind) for _ in range(count)]
        if taps <= _WRITTEN_OUT:
            for t in range(taps):
                tap(t, total)
        else:
            with self.e.loop("tap", taps, [total]) as number:
                tap(number, total)
        return total
