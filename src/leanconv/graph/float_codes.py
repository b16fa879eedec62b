"""Codes of quantised tensors computed with operations on floats that every backend has.

What an importer or a pass cannot write as one operation on codes is composed of these. The bits are
the same: see `graph.ops.quantised`. Integer sums are taken in float64, which holds all of them, and
rounded at the end, so that an algorithm with roundoff (Winograd, FFT) gives them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from leanconv.graph.ir import TensorType
from leanconv.types import FLOAT32, FLOAT64, INT32, INT64, DType

T = TypeVar("T")
MOST_EXACT = 1 << 31  # of sums that int32 holds


class Emitter(Protocol[T]):
    """Adds operations in normal form: a converter's call, or a pass."""

    def emit(self, op: str, inputs: Sequence[T | None], **attributes: Any) -> T:
        """Add an operation and give its value."""
        ...

    def number(self, number: float, like: T) -> T:
        """A scalar constant of another value's dtype."""
        ...

    def kind(self, value: T) -> TensorType:
        """The type of a value."""
        ...


def cast(e: Emitter[T], x: T, to: DType) -> T:
    """A value in another dtype."""
    return x if e.kind(x).dtype == to else e.emit("Cast", [x], to=to)


def quantise(
    e: Emitter[T], x: T, scale: T, zero: T, code: DType, bounds: tuple[float, float] | None = None
) -> T:
    """clip(rint(x / scale) + zero) as codes.

    Args:
        e: adds the operations.
        x: floats.
        scale, zero: floats of the dtype of x that broadcast to it.
        code: the type of the result.
        bounds: codes that clamp it, None for the type's ends.
    """
    low, high = bounds or (code.low, code.high)
    rounded = e.emit("Round", [e.emit("Div", [x, scale])])
    return narrowed(e, e.emit("Add", [rounded, zero]), low, high, code)


def narrowed(e: Emitter[T], y: T, low: float, high: float, code: DType) -> T:
    """Whole floats clamped to bounds, as codes."""
    return cast(e, e.emit("Clip", [y], min=float(low), max=float(high)), code)


def dequantise(e: Emitter[T], codes: T, scale: T, zero: T | None, dtype: DType) -> T:
    """(codes - zero) * scale as floats.

    Args:
        e: adds the operations.
        codes: integers.
        scale: floats of `dtype` that broadcast to the codes.
        zero: None for 0, else of the type of the codes.
        dtype: float type of the result.
    """
    if zero is None:
        away = cast(e, codes, dtype)
    elif e.kind(codes).dtype.bytes < INT32.bytes:  # floats hold all of them
        away = e.emit("Sub", [cast(e, codes, dtype), cast(e, zero, dtype)])
    else:
        away = cast(e, e.emit("Sub", [codes, zero]), dtype)
    return e.emit("Mul", [away, scale])


def exact(e: Emitter[T], codes: T, zero: T | None) -> T:
    """codes - zero in float64; `zero` is of the type of the codes and broadcasts to them."""
    wide = cast(e, codes, FLOAT64)
    return wide if zero is None else e.emit("Sub", [wide, cast(e, zero, FLOAT64)])


def sums(e: Emitter[T], total: T, most: int) -> T:
    """Sums of products in float64 as int32, modulo 2^32.

    Args:
        e: adds the operations.
        total: the sums, wrong by less than 1/2.
        most: a bound of their magnitudes.
    """
    whole = e.emit("Round", [total])
    if most >= MOST_EXACT:
        whole = cast(e, whole, INT64)
    return cast(e, whole, INT32)


def requantise(
    e: Emitter[T], total: T, scale: T, zero: float, bounds: Sequence[float], code: DType
) -> T:
    """clip(rint(float32(total) * scale) + zero) as codes.

    Args:
        e: adds the operations.
        total: int32.
        scale: float32, broadcasts to it.
        zero: of the result.
        bounds: the least and the largest code.
        code: the type of the result.
    """
    y = e.emit("Round", [e.emit("Mul", [cast(e, total, FLOAT32), scale])])
    if zero:
        y = e.emit("Add", [y, e.number(zero, y)])
    return narrowed(e, y, bounds[0], bounds[1], code)
