"""Products with weights of 2, 4 or 8 bits that stay codes: `graph.ops.quantised_layers`.

    for panel of columns:
      for tile of rows:
        for block of k:    s[j], o[j] = scale[block, j], -zero[block, j] * scale[block, j]
          for word:        codes[j] = panel[word, j]                  32 bits: 4, 8 or 16 codes
            for k:         acc[i][j] += a[i, k] * fma(float(code k of codes[j]), s[j], o[j])

Codes, scales and zero points are packed into panels of columns when a plan is made; their width
does not depend on the rows, so that networks of other batches share them.

Few rows are bound by reading the weights, so these are read as they are kept: a word of 32 bits
holds codes of one column that follow each other along k, lanes run along columns. Where rows are
many, a chunk makes all of its panel floats first, and all its rows read these. A code of 4 bits
becomes a float by one permutation of a table in a register where a vector has 16 lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from leanconv.codegen.emitter import Carry, Pointer, Value, vector
from leanconv.codegen.lowered import Call, Lowered, PackCall, Packing
from leanconv.codegen.tiling import Tile
from leanconv.graph.ops.base import Array
from leanconv.graph.ops.quantised_layers import WORD_BITS
from leanconv.kernels import KernelContext
from leanconv.kernels.matmul import best_tile, matmul_problem, most_rows_of
from leanconv.kernels.matmul_kernel import Columns, FixedRows, Matrix, OfPanels, PackedMatMul
from leanconv.kernels.packing import matrix_panels
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.spec.typical import ANY_COUNT
from leanconv.symbolic import fixed
from leanconv.target import Target
from leanconv.types import FLOAT32, INT32

_TABLE_LANES = 16


@dataclass(frozen=True, eq=False)
class _Word:
    """Codes that are in registers.

    Attributes:
        first, count: the first along k, and how many there are for each column.
        words, factors, summands: a value for each vector of columns; a weight is its code times the
            factor, plus the summand.
    """

    first: Value
    count: int
    words: Sequence[Value]
    factors: Sequence[Value]
    summands: Sequence[Value]


@dataclass(frozen=True)
class MatMulNBits(PackedMatMul):
    """Rows of floats times weights of few bits.

    Attributes:
        bits: of a code.
        block: codes that share a scale.
        panel: vectors of a panel as it is kept, a multiple of those of a tile.
        middle: the zero point of all blocks, where each has none of its own.
        zeros: whether each has.
        many_rows: whether a chunk makes its panel floats before its products.
    """

    bits: int = 4
    block: int = 32
    panel: int = 1
    middle: int = 8
    zeros: bool = False
    many_rows: bool = False

    @property
    def scratch_bytes(self) -> int:
        return self.k * self.width * self.dtype.bytes if self.many_rows else 0

    @property
    def operands(self) -> tuple[str, ...]:
        zeros, c = ("zeros",) * self.zeros, ("c",) * (self.c is not None)
        return ("a", "codes", "scales", *zeros, *c, "y")

    @property
    def codes_of_word(self) -> int:
        """Codes in a word of 32 bits."""
        return WORD_BITS // self.bits

    @property
    def kept_width(self) -> int:
        """Columns of a panel as it is kept."""
        return self.panel * self.lanes

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


class _Nest(OfPanels):
    kernel: MatMulNBits

    def emit(self) -> str:
        e, k = self.e, self.kernel
        held = e.pointers(k.operands, self.element, codes=INT32.llvm, zeros="i8")
        blocks, width = ceil_div(k.k, k.block), k.kept_width
        words = blocks * k.block // k.codes_of_word
        parts = k.panel // k.tile.vectors
        self.integers = vector(INT32.llvm, k.lanes)
        self.permutes = k.bits == 4 and k.lanes == _TABLE_LANES and self.target.isa == "avx512"
        with e.chunks(*k.grid) as (group, panel):
            kept, place = panel // parts, panel % parts * k.width
            codes = held["codes"].at(kept * (words * width) + place)
            first = kept * (blocks * width) + place
            self.scales = held["scales"].at(first)
            self.zeros = held["zeros"].at(first) if k.zeros else None
            for columns in self._cases(panel):
                c = [held["c"]] if k.c else []
                made = self._made_floats(codes, columns) if k.many_rows else codes
                self._rows(held["a"], made, c, held["y"], columns, group)
        return e.finish()

    def _made_floats(self, codes: Pointer, columns: Columns) -> Pointer:
        """Store a panel's weights as floats in the scratch, (k, columns); return their address."""
        e, k, vectors = self.e, self.kernel, len(columns.offsets)
        floats = e.scratch.of(self.element)
        for word in self._words(codes, vectors, []):
            here = floats.at(word.first * k.width)
            for number in range(word.count):
                for j in range(vectors):
                    at = here.at(number * k.width + j * k.lanes)
                    e.store(self._weight(word, number, j), at)
        return floats

    def _sums(self, acc: Carry, a: Pointer, panel: Pointer, rows: int, columns: Columns) -> None:
        e, k, vectors = self.e, self.kernel, len(columns.offsets)
        if k.many_rows:
            super()._sums(acc, a, panel, rows, columns)
            return
        for word in self._words(panel, vectors, [acc]):
            here = a.at(word.first)
            for number in range(word.count):
                at = (here.at(i * k.a.row + number) for i in range(rows))
                of_a = [e.broadcast(address, self.kind) for address in at]
                for j in range(vectors):
                    weight = self._weight(word, number, j)
                    for i in range(rows):
                        slot = i * vectors + j
                        acc[slot] = e.fma(of_a[i], weight, acc[slot])

    # -- weights -------------------------------------------------------------------------------
    def _words(self, codes: Pointer, vectors: int, carry: Sequence[Carry]) -> Iterator[_Word]:
        e, k = self.e, self.kernel
        whole, rest = divmod(k.k, k.block)
        if whole:
            with e.loop("block", whole, carry) as block:
                yield from self._words_of(codes, block, k.block, vectors, carry)
        if rest:
            yield from self._words_of(codes, e.i64(whole), rest, vectors, carry)

    def _words_of(
        self, codes: Pointer, block: Value, count: int, vectors: int, carry: Sequence[Carry]
    ) -> Iterator[_Word]:
        """The words of a block, of which so many codes count."""
        e, k, width, each = self.e, self.kernel, self.kernel.kept_width, self.kernel.codes_of_word
        scales, codes = self.scales.at(block * width), codes.at(block * (k.block // each * width))
        factors = [e.load(scales.at(j * k.lanes), self.kind) for j in range(vectors)]
        summands = [factor * self._opposite(block, j) for j, factor in enumerate(factors)]

        def word_at(number: Value, size: int) -> _Word:
            here = codes.at(number * width)
            words = [e.load(here.at(j * k.lanes), self.integers) for j in range(vectors)]
            return _Word(block * k.block + number * each, size, words, factors, summands)

        whole, rest = divmod(count, each)
        if whole:
            with e.loop("word", whole, carry) as number:
                yield word_at(number, each)
        if rest:
            yield word_at(e.i64(whole), rest)

    def _opposite(self, block: Value, j: int) -> Value:
        """Minus the zero points of a vector of columns."""
        e, k = self.e, self.kernel
        if self.zeros is None:
            return e.const(self.kind, -k.middle)
        at = self.zeros.at(block * k.kept_width + j * k.lanes)
        wide = e.convert("zext", e.load(at, vector("i8", k.lanes)), self.integers)
        return e.convert("sitofp", wide, self.kind) * -1.0

    def _weight(self, word: _Word, number: int, j: int) -> Value:
        """A code of each column as the float that it stands for."""
        e, k = self.e, self.kernel
        code = word.words[j].shifted_right(number * k.bits)
        if self.permutes:  # by the lowest four bits
            table = e.const(self.kind, range(_TABLE_LANES))
            found = e.intrinsic("llvm.x86.avx512.permvar.sf.512", self.kind, table, code)
        else:
            found = e.convert("sitofp", code & ((1 << k.bits) - 1), self.kind)
        return e.fma(found, word.factors[j], word.summands[j])


_PANEL_VECTORS = (1, 2, 4)
_FEW_ROWS = 16  # up to which each tile makes its own floats
# Rows and vectors of tiles of few rows, with 32 registers and with 16: scales and words need some.
_TILES = {True: ((2, 4), (8, 2)), False: ((2, 2), (4, 1))}
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
