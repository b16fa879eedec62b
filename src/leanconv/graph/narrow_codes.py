"""Element types of files of at most 8 bits: int4, float8 and their like, as codes of one byte each.

In a graph an element takes a byte: an integer of 4 or 2 bits as the int8 or uint8 of its
value, a float as the uint8 of its bits. Which of these a value stands for the builder knows
(`Builder.narrow`); arrays of a file say it by a field of that name. Floats of codes are looked up
in a table; codes of floats are made of the bits of float32, by integers: rounded to the nearest,
ties to even, as ONNX Runtime does.

bfloat16 is stored so at the network's borders only: inside, its numbers are float32. What a Cast
makes bfloat16 is rounded; what else the file has in it is computed in float32 and rounded where it
leaves the network.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.graph import float_codes
from leanconv.graph.float_codes import Emitter, T
from leanconv.graph.ops.base import Array
from leanconv.graph.ops.quantised_layers import unpacked_bits
from leanconv.records import dataclass
from leanconv.types import (
    BFLOAT16,
    FLOAT4E2M1,
    FLOAT8E4M3FN,
    FLOAT8E4M3FNUZ,
    FLOAT8E5M2,
    FLOAT8E5M2FNUZ,
    FLOAT8E8M0,
    FLOAT32,
    INT2,
    INT4,
    INT32,
    NARROW,
    UINT2,
    UINT4,
    UINT16,
    DType,
)

# Types that arrays of NumPy have as codes, by ONNX's number.
NUMBERS: Mapping[int, DType] = {each.onnx: each for each in (*NARROW, BFLOAT16)}
BITS: Mapping[DType, int] = {
    **dict.fromkeys(NARROW, 8),
    **dict.fromkeys((INT4, UINT4, FLOAT4E2M1), 4),
    **dict.fromkeys((INT2, UINT2), 2),
}
_FRACTION, _BIAS, _NAN = 23, 127, 0x7F800000  # of float32: bits, bias, where what is above is NaN
_UPPER, _QUIET = 16, 0x7FC0  # of bfloat16: bits of float32 below it, the code of NaN


# -- formats --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FloatFormat:
    """The bits of a narrow float: a sign, an exponent, a fraction.

    Attributes:
        fraction: bits of the fraction.
        bias: of the exponent.
        sign: the bit of the sign, without any 0.
        largest: the code of the largest number.
        infinite: the code of infinity; that of NaN where there is none.
        nan: the code of NaN.
        negative_zero: whether there is one.
    """

    fraction: int
    bias: int
    sign: int
    largest: int
    infinite: int
    nan: int
    negative_zero: bool = True


FORMATS: Mapping[DType, FloatFormat] = {
    FLOAT8E4M3FN: FloatFormat(3, 7, 0x80, 0x7E, 0x7F, 0x7F),
    FLOAT8E4M3FNUZ: FloatFormat(3, 8, 0x80, 0x7F, 0x80, 0x80, negative_zero=False),
    FLOAT8E5M2: FloatFormat(2, 15, 0x80, 0x7B, 0x7C, 0x7F),
    FLOAT8E5M2FNUZ: FloatFormat(2, 16, 0x80, 0x7F, 0x80, 0x80, negative_zero=False),
    FLOAT4E2M1: FloatFormat(1, 1, 0x8, 0x7, 0x7, 0x8),
    FLOAT8E8M0: FloatFormat(0, _BIAS, 0, 0xFE, 0xFF, 0xFF),
}


@cache
def table(kind: DType) -> Array:
    """The numbers that the codes 0 to 255 stand for, float32; 0 for those that are no codes."""
    form, codes = FORMATS[kind], np.arange(1 << BITS[kind])
    magnitude = codes & (form.sign - 1) if form.sign else codes
    exponent, part = magnitude >> form.fraction, magnitude & ((1 << form.fraction) - 1)
    normal = (exponent > 0) | (kind == FLOAT8E8M0)
    mantissa = part / (1 << form.fraction) + normal
    numbers = np.ldexp(mantissa, np.where(normal, exponent, 1) - form.bias)
    if kind in (FLOAT8E4M3FN, FLOAT8E5M2):
        numbers[magnitude > form.largest] = np.nan
        if kind == FLOAT8E5M2:
            numbers[magnitude == form.infinite] = np.inf
    numbers = np.where(codes & form.sign, -numbers, numbers)
    if kind in (FLOAT8E4M3FNUZ, FLOAT8E5M2FNUZ, FLOAT8E8M0):
        numbers[form.nan] = np.nan
    result = np.zeros(256, np.float32)
    result[: len(numbers)] = numbers
    return result


# -- arrays ---------------------------------------------------------------------------------------
@cache
def _marked(kind: DType) -> np.dtype[Any]:
    return np.dtype([(str(kind), kind.numpy)])


def marked(codes: Array, kind: DType) -> Array:
    """Codes as an array that states their type."""
    return codes.view(_marked(kind))


def read_mark(array: Array) -> tuple[Array, DType | None]:
    """The codes of an array of a file, and their type; other arrays as they are."""
    names = array.dtype.names
    if not names:
        return array, None
    return array[names[0]], next(each for each in NARROW if each == names[0])


def is_narrow(value: object) -> bool:
    """Return whether an attribute or constant of a file is, or names, a type of at most 8 bits."""
    if isinstance(value, DType):
        return value in NARROW
    return isinstance(value, np.ndarray) and value.dtype.names is not None


def unpacked(data: Array, kind: DType, count: int) -> Array:
    """Elements that are packed in bytes, the first in the lowest bits, as codes.

    Args:
        data: uint8, in which there are at least `count` elements.
        kind: 4 or 2 bits of it are packed; bytes of others are codes.
        count: of elements.
    """
    bits = BITS[kind]
    if bits == 8:
        return data
    codes = unpacked_bits(data, bits)[:count]
    if kind.low < 0 and not kind.is_float:
        codes = ((codes ^ (1 << (bits - 1))) - (1 << (bits - 1))).astype(np.uint8)
    return np.ascontiguousarray(codes).view(kind.numpy)


def packed_bytes(kind: DType, count: int) -> int:
    """In how many bytes that many elements are packed."""
    return -(-count * BITS[kind] // 8)


_ML_NAMES = {
    BFLOAT16: str(BFLOAT16),
    FLOAT8E4M3FN: "float8_e4m3fn",
    FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    FLOAT8E5M2: "float8_e5m2",
    FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    FLOAT8E8M0: "float8_e8m0fnu",
    FLOAT4E2M1: "float4_e2m1fn",
}


def taken(array: Array, kind: DType) -> Array | None:
    """The codes of a user's array: codes, or numbers of the package ml_dtypes; None of others."""
    if array.dtype == kind.numpy:
        return array
    if array.dtype.name != _ML_NAMES.get(kind, kind):
        return None
    return array.view(kind.numpy) if kind.is_float else array.astype(kind.numpy)


def given(codes: Array, kind: DType) -> Array:
    """Codes as numbers of ml_dtypes, if that package has been imported; else as they are."""
    package = sys.modules.get("ml_dtypes")
    number = getattr(package, _ML_NAMES.get(kind, str(kind)), None)
    if number is None:
        return codes
    return codes.view(number) if kind.is_float else codes.astype(number)


# -- operations -----------------------------------------------------------------------------------
def decoded(e: Emitter[T], codes: T, numbers: T) -> T:
    """The floats of codes: `numbers` is the table of their type."""
    return e.emit("Lookup", [codes, numbers])


def encoded(e: Emitter[T], x: T, kind: DType, saturate: bool = True, mode: str = "up") -> T:
    """The codes of float32 numbers.

    Args:
        e: adds the operations.
        x: float32.
        kind: a narrow float.
        saturate: whether what is too large becomes the largest number, not infinity or NaN.
        mode: of float8e8m0, how it is rounded.
    """
    bits = e.emit("BitCast", [x], to=INT32)
    size = _with(e, "BitwiseAnd", bits, 0x7FFFFFFF)
    form = FORMATS[kind]
    whole = _powers(e, size, saturate, mode) if kind == FLOAT8E8M0 else _rounded(e, x, size, form)
    missing = e.emit("Greater", [size, e.number(_NAN, size)])
    if kind == FLOAT8E8M0:
        missing = e.emit("GreaterOrEqual", [size, e.number(_NAN, size)])
    else:
        end = form.largest if saturate or kind == FLOAT4E2M1 else form.infinite
        beyond = e.emit("Greater", [whole, e.number(form.largest, whole)])
        whole = e.emit("Where", [beyond, e.number(end, whole), whole])
        whole = _signed(e, bits, whole, form)
    code = e.emit("Where", [missing, e.number(form.nan, whole), whole])
    return float_codes.cast(e, code, kind.held)


def _signed(e: Emitter[T], bits: T, whole: T, form: FloatFormat) -> T:
    """Codes of magnitudes with the sign of the numbers."""
    negative = e.emit("Less", [bits, e.number(0, bits)])
    with_sign = _with(e, "BitwiseOr", whole, form.sign)
    if not form.negative_zero:
        some = e.emit("Greater", [whole, e.number(0, whole)])
        negative = e.emit("And", [negative, some])
    return e.emit("Where", [negative, with_sign, whole])


def _rounded(e: Emitter[T], x: T, size: T, form: FloatFormat) -> T:
    """Magnitudes rounded to the fraction's bits, as codes without a sign.

    Below the least normal number the spacing is the same everywhere: adding a float32 of which that
    is the spacing rounds to it, and what its bits grow by is the code.
    """
    shift = _FRACTION - form.fraction
    odd = _with(e, "BitwiseAnd", _shifted(e, size, shift), 1)
    up = _with(e, "Add", e.emit("Add", [size, odd]), (1 << (shift - 1)) - 1)
    normal = _with(e, "Sub", _shifted(e, up, shift), (_BIAS - form.bias) << form.fraction)
    spacing = 1 - form.bias - form.fraction
    start = np.float32(np.ldexp(1.0, spacing + _FRACTION))
    moved = e.emit("Add", [e.emit("Abs", [x]), e.number(float(start), x)])
    moved = e.emit("BitCast", [moved], to=INT32)
    small = _with(e, "Sub", moved, int(start.view(np.int32)))
    least = (_BIAS + 1 - form.bias) << _FRACTION
    below = e.emit("Less", [size, e.number(least, size)])
    return e.emit("Where", [below, small, normal])


_MODES = ("up", "down", "nearest")


def _powers(e: Emitter[T], size: T, saturate: bool, mode: str) -> T:
    """The exponents of magnitudes as codes of float8e8m0."""
    if mode not in _MODES:
        raise UnsupportedError(f"rounds {mode!r}; expected {', '.join(_MODES)}")
    exponent = _shifted(e, size, _FRACTION)
    if mode == "down":
        return exponent
    part = _with(e, "BitwiseAnd", size, (1 << _FRACTION) - 1)
    half = 1 << (_FRACTION - 1)
    above = e.emit("Greater", [part, e.number(0 if mode == "up" else half, part)])
    if mode == "nearest":  # ties go up, but below the least normal number
        tie = e.emit("Equal", [part, e.number(half, part)])
        normal = e.emit("Greater", [exponent, e.number(0, exponent)])
        above = e.emit("Or", [above, e.emit("And", [tie, normal])])
    more = e.emit("Add", [exponent, float_codes.cast(e, above, INT32)])
    return e.emit("Min", [more, e.number(0xFE if saturate else 0xFF, more)])


def wrapped(e: Emitter[T], x: T, kind: DType) -> T:
    """Numbers as integers of 4 or 2 bits: of floats the nearest, ties away from 0; low bits."""
    if e.kind(x).dtype.is_float:
        x = float_codes.cast(e, x, FLOAT32)
        size = e.emit("Abs", [x])
        down = e.emit("Floor", [size])
        far = e.emit("GreaterOrEqual", [e.emit("Sub", [size, down]), e.number(0.5, x)])
        near = e.emit("Add", [down, float_codes.cast(e, far, FLOAT32)])
        negative = e.emit("Less", [x, e.number(0.0, x)])
        x = e.emit("Where", [negative, e.emit("Neg", [near]), near])
    bits = _with(e, "BitwiseAnd", float_codes.cast(e, x, INT32), (1 << BITS[kind]) - 1)
    if kind.low < 0:
        half = 1 << (BITS[kind] - 1)
        bits = _with(e, "Sub", _with(e, "BitwiseXor", bits, half), half)
    return float_codes.cast(e, bits, kind.held)


def from_bfloat16(e: Emitter[T], codes: T, to: DType) -> T:
    """The numbers of codes of bfloat16, in a float type that holds them.

    A code is the upper half of the bits of a float32 number, uint16.
    """
    wide = float_codes.cast(e, codes, INT32)
    upper = e.emit("BitShift", [wide, e.number(_UPPER, wide)], left=True)
    return float_codes.cast(e, e.emit("BitCast", [upper], to=FLOAT32), to)


def to_bfloat16(e: Emitter[T], x: T) -> T:
    """The codes of numbers, rounded to the nearest, the even one of two."""
    bits = e.emit("BitCast", [float_codes.cast(e, x, FLOAT32)], to=INT32)
    size = _with(e, "BitwiseAnd", bits, 0x7FFFFFFF)
    odd = _with(e, "BitwiseAnd", _shifted(e, bits, _UPPER), 1)
    near = _with(e, "Add", e.emit("Add", [bits, odd]), (1 << (_UPPER - 1)) - 1)
    code = _shifted(e, near, _UPPER)
    missing = e.emit("Greater", [size, e.number(_NAN, size)])
    code = e.emit("Where", [missing, e.number(_QUIET, code), code])
    return float_codes.cast(e, code, UINT16)


def _with(e: Emitter[T], op: str, x: T, number: int) -> T:
    return e.emit(op, [x, e.number(number, x)])


def _shifted(e: Emitter[T], x: T, by: int) -> T:
    return e.emit("BitShift", [x, e.number(by, x)], left=False)
