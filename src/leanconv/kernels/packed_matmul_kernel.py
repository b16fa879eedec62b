"""The kernels of products with weights of 2, 4 or 8 bits that stay codes.

    for panel of columns:
      for tile of rows:
        for block of k:    s[j], o[j] = scale[block, j], -zero[block, j] * scale[block, j]
          for word:        codes[j] = panel[word, j]                  32 bits: 4, 8 or 16 codes
            for k:         acc[i][j] += a[i, k] * fma(float(code k of codes[j]), s[j], o[j])

Few rows are bound by reading the weights, so these are read as they are kept: a word of 32 bits
holds codes of one column that follow each other along k, lanes run along columns. Where rows are
many, a chunk makes all of its panel floats first, and all its rows read these. A code of 4 bits
becomes a float by one permutation of a table in a register where a vector has 16 lanes.

Where x comes as bytes, in blocks that have a scale each, codes of 4 bits are multiplied as they
are, four of a column at once:

      for block of k:   d[i][j] = sum_k bytes[i, k] * code[j, k]                           exact
                        acc[i][j] += (scale[i] * d[i][j] - zero[j] * total[i]) * scale[block, j]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leanconv.codegen.dot import Way, byte_sums, dot_of, pair_sums, way_of
from leanconv.codegen.emitter import Carry, Pointer, Value, vector
from leanconv.graph.ops.quantised_layers import WORD_BITS
from leanconv.kernels.matmul_kernel import Columns, OfPanels, PackedMatMul
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import FLOAT32, INT8, INT32, UINT8, Precision

_TABLE_LANES = 16
ENDS = 8  # bytes behind those of a block of a row: its scale, and that times their sum
_NIBBLES = 0x0F0F0F0F
_IN_16_BITS = 4  # words whose products, 16 of 15 * 127 in each lane, are summed in 16 bits
OF_BYTES = Precision(UINT8, INT8, INT32, INT32)


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
    of_rows = FLOAT32.llvm

    def emit(self) -> str:
        e, k = self.e, self.kernel
        held = e.pointers(k.operands, self.element, a=self.of_rows, codes=INT32.llvm, zeros="i8")
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


@dataclass(frozen=True)
class BytesMatMulNBits(MatMulNBits):
    """Rows of bytes, as `RowsOfBytes` makes them, times weights of 4 bits."""

    def emit(self, target: Target) -> str:
        return _NestOfBytes(self, target).emit()


class _NestOfBytes(_Nest):
    of_rows = "i8"

    def _sums(self, acc: Carry, a: Pointer, panel: Pointer, rows: int, columns: Columns) -> None:
        e, k, vectors = self.e, self.kernel, len(columns.offsets)
        with e.loop("block", ceil_div(k.k, k.block), [acc]) as block:
            here = a.at(block * (k.block + ENDS))
            codes = panel.at(block * (k.block // k.codes_of_word * k.kept_width))
            sums = self._dots(here, codes, rows, vectors)
            scales = self.scales.at(block * k.kept_width)
            for j in range(vectors):
                factor, zero = e.load(scales.at(j * k.lanes), self.kind), self._opposite(block, j)
                for i in range(rows):
                    ends, slot = here.at(i * k.a.row + k.block).of(self.element), i * vectors + j
                    scale, total = (e.broadcast(ends.at(n), self.kind) for n in range(2))
                    whole = e.convert("sitofp", sums[slot], self.kind)
                    acc[slot] = e.fma(e.fma(whole, scale, zero * total), factor, acc[slot])

    def _dots(self, x: Pointer, codes: Pointer, rows: int, vectors: int) -> list[Value]:
        """The sums of a block, exact; rows in turn, vectors of columns side by side."""
        e, k = self.e, self.kernel
        words, kind = k.block // k.codes_of_word, self.integers
        of_pairs = self._way == "pairs"
        pairs, octets = vector("i16", 2 * k.lanes), vector("i8", 4 * k.lanes)
        sums = [e.zero(kind)] * (rows * vectors)
        dot = dot_of(OF_BYTES, self._way)
        for first in range(0, words, _IN_16_BITS):
            small = [e.zero(pairs)] * (rows * vectors)
            for number in range(first, min(first + _IN_16_BITS, words)):
                at = [x.at(i * k.a.row + 8 * number).of(INT32.llvm) for i in range(rows)]
                for j in range(vectors):
                    word = e.load(codes.at(number * k.kept_width + j * k.lanes), kind)
                    for half in range(2):
                        some = word.shifted_right(4 * half) & _NIBBLES
                        some = e.convert("bitcast", some, octets)
                        for i in range(rows):
                            slot = i * vectors + j
                            own = e.broadcast(at[i].at(half), kind)
                            own = e.convert("bitcast", own, octets)
                            if not of_pairs:
                                sums[slot] = dot.add(e, sums[slot], (some,), (own,))
                                continue
                            small[slot] += byte_sums(e, some, own)
            if of_pairs:
                both, ones = zip(sums, small, strict=True), e.const(pairs, 1)
                sums = [s + pair_sums(e, kind, part, ones) for s, part in both]
        return sums

    @property
    def _way(self) -> Way:
        return way_of(OF_BYTES, self.target)
