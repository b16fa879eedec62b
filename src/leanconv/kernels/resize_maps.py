"""Linear Resize of plain maps: lanes along columns.

    y[o, r, c] = x[o, a, i] * (u[c] * p[r]) + x[o, a, j] * (v[c] * p[r])        a, b: cells of r
               + x[o, b, i] * (u[c] * q[r]) + x[o, b, j] * (v[c] * q[r])        i, j: cells of c

Each product is rounded before it is added, in this order, as `resize` does. A chunk is a rectangle
of the result: the rows of x that it reads are written to the scratch, once as the cells i of all
its columns and once as the cells j; then each of its rows is a loop over whole vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.kernels.resample_maps import ROUNDED, Side, lines_of, most_rows, reads_of
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Extent
from leanconv.target import Target
from leanconv.types import DType

_BLOCK = 512  # columns of a rectangle
_CELLS = ("rows", "reads", "columns")  # operands of positions
_WEIGHTS = ("row_weights", "column_weights")


@dataclass(frozen=True)
class ResizeMaps(Kernel):
    """Linear interpolation between cells of two axes, the last ones.

    Attributes:
        dtype: of the elements.
        outer: extents before the two axes.
        rows, columns: the axes; `taps` are the two cells.
    """

    VARIES = True

    dtype: DType
    outer: Extent
    rows: Side
    columns: Side

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", *_CELLS, *_WEIGHTS, "y")

    @property
    def grid(self) -> tuple[int, ...]:
        return self.outer, self.rows.parts, self.columns.parts

    @property
    def pitch(self) -> int:
        """Elements of one line of the scratch; a row of x has two."""
        return ceil_div(self.columns.part, ROUNDED) * ROUNDED

    @property
    def scratch_bytes(self) -> int:
        return aligned(2 * self.rows.reach * self.pitch * self.dtype.bytes)

    @property
    def flops(self) -> int:
        return 8 * self.outer * self.rows.size * self.columns.size

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


class _Nest:
    def __init__(self, kernel: ResizeMaps, target: Target) -> None:
        self.k, self.e = kernel, Function(kernel.NAME)
        self.lanes, element = target.lanes(kernel.dtype), kernel.dtype.llvm
        self.kind = vector(element, self.lanes)
        self.at = self.e.pointers(kernel.operands, element, **dict.fromkeys(_CELLS, "i64"))
        self.scratch = self.e.scratch.of(element)

    def emit(self) -> str:
        e, k = self.e, self.k
        high, wide = k.rows, k.columns
        with e.chunks(*k.grid) as (o, band, block):
            row, column = band * high.part, block * wide.part
            rows = e.smin(row + high.part, high.size) - row
            columns = e.smin(column + wide.part, wide.size) - column
            reads = self.at["reads"].at(band * 2)
            begin, count = e.load_index(reads), e.load_index(reads.at(1))
            x = self.at["x"].at((o * high.extent + begin) * wide.extent)
            for line, lines in lines_of(e, count):
                self._spread(x, line, lines, column, columns)
            with e.loop("row", rows) as r:
                y = self.at["y"].at((o * high.size + row + r) * wide.size + column)
                self._mix(y, row + r, begin, column, columns)
        return e.finish()

    def _spread(self, x: Pointer, line: Value, lines: int, column: Value, columns: Value) -> None:
        """Some rows of x as the two cells of each column, in the scratch."""
        e, k = self.e, self.k
        sources = [x.at((line + u) * k.columns.extent) for u in range(lines)]
        results = [self.scratch.at((line + u) * (2 * k.pitch)) for u in range(lines)]
        cells = self.at["columns"].at(column * 2)
        with e.loop("column", columns) as c:
            for side in range(2):
                cell = e.load_index(cells.at(c * 2 + side))
                for source, result in zip(sources, results, strict=True):
                    e.store(e.load(source.at(cell)), result.at(c + side * k.pitch))

    def _mix(self, y: Pointer, row: Value, begin: Value, column: Value, columns: Value) -> None:
        """A row of the rectangle: two rows of the scratch, each with two cells a column."""
        e, k, kind = self.e, self.k, self.kind
        taps = [row * 2 + side for side in range(2)]
        cells = [e.load_index(self.at["rows"].at(tap)) - begin for tap in taps]
        sources = [self.scratch.at(cell * (2 * k.pitch)) for cell in cells]
        shares = [e.broadcast(self.at["row_weights"].at(tap), kind) for tap in taps]
        own = self.at["column_weights"].at(column)

        def mixed(at: Value, count: Value | int) -> Value:
            weights = [
                e.load_first(own.at(at + side * k.columns.size), kind, count) for side in range(2)
            ]
            parts = [
                e.load(source.at(at + side * k.pitch), kind) * (weight * share)
                for source, share in zip(sources, shares, strict=True)
                for side, weight in enumerate(weights)
            ]
            return parts[0] + parts[1] + parts[2] + parts[3]

        whole = columns // self.lanes
        with e.when(whole.compare("ne", 0)), e.loop("vector", whole) as v:
            e.store(mixed(v * self.lanes, self.lanes), y.at(v * self.lanes))
        at, left = whole * self.lanes, columns - whole * self.lanes
        with e.when(left.compare("ne", 0)):
            e.store_first(mixed(at, left), y.at(at), left)


def of_linear(
    dtype: DType,
    outer: int,
    extents: Sequence[int],
    rows: tuple[np.ndarray, np.ndarray],
    columns: tuple[np.ndarray, np.ndarray],
) -> tuple[ResizeMaps, dict[str, np.ndarray]]:
    """The kernel of maps, and its tables by operand.

    Args:
        dtype: of the elements.
        outer: how many maps.
        extents: of rows and columns, before.
        rows, columns: cells (int64) and weights, both of shape (size, 2).
    """
    (high, wide), (cells, shares) = extents, rows
    part = most_rows(len(cells), high)
    reads, reach = reads_of(cells[:, 0], cells[:, 1], part)
    size = len(columns[0])
    sides = (Side(high, len(cells), 2, part, reach), Side(wide, size, 2, min(size, _BLOCK), wide))
    tables = {"rows": cells, "reads": reads, "columns": columns[0]}
    weights = (shares, np.ascontiguousarray(columns[1].T))
    tables |= {n: w.astype(dtype) for n, w in zip(_WEIGHTS, weights, strict=True)}
    return ResizeMaps(dtype, outer, *sides), tables
