"""Steps of elementwise expressions between element types: casts, comparisons, logic, integers.

In registers a bool is a bit (`i1`), and a half is the float that it converts to exactly;
everything else is as in memory. Every step gives the same bits for the same numbers,
whether they lie in whole vectors or in a tail, on every target, and none traps:

- integers are modulo 2^bits; quotients go towards zero, and division by zero gives 0;
- powers with a negative exponent are quotients, too; of what is shifted by as many bits as there
  are, nothing is left but the sign;
- from floats to integers numbers are truncated. What int32 (int64 for wider results and uint32)
  cannot hold becomes its nearest number, NaN 0; of that the low bits are kept;
- from integers to halves, numbers are rounded to float32 first, as NumPy does.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from leanconv.codegen.emitter import Function, Value, lanes_of, vector
from leanconv.codegen.memory import from_bits, to_bits
from leanconv.codegen.shuffles import any_lane
from leanconv.codegen.values import Predicate, mangled
from leanconv.types import BOOL, FLOAT32, FLOAT64, HALVES, INT32, INT64, DType

Types = tuple[DType, DType]  # of a step's last operand, and of its result


# -- memory and registers -----------------------------------------------------------------------
def in_memory(dtype: DType) -> str:
    """LLVM's type with which an element is loaded and stored."""
    return f"i{8 * dtype.bytes}" if dtype in HALVES else dtype.llvm


def from_memory(e: Function, x: Value, dtype: DType) -> Value:
    """Return a loaded value in its type for computing: a bool as a bit, a half as float32."""
    if dtype == BOOL:
        return x.compare("ne", 0)
    if dtype in HALVES:
        return from_bits(e, x, dtype.llvm, _kind(FLOAT32.llvm, x))
    return x


def to_memory(e: Function, x: Value, dtype: DType) -> Value:
    """Return a computed value in its type for storing."""
    if dtype == BOOL:
        return _cast(e, "zext", x, BOOL.llvm)
    if dtype in HALVES:
        return to_bits(e, x, dtype.llvm)
    return x


def _kind(element: str, x: Value) -> str:
    return vector(element, lanes_of(x.kind))


def _cast(e: Function, op: str, x: Value, element: str) -> Value:
    return e.convert(op, x, _kind(element, x))


# -- casts --------------------------------------------------------------------------------------
def cast(e: Function, x: Value, source: DType, target: DType) -> Value:
    """Return a value converted between types, by the rules at the top."""
    if source == target:
        return x
    if target == BOOL:
        return x.compare("une" if source.is_float else "ne", 0)
    if source.is_float and target.is_float:
        return _between_floats(e, x, source, target)
    if target.is_float:
        op = "sitofp" if source.kind == "int" else "uitofp"
        return _cast(e, op, x, FLOAT32.llvm if target in HALVES else target.llvm)
    if source.is_float:
        return _to_integer(e, x, target)
    if source != BOOL and source.bytes == target.bytes:
        return x
    if source.bytes > target.bytes:
        return _cast(e, "trunc", x, target.llvm)
    return _cast(e, "sext" if source.kind == "int" else "zext", x, target.llvm)


def bits(e: Function, types: Types, x: Value) -> Value:
    """The bits of a number as another type's of as many."""
    return _cast(e, "bitcast", x, types[1].llvm)


def _between_floats(e: Function, x: Value, source: DType, target: DType) -> Value:
    if target == FLOAT64:
        return _cast(e, "fpext", x, target.llvm)
    if source == FLOAT64:
        return _to_odd(e, x) if target in HALVES else _cast(e, "fptrunc", x, target.llvm)
    return x if target == FLOAT32 else from_memory(e, to_memory(e, x, target), target)


def _to_integer(e: Function, x: Value, target: DType) -> Value:
    """Truncate floats; LLVM's own saturating conversion takes vectors apart lane by lane on x86."""
    if target.bytes <= 2:
        return _cast(e, "trunc", _to_word(e, x, True), target.llvm)
    if target == INT32:
        return _to_word(e, x, False)
    # Few targets convert to 64 bits by whole vectors: numbers of 32 bits do without.
    unsigned = target.kind == "uint" and target.bytes == INT64.bytes
    fits = (x if unsigned else e.unary("fabs", x)).compare("olt", 2.0**31)
    if unsigned:
        fits = fits & x.compare("oge", 0.0)
    found = [_cast(e, "sext", _cast(e, "fptosi", x, INT32.llvm), INT64.llvm)]
    with e.when(any_lane(e, fits ^ 1), [found]):
        found[0] = _to_long(e, x, unsigned)
    return found[0] if target.bytes == INT64.bytes else _cast(e, "trunc", found[0], target.llvm)


def _to_word(e: Function, x: Value, narrow: bool) -> Value:
    """Floats as int32; where `narrow`, only the low 16 bits are wanted."""
    low = e.const(x.kind, -(2.0**31))
    held = e.select(x.compare("ogt", low), x, low)  # NaN, too, whose low bits are then 0
    found = _cast(e, "fptosi", held, INT32.llvm)  # undefined, and not chosen, above 2^31
    high = e.const(found.kind, -1 if narrow else int(INT32.high))
    found = e.select(held.compare("olt", 2.0**31), found, high)
    return found if narrow else e.select(x.compare("uno", x), found.zero(), found)


def _to_long(e: Function, x: Value, unsigned: bool) -> Value:
    bits = 64 if unsigned else 63
    low, high = (0 if unsigned else -(2**63)), 2**bits - 1
    found = _cast(e, "fptoui" if unsigned else "fptosi", x, INT64.llvm)
    found = e.select(x.compare("olt", 2.0**bits), found, e.const(found.kind, high))
    found = e.select(x.compare("olt", float(low)), e.const(found.kind, low), found)
    return e.select(x.compare("uno", x), found.zero(), found)


def _to_odd(e: Function, x: Value) -> Value:
    """A double as float, rounded to odd: to round that once more is to round the double once."""
    near = _cast(e, "fptrunc", x, FLOAT32.llvm)
    back = e.convert("fpext", near, x.kind)
    bits = _cast(e, "bitcast", near, "i32")
    larger = e.unary("fabs", back).compare("ogt", e.unary("fabs", x))
    bits = e.select(larger, bits - 1, bits)
    inexact = e.convert("zext", back.compare("one", x), bits.kind)
    return e.convert("bitcast", bits | inexact, near.kind)


# -- integers -----------------------------------------------------------------------------------
def _divided(e: Function, op: str, a: Value, b: Value, dtype: DType) -> Value:
    """`op` is `div` or `rem`; what would trap is divided by 1, and the quotient by zero is 0.

    Besides zero that is -1 below the least number, whose quotient, modulo 2^bits, is itself.
    x86 divides no vectors of integers. Floats of twice their bits do, exactly: a quotient that is
    no integer is further below the next one than a rounding goes.
    """
    zero = b.compare("eq", 0)
    traps = zero
    if dtype.kind == "int":
        traps = zero | (a.compare("eq", int(dtype.low)) & b.compare("eq", -1))
    divisor = e.select(traps, e.const(b.kind, 1), b)
    sign = "s" if dtype.kind == "int" else "u"
    if dtype.bytes > INT32.bytes:
        return e.select(zero, a.zero(), e.define(f"{sign}{op} {a}, {divisor.text}", a.kind))
    real = FLOAT64 if dtype.bytes == INT32.bytes else FLOAT32
    wide, by = (_cast(e, f"{sign}itofp", x, real.llvm) for x in (a, divisor))
    found = e.convert(f"fpto{sign}i", wide / by, a.kind)
    return e.select(zero, a.zero(), found if op == "div" else a - found * divisor)


def quotient(e: Function, types: Types, a: Value, b: Value) -> Value:
    """a / b, towards zero."""
    return _divided(e, "div", a, b, types[0])


def remainder(e: Function, types: Types, a: Value, b: Value, towards_zero: bool) -> Value:
    """Return the remainder of a / b: of b's sign, or of a's where quotients go towards zero."""
    dtype = types[0]
    left = _divided(e, "rem", a, b, dtype)
    if dtype.kind == "uint" or towards_zero:
        return left
    other_sign = (left ^ b).compare("slt", 0) & left.compare("ne", 0)
    return e.select(other_sign, left + b, left)


def extreme(e: Function, dtype: DType, op: str, a: Value, b: Value) -> Value:
    """The smaller or larger (`op` is `min` or `max`) of two integers of a type."""
    name = f"llvm.{'s' if dtype.kind == 'int' else 'u'}{op}.{mangled(a.kind)}"
    return e.intrinsic(name, a.kind, a, b)


def absolute(e: Function, types: Types, x: Value) -> Value:
    """|x|; of the least number itself."""
    if types[0].kind != "int":
        return x
    return e.intrinsic(f"llvm.abs.{mangled(x.kind)}", x.kind, x, e.const("i1", 0))


def sign(e: Function, types: Types, x: Value) -> Value:
    """-1, 0 or 1."""
    unsigned = types[0].kind == "uint"
    above = e.convert("zext", x.compare("ne" if unsigned else "sgt", 0), x.kind)
    if unsigned:
        return above
    return above - e.convert("zext", x.compare("slt", 0), x.kind)


def power(e: Function, types: Types, a: Value, b: Value) -> Value:
    """Return a^b by repeated squares, one for each bit up to the highest one of b."""
    dtype, one = types[0], e.const(a.kind, 1)
    state, done = [one, a, b], [e.const("i1", 0)]
    with e.loop("bit", 8 * dtype.bytes, [state], until=done):
        found, square, left = state
        odd = (left & 1).compare("ne", 0)
        left = e.define(f"lshr {left}, {one.text}", left.kind)
        state[:] = [e.select(odd, found * square, found), square * square, left]
        done[0] = any_lane(e, left.compare("ne", 0)) ^ 1
    if dtype.kind == "uint":
        return state[0]
    minus_one = a.compare("eq", -1)
    odd = (b & 1).compare("ne", 0)
    units = e.select(minus_one, e.select(odd, a, one), e.select(a.compare("eq", 1), a, a.zero()))
    return e.select(b.compare("slt", 0), units, state[0])


def shift(e: Function, types: Types, a: Value, b: Value, left: bool) -> Value:
    """The bits of a, moved by b places."""
    count = 8 * types[0].bytes
    within = b.compare("ult", count)
    by = e.select(within, b, b.zero())
    signed = types[0].kind == "int" and not left
    op = "shl" if left else "ashr" if signed else "lshr"
    found = e.define(f"{op} {a}, {by.text}", a.kind)
    if not signed:
        return e.select(within, found, a.zero())
    last = e.const(a.kind, count - 1)
    return e.select(within, found, e.define(f"ashr {a}, {last.text}", a.kind))


# -- tests of any type --------------------------------------------------------------------------
def comparison(floats: Predicate, signed: Predicate, others: Predicate) -> Callable[..., Value]:
    """Return the function that compares numbers, by predicates of their types."""

    def compare(_: Function, types: Types, a: Value, b: Value) -> Value:
        dtype = types[0]
        return a.compare(floats if dtype.is_float else signed if dtype.kind == "int" else others, b)

    return compare


def is_infinite(_: Function, __: Types, x: Value, positive: bool, negative: bool) -> Value:
    """Return whether a float is an infinity, of the signs that count."""
    above, below = x.compare("oeq", inf), x.compare("oeq", -inf)
    if positive and negative:
        return above | below
    return above if positive else below if negative else above.zero()
