"""Half precision in memory, float32 in registers: the conversions between the two.

| type | to float32 | from float32 |
|---|---|---|
| float16 | LLVM's `fpext`: one instruction on all our targets | `fptrunc`: one instruction |
| bfloat16 | the upper half of a word: a shift | `fptrunc` where a target has it, else integers |

Numbers are rounded to the nearest, the even one of two; those beyond the largest become infinite,
and a NaN stays one. Subnormal halves are numbers like any others, whatever the state of the CPU;
of bfloat16, whose subnormal numbers are float32's, they may be zeros.
"""

from __future__ import annotations

from leanconv.codegen.instructions import Instructions
from leanconv.codegen.values import Value, element_of, lanes_of, vector
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32

_ELEMENTS = (FLOAT16.llvm, BFLOAT16.llvm)
_BITS = "i16"  # as they are loaded and stored: vectors of halves have no masked forms everywhere
_WORD, _HALF_BITS = "i32", 16
_ROUND, _QUIET = 0x7FFF, 0x400000  # just below half of the last place; what makes a NaN quiet


def is_half(element: str) -> bool:
    """Whether LLVM's type of an element is one of half precision."""
    return element in _ELEMENTS


def loads_as(held: str, element: str) -> bool:
    """Whether elements in memory are loaded and stored as those of a type."""
    return held == element or (is_half(held) and element == FLOAT32.llvm)


def bits_kind(kind: str) -> str:
    """The integers with as many bits as halves, one for each lane."""
    return vector(_BITS, lanes_of(kind))


def from_bits(e: Instructions, bits: Value, element: str, kind: str) -> Value:
    """Halves as they lie in memory as floats, or as halves, of a type with as many lanes."""
    lanes = lanes_of(kind)
    if element_of(kind) == FLOAT32.llvm and element == BFLOAT16.llvm:
        words = e.convert("zext", bits, vector(_WORD, lanes)) << _HALF_BITS
        return e.convert("bitcast", words, kind)
    halves = e.convert("bitcast", bits, vector(element, lanes))
    return halves if element_of(kind) == element else e.convert("fpext", halves, kind)


def to_bits(e: Instructions, value: Value, element: str) -> Value:
    """Floats, or halves, as halves lie in memory."""
    lanes = lanes_of(value.kind)
    if is_half(element_of(value.kind)) and element_of(value.kind) != element:  # the other one
        value = e.convert("fpext", value, vector(FLOAT32.llvm, lanes))
    arithmetic = element == BFLOAT16.llvm and not e.rounds_to_bfloat16
    if element_of(value.kind) == FLOAT32.llvm and arithmetic:
        return _upper_half(e, value)
    if element_of(value.kind) != element:
        value = e.convert("fptrunc", value, vector(element, lanes))
    return e.convert("bitcast", value, bits_kind(value.kind))


def _upper_half(e: Instructions, value: Value) -> Value:
    """The upper halves of float32 numbers, rounded: 32 bits of a number are an integer's."""
    words = e.convert("bitcast", value, vector(_WORD, lanes_of(value.kind)))
    shift = e.const(words.kind, _HALF_BITS)
    last = e.define(f"lshr {words}, {shift.text}", words.kind) & 1
    rounded = words + (last + _ROUND)
    chosen = e.select(value.compare("uno", value), words | _QUIET, rounded)
    upper = e.define(f"lshr {chosen}, {shift.text}", words.kind)
    return e.convert("trunc", upper, bits_kind(value.kind))
