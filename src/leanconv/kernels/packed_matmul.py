"""Products with weights of 2, 4 or 8 bits that stay codes: `graph.ops.quantised_layers`.

Codes, scales and zero points are packed into panels of columns when a plan is made; their width
does not depend on the rows, so that networks of other batches share them. Where the node allows it
(`bytes`), `RowsOfBytes` makes x bytes first. The products are kernels of `packed_matmul_kernel`.
"""

from __future__ import annotations

import numpy as np

from leanconv.codegen.dot import way_of
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered, PackCall, Packing
from leanconv.codegen.tiling import Tile
from leanconv.graph.ir import Attributes
from leanconv.graph.ops.base import Array
from leanconv.kernels import KernelContext
from leanconv.kernels.matmul import best_tile, matmul_problem, most_rows_of
from leanconv.kernels.matmul_kernel import FixedRows, Matrix
from leanconv.kernels.packed_matmul_kernel import ENDS, OF_BYTES, BytesMatMulNBits, MatMulNBits
from leanconv.kernels.packing import matrix_panels
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.spec.typical import ANY_COUNT
from leanconv.symbolic import Extent, fixed
from leanconv.target import Target
from leanconv.types import FLOAT32, INT8, INT32

_MOST_BLOCK = 256  # up to which code for a block is written out
_MAGIC = 3 << 22  # added to a small number, it leaves it, rounded, in the lowest bits
_MAGIC_BITS, _LEAST_BITS = 0x4B400000, 0x04000000  # of _MAGIC, and of 2^-119: less counts as zero
_OF_EIGHT = 0, 2, 4, 6, 1, 3, 5, 7  # as codes of a word lie: lower halves of bytes, then upper


@dataclass(frozen=True)
class RowsOfBytes(Kernel):
    """Rows of floats as bytes in blocks: a block's bytes, its scale, and that times their sum.

    The largest of a block becomes 127; blocks of none that is 2^-119 become zeros.

    Attributes:
        rows, inner: of x.
        block: elements that share a scale; the last block is filled up with zeros.
    """

    VARIES = True
    operands = ("x", "bytes")

    rows: Extent
    inner: int
    block: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return ceil_div(self.inner, self.block) * (self.block + ENDS)

    @property
    def grid(self) -> tuple[int, ...]:
        return (self.rows,)

    def emit(self, target: Target) -> str:
        del target
        e, block = Function(self.NAME), self.block
        x, made = e.pointer(0, FLOAT32.llvm), e.pointer(1)
        with e.chunks(*self.grid) as (row,):
            of_x, of_made = x.at(row * self.inner), made.at(row * self.row_bytes)
            whole, rest = divmod(self.inner, block)
            if whole:
                with e.loop("block", whole) as number:
                    to = of_made.at(number * (block + ENDS))
                    self._block(e, of_x.at(number * block), to, block)
            if rest:
                to = of_made.at(whole * (block + ENDS))
                self._block(e, of_x.at(whole * block), to, rest)
        return e.finish()

    def _block(self, e: Function, x: Pointer, to: Pointer, count: int) -> None:
        floats, integers, octets = (vector(each, 8) for each in ("float", INT32.llvm, "i8"))
        live = [min(8, count - first) for first in range(0, count, 8)]

        def eight(number: int) -> Value:
            return e.load_first(x.at(8 * number), floats, live[number])

        sizes = e.zero(integers)
        for number in range(len(live)):  # bits are in the order of sizes, NaN behind all
            sizes = e.smax(sizes, e.convert("bitcast", eight(number), integers) & 0x7FFFFFFF)
        most = e.intrinsic("llvm.vector.reduce.smax.v8i32", INT32.llvm, sizes)
        usual = most.compare("sge", _LEAST_BITS)
        size = e.convert("bitcast", e.select(usual, most, e.zero(INT32.llvm)), "float")
        ratio = e.splat(e.select(usual, INT8.high / size, e.zero("float")), 8)
        total = e.zero(integers)
        for number in range(self.block // 8):
            made = e.zero(integers)
            if number < len(live):
                moved = e.fma(eight(number), ratio, e.const(floats, float(_MAGIC)))
                made = e.convert("bitcast", moved, integers) - _MAGIC_BITS
                total = total + made
            e.store(e.convert("trunc", e.shuffle(made, None, _OF_EIGHT), octets), to.at(8 * number))
        scale, ends = size / float(INT8.high), to.at(self.block).of("float")
        whole = e.intrinsic("llvm.vector.reduce.add.v8i32", INT32.llvm, total)
        e.store(scale, ends)
        e.store(e.convert("sitofp", whole, "float") * scale, ends.at(1))


def in_bytes(given: Attributes, target: Target) -> bool:
    """Return whether a product multiplies bytes: its node allows it, and the machine can."""
    fits = given["bits"] == 4 and given["block"] <= _MOST_BLOCK and target.isa in ("avx2", "avx512")
    return bool(given["bytes"] and fits and way_of(OF_BYTES, target) in ("vnni", "pairs"))


_PANEL_VECTORS = (1, 2, 4)
_FEW_ROWS = 16  # up to which each tile makes its own floats
# Rows and vectors of tiles of few rows, with 32 registers and with 16: scales and words need some.
_TILES = {True: ((2, 4), (8, 2)), False: ((2, 2), (4, 1))}
# The same where rows are bytes: their sums of a block need as many again.
_TILES_OF_BYTES = {True: ((2, 4), (4, 2)), False: ((1, 4), (2, 2), (4, 1))}
_POWERS = (8, 4, 2, 1)
_LEAST_ROWS = 128  # of a chunk that makes floats for all its tiles
_MANY_VECTORS = 2  # of its panel, so that it stays in L2


def lower(context: KernelContext) -> Lowered:
    """One kernel, and the codes, scales and zero points in panels."""
    node, graph, target = context.node, context.graph, context.target
    given, y, lanes = node.attributes, node.output, target.lanes(FLOAT32)
    x, codes, scales, zeros, bias = (node.input(number) for number in range(5))
    inner, outputs = given["inner"], given["outputs"]
    rows = matmul_problem(graph.types[x].shape, (inner, outputs)).m
    panel = next((n for n in _PANEL_VECTORS if n * lanes >= outputs), _PANEL_VECTORS[-1])
    any_size = any(name in graph.open_axes for name in (x, y))
    bytes_ = in_bytes(given, target)
    rows_of_bytes = RowsOfBytes(rows, inner, given["block"])
    tile, tiles = _tile(rows, panel, inner, any_size, target, bytes_)
    kernel = (BytesMatMulNBits if bytes_ else MatMulNBits)(
        FLOAT32,
        lanes,
        rows,
        outputs,
        inner,
        (),
        tile,
        tiles,
        FixedRows(rows_of_bytes.row_bytes if bytes_ else inner, 1),
        Matrix(tile.vectors * lanes, 1),
        c=Matrix(0, 1) if bias else None,
        bits=given["bits"],
        block=given["block"],
        panel=panel,
        middle=0 if zeros else given["middle"],
        zeros=bool(zeros),
        many_rows=not bytes_ and rows > _FEW_ROWS,
    )
    parts = {"codes": codes, "scales": scales, "zeros": zeros}
    packings = tuple(
        _packing(f"{y}.{part}", graph.constants[name], kernel)
        for part, name in parts.items()
        if name
    )
    packed = tuple(name for packing in packings for name in packing.bytes)
    rest = (*packed, *(bias,) * bool(bias), y)
    if not bytes_:
        return Lowered((Call(kernel, (x, *rest)),), {}, {}, "matmul", packings=packings)
    made = f"{y}.bytes"
    calls = Call(rows_of_bytes, (x, made)), Call(kernel, (made, *rest))
    return Lowered(
        calls, {}, {made: rows * rows_of_bytes.row_bytes}, "matmul of bytes", packings=packings
    )


def _tile(
    rows: int, panel: int, inner: int, any_size: bool, target: Target, bytes_: bool
) -> tuple[Tile, int]:
    """A register tile of at most so many rows, and how many of them a chunk does."""
    if rows > _FEW_ROWS and not bytes_:
        most = min(_FEW_ROWS, most_rows_of(ANY_COUNT, inner, FLOAT32))
        tile = best_tile(target, ANY_COUNT, min(panel, _MANY_VECTORS), inner, most)
        return tile, ceil_div(_LEAST_ROWS, tile.rows)
    tiles = (_TILES_OF_BYTES if bytes_ else _TILES)[target.registers >= 32]
    most, vectors = next((tile for tile in tiles if tile[0] >= rows), tiles[-1])
    own = min(most, rows)
    if any_size:  # powers of two, so that few codes serve all numbers of rows
        own = next(n for n in _POWERS if n <= own)
    own = fixed(own)
    return Tile(own, min(vectors, panel)), ceil_div(
        _LEAST_ROWS if rows > _FEW_ROWS else _FEW_ROWS, own
    )


def _packing(name: str, held: Array, kernel: MatMulNBits) -> Packing:
    """A matrix that has a row for each column of the result, as panels (panels, row, columns)."""
    width, words, outputs = kernel.kept_width, name.endswith(".codes"), kernel.n

    def calls() -> dict[str, list[PackCall]]:
        rows = np.ascontiguousarray(held).reshape(1, outputs, -1)
        return {name: matrix_panels(rows.view("<u4") if words else rows, width)}

    size = ceil_div(outputs, width) * width * (held.nbytes // outputs)
    return Packing({name: size}, calls, ("panels of rows", words, width), (held,))
