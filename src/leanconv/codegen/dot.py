"""The multiply-add of a register tile: sums of products of groups of elements.

    acc[lane] += sum over i < group of  a[i] · b[lane][i]

A group fills one lane of the sums: four bytes or two 16-bit integers fill an int32. `a` is one
group that all lanes share, `b` has a group for each lane. Integers are exact modulo 2^32 in every
row:

| row | elements | group | x86: vnni | ARM: dotprod | elsewhere |
|---|---|---|---|---|---|
| fma | float32, float64; halves as float32 | 1 | | | multiply-add |
| u8s8 | uint8 by int8, in int32 | 4 | vpdpbusd | sdot, a shifted | two pmaddwd |
| s8s8 | int8 by int8, in int32 | 4 | vpdpbusd, a shifted | sdot | two pmaddwd |
| u8u8 | uint8 by uint8, in int32 | 4 | two pmaddwd | udot | two pmaddwd |
| s16 | int16 by int16, in int32 | 2 | vpdpwssd | | pmaddwd |
| brain | bfloat16, in float32 | 2 | vdpbf16ps | | as fma |

*A shifted*: an instruction that takes `a` of the other sign gets it with its highest bit flipped,
which is a ± 128. The surplus in the sums, ± 128 times the sum of a group of `b`, is computed
once for each vector of `b` and taken off each of its products; or it is *folded*: the sums begin
with what all of it is. *Two pmaddwd*: even and odd bytes as 16 bits, in WebAssembly by
i32x4.dot_i16x8_s. Where there is no pmaddwd either, each element is widened to a lane of its own.
Where vdpbf16ps starts no more products than multiply-adds do, halves are multiplied as float32
(`pairs_pay`).

pmaddubsw is no row, for it saturates sums of two products. But weights may be such that no such sum
exceeds int16 (`magnitudes.PairTraits`): then it is the *way* of u8s8, and of s8s8 that is folded,
on x86 without vpdpbusd, with pmaddwd by ones behind it. Where sums of four fit as well, those of
two groups are added up in 16 bits first, and one pmaddwd serves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from leanconv.codegen.emitter import Function, Pointer, Value, element_of, lanes_of, vector
from leanconv.codegen.values import mangled
from leanconv.records import dataclass
from leanconv.target import Target
from leanconv.types import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOATS,
    HALVES,
    INT8,
    INT16,
    INT32,
    UINT8,
    DType,
    Precision,
)

Way = Literal["fma", "vnni", "dotprod", "bytes", "fours", "pairs", "wasm", "lanes", "brain"]
Parts = tuple[Value, ...]  # an operand, prepared once for all products that it is a factor of

# x, w and sums: how many elements are a group.
_GROUPS: Mapping[tuple[DType, DType, DType], int] = {
    (UINT8, INT8, INT32): 4,
    (INT8, INT8, INT32): 4,
    (UINT8, UINT8, INT32): 4,
    (INT16, INT16, INT32): 2,
}
# Instructions that take whole groups of `a` and `b`, by what a target needs for them.
_INSTRUCTIONS: Mapping[Way, Mapping[tuple[DType, DType], str]] = {
    "vnni": {(UINT8, INT8): "x86.avx512.vpdpbusd", (INT16, INT16): "x86.avx512.vpdpwssd"},
    "brain": {(BFLOAT16, BFLOAT16): "x86.avx512bf16.dpbf16ps"},
    "dotprod": {(INT8, INT8): "aarch64.neon.sdot", (UINT8, UINT8): "aarch64.neon.udot"},
    "bytes": {(UINT8, INT8): "x86"},
    "fours": {(UINT8, INT8): "x86"},
}
_TOGETHER = 2  # groups whose products are added up together
_CODES = Precision(UINT8, INT8, INT32, INT32)
_PAIR = 2  # elements of a group of bfloat16
_OTHER_SIGN: Mapping[DType, DType] = {UINT8: INT8, INT8: UINT8}
_HIGHEST_BITS = -0x7F7F7F80  # of four bytes, as an int32
_SHIFTED_ZERO = -0x80  # as an int8
_OF_PAIRS: Mapping[str, Way] = {"avx2": "pairs", "avx512": "pairs", "wasm": "wasm"}
# By lanes of sums.
_PMADDWD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
_PMADDUBSW = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}


@dataclass(frozen=True)
class Dot:
    """One row, as a target computes it.

    Attributes:
        a, b: element types of the operand that is broadcast and of the one in vectors.
        accumulate: type of the sums.
        group: elements whose products are added up in one lane.
        way: `"fma"`; `"vnni"`, `"dotprod"`, `"brain"`: one instruction for a group; `"bytes"`:
            pmaddubsw, whose sums of two fit; `"fours"`: of two groups, whose sums of four fit;
            `"pairs"`: pmaddwd of 16 bits; `"wasm"`: the same by WebAssembly's name; `"lanes"`:
            every element widened to a lane.
        folded: whether the sums begin with what a shift of `a` adds, so that nothing is taken off.
    """

    a: DType
    b: DType
    accumulate: DType
    group: int = 1
    way: Way = "fma"
    folded: bool = False

    def broadcast(self, e: Function, address: Pointer, kind: str) -> Parts:
        """Load one group of A for all lanes of sums of that type."""
        if self.way == "fma":
            return (e.broadcast(address, kind),)
        address, kind = self._of_words(address, kind)
        word = e.load(address, element_of(kind), align=self.a.bytes)
        return self._parts(e, e.splat(self._signed(word), lanes_of(kind)), self.a)

    def first_factor(self, e: Function, words: Value) -> Parts:
        """Groups of A, one in each lane of a vector, as a factor."""
        return self._parts(e, self._signed(words), self.a)

    def load(self, e: Function, address: Pointer, kind: str, live: int) -> Parts:
        """Load a group of B for each of the first `live` lanes of sums of that type."""
        if self.way == "fma":
            return (e.load_first(address, kind, live),)
        return self.second_factor(e, e.load_first(*self._of_words(address, kind), live))

    def _of_words(self, address: Pointer, kind: str) -> tuple[Pointer, str]:
        """An address of groups, and the type of a vector of them, as integers."""
        if not self.accumulate.is_float:
            return address, kind
        return address.of(INT32.llvm), vector(INT32.llvm, lanes_of(kind))

    def second_factor(self, e: Function, words: Value) -> Parts:
        """Groups of B, one in each lane of a vector, as a factor."""
        kind, parts = words.kind, self._parts(e, words, self.b)
        if self.shifted and not self.folded:
            shifted_zero = e.const(parts[0].kind, _SHIFTED_ZERO)
            parts = (*parts, self._grouped(e, e.zero(kind), shifted_zero, parts[0]))
        return parts

    def add(self, e: Function, acc: Value, a: Parts, b: Parts) -> Value:
        """The sums with one more group of products, or as many as `together`."""
        if self.way == "fma":
            return e.fma(a[0], b[0], acc)
        if self.way in ("bytes", "fours"):
            return _added_bytes(e, acc, a, b)
        if self.way in _INSTRUCTIONS:
            acc = self._grouped(e, acc, a[0], b[0])
            return acc - b[1] if self.shifted and not self.folded else acc
        kind = acc.kind
        for x, w in zip(a, b, strict=True):
            if self.way == "pairs":
                acc += pair_sums(e, kind, x, w)
            elif self.way == "wasm":
                acc += e.intrinsic("llvm.wasm.dot", kind, x, w)
            else:
                acc += x * w
        return acc

    def _signed(self, words: Value) -> Value:
        """Groups of A with the signs that the instruction takes."""
        return words ^ _HIGHEST_BITS if self.shifted else words

    @property
    def together(self) -> int:
        """Groups whose parts one product may take, those of each one after the other."""
        return _TOGETHER if self.way == "fours" else 1

    @property
    def shifted(self) -> bool:
        """True if the instruction takes `a` of the other sign."""
        return self.way in _INSTRUCTIONS and (self.a, self.b) not in _INSTRUCTIONS[self.way]

    @property
    def shift(self) -> int:
        """Number added to each element of `a` for the instruction: 0 or ± 128."""
        return (128 if self.a == INT8 else -128) if self.shifted else 0

    def _grouped(self, e: Function, acc: Value, a: Value, b: Value) -> Value:
        """The sums with a group of products, by one instruction."""
        name = _instruction(self.way, self.a, self.b)
        types = f"{mangled(acc.kind)}.{mangled(a.kind)}"
        if self.way in ("vnni", "brain"):
            types = str(8 * self.accumulate.bytes * lanes_of(acc.kind))
        return e.intrinsic(f"llvm.{name}.{types}", acc.kind, acc, a, b)

    def _parts(self, e: Function, words: Value, dtype: DType) -> Parts:
        """Groups, one in each lane, as the factors that `add` takes."""
        lanes, bits = lanes_of(words.kind), 8 * dtype.bytes
        if self.way == "lanes":
            whole = 8 * self.accumulate.bytes
            return tuple(
                _field(e, words, dtype, whole, place) for place in range(0, bits * self.group, bits)
            )
        if self.way in _INSTRUCTIONS or bits == 16:
            elements = vector(dtype.llvm, lanes * self.group)
            return (e.convert("bitcast", words, elements),)
        pairs = e.convert("bitcast", words, vector("i16", 2 * lanes))
        return _field(e, pairs, dtype, 16, 0), _field(e, pairs, dtype, 16, bits)


def _added_bytes(e: Function, acc: Value, a: Parts, b: Parts) -> Value:
    """The sums with products of bytes, which are added up in 16 bits before."""
    sums = byte_sums(e, a[0], b[0])
    for x, w in zip(a[1:], b[1:], strict=True):
        sums += byte_sums(e, x, w)
    return acc + pair_sums(e, acc.kind, sums, e.const(sums.kind, 1))


def byte_sums(e: Function, a: Value, b: Value) -> Value:
    """The sums of two products, of uint8 by int8, in each int16, by pmaddubsw: on x86 alone."""
    pairs = lanes_of(a.kind) // 2
    name = f"llvm.x86.{_PMADDUBSW[pairs // 2]}"
    return e.intrinsic(name, vector("i16", pairs), a, b)


def pair_sums(e: Function, kind: str, a: Value, b: Value) -> Value:
    """The sums of two products of int16 in each lane, by pmaddwd: on x86 alone."""
    return e.intrinsic(f"llvm.x86.{_PMADDWD[lanes_of(kind)]}", kind, a, b)


def _field(e: Function, words: Value, dtype: DType, whole: int, place: int) -> Value:
    """The element at bit `place` of each word of `whole` bits, widened to the word."""
    above = whole - 8 * dtype.bytes - place
    if above:
        words = words << above
    by = e.const(words.kind, whole - 8 * dtype.bytes)
    op = "ashr" if dtype.kind == "int" else "lshr"
    return e.define(f"{op} {words}, {by.text}", words.kind)


_FMA: Mapping[DType, Dot] = {dtype: Dot(dtype, dtype, dtype) for dtype in (*FLOATS, FLOAT16)}


def fma(dtype: DType) -> Dot:
    """The multiply-add of a type in which CPUs compute."""
    return _FMA[dtype]


def group_of(precision: Precision) -> int:
    """Elements of a group: 1 where each product is added to a sum by itself."""
    given = precision.x, precision.w, precision.accumulate
    return _GROUPS.get(given, 1)


def has_dot(precision: Precision) -> bool:
    """Return whether there is a row for operands and sums of these types."""
    given = precision.x, precision.w, precision.accumulate
    return given in _GROUPS or computes_floats(precision)


def computes_floats(precision: Precision) -> bool:
    """Return whether sums and products are of one type of floats; operands may be halves."""
    operands, sums = (precision.x, precision.w), precision.accumulate
    if sums == FLOAT32:
        return all(each in (FLOAT32, *HALVES) for each in operands)
    return sums in FLOATS and operands == (sums, sums)


def way_of(precision: Precision, target: Target) -> Way:
    """Return the way in which a target multiplies and adds operands of types that have a row."""
    if group_of(precision) == 1:
        return "fma"
    offered = _group_way(target)
    if offered and _instruction(offered, precision.x, precision.w):
        return offered
    return _OF_PAIRS.get(target.isa, "lanes")


def takes_bytes(precision: Precision, target: Target) -> bool:
    """Return whether a target multiplies bytes faster where no sum of two overflows int16."""
    codes = precision.x in _OTHER_SIGN and precision.w == INT8
    known = target.costs.u8s8_fitting_products is not None
    return known and codes and way_of(precision, target) == "pairs"


def fitting_lanes(target: Target) -> int | None:
    """Return the lanes of vectors of weights of which it matters whether sums of two fit int16."""
    return target.lanes(INT32) if takes_bytes(_CODES, target) else None


def pairs_pay(precision: Precision, target: Target) -> bool:
    """Return whether pairs of bfloat16 are multiplied faster than as float32."""
    known = precision.x == precision.w == BFLOAT16 and precision.accumulate == FLOAT32
    rate = pairs_per_cycle(target) if known and "bf16" in target.extensions else 0.0
    return rate * _PAIR > target.fma_units


def pairs_per_cycle(target: Target) -> float:
    """Return the vectors of pairs of bfloat16 that a target multiplies and adds in a cycle."""
    return (target.costs.bf16_products or 0.0) / (_PAIR * target.lanes(FLOAT32))


def dots_per_cycle(
    precision: Precision, target: Target, folded: bool = False, way: Way | None = None
) -> float:
    """Return the vectors of groups that a target multiplies and adds in a cycle.

    Args:
        precision: of the operands.
        target: the machine.
        folded: as `Dot` has it; then a tile of four vectors flips a group for four products.
        way: that of the target if None.
    """
    group, costs = group_of(precision), target.costs
    products = costs.u8s8_products if precision.x.bytes == 1 else costs.s16_products
    products = costs.u8s8_fitting_products if way in ("bytes", "fours") else products
    if group == 1 or products is None:
        return target.fma_units
    dot = dot_of(precision, way or way_of(precision, target))
    rate = products / (group * target.lanes(precision.accumulate))
    rate *= 4 / 3 if way == "fours" else 1  # three products of registers in place of four
    if not dot.shifted:
        return rate
    if way in ("bytes", "fours"):  # two vectors, three instructions of each
        return rate * 6 / 7
    return rate * 4 / 5 if folded else rate / 2


def _group_way(target: Target) -> Way | None:
    """Return the instructions for groups that a target has."""
    narrow = "avx_vnni" in target.extensions and target.vector_bytes <= 32
    if narrow or "vnni" in target.extensions:
        return "vnni"
    return "dotprod" if "dotprod" in target.extensions else None


def _instruction(way: Way, a: DType, b: DType) -> str | None:
    """The intrinsic that takes groups of `a`, or of `a` shifted; None if there is none."""
    table = _INSTRUCTIONS[way]
    return table.get((a, b)) or table.get((_OTHER_SIGN.get(a, a), b))


def dot_of(precision: Precision, way: Way, folded: bool = False) -> Dot:
    """The row of these types."""
    group = group_by(precision, way)
    return Dot(precision.x, precision.w, precision.accumulate, group, way, folded)


def group_by(precision: Precision, way: Way) -> int:
    """Elements of a group where a target multiplies and adds in this way."""
    if way == "fma":
        return 1
    return _PAIR if way == "brain" else group_of(precision)
