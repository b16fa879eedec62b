"""The kernel of MatMul and Gemm: a batch of products of row-major matrices.

    for panel of columns:   pack   panel[k, 0 … vectors·lanes) = b[k, columns]      contiguous
      for tile of rows:     acc[i][j] += broadcast(a[i, k]) * panel[k, j]           micro-kernel

Lanes run along the columns of the result. Packing puts the panel's rows, which a power of two of
columns would crowd into a few cache sets, side by side; it also transposes. The last tile of rows
overlaps the one before it, or is one of half as many rows, or of half of those … : one code for
all numbers of rows. So does the last vector of columns where these are an extent; where they are
constants of the code it is filled up, and stored under a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Carry, Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, multiply_accumulate
from leanconv.codegen.shuffles import transpose_rectangle
from leanconv.codegen.tails import tile_at
from leanconv.codegen.tiling import Tile
from leanconv.kernels.copy import cover
from leanconv.kernels.copy_plan import row_major
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count, Extent, Extents
from leanconv.target import Target
from leanconv.types import DType

_ROWS_AHEAD = 8  # of weights that are read in place, from the one that is used to a prefetched one
_IN_L2 = 2


@dataclass(frozen=True)
class Matrix:
    """Strides of an operand in elements: along its rows, its columns, and every batch axis."""

    row: Extent
    column: Extent
    batch: Extents = ()


@dataclass(frozen=True)
class FixedRows(Matrix):
    """A matrix whose stride along its rows is a constant of the code."""

    row: int


@dataclass(frozen=True)
class MatMul(Kernel):
    """A batch of matrix products.

    Attributes:
        dtype: of the elements.
        lanes: elements of a vector.
        m, n, k: rows and columns of the result, length of the sums.
        batch: extents of the batch axes.
        tile: rows and vectors of a register tile, no more than the result has.
        tiles: register tiles of `tile.rows` rows that one chunk does for one panel.
        a, b: strides of the operands.
        alpha, beta: factors of the product and of `c`.
        c: strides of the added matrix, if there is one; they may be zero.
    """

    VARIES = True

    dtype: DType
    lanes: int
    m: Extent
    n: Extent
    k: Extent
    batch: Extents
    tile: Tile
    tiles: Count
    a: Matrix
    b: Matrix
    alpha: float = 1.0
    beta: float = 1.0
    c: Matrix | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        return ("a", "b", "c", "y") if self.c else ("a", "b", "y")

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.tile.vectors * self.lanes

    @property
    def row_tiles(self) -> int:
        """Tiles of `tile.rows` rows: the last one may overlap, and less than a half may remain."""
        return ceil_div(self.m - self.tile.rows // 2, self.tile.rows)

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks: batches, groups of rows, panels of columns."""
        groups = ceil_div(self.row_tiles, self.tiles)
        return (*self.batch, groups, ceil_div(self.n, self.width))

    @property
    def scratch_bytes(self) -> int:
        """A panel of `b`."""
        return self.k * self.width * self.dtype.bytes

    @property
    def flops(self) -> int:
        return 2 * prod(self.batch) * self.m * self.n * self.k

    def emit(self, target: Target) -> str:
        return ProductOfActivations(self, target).emit()


@dataclass(frozen=True)
class InPlaceMatMul(MatMul):
    """A batch of products of so few rows that one tile has them all: `b` is read where it lies.

    Its rows are contiguous. Results are those of `MatMul`, bit by bit.
    """

    @property
    def scratch_bytes(self) -> int:
        return 0

    def emit(self, target: Target) -> str:
        return _InPlace(self, target).emit()


@dataclass(frozen=True)
class PackedMatMul(MatMul):
    """A batch of matrix products whose `b` is (batch, panel, k, vectors * lanes) already."""

    n: int
    k: int
    a: FixedRows

    @property
    def scratch_bytes(self) -> int:
        return 0

    def emit(self, target: Target) -> str:
        return OfPanels(self, target).emit()


@dataclass(frozen=True)
class Columns:
    """Columns of the result that one panel makes.

    Attributes:
        first: the first one.
        offsets: from the first one to those where each vector begins.
        lanes: columns of the last vector, all others being whole.
    """

    first: Value
    offsets: tuple[Value | int, ...]
    lanes: int


class _Emission:
    """Emits one kernel, or a product within one.

    Args:
        kernel, target: the product, and the machine.
        e: the function of the kernel that it is a part of.
        result_row: elements from a row of the result to the next, if others than its columns.
    """

    def __init__(
        self,
        kernel: MatMul,
        target: Target,
        e: Function | None = None,
        result_row: Extent | None = None,
    ) -> None:
        self.kernel, self.target, self.e = kernel, target, e or Function(kernel.NAME)
        self.element = kernel.dtype.llvm
        self.kind = vector(self.element, kernel.lanes)
        self.result_row = kernel.n if result_row is None else result_row

    def emit(self) -> str:
        e, kernel = self.e, self.kernel
        a, b, *c, y = e.pointers(kernel.operands, self.element).values()
        y_batch = row_major((*kernel.batch, kernel.m * kernel.n))[:-1]
        with e.chunks(*kernel.grid) as (*batch, group, panel):
            a = self._shift(a, batch, kernel.a.batch)
            b = self._shift(b, batch, kernel.b.batch)
            y = self._shift(y, batch, y_batch)
            for columns in self._cases(panel):
                packed = self._panel(b, panel, columns)
                self._rows(a, packed, c, y, columns, group)
        return e.finish()

    def _shift(self, pointer: Pointer, batch: list[Value], strides: tuple[int, ...]) -> Pointer:
        for index, stride in zip(batch, strides, strict=True):
            if stride:
                pointer = pointer.at(index * stride)
        return pointer

    def _cases(self, panel: Value) -> Iterator[Columns]:
        """Whole panels and the last one, each under its condition."""
        raise NotImplementedError

    def _panel(self, b: Pointer, panel: Value, columns: Columns) -> Pointer:
        """Address of the packed panel (k, vectors * lanes)."""
        raise NotImplementedError

    # -- tiles ---------------------------------------------------------------------------------
    def _rows(
        self,
        a: Pointer,
        panel: Pointer,
        c: list[Pointer],
        y: Pointer,
        columns: Columns,
        group: Value,
    ) -> None:
        e, kernel = self.e, self.kernel
        rows, tiles = kernel.tile.rows, kernel.row_tiles
        start = group * kernel.tiles
        with e.loop("tile", e.smin(start + kernel.tiles, tiles), start=start) as tile:
            row = e.smin(tile * rows, kernel.m - rows)
            self._tile(a, panel, c, y, row, rows, columns)
        if rows > 1:
            with e.when(group.compare("eq", kernel.grid[-2] - 1)):
                left = e.i64(kernel.m - tiles * rows)  # below one: nothing
                while rows > 1:
                    rows //= 2
                    with e.when((left - (rows // 2 + 1)).compare("ult", rows - rows // 2)):
                        row = e.i64(kernel.m - rows)
                        self._tile(a, panel, c, y, row, rows, columns)

    def _tile(
        self,
        a: Pointer,
        panel: Pointer,
        c: list[Pointer],
        y: Pointer,
        row: Value,
        rows: int,
        columns: Columns,
    ) -> None:
        e, kernel = self.e, self.kernel
        vectors = len(columns.offsets)
        acc = [e.zero(self.kind)] * (rows * vectors)
        self._sums(acc, a.at(row * kernel.a.row), panel, rows, columns)
        corner = y.at(row * self.result_row).at(columns.first)
        for i in range(rows):
            for j, offset in enumerate(columns.offsets):
                lanes = columns.lanes if j == vectors - 1 else kernel.lanes
                value = acc[i * vectors + j]
                if kernel.alpha != 1:
                    value = value * kernel.alpha
                if kernel.c:
                    value = self._add(value, c[0], kernel.c, row + i, columns.first + offset, lanes)
                to = corner.at(i * self.result_row).at(offset)
                e.store_first(value, to, lanes)

    def _sums(self, acc: Carry, a: Pointer, panel: Pointer, rows: int, columns: Columns) -> None:
        """Add the products of a tile to its sums, those of a row side by side."""
        kernel = self.kernel
        tile = RegisterTile(
            fma(kernel.dtype),
            kernel.lanes,
            len(columns.offsets),
            kernel.a.row,
            row_offsets=self._row_offsets(rows),
        )
        loops = [ReductionLoop("k", kernel.k, kernel.a.column, kernel.width)]
        multiply_accumulate(self.e, tile, acc, range(rows), a, panel, loops)

    def _row_offsets(self, rows: int) -> tuple[Value | int, ...]:
        """Return offsets of a tile's rows from its first; () if the stride is a constant."""
        stride = self.kernel.a.row
        if isinstance(stride, int):
            return ()
        return (0, *(self.e.frozen(stride * i) for i in range(1, rows)))

    def _add(
        self, value: Value, c: Pointer, where: Matrix, row: Value, column: Value, lanes: int
    ) -> Value:
        e, beta = self.e, self.kernel.beta
        if where.row:
            c = c.at(row * where.row)
        if where.column:
            assert where.column == 1, "columns are contiguous or one is broadcast"
            added = e.load_first(c.at(column), self.kind, lanes)
        else:
            added = e.broadcast(c, self.kind)
        return value + added if beta == 1 else e.fma(added, e.const(self.kind, beta), value)


class OfPanels(_Emission):
    """Emits a product with constant, packed panels: columns are constants of the code."""

    def _cases(self, panel: Value) -> Iterator[Columns]:
        kernel = self.kernel
        for columns in tile_at(self.e, panel, kernel.n, kernel.width):
            offsets = tuple(range(0, columns, kernel.lanes))
            yield Columns(panel * kernel.width, offsets, columns - offsets[-1])

    def _panel(self, b: Pointer, panel: Value, columns: Columns) -> Pointer:
        del columns
        return b.at(panel * (self.kernel.k * self.kernel.width))


class ProductOfActivations(_Emission):
    """Emits a product of two matrices of any extents: each chunk packs its panel."""

    def all_rows(
        self, a: Pointer, b: Pointer, c: list[Pointer], y: Pointer, packed: Pointer | None
    ) -> None:
        """Emit the whole product within a chunk of another kernel; `kernel.tiles` are all tiles.

        Args:
            a, b, c, y: where the operands and the result begin.
            packed: room for a panel of `b`; None where `b` is one panel as it lies.
        """
        kernel = self.kernel
        count = 1 if packed is None else ceil_div(kernel.n, kernel.width)
        with self.e.loop("panel", count) as panel:
            for columns in self._cases(panel):
                held = b if packed is None else self._packed(b, packed, columns)
                self._rows(a, held, c, y, columns, self.e.i64(0))

    def _cases(self, panel: Value) -> Iterator[Columns]:
        e, kernel = self.e, self.kernel
        first, lanes = panel * kernel.width, kernel.lanes
        if kernel.n < lanes:
            yield Columns(first, (0,), self.target.lanes_of_tail(kernel.n))
            return
        most = kernel.tile.vectors
        left = ceil_div(kernel.n, lanes) - panel * most
        for vectors in range(1, most + 1):
            with e.when(left.compare("eq" if vectors < most else "uge", vectors)):
                whole = range(0, (vectors - 1) * lanes, lanes)
                last = e.smin(first + (vectors - 1) * lanes, kernel.n - lanes)
                yield Columns(first, (*whole, last - first), lanes)

    def _panel(self, b: Pointer, panel: Value, columns: Columns) -> Pointer:
        del panel
        return self._packed(b, self.e.scratch.of(self.element), columns)

    def _packed(self, b: Pointer, panels: Pointer, columns: Columns) -> Pointer:
        e, kernel = self.e, self.kernel
        if kernel.b.column == 1:
            source = b.at(columns.first)
            with e.loop("k", kernel.k) as k:
                row = source.at(k * kernel.b.row)
                to = panels.at(k * kernel.width)
                for j, offset in enumerate(columns.offsets):
                    loaded = e.load_first(row.at(offset), self.kind, columns.lanes)
                    e.store(loaded, to.at(j * kernel.lanes))
            return panels
        assert kernel.b.row == 1, "one of the strides is one"
        for j, offset in enumerate(columns.offsets):
            column = columns.first + offset
            source = b.at(column * kernel.b.column)
            packed = panels.at(j * kernel.lanes)
            self._pack_columns(source, packed, int(columns.lanes))
        return panels

    def _pack_columns(self, source: Pointer, packed: Pointer, count: int) -> None:
        """Transpose `count` columns, contiguous along k, into one vector per k."""
        e, kernel = self.e, self.kernel

        def square(k: Value | int, width: int) -> None:
            kind = vector(self.element, width)
            here = source.at(k)
            columns = [e.load(here.at(j * kernel.b.column), kind) for j in range(count)]
            columns += [e.zero(kind)] * (kernel.lanes - count)
            to = packed.at(k * kernel.width)
            for i, row in enumerate(transpose_rectangle(e, columns, width)):
                e.store(row, to.at(i * kernel.width))

        cover(e, kernel.k, kernel.lanes, square, unroll=1)


class _InPlace(ProductOfActivations):
    """Emits a product whose weights are read once: they are prefetched, as their rows lie apart."""

    def _panel(self, b: Pointer, panel: Value, columns: Columns) -> Pointer:
        del panel
        return b.at(columns.first)

    def _sums(self, acc: Carry, a: Pointer, panel: Pointer, rows: int, columns: Columns) -> None:
        e, kernel, vectors = self.e, self.kernel, len(columns.offsets)
        to_rows = self._row_offsets(rows) or [i * kernel.a.row for i in range(rows)]
        lanes = [*(kernel.lanes for _ in range(vectors - 1)), columns.lanes]
        with e.loop("k", kernel.k, [acc]) as k:
            here, row = a.at(k * kernel.a.column), panel.at(k * kernel.b.row)
            ahead = row.at(_ROWS_AHEAD * kernel.b.row)
            of_b = []
            for offset, live in zip(columns.offsets, lanes, strict=True):
                of_b.append(e.load_first(row.at(offset), self.kind, live))
                e.prefetch(ahead.at(offset), locality=_IN_L2)
            for i, to_row in enumerate(to_rows):
                x = e.broadcast(here.at(to_row), self.kind)
                for j, weights in enumerate(of_b):
                    acc[i * vectors + j] = e.fma(x, weights, acc[i * vectors + j])
