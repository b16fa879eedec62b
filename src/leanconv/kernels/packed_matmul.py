"""Products with weights of 2, 4 or 8 bits that stay codes: `graph.ops.packed_matmul`.

Codes, scales and zero points are packed into panels of columns when a plan is made; their width
does not depend on the rows, so that networks of other batches share them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from leanconv.codegen.lowered import Call, Lowered, PackCall, Packing
from leanconv.codegen.tiling import Tile
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.base import Array
from leanconv.kernels.matmul import best_tile, matmul_problem, most_rows_of
from leanconv.kernels.matmul_kernel import FixedRows, Matrix
from leanconv.kernels.packed_matmul_kernel import MatMulNBits
from leanconv.kernels.packing import matrix_panels
from leanconv.spec.format import Format, ceil_div
from leanconv.spec.typical import ANY_COUNT
from leanconv.symbolic import fixed
from leanconv.target import Target
from leanconv.types import FLOAT32

_PANEL_VECTORS = (1, 2, 4)
_FEW_ROWS = 16  # up to which each tile makes its own floats
# Rows and vectors of tiles of few rows, with 32 registers and with 16: scales and words need some.
_TILES = {True: ((2, 4), (8, 2)), False: ((2, 2), (4, 1))}
_POWERS = (8, 4, 2, 1)
_LEAST_ROWS = 128  # of a chunk that makes floats for all its tiles
_MANY_VECTORS = 2  # of its panel, so that it stays in L2


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Never: matrices are plain."""
    del node, graph, block
    return False


def lower(node: Node, graph: Graph, formats: Mapping[str, Format], target: Target) -> Lowered:
    """One kernel, and the codes, scales and zero points in panels."""
    del formats
    given, y, lanes = node.attributes, node.output, target.lanes(FLOAT32)
    x, codes, scales, zeros, bias = (node.input(number) for number in range(5))
    inner, outputs = given["inner"], given["outputs"]
    rows = matmul_problem(graph.types[x].shape, (inner, outputs)).m
    panel = next((n for n in _PANEL_VECTORS if n * lanes >= outputs), _PANEL_VECTORS[-1])
    any_size = any(name in graph.open_axes for name in (x, y))
    tile, tiles = _tile(rows, panel, inner, any_size, target)
    kernel = MatMulNBits(
        FLOAT32,
        lanes,
        rows,
        outputs,
        inner,
        (),
        tile,
        tiles,
        FixedRows(inner, 1),
        Matrix(tile.vectors * lanes, 1),
        c=Matrix(0, 1) if bias else None,
        bits=given["bits"],
        block=given["block"],
        panel=panel,
        middle=0 if zeros else given["middle"],
        zeros=bool(zeros),
        many_rows=rows > _FEW_ROWS,
    )
    parts = {"codes": codes, "scales": scales, "zeros": zeros}
    packings = tuple(
        _packing(f"{y}.{part}", graph.constants[name], kernel)
        for part, name in parts.items()
        if name
    )
    packed = tuple(name for packing in packings for name in packing.bytes)
    values = (x, *packed, *(bias,) * bool(bias), y)
    return Lowered((Call(kernel, values),), {}, {}, "matmul", packings=packings)


def _tile(rows: int, panel: int, inner: int, any_size: bool, target: Target) -> tuple[Tile, int]:
    """A register tile of at most so many rows, and how many of them a chunk does."""
    if rows > _FEW_ROWS:
        most = min(_FEW_ROWS, most_rows_of(ANY_COUNT, inner, FLOAT32))
        tile = best_tile(target, ANY_COUNT, min(panel, _MANY_VECTORS), inner, most)
        return tile, ceil_div(_LEAST_ROWS, tile.rows)
    tiles = _TILES[target.registers >= 32]
    most, vectors = next((tile for tile in tiles if tile[0] >= rows), tiles[-1])
    own = min(most, rows)
    if any_size:  # powers of two, so that few codes serve all numbers of rows
        own = next(n for n in _POWERS if n <= own)
    own = fixed(own)
    return Tile(own, min(vectors, panel)), ceil_div(_FEW_ROWS, own)


def _packing(name: str, held: Array, kernel: MatMulNBits) -> Packing:
    """A matrix that has a row for each column of the result, as panels (panels, row, columns)."""
    width, words, outputs = kernel.kept_width, name.endswith(".codes"), kernel.n

    def calls() -> dict[str, list[PackCall]]:
        rows = np.ascontiguousarray(held).reshape(1, outputs, -1)
        return {name: matrix_panels(rows.view("<u4") if words else rows, width)}

    size = ceil_div(outputs, width) * width * (held.nbytes // outputs)
    return Packing({name: size}, calls, ("panels of rows", words, width), (held,))
