"""MatMul and Gemm of row-major matrices, with batches.

    y[b, i, j] = alpha * sum_k a[b, i, k] * b[b, k, j] + beta * c[i, j]

    for panel of columns:   pack   panel[k, 0 … vectors·lanes) = b[k, columns]      contiguous
      for tile of rows:     acc[i][j] += broadcast(a[i, k]) * panel[k, j]           micro-kernel

Lanes run along the columns of the result. Packing puts the panel's rows, which a power of two of
columns would crowd into a few cache sets, side by side; it also transposes and fills the last
vector up. A constant `b` is packed before the first run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, multiply_accumulate
from leanconv.codegen.tails import each_tile
from leanconv.codegen.tiling import Tile, rank_tiles
from leanconv.codegen.types import ELEMENT
from leanconv.codegen.values import Predicate
from leanconv.dtypes import ITEMSIZE
from leanconv.graph.ir import Graph, Node
from leanconv.kernels.copy import cover
from leanconv.kernels.copy_plan import row_major
from leanconv.kernels.register_transpose import transpose
from leanconv.spec.format import Format, ceil_div
from leanconv.target import Target

OPS = ("MatMul", "Gemm")

_CHUNK_FLOPS = 4 << 20  # 15 to 40 us
_GROUP_BYTES = 256 * 1024  # rows of `a` that stay in L2 beside a panel
_LEAST_TILES = 4  # so that packing a panel pays
# Rows of `a` this far apart share one set of L1: 14 of them ran at a third of the speed of 6.
_ALIAS_BYTES, _ALIASED_ROWS = 4096, 6


class Matrix(NamedTuple):
    """Strides of an operand in elements: along its rows, its columns, and every batch axis."""

    row: int
    column: int
    batch: tuple[int, ...] = ()


@dataclass(frozen=True)
class MatMul(Kernel):
    """A batch of matrix products.

    Attributes:
        dtype: NumPy's name.
        lanes: elements of a vector.
        m, n, k: rows and columns of the result, length of the sums.
        batch: extents of the batch axes.
        tile: rows and vectors of a register tile.
        tiles: whole register tiles of rows that one chunk does for one panel.
        a, b: strides of the operands.
        packed: `b` is (batch, panel, k, vectors * lanes) already.
        alpha, beta: factors of the product and of `c`.
        c: strides of the added matrix, if there is one; they may be zero.
    """

    dtype: str
    lanes: int
    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    tile: Tile
    tiles: int
    a: Matrix
    b: Matrix
    packed: bool
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
    def grid(self) -> tuple[int, ...]:
        """Chunks: batches, groups of rows, panels of columns."""
        groups = ceil_div(self.m // self.tile.rows, self.tiles)
        return (*self.batch, groups, ceil_div(self.n, self.width))

    @property
    def chunks(self) -> int:
        return prod(self.grid)

    @property
    def scratch_bytes(self) -> int:
        return 0 if self.packed else self.k * self.width * ITEMSIZE[self.dtype]

    @property
    def flops(self) -> int:
        return 2 * prod(self.batch) * self.m * self.n * self.k

    def emit(self, target: Target) -> str:
        del target  # the tile and the lanes are chosen
        return _Emission(self).emit()


class _Emission:
    """Emits one kernel."""

    def __init__(self, kernel: MatMul) -> None:
        self.kernel, self.e = kernel, Function(kernel.NAME)
        self.element = ELEMENT[kernel.dtype]
        self.kind = vector(self.element, kernel.lanes)

    def emit(self) -> str:
        """The whole kernel."""
        e, kernel = self.e, self.kernel
        a, b, *c, y = (e.pointer(i) for i in range(len(kernel.operands)))
        y_batch = row_major((*kernel.batch, kernel.m * kernel.n))[:-1]
        with e.chunks(*kernel.grid) as (*batch, group, panel):
            a = self._shift(a, batch, kernel.a.batch)
            b = self._shift(b, batch, kernel.b.batch)
            y = self._shift(y, batch, y_batch)
            whole, rest = divmod(kernel.n, kernel.width)
            cases: list[tuple[int, Predicate]]
            cases = [(kernel.width * bool(whole), "ult"), (rest, "uge")]
            for columns, how in cases:
                if not columns:
                    continue
                with e.when(panel.compare(how, whole)):
                    first = panel * kernel.width
                    self._columns(a, self._pack(b, panel, columns), c, y, first, columns, group)
        return e.finish()

    def _shift(self, pointer: Value, batch: list[Value], strides: tuple[int, ...]) -> Value:
        for index, stride in zip(batch, strides, strict=True):
            if stride:
                pointer = pointer.at(index * stride, self.element)
        return pointer

    # -- the panel of b ------------------------------------------------------------------------
    def _pack(self, b: Value, panel: Value, columns: int) -> Value:
        """Address of the panel (k, vectors * lanes), copied to the scratch if not packed."""
        e, kernel = self.e, self.kernel
        if kernel.packed:
            return b.at(panel * (kernel.k * kernel.width), self.element)
        source = b.at(panel * (kernel.width * kernel.b.column), self.element)
        if kernel.b.column == 1:
            with e.loop("k", kernel.k) as k:
                row = source.at(k * kernel.b.row, self.element)
                to = e.scratch.at(k * kernel.width, self.element)
                for j in range(0, columns, kernel.lanes):
                    loaded = e.load_first(row.at(j, self.element), self.kind, columns - j)
                    e.store(loaded, to.at(j, self.element))
            return e.scratch
        assert kernel.b.row == 1, "one of the strides is one"
        for index, count in each_tile(e, "vector", columns, kernel.lanes):
            self._pack_columns(source, e.i64(index * kernel.lanes), count)
        return e.scratch

    def _pack_columns(self, source: Value, first: Value, count: int) -> None:
        """Transpose `count` columns, contiguous along k, into one vector per k."""
        e, kernel = self.e, self.kernel
        source = source.at(first * kernel.b.column, self.element)
        packed = e.scratch.at(first, self.element)

        def square(k: Value | int, width: int) -> None:
            kind = vector(self.element, width)
            here = source.at(k, self.element)
            columns = [
                e.load(here.at(j * kernel.b.column, self.element), kind) for j in range(count)
            ]
            columns += [e.zero(kind)] * (kernel.lanes - count)
            to = packed.at(k * kernel.width, self.element)
            for i, row in enumerate(transpose(e, columns, width)):
                e.store(row, to.at(i * kernel.width, self.element))

        cover(e, kernel.k, kernel.lanes, square, unroll=1)

    # -- tiles ---------------------------------------------------------------------------------
    def _columns(
        self,
        a: Value,
        panel: Value,
        c: list[Value],
        y: Value,
        first: Value,
        columns: int,
        group: Value,
    ) -> None:
        """All rows of a chunk for one panel."""
        e, kernel = self.e, self.kernel
        rows, last_group = kernel.tile.rows, kernel.grid[-2] - 1
        whole, rest = divmod(kernel.m, rows)
        start = group * kernel.tiles
        with e.loop("tile", e.smin(start + kernel.tiles, whole), start=start) as tile:
            self._tile(a, panel, c, y, tile * rows, rows, first, columns)
        if rest:
            with e.when(group.compare("eq", last_group)):
                row = e.const("i64", whole * rows)
                self._tile(a, panel, c, y, row, rest, first, columns)

    def _tile(
        self,
        a: Value,
        panel: Value,
        c: list[Value],
        y: Value,
        row: Value,
        rows: int,
        first: Value,
        columns: int,
    ) -> None:
        """One register tile."""
        e, kernel = self.e, self.kernel
        vectors = ceil_div(columns, kernel.lanes)
        acc = [e.zero(self.kind)] * (rows * vectors)
        tile = RegisterTile(self.element, self.kind, kernel.lanes, vectors, kernel.a.row)
        loops = [ReductionLoop("k", kernel.k, kernel.a.column, kernel.width)]
        a = a.at(row * kernel.a.row, self.element)
        multiply_accumulate(e, tile, acc, range(rows), a, panel, loops)
        corner = y.at(row * kernel.n, self.element).at(first, self.element)
        for i in range(rows):
            for j in range(vectors):
                lanes = min(kernel.lanes, columns - j * kernel.lanes)
                value = acc[i * vectors + j]
                if kernel.alpha != 1:
                    value = value * kernel.alpha
                if kernel.c:
                    value = self._add(
                        value, c[0], kernel.c, row + i, first + j * kernel.lanes, lanes
                    )
                to = corner.at(i * kernel.n + j * kernel.lanes, self.element)
                e.store_first(value, to, lanes)

    def _add(
        self, value: Value, c: Value, where: Matrix, row: Value, column: Value, lanes: int
    ) -> Value:
        """Add beta * c."""
        e, beta = self.e, self.kernel.beta
        if where.row:
            c = c.at(row * where.row, self.element)
        if where.column:
            assert where.column == 1, "columns are contiguous or one is broadcast"
            added = e.load_first(c.at(column, self.element), self.kind, lanes)
        else:
            added = e.broadcast(c, self.kind)
        return value + added if beta == 1 else e.fma(added, e.const(self.kind, beta), value)


# -- lowering ----------------------------------------------------------------------------------
def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Never: matrices are plain."""
    del node, graph, block
    return False


class _Problem(NamedTuple):
    """A product before tiles are chosen."""

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a: Matrix
    b: Matrix
    c: Matrix | None


def lower(node: Node, graph: Graph, formats: Mapping[str, Format], target: Target) -> Lowered:
    """One kernel; a constant right side is packed into panels here."""
    del formats
    shapes = [graph.types[name].shape if name else () for name in node.inputs]
    problem = _gemm(node, shapes) if node.op == "Gemm" else _matmul(shapes[0], shapes[1])
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if problem.n == 1 and problem.m > 1:
        # One column would fill one lane of a vector: compute the transposed product.
        problem, a, b = _flip(problem), b, a
    kernel = _kernel(problem, graph.types[y].dtype, b in graph.constants, target)
    if node.op == "Gemm":
        alpha, beta = float(node.attributes["alpha"]), float(node.attributes["beta"])
        kernel = replace(kernel, alpha=alpha, beta=beta if kernel.c else 1.0)
    constants: dict[str, np.ndarray] = {}
    if kernel.packed:
        constants[f"{y}.panels"] = _panels(graph.constants[b], kernel, problem.b)
        b = f"{y}.panels"
    operands = (a, b, node.inputs[2], y) if kernel.c else (a, b, y)
    return Lowered((Call(kernel, operands),), constants, {}, "matmul")


def _gemm(node: Node, shapes: list[tuple[int, ...]]) -> _Problem:
    a = Matrix(1, shapes[0][1]) if node.attributes["transA"] else Matrix(shapes[0][1], 1)
    b = Matrix(1, shapes[1][1]) if node.attributes["transB"] else Matrix(shapes[1][1], 1)
    k, m = shapes[0] if node.attributes["transA"] else shapes[0][::-1]
    n = shapes[1][0] if node.attributes["transB"] else shapes[1][1]
    c = None
    if node.input(2) and node.attributes["beta"] != 0:
        rows, columns = ((1, 1) + shapes[2])[-2:]
        c = Matrix(columns if rows > 1 else 0, int(columns > 1))
    return _Problem(m, n, k, (), a, b, c)


def _matmul(a: tuple[int, ...], b: tuple[int, ...]) -> _Problem:
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    m, k, n = a[-2], a[-1], b[-1]
    if prod(b[:-2]) == 1:
        # The same right side for every batch: one tall product.
        return _Problem(prod(a[:-1]), n, k, (), Matrix(k, 1), Matrix(n, 1), None)
    rank = max(len(a), len(b)) - 2
    a_batch, b_batch = ((1,) * (rank + 2 - len(s)) + s[:-2] for s in (a, b))
    batch = tuple(max(x, y) if min(x, y) else 0 for x, y in zip(a_batch, b_batch, strict=True))
    strides = (
        tuple(
            stride if extent > 1 else 0
            for extent, stride in zip(own, row_major((*own, size)), strict=False)
        )
        for own, size in ((a_batch, m * k), (b_batch, k * n))
    )
    a_strides, b_strides = strides
    return _Problem(m, n, k, batch, Matrix(k, 1, a_strides), Matrix(n, 1, b_strides), None)


def _flip(problem: _Problem) -> _Problem:
    """The same numbers as the transposed product."""

    def transposed(matrix: Matrix) -> Matrix:
        return Matrix(matrix.column, matrix.row, matrix.batch)

    c = transposed(problem.c) if problem.c else None
    a, b = transposed(problem.b), transposed(problem.a)
    return problem._replace(m=problem.n, n=problem.m, a=a, b=b, c=c)


def _kernel(problem: _Problem, dtype: str, packed: bool, target: Target) -> MatMul:
    """Choose the register tile and the chunks."""
    m, n, k = problem.m, problem.n, problem.k
    lanes = target.lanes(dtype)
    ranked = [tile for _, tile in rank_tiles(target, m, ceil_div(n, lanes), k)]
    if problem.a.row * ITEMSIZE[dtype] % _ALIAS_BYTES == 0:
        ranked = [tile for tile in ranked if tile.rows <= _ALIASED_ROWS]
    tile = ranked[0]
    whole = m // tile.rows
    flops = 2 * tile.rows * tile.vectors * lanes * k
    kept = tile.rows * k * ITEMSIZE[dtype]
    tiles = min(_CHUNK_FLOPS // flops, _GROUP_BYTES // kept)
    tiles = max(1 if packed else _LEAST_TILES, min(whole, tiles))
    tiles = ceil_div(whole, ceil_div(whole, tiles))
    b = problem.b
    if packed:
        panels = ceil_div(n, tile.vectors * lanes) * k * tile.vectors * lanes
        own = tuple(e if s else 1 for e, s in zip(problem.batch, b.batch, strict=True))
        steps = row_major((*own, panels))[:-1]
        batch = tuple(step if s else 0 for step, s in zip(steps, b.batch, strict=True))
        b = Matrix(tile.vectors * lanes, 1, batch)
    return MatMul(
        dtype, lanes, m, n, k, problem.batch, tile, tiles, problem.a, b, packed, c=problem.c
    )


def _panels(
    array: npt.NDArray[np.floating], kernel: MatMul, where: Matrix
) -> npt.NDArray[np.floating]:
    """Pack a constant into (batch, panel, k, vectors * lanes), the last panel filled with zeros."""
    own = tuple(e if s else 1 for e, s in zip(kernel.batch, where.batch, strict=True))
    dense = np.ascontiguousarray(array).reshape(*own, -1)
    if where.column == 1:
        matrices = dense.reshape(*own, kernel.k, kernel.n)
    else:
        matrices = dense.reshape(*own, kernel.n, kernel.k).swapaxes(-1, -2)
    panels = ceil_div(kernel.n, kernel.width)
    widths = [(0, 0)] * (matrices.ndim - 1) + [(0, panels * kernel.width - kernel.n)]
    filled = np.pad(matrices, widths).reshape(*own, kernel.k, panels, kernel.width)
    return np.ascontiguousarray(np.moveaxis(filled, -2, -3))
