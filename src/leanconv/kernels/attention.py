"""Attention in one kernel: no more than some rows of the square matrix are held at once.

    s[i, j] = scale * sum_d q[i, d] * k[d, j] + mask[i, j]        rows of a chunk x all keys
    p[i, :] = softmax(s[i, :])                                    in place
    y[i, w] = sum_j p[i, j] * v[j, w]

for each of a batch. A chunk is some rows, as many as keep its scores in L2, all chunks as many: the
last one overlaps the one before it. Both products are those of `matmul_kernel`, with their panels
in the scratch, the softmax is that of `softmax`. The scratch is the scores, (rows, keys) with rows
apart by no power of two, and a panel of each right side; values that are one panel as they lie are
not copied.
"""

from __future__ import annotations

from math import prod

from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tiling import Tile
from leanconv.kernels import KernelContext
from leanconv.kernels.expression import row_major
from leanconv.kernels.matmul import best_tile, tile_of_any_size
from leanconv.kernels.matmul_kernel import MatMul, Matrix, ProductOfActivations
from leanconv.kernels.softmax import Softmax, SoftmaxPasses
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent, Extents
from leanconv.target import Target
from leanconv.types import DType

SCORES = 65536  # elements of a chunk's scores at most, where there are several rows
MOST_ROWS = 48  # of a chunk: panels are packed once for all of them
_ROW_ENDS = 16  # elements: rows of scores end at a multiple, and are one more apart


@dataclass(frozen=True)
class FusedAttention(Kernel):
    """Attention in one kernel: softmax(scale * q k^T + mask) v.

    Attributes:
        dtype: of all elements.
        lanes: elements of a vector.
        batch: extents of the batch axes.
        m, n, d, w: queries, keys, the size of both, and the size of a value.
        rows: queries of a chunk.
        first, second: register tiles of the two products.
        k: strides of the keys as (d, n).
        scale: of the first product.
        packs: whether values are copied; else they are one panel as they lie.
        mask: strides of the matrix that is added to the scores; None without one.
    """

    VARIES = True

    dtype: DType
    lanes: int
    batch: Extents
    m: Extent
    n: Extent
    d: Extent
    w: Extent
    rows: Extent
    first: Tile
    second: Tile
    k: Matrix
    scale: float
    packs: bool
    mask: Matrix | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        return ("q", "k", "v", "mask", "y") if self.mask else ("q", "k", "v", "y")

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks: batches, groups of rows."""
        return (*self.batch, ceil_div(self.m, self.rows))

    @property
    def row(self) -> int:
        """Elements from a row of scores to the next."""
        return ceil_div(self.n, _ROW_ENDS) * _ROW_ENDS + _ROW_ENDS

    @property
    def panels(self) -> tuple[int, int]:
        """Elements of the panels of keys and of values; 0 for values that are one."""
        keys = self.d * (self.first.vectors * self.lanes)
        return keys, self.n * (self.second.vectors * self.lanes) if self.packs else 0

    @property
    def scratch_bytes(self) -> int:
        keys, values = self.panels
        return (self.rows * self.row + keys + values) * self.dtype.bytes

    @property
    def flops(self) -> int:
        return prod(self.batch) * self.m * self.n * (2 * (self.d + self.w) + 4)

    def emit(self, target: Target) -> str:
        e, element = Function(self.NAME), self.dtype.llvm
        q, k, v, *mask, y = e.pointers(self.operands, element).values()
        with e.chunks(*self.grid) as (*batch, group):
            start = e.smin(group * self.rows, self.m - self.rows)
            steps = (self.m * self.d, self.d * self.n, self.n * self.w, self.m * self.w)
            q, k, v, y = (
                self._shifted(x, batch, row_major((*self.batch, step))[:-1])
                for x, step in zip((q, k, v, y), steps, strict=True)
            )
            if self.mask:
                mask = [self._shifted(mask[0], batch, self.mask.batch).at(start * self.mask.row)]
            self._rows(e, target, (q.at(start * self.d), k, v, y.at(start * self.w)), mask)
        return e.finish()

    def _shifted(self, x: Pointer, batch: list[Value], strides: tuple[int, ...]) -> Pointer:
        for index, stride in zip(batch, strides, strict=True):
            if stride:
                x = x.at(index * stride)
        return x

    def _rows(
        self,
        e: Function,
        target: Target,
        operands: tuple[Pointer, Pointer, Pointer, Pointer],
        mask: list[Pointer],
    ) -> None:
        """All rows of a chunk: scores, their softmax, and the sums of values."""
        q, k, v, y = operands
        keys, _ = self.panels
        scores = e.scratch.of(self.dtype.llvm)
        packed = scores.at(self.rows * self.row)
        ProductOfActivations(self._scores, target, e, self.row).all_rows(q, k, mask, scores, packed)
        softmax = Softmax(self.dtype, False, 1, self.n, 1)
        passes = SoftmaxPasses(softmax, e, target)
        with e.loop("row", self.rows) as row:
            line = scores.at(row * self.row)
            passes.line(line, line)
        assert self.packs or self.w == self.second.vectors * self.lanes, "values are no panel"
        room = packed.at(keys) if self.packs else None
        ProductOfActivations(self._sums, target, e).all_rows(scores, v, [], y, room)

    @property
    def _scores(self) -> MatMul:
        return self._product(self.n, self.d, self.first, Matrix(self.d, 1), self.k, self.scale)

    @property
    def _sums(self) -> MatMul:
        return self._product(self.w, self.n, self.second, Matrix(self.row, 1), Matrix(self.w, 1))

    def _product(
        self, n: int, k: int, tile: Tile, a: Matrix, b: Matrix, alpha: float = 1.0
    ) -> MatMul:
        tiles = ceil_div(self.rows - tile.rows // 2, tile.rows)
        mask = self.mask if b is self.k else None
        return MatMul(self.dtype, self.lanes, self.rows, n, k, (), tile, tiles, a, b, alpha, c=mask)


def lower(context: KernelContext) -> Lowered:
    """Return one call, of a `FusedAttention`; its scratch holds some rows of the scores."""
    node, graph, target = context.node, context.graph, context.target
    q, k, v, y = *node.inputs[:3], node.output
    kind = graph.types[q]
    *batch, m, d = kind.shape
    n, w = graph.types[v].shape[-2:]
    lanes = target.lanes(kind.dtype)
    few = min(MOST_ROWS, max(SCORES // n, 8), m)
    rows = ceil_div(m, ceil_div(m, few))
    keys = Matrix(1, d) if node.attributes["transposed"] else Matrix(n, 1)
    if any(name in graph.open_axes for name in node.inputs):
        first, second = (tile_of_any_size(target, rows, ceil_div(e, lanes), rows) for e in (n, w))
    else:
        first = best_tile(target, rows, ceil_div(n, lanes), d, rows)
        second = best_tile(target, rows, ceil_div(w, lanes), n, rows)
    mask = _mask(graph.types[node.inputs[3]].shape, kind.shape[:-1]) if node.input(3) else None
    scale = node.attributes["scale"]
    packs = bool(w != second.vectors * lanes)
    sizes = (m, n, d, w, rows)
    kernel = FusedAttention(
        kind.dtype, lanes, tuple(batch), *sizes, first, second, keys, scale, packs, mask
    )
    operands = (q, k, v, node.inputs[3], y) if mask else (q, k, v, y)
    return Lowered((Call(kernel, operands),), algorithm="attention")


def _mask(shape: tuple[int, ...], rows: tuple[int, ...]) -> Matrix:
    """Strides of a mask that is broadcast to (batch..., queries, keys)."""
    full = (1,) * (len(rows) + 1 - len(shape)) + shape
    strides = [
        step if extent != 1 else 0 for extent, step in zip(full, row_major(full), strict=True)
    ]
    return Matrix(strides[-2], strides[-1], tuple(strides[:-2]))
