"""The multiply-add of a register tile: sums of products of groups of elements.

    acc[lane] += sum over i < group of  a[i] · b[lane][i]

A group fills one lane of the sums: four bytes or two 16-bit integers fill an int32. `a` is one
group that all lanes share, `b` has a group for each lane. Integers are exact modulo 2^32 in every
row:

| row | elements | group | instruction | elsewhere |
|---|---|---|---|---|
| fma | float32, float64 | 1 | multiply-add | |
| u8s8 | uint8 by int8, in int32 | 4 | vpdpbusd | even and odd bytes as 16 bits: two pmaddwd |
| s16 | int16 by int16, in int32 | 2 | vpdpwssd | pmaddwd |

x86's pmaddubsw is no row: it saturates sums of two products. Where there is no pmaddwd either, each
element is widened to a lane of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from leanconv.codegen.emitter import Function, Pointer, Value, element_of, lanes_of, vector
from leanconv.records import dataclass
from leanconv.target import Target
from leanconv.types import FLOATS, INT8, INT16, INT32, UINT8, DType, Precision

Way = Literal["fma", "group", "pairs", "lanes"]
Parts = tuple[Value, ...]  # an operand, prepared once for all products that it is a factor of

# x, w and sums: how many elements are a group, and the instruction that takes them.
_GROUPS: Mapping[tuple[DType, DType, DType], tuple[int, str]] = {
    (UINT8, INT8, INT32): (4, "vpdpbusd"),
    (INT16, INT16, INT32): (2, "vpdpwssd"),
}
_PMADDWD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}  # by lanes of sums


@dataclass(frozen=True)
class Dot:
    """One row, as a target computes it.

    Attributes:
        a, b: element types of the operand that is broadcast and of the one in vectors.
        accumulate: type of the sums.
        group: elements whose products are added up in one lane.
        way: `"fma"`; `"group"`: one instruction for a group; `"pairs"`: pmaddwd of 16 bits;
            `"lanes"`: every element widened to a lane.
    """

    a: DType
    b: DType
    accumulate: DType
    group: int = 1
    way: Way = "fma"

    def broadcast(self, e: Function, address: Pointer, kind: str) -> Parts:
        """Load one group of A for all lanes of sums of that type."""
        if self.way == "fma":
            return (e.broadcast(address, kind),)
        word = e.load(address, element_of(kind), align=self.a.bytes)
        return self._parts(e, e.splat(word, lanes_of(kind)), self.a)

    def load(self, e: Function, address: Pointer, kind: str, live: int) -> Parts:
        """Load a group of B for each of the first `live` lanes of sums of that type."""
        word = e.load_first(address, kind, live)
        return (word,) if self.way == "fma" else self._parts(e, word, self.b)

    def add(self, e: Function, acc: Value, a: Parts, b: Parts) -> Value:
        """The sums with one more group of products."""
        if self.way == "fma":
            return e.fma(a[0], b[0], acc)
        kind = acc.kind
        if self.way == "group":
            name = _GROUPS[self.a, self.b, self.accumulate][1]
            bits = 8 * self.accumulate.bytes * lanes_of(kind)
            return e.intrinsic(f"llvm.x86.avx512.{name}.{bits}", kind, acc, a[0], b[0])
        for x, w in zip(a, b, strict=True):
            if self.way == "pairs":
                acc += e.intrinsic(f"llvm.x86.{_PMADDWD[lanes_of(kind)]}", kind, x, w)
            else:
                acc += x * w
        return acc

    def _parts(self, e: Function, words: Value, dtype: DType) -> Parts:
        """Groups, one in each lane, as the factors that `add` takes."""
        lanes, bits = lanes_of(words.kind), 8 * dtype.bytes
        if self.way == "lanes":
            whole = 8 * self.accumulate.bytes
            return tuple(
                _field(e, words, dtype, whole, place) for place in range(0, bits * self.group, bits)
            )
        if self.way == "group" or bits == 16:
            elements = vector(dtype.llvm, lanes * self.group)
            return (e.convert("bitcast", words, elements),)
        pairs = e.convert("bitcast", words, vector("i16", 2 * lanes))
        return _field(e, pairs, dtype, 16, 0), _field(e, pairs, dtype, 16, bits)


def _field(e: Function, words: Value, dtype: DType, whole: int, place: int) -> Value:
    """The element at bit `place` of each word of `whole` bits, widened to the word."""
    above = whole - 8 * dtype.bytes - place
    if above:
        words = words << above
    by = e.const(words.kind, whole - 8 * dtype.bytes)
    op = "ashr" if dtype.kind == "int" else "lshr"
    return e.define(f"{op} {words}, {by.text}", words.kind)


_FMA: Mapping[DType, Dot] = {dtype: Dot(dtype, dtype, dtype) for dtype in FLOATS}


def fma(dtype: DType) -> Dot:
    """The multiply-add of a type in which CPUs compute."""
    return _FMA[dtype]


def group_of(precision: Precision) -> int:
    """Elements of a group: 1 where each product is added to a sum by itself."""
    given = precision.x, precision.w, precision.accumulate
    return _GROUPS[given][0] if given in _GROUPS else 1


def has_dot(precision: Precision) -> bool:
    """Whether there is a row for operands and sums of these types."""
    given = precision.x, precision.w, precision.accumulate
    return given in _GROUPS or (len(set(given)) == 1 and precision.x in _FMA)


def way_of(precision: Precision, target: Target) -> Way:
    """How a target multiplies and adds operands of these types, which have a row."""
    if group_of(precision) == 1:
        return "fma"
    if "vnni" in target.extensions:
        return "group"
    if "avx_vnni" in target.extensions and target.vector_bytes <= 32:
        return "group"
    return "pairs" if target.isa in ("avx2", "avx512") else "lanes"


def dot_of(precision: Precision, way: Way) -> Dot:
    """The row of these types."""
    if way == "fma":
        return _FMA[precision.dtype]
    return Dot(precision.x, precision.w, precision.accumulate, group_of(precision), way)
