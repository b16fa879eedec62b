"""Values of LLVM IR text: types by name, literals, and operators that write instructions.

Types are LLVM's own words: `"float"`, `"i64"`, `"ptr"`, `"<16 x float>"`. Values are:

- `Value`: data, scalars or vectors. Integers are modulo 2^bits, as NumPy's are.
- `Index`: signed integers that never overflow, mostly of 64 bits, made by loops, words of the
  table and `Function.i64`. LLVM is told so (`nsw`): it finds strides of addresses by that.
- `Pointer`: an address that knows what lies there: `x.at(i)` steps in elements, and what is loaded
  is one of them if nothing else is said. LLVM's `ptr` does not know.

Operators give what their left operand is: `index + loaded` is an index, `loaded + index` is data.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, Protocol, TypeVar

from leanconv.symbolic import Symbol
from leanconv.types import DTYPES, HALVES, DType

Number = int | float
Same = TypeVar("Same", bound="Value")
# LLVM's comparisons. Integers: signed and unsigned; floats: ordered (false for a NaN) and not.
_OfIntegers = Literal["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]
_OfFloats = Literal["oeq", "one", "olt", "ole", "ogt", "oge", "ord", "uno", "une"]
Predicate = _OfIntegers | _OfFloats

_BYTES = {"ptr": 8, "i1": 1, **{dtype.llvm: dtype.bytes for dtype in DTYPES}}
_KINDS = 1024  # whose parts are remembered: they are taken apart for most instructions
_HALVES = {dtype.llvm: dtype for dtype in HALVES}
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}


def vector(element: str, lanes: int) -> str:
    """Name the vector type of `lanes` elements; the element itself for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


@lru_cache(_KINDS)
def element_of(kind: str) -> str:
    """Name the element type of a vector or scalar type."""
    return kind.split(" x ")[1][:-1] if kind[0] == "<" else kind


@lru_cache(_KINDS)
def lanes_of(kind: str) -> int:
    """Count the lanes of a type; 1 for a scalar."""
    return int(kind[1:].split(" ", 1)[0]) if kind[0] == "<" else 1


@lru_cache(_KINDS)
def bytes_of(kind: str) -> int:
    """Size of an element type in bytes."""
    return _BYTES[kind] if kind in _BYTES else int(kind[1:]) // 8


@lru_cache(_KINDS)
def mangled(kind: str) -> str:
    """Name a type as intrinsics' names have it: `f32`, `v16f32`."""
    element = element_of(kind)
    suffix = _SUFFIX.get(element, element)
    return suffix if kind[0] != "<" else f"v{lanes_of(kind)}{suffix}"


def literal(kind: str, value: Number | Sequence[Number]) -> str:
    """Write a constant of the type: a number is splatted over a vector's lanes."""
    if kind[0] == "<":
        element = element_of(kind)
        if isinstance(value, (int, float)):
            return f"splat ({element} {literal(element, value)})"
        return "<" + ", ".join(f"{element} {literal(element, v)}" for v in value) + ">"
    assert isinstance(value, (int, float))
    if kind[0] == "i":
        return str(int(value))
    if kind == "float":
        value = struct.unpack("f", struct.pack("f", value))[0]
    elif kind in _HALVES:
        value = _rounded(value, _HALVES[kind])
    return f"0x{struct.unpack('Q', struct.pack('d', value))[0]:016X}"


def _rounded(value: Number, dtype: DType) -> float:
    """The nearest number of a type, the even one of two; infinity beyond the largest."""
    if not math.isfinite(value):
        return value
    _, exponent = math.frexp(max(abs(value), dtype.least_normal))
    step = math.ldexp(dtype.roundoff, exponent)
    nearest = round(abs(value) / step) * step
    return math.copysign(nearest if nearest <= dtype.high else math.inf, value)


class Builder(Protocol):
    """Interface of a function's text that its values append instructions to."""

    def const(self, kind: str, value: Number | Sequence[Number]) -> Value:
        """A constant; a number is splatted over a vector's lanes."""

    def i64(self, value: Value | Number) -> Value:
        """An index as a value: numbers become constants, values stay as they are."""

    def define(self, expression: str, kind: str) -> Value:
        """Append one instruction and name its result."""

    def named(self, expression: str) -> str:
        """Append one instruction; return the name of its result."""


class Value:
    """A value in static single assignment form: its LLVM type and its name or literal."""

    __slots__ = ("function", "kind", "text")

    def __init__(self, function: Builder, kind: str, text: str) -> None:
        self.function, self.kind, self.text = function, kind, text

    def __str__(self) -> str:
        return f"{self.kind} {self.text}"

    def like(self: Same, expression: str) -> Same:
        """Append one instruction whose result has this value's type."""
        return type(self)(self.function, self.kind, self.function.named(expression))

    @property
    def is_float(self) -> bool:
        """True for floating point scalars and vectors."""
        return element_of(self.kind)[0] in "fdhb"

    def zero(self: Same) -> Same:
        """Zero of this type."""
        return type(self)(self.function, self.kind, literal(self.kind, 0))

    def coerced(self, other: Value | Number) -> Value:
        """Return the other operand of an instruction: numbers become constants of this type."""
        return other if isinstance(other, Value) else self.function.const(self.kind, other)

    def _arithmetic(self: Same, integer: str, floating: str, a: Value, b: Value) -> Same:
        op = floating if self.is_float else integer
        return self.like(f"{op} {self.kind} {a.text}, {b.text}")

    def __add__(self: Same, other: Value | Number) -> Same:
        if isinstance(other, int) and other == 0:
            return self
        return self._arithmetic("add", "fadd", self, self.coerced(other))

    __radd__ = __add__

    def __sub__(self: Same, other: Value | Number) -> Same:
        if isinstance(other, int) and other == 0:
            return self
        return self._arithmetic("sub", "fsub", self, self.coerced(other))

    def __rsub__(self: Same, other: Number) -> Same:
        return self._arithmetic("sub", "fsub", self.coerced(other), self)

    def __mul__(self: Same, other: Value | Number) -> Same:
        if isinstance(other, int) and other == 1:
            return self
        return self._arithmetic("mul", "fmul", self, self.coerced(other))

    __rmul__ = __mul__

    def __truediv__(self: Same, other: Value | Number) -> Same:
        return self._arithmetic("sdiv", "fdiv", self, self.coerced(other))

    def __rtruediv__(self: Same, other: Number) -> Same:
        return self._arithmetic("sdiv", "fdiv", self.coerced(other), self)

    def __floordiv__(self: Same, other: Value | int) -> Same:
        """Divide unsigned integers."""
        if isinstance(other, int) and other == 1:
            return self
        return self._divided("udiv", other)

    def __mod__(self: Same, other: Value | int) -> Same:
        """Remainder of unsigned integers."""
        if isinstance(other, int) and other == 1:
            return self.zero()
        return self._divided("urem", other)

    def _divided(self: Same, op: str, other: Value | int) -> Same:
        """Divide integers; a quotient by a word of the table is frozen.

        LLVM expands no division that might be by zero, and so would leave the loops of all
        addresses that depend on one without strength reduction.
        """
        value = self._arithmetic(op, "f" + op[1:], self, self.coerced(other))
        return value.frozen() if isinstance(other, Symbol) else value

    def __and__(self: Same, other: Value | int) -> Same:
        return self._arithmetic("and", "and", self, self.coerced(other))

    def __or__(self: Same, other: Value | int) -> Same:
        return self._arithmetic("or", "or", self, self.coerced(other))

    def __xor__(self: Same, other: Value | int) -> Same:
        return self._arithmetic("xor", "xor", self, self.coerced(other))

    def __lshift__(self: Same, other: Value | int) -> Same:
        return self._arithmetic("shl", "shl", self, self.coerced(other))

    def shifted_right(self: Same, bits: int) -> Same:
        """Signed integers divided by a power of two, rounded down."""
        return self._arithmetic("ashr", "ashr", self, self.coerced(bits)) if bits else self

    def compare(self, how: Predicate, other: Value | Number) -> Value:
        """Compare lane by lane; `how` is an LLVM predicate such as `ult`, `slt`, `olt`, `uno`."""
        right = self.coerced(other)
        op = "fcmp" if self.is_float else "icmp"
        kind = vector("i1", lanes_of(self.kind))
        return self.function.define(f"{op} {how} {self.kind} {self.text}, {right.text}", kind)

    def frozen(self: Same) -> Same:
        """The same value as an unknown to LLVM's strength reduction; no instruction.

        That takes a third of the time of compiling: it compares all addresses that depend on the
        index of a loop, however far outside. Those of a register tile are numbers beyond one base;
        if it is frozen, they are none of the outer loops'.
        """
        return self.like(f"freeze {self}")


_NO_OVERFLOW = {"add": "add nsw", "sub": "sub nsw", "mul": "mul nsw"}


class Index(Value):
    """A position, count or stride; sums, differences and products never overflow."""

    __slots__ = ()

    def coerced(self, other: Value | Number) -> Value:
        """Return the other operand of an instruction: numbers become indices."""
        if isinstance(other, Value):
            return other
        scalar = self.kind == "i64"
        return self.function.i64(other) if scalar else self.function.const(self.kind, other)

    def _arithmetic(self: Same, integer: str, floating: str, a: Value, b: Value) -> Same:
        del floating
        return self.like(f"{_NO_OVERFLOW.get(integer, integer)} {self.kind} {a.text}, {b.text}")


class Pointer(Value):
    """An address of elements of a type that it knows, of LLVM's."""

    __slots__ = ("element",)

    def __init__(self, function: Builder, kind: str, text: str, element: str = "i8") -> None:
        self.function, self.kind, self.text, self.element = function, kind, text, element

    def like(self, expression: str) -> Pointer:
        """Append one instruction whose result is an address of such elements, too."""
        return Pointer(self.function, "ptr", self.function.named(expression), self.element)

    def of(self, element: str) -> Pointer:
        """Return the same address as one of other elements; no instruction."""
        return Pointer(self.function, "ptr", self.text, element)

    def at(self, index: Value | int) -> Pointer:
        """The address `index` elements past this one."""
        if isinstance(index, int):
            if index == 0:
                return self
            place = f"i64 {index}"
        else:
            place = str(self.function.i64(index))
        return self.like(f"getelementptr {self.element}, ptr {self.text}, {place}")
