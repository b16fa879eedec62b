"""QLinearMatMul of two values: products of matrices of codes on dot products of four bytes.

    y[i, j] = clamp(rint(float32(sum over k of (a[i, k] - zero_a) * (b[k, j] - zero_b)) * scale) +
                    zero_y)

    for panel of columns:   pack   panel[k / 4, column] = b[k … k + 3, column]     one word
      for tile of rows:     acc[i][j] += dot(a[i, k … k + 3], panel[k / 4, j])

Lanes run along columns. Unsigned b is packed as b - 128, with its zero moved, for the instruction
takes unsigned by signed bytes. The zeros are taken off at the end: zero_a times the sum of each
column, added up while packing, and zero_b times that of each row, a dot product with ones.
"""

from __future__ import annotations

from math import prod

import numpy as np

from leanconv.codegen.dot import Dot, Parts, Way, dot_of, way_of
from leanconv.codegen.emitter import Carry, Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tails import tile_at, tiles_of_chunk
from leanconv.codegen.tiling import Tile
from leanconv.kernels import KernelContext
from leanconv.kernels.copy_plan import row_major
from leanconv.kernels.matmul import matmul_problem
from leanconv.kernels.quantised_steps import as_codes, as_float
from leanconv.records import cached_property, dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import INT8, INT32, DType, Precision

_GROUP = 4  # bytes of a dot product
_SIGN = 128  # by which unsigned codes become signed ones
_ONES = 0x01010101
_CHUNK_PRODUCTS = 8 << 20  # about 20 us
_LEAST_ROWS = 64  # so that packing a panel pays
_WIDE, _SINGLE, _NARROW = Tile(6, 3), Tile(12, 1), Tile(4, 1)


@dataclass(frozen=True)
class CodeMatMul(Kernel):
    """A batch of products of row-major matrices of codes.

    Attributes:
        a, b, y: types of the codes.
        way: how the target adds up four products.
        lanes: of a vector of sums.
        m, n, k: rows and columns of the result, length of the sums.
        batch: extents of the batch axes; a_batch and b_batch are the operands' strides along them.
        tile: rows and vectors of a register tile.
        tiles: register tiles that one chunk does for one panel.
        zero_a, zero_b: of the operands.
        numbers: scale of the sums, zero and bounds of the result.
    """

    operands = ("a", "b", "y")

    a: DType
    b: DType
    y: DType
    way: Way
    lanes: int
    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a_batch: tuple[int, ...]
    b_batch: tuple[int, ...]
    tile: Tile
    tiles: int
    zero_a: int
    zero_b: int
    numbers: tuple[float, ...]

    @cached_property
    def dot(self) -> Dot:
        """Types and form of the dot product of a group of codes."""
        return dot_of(Precision(self.a, INT8, INT32, INT32), self.way)

    @property
    def signed_zero(self) -> int:
        """The zero of b as it is packed."""
        return self.zero_b - (0 if self.b == INT8 else _SIGN)

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.tile.vectors * self.lanes

    @property
    def groups(self) -> int:
        """Dot products of a sum."""
        return ceil_div(self.k, _GROUP)

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks: batches, groups of rows, panels of columns."""
        row_tiles = ceil_div(self.m, self.tile.rows)
        return (*self.batch, ceil_div(row_tiles, self.tiles), ceil_div(self.n, self.width))

    @property
    def scratch_bytes(self) -> int:
        """A panel of b, and a number for each column that is subtracted from its sums."""
        return (self.groups + 1) * self.width * INT32.bytes

    @property
    def flops(self) -> int:
        return 2 * prod(self.batch) * self.m * self.n * self.k

    def emit(self, target: Target) -> str:
        del target
        return _Nest(self).emit()


class _Nest:
    def __init__(self, kernel: CodeMatMul) -> None:
        self.k, self.e, self.dot = kernel, Function(kernel.NAME), kernel.dot
        self.kind = vector(INT32.llvm, kernel.lanes)
        self.bytes = vector("i8", kernel.lanes)
        self.panel = self.e.scratch
        self.off = self.e.scratch.at(kernel.groups * kernel.width * _GROUP).of(INT32.llvm)

    def emit(self) -> str:
        e, k = self.e, self.k
        a, b, y = (e.pointer(number, "i8") for number in range(3))
        y_batch = row_major((*k.batch, k.m * k.n))[:-1]
        with e.chunks(*k.grid) as (*batch, group, panel):
            moved = []
            for pointer, strides in ((a, k.a_batch), (b, k.b_batch), (y, y_batch)):
                for index, stride in zip(batch, strides, strict=True):
                    pointer = pointer.at(index * stride) if stride else pointer
                moved.append(pointer)
            first = panel * k.width
            for columns in tile_at(e, panel, k.n, k.width):
                self._pack(moved[1].at(first), columns)
                for tile, rows in tiles_of_chunk(e, "tile", group, k.tiles, k.m, k.tile.rows):
                    row = e.i64(tile) * k.tile.rows
                    to = moved[2].at(row * k.n + first)
                    self._tile(moved[0].at(row * k.k), to, rows, columns)
        return e.finish()

    def _live(self, columns: int) -> list[int]:
        """Columns of each vector of a panel."""
        lanes = self.k.lanes
        return [min(lanes, columns - first) for first in range(0, columns, lanes)]

    # -- packing -------------------------------------------------------------------------------
    def _pack(self, b: Pointer, columns: int) -> None:
        """Bring groups of four rows together, and sum the columns up if that is needed."""
        e, k, live = self.e, self.k, self._live(columns)
        sums: Carry = [e.zero(self.kind)] * len(live)
        whole, rest = divmod(k.k, _GROUP)
        if whole:
            with e.loop("k", whole, [sums]) as group:
                self._pack_group(b.at(group * (_GROUP * k.n)), group, _GROUP, live, sums)
        if rest:
            at = b.at(whole * _GROUP * k.n)
            self._pack_group(at, e.i64(whole), rest, live, sums)
        for j, total in enumerate(sums):
            both = k.k * k.zero_a * k.signed_zero
            e.store(e.const(self.kind, _int32(both)) - total * k.zero_a, self.off.at(j * k.lanes))

    def _pack_group(
        self, b: Pointer, group: Value, rows: int, live: list[int], sums: Carry
    ) -> None:
        """One word for each column: of so many rows, and zeros."""
        e, k, lanes = self.e, self.k, self.k.lanes
        signed = k.b == INT8
        for j, count in enumerate(live):
            each = [e.load_first(b.at(i * k.n + j * lanes), self.bytes, count) for i in range(rows)]
            nothing = e.const(self.bytes, 0 if signed else -_SIGN)
            each += [nothing] * (_GROUP - rows)
            both = [e.shuffle(each[i], each[i + 1], range(2 * lanes)) for i in (0, 2)]
            whole = e.shuffle(both[0], both[1], range(_GROUP * lanes))
            order = [i * lanes + lane for lane in range(lanes) for i in range(_GROUP)]
            whole = e.shuffle(whole, None, order)
            if not signed:
                whole = whole ^ -_SIGN
            words = e.convert("bitcast", whole, self.kind)
            e.store(words, self.panel.at((group * k.width + j * lanes) * _GROUP))
            if k.zero_a:
                sums[j] = self._add_bytes(sums[j], words)

    def _add_bytes(self, total: Value, words: Value) -> Value:
        e = self.e
        by = e.const(self.kind, 24)
        for place in (24, 16, 8, 0):
            high = words << place if place else words
            total = total + e.define(f"ashr {high}, {by.text}", self.kind)
        return total

    # -- products ------------------------------------------------------------------------------
    def _tile(self, a: Pointer, y: Pointer, rows: int, columns: int) -> None:
        e, k, live = self.e, self.k, self._live(columns)
        vectors, summed = len(live), k.signed_zero != 0
        acc: Carry = [e.zero(self.kind)] * (rows * vectors + rows * summed)
        ones = self.dot.second_factor(e, e.const(self.kind, _ONES)) if summed else None
        whole, rest = divmod(k.k, _GROUP)

        def step(group: Value, broadcast: list[Parts]) -> None:
            at = self.panel.at(group * (k.width * _GROUP))
            for j in range(vectors):
                factor = self.dot.load(e, at.at(j * k.lanes * _GROUP), self.kind, k.lanes)
                for i in range(rows):
                    slot = i * vectors + j
                    acc[slot] = self.dot.add(e, acc[slot], broadcast[i], factor)
            for i in range(rows if ones else 0):
                slot = rows * vectors + i
                assert ones is not None
                acc[slot] = self.dot.add(e, acc[slot], broadcast[i], ones)

        if whole:
            with e.loop("k", whole, [acc]) as group:
                at = a.at(group * _GROUP)
                step(group, [self._broadcast(at.at(i * k.k), _GROUP) for i in range(rows)])
        if rest:
            at = a.at(whole * _GROUP)
            words = [self._broadcast(at.at(i * k.k), rest) for i in range(rows)]
            step(e.i64(whole), words)
        for j, count in enumerate(live):
            off = e.load(self.off.at(j * k.lanes), self.kind)
            for i in range(rows):
                total = acc[i * vectors + j] + off
                if summed:
                    total = total - acc[rows * vectors + i] * k.signed_zero
                e.store_first(self._codes(total), y.at(i * k.n + j * k.lanes), count)

    def _broadcast(self, a: Pointer, count: int) -> Parts:
        """The next bytes of a row of a, as a factor of all lanes; zeros after `count` of them."""
        e = self.e
        if count == _GROUP:
            return self.dot.broadcast(e, a, self.kind)
        word = e.convert("zext", e.load(a), INT32.llvm)
        for i in range(1, count):
            word = word | e.convert("zext", e.load(a.at(i)), INT32.llvm) << 8 * i
        return self.dot.first_factor(e, e.splat(word, self.k.lanes))

    def _codes(self, total: Value) -> Value:
        e, k = self.e, self.k
        value = as_float(e, total, INT32)
        scale, zero, low, high = (e.const(value.kind, number) for number in k.numbers)
        return as_codes(e, e.unary("rint", value * scale) + zero, low, high, k.y)


def _int32(number: int) -> int:
    """A number modulo 2^32, with a sign."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def lower(context: KernelContext) -> Lowered:
    """Return one call, of a `CodeMatMul`."""
    node, graph, target = context.node, context.graph, context.target
    (a, b), y, given = node.inputs, node.output, node.attributes
    left, right, result = (graph.types[name].dtype for name in (a, b, y))
    shapes = [tuple(map(int, graph.types[name].shape)) for name in (a, b)]
    problem = matmul_problem(shapes[0], shapes[1])
    scale_a, scale_b, scale_y = map(np.float32, given["scales"])
    with np.errstate(all="ignore"):  # scales are a file's
        scale = scale_a * scale_b / scale_y
    zero_a, zero_b, zero = map(int, given["zeros"])
    way = way_of(Precision(left, INT8, INT32, INT32), target)
    lanes = target.lanes(INT32)
    kernel = CodeMatMul(
        left,
        right,
        result,
        way,
        lanes,
        problem.m,
        problem.n,
        problem.k,
        problem.batch,
        problem.a.batch,
        problem.b.batch,
        _tile(problem.m, ceil_div(problem.n, lanes), way, target),
        1,
        zero_a,
        zero_b,
        tuple(float(np.float32(n)) for n in (scale, zero, given["low"], given["high"])),
    )
    rows, each = kernel.tile.rows, kernel.tile.rows * kernel.width * max(1, kernel.k)
    tiles = max(ceil_div(_LEAST_ROWS, rows), _CHUNK_PRODUCTS // each)
    return Lowered((Call(replace(kernel, tiles=tiles), (a, b, y)),), algorithm="matmul")


def _tile(m: int, vectors: int, way: Way, target: Target) -> Tile:
    """Rows and vectors whose sums, with those of the rows, stay in registers."""
    narrow = target.registers < 32 or way not in ("vnni", "dotprod")
    best = _NARROW if narrow else _SINGLE if vectors == 1 else _WIDE
    return Tile(min(best.rows, m), min(best.vectors, vectors))
