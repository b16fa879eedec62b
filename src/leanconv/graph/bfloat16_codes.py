"""bfloat16 in a file's network: its numbers are float32 there, and codes at the network's borders.

A code is the upper half of the bits of a float32 number, uint16. What a Cast makes bfloat16 is
rounded; what else the file has in it is computed in float32 and rounded where it leaves the
network.
"""

from __future__ import annotations

from leanconv.graph import float_codes
from leanconv.graph.float_codes import Emitter, T
from leanconv.types import FLOAT32, INT32, UINT16, DType

_SIZE, _NAN, _QUIET = 0x7FFFFFFF, 0x7F800000, 0x7FC0
_BITS, _HALF = 16, 0x7FFF


def decoded(e: Emitter[T], codes: T, to: DType) -> T:
    """The numbers of codes, in a float type that holds them."""
    wide = float_codes.cast(e, codes, INT32)
    upper = e.emit("BitShift", [wide, e.number(_BITS, wide)], left=True)
    return float_codes.cast(e, e.emit("BitCast", [upper], to=FLOAT32), to)


def encoded(e: Emitter[T], x: T) -> T:
    """The codes of numbers, rounded to the nearest, the even one of two."""
    bits = e.emit("BitCast", [float_codes.cast(e, x, FLOAT32)], to=INT32)
    size = e.emit("BitwiseAnd", [bits, e.number(_SIZE, bits)])
    upper = e.emit("BitShift", [bits, e.number(_BITS, bits)], left=False)
    odd = e.emit("BitwiseAnd", [upper, e.number(1, bits)])
    near = e.emit("Add", [e.emit("Add", [bits, odd]), e.number(_HALF, bits)])
    code = e.emit("BitShift", [near, e.number(_BITS, bits)], left=False)
    missing = e.emit("Greater", [size, e.number(_NAN, size)])
    code = e.emit("Where", [missing, e.number(_QUIET, code), code])
    return float_codes.cast(e, code, UINT16)
