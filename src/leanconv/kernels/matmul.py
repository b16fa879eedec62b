"""MatMul and Gemm of row-major matrices, with batches.

    y[b, i, j] = alpha * sum_k a[b, i, k] * b[b, k, j] + beta * c[i, j]

A constant `b` is packed into panels before the first run, others by the kernel (`matmul_kernel`),
or read where they lie if one tile has all rows of `a`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from math import prod
from typing import NamedTuple

import numpy as np

from leanconv.codegen.lowered import Call, Lowered, PackCall, Packing
from leanconv.codegen.tiling import Tile, rank_tiles
from leanconv.graph.ir import Node
from leanconv.graph.ops.base import Array
from leanconv.kernels import KernelContext
from leanconv.kernels.copy_plan import row_major
from leanconv.kernels.matmul_kernel import FixedRows, InPlaceMatMul, MatMul, Matrix, PackedMatMul
from leanconv.kernels.packing import matrix_panels
from leanconv.spec.format import ceil_div
from leanconv.spec.typical import ANY_COUNT
from leanconv.symbolic import fixed
from leanconv.target import Target
from leanconv.types import DType

_CHUNK_FLOPS = 4 << 20  # 15 to 40 us
_GROUP_BYTES = 256 * 1024  # rows of `a` that stay in L2 beside a panel
_LEAST_ROWS = 64  # so that packing a panel pays: at 16 rows it took half the time of long sums
# Rows of `a` this far apart share one set of L1: 14 of them ran at a third of the speed of 6.
_ALIAS_BYTES, _ALIASED_ROWS = 4096, 6
# Tiles of products of activations where a few serve all extents: each row more needs a register for
# its address.
_MOST_ROWS, _MOST_VECTORS, _STEPS = 8, 3, 64
# Most tiles divide the second: the best one for it is good for all that are more than the first.
_FEW_ROWS, _MANY_VECTORS = 28, 60


class Product(NamedTuple):
    """A product before tiles are chosen."""

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a: Matrix
    b: Matrix
    c: Matrix | None


def lower(context: KernelContext) -> Lowered:
    """One kernel; a constant right side is packed into panels here."""
    node, graph, target = context.node, context.graph, context.target
    shapes = [graph.types[name].shape if name else () for name in node.inputs]
    problem = _gemm(node, shapes) if node.op == "Gemm" else matmul_problem(shapes[0], shapes[1])
    a, b, y = node.inputs[0], node.inputs[1], node.output
    if problem.n == 1 and problem.m > 1:
        # One column would fill one lane of a vector: compute the transposed product.
        problem, a, b = _flip(problem), b, a
    any_size = any(name in graph.open_axes for name in (*node.inputs[:2], y))
    kernel = _kernel(problem, graph.types[y].dtype, b in graph.constants, any_size, target)
    if node.op == "Gemm":
        alpha, beta = float(node.attributes["alpha"]), float(node.attributes["beta"])
        kernel = replace(kernel, alpha=alpha, beta=beta if kernel.c else 1.0)
    packings: tuple[Packing, ...] = ()
    if isinstance(kernel, PackedMatMul):
        packings = (_packing(f"{y}.panels", graph.constants[b], kernel, problem.b),)
        b = f"{y}.panels"
    operands = (a, b, node.inputs[2], y) if kernel.c else (a, b, y)
    return Lowered((Call(kernel, operands),), {}, {}, "matmul", packings=packings)


def _gemm(node: Node, shapes: list[tuple[int, ...]]) -> Product:
    a = Matrix(1, shapes[0][1]) if node.attributes["transA"] else Matrix(shapes[0][1], 1)
    b = Matrix(1, shapes[1][1]) if node.attributes["transB"] else Matrix(shapes[1][1], 1)
    k, m = shapes[0] if node.attributes["transA"] else shapes[0][::-1]
    n = shapes[1][0] if node.attributes["transB"] else shapes[1][1]
    c = None
    if node.input(2) and node.attributes["beta"] != 0:
        rows, columns = ((1, 1) + shapes[2])[-2:]
        c = Matrix(columns if rows > 1 else 0, int(columns > 1))
    return Product(m, n, k, (), a, b, c)


def matmul_problem(a: tuple[int, ...], b: tuple[int, ...]) -> Product:
    """The product of matrices of these shapes, by NumPy's rules."""
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    m, k, n = a[-2], a[-1], b[-1]
    if prod(b[:-2]) == 1:
        # The same right side for every batch: one tall product.
        return Product(prod(a[:-1]), n, k, (), Matrix(k, 1), Matrix(n, 1), None)
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
    return Product(m, n, k, batch, Matrix(k, 1, a_strides), Matrix(n, 1, b_strides), None)


def _flip(problem: Product) -> Product:
    """The same numbers as the transposed product."""

    def transposed(matrix: Matrix) -> Matrix:
        return Matrix(matrix.column, matrix.row, matrix.batch)

    c = transposed(problem.c) if problem.c else None
    a, b = transposed(problem.b), transposed(problem.a)
    return problem._replace(m=problem.n, n=problem.m, a=a, b=b, c=c)


def _kernel(problem: Product, dtype: DType, packed: bool, any_size: bool, target: Target) -> MatMul:
    m, n, k, a, b = problem.m, problem.n, problem.k, problem.a, problem.b
    lanes = target.lanes(dtype)
    most_rows = most_rows_of(m, a.row, dtype)
    if not any_size:
        tile = best_tile(target, m, ceil_div(n, lanes), k, most_rows)
    elif packed:
        rows = m if m <= _FEW_ROWS else ANY_COUNT
        tile = best_tile(target, rows, ceil_div(n, lanes), k, most_rows)
    else:
        tile = tile_of_any_size(target, m, ceil_div(n, lanes), most_rows)
    in_place = not packed and b.column == 1 and m <= tile.rows
    if in_place and m == 1 and not any_size:
        # Sums alone need registers: longer pieces of the rows of `b` are read.
        tile = Tile(1, min(ceil_div(n, lanes), target.registers // 2))
    flops = 2 * tile.rows * tile.vectors * lanes * k
    kept = tile.rows * k * dtype.bytes
    tiles = min(_CHUNK_FLOPS // flops, _GROUP_BYTES // kept)
    tiles = max(1 if packed else ceil_div(_LEAST_ROWS, tile.rows), tiles)
    made = MatMul(dtype, lanes, m, n, k, problem.batch, tile, tiles, a, b, c=problem.c)
    if packed:
        panels = ceil_div(n, made.width) * k * made.width
        own = tuple(e if s else 1 for e, s in zip(problem.batch, b.batch, strict=True))
        steps = row_major((*own, panels))[:-1]
        batch = tuple(step if s else 0 for step, s in zip(steps, b.batch, strict=True))
        given = {field.name: getattr(made, field.name) for field in fields(MatMul)}
        given |= {"a": FixedRows(a.row, a.column, a.batch), "b": Matrix(made.width, 1, batch)}
        made = PackedMatMul(**given)
    elif in_place:
        made = InPlaceMatMul(**{field.name: getattr(made, field.name) for field in fields(MatMul)})
    whole = made.row_tiles
    return replace(made, tiles=ceil_div(whole, ceil_div(whole, tiles)))


def most_rows_of(m: int, stride: int, dtype: DType) -> int:
    """Rows of a tile, of m rows so many elements apart, that do not crowd sets of L1."""
    aliased = stride * dtype.bytes % _ALIAS_BYTES == 0
    return _ALIASED_ROWS if aliased else max(m, 1)


def best_tile(target: Target, m: int, vectors: int, k: int, most_rows: int) -> Tile:
    return next(t for _, t in rank_tiles(target, m, vectors, k) if t.rows <= most_rows)


def tile_of_any_size(target: Target, m: int, vectors: int, most_rows: int) -> Tile:
    """One of a few tiles that serve all extents, whose rows are halved where there are fewer."""
    most_rows = min(most_rows, _MOST_ROWS)
    few = []
    for count in range(1, fixed(min(vectors, _MOST_VECTORS)) + 1):
        ranked = (tile for _, tile in rank_tiles(target, ANY_COUNT, count, _STEPS))
        few.append(next(t for t in ranked if t.vectors == count and t.rows <= most_rows))
    vectors = vectors if vectors <= _MOST_VECTORS else _MANY_VECTORS
    ranked = (tile for _, tile in rank_tiles(target, ANY_COUNT, fixed(vectors), _STEPS))
    best = next(tile for tile in ranked if tile in few)
    while best.rows > m:
        best = Tile(best.rows // 2, best.vectors)
    return best


def _packing(name: str, array: Array, kernel: MatMul, where: Matrix) -> Packing:
    """A constant as (batch, panel, k, vectors * lanes), the last panel filled with zeros."""
    own = tuple(e if s else 1 for e, s in zip(kernel.batch, where.batch, strict=True))
    k, n, width, turned = kernel.k, kernel.n, kernel.width, where.column != 1
    panels = ceil_div(n, width)

    def calls() -> dict[str, list[PackCall]]:
        dense = np.ascontiguousarray(array)
        rows = dense.reshape(-1, n, k) if turned else dense.reshape(-1, k, n).swapaxes(1, 2)
        return {name: matrix_panels(rows, width)}

    size = prod(own) * panels * k * width * array.itemsize
    recipe = "panels of a product", own, k, n, width, turned
    return Packing({name: size}, calls, recipe, (array,))
