"""Sums of products of codes as codes again, or as float32: vector code of `spec.requantise`."""

from __future__ import annotations

from leanconv.codegen.emitter import Function, Pointer, Value, element_of, lanes_of, vector
from leanconv.codegen.values import mangled
from leanconv.spec.requantise import (
    FIXED,
    HIGH,
    LAST_HIGH,
    LAST_LOW,
    LOW,
    NUMBERS,
    OWN_RATIO,
    RESIDUAL_RATIO,
    ZERO,
    Requantise,
)
from leanconv.types import FLOAT32, INT32, DType

Numbers = tuple[Value, ...]  # of a quantisation, each in all lanes of a vector of float32


def load_numbers(e: Function, numbers: Pointer, lanes: int, residual: bool) -> Numbers:
    """Load the numbers of a quantisation into all lanes; those that a residual needs if it does."""
    assert numbers.element == FLOAT32.llvm, "the numbers of a quantisation are float32"
    kind = vector(FLOAT32.llvm, lanes)
    return tuple(e.broadcast(numbers.at(i), kind) for i in range(NUMBERS if residual else ZERO + 1))


def requantised(
    e: Function,
    sums: Value,
    how: Requantise,
    dtype: DType,
    scale: Value,
    numbers: Numbers,
    residual: Value | None = None,
) -> Value:
    """Sums as what is stored of them.

    Args:
        e: the function under construction.
        sums: a vector of int32.
        how: the order of operands.
        dtype: of what is stored: int8 or uint8, or float32.
        scale: of each lane's channel, float32.
        numbers: of the quantisation, as `load_numbers` gives them.
        residual: codes as int32; None if none are added.
    """
    real = scale.kind
    value = clamped(e, e.convert("sitofp", sums, real) * scale, numbers[LOW], numbers[HIGH])
    if dtype == FLOAT32:
        return value
    if residual is None:
        whole = rounded(e, value) + e.convert("fptosi", numbers[ZERO], sums.kind)
    else:
        own = e.unary("roundeven", value) + numbers[ZERO]
        other = e.convert("sitofp", residual, real)
        terms = [(own, numbers[OWN_RATIO]), (other, numbers[RESIDUAL_RATIO])]
        if not how.residual_first:
            terms.reverse()  # the first operand's product is added last
        value = numbers[FIXED]
        for codes, ratio in terms:
            value = e.fma(codes, ratio, value)
        whole = rounded(e, clamped(e, value, numbers[LAST_LOW], numbers[LAST_HIGH]))
    return e.convert("trunc", whole, vector(dtype.llvm, lanes_of(whole.kind)))


def clamped(e: Function, value: Value, low: Value, high: Value) -> Value:
    """A number within bounds; NaN becomes the lower one."""
    return e.minimum(e.maximum(value, low), high)


def rounded(e: Function, value: Value) -> Value:
    """The nearest int32 of float32 numbers that have one, half to even."""
    assert element_of(value.kind) == FLOAT32.llvm
    kind = vector(INT32.llvm, lanes_of(value.kind))
    name = f"llvm.lrint.{mangled(kind)}.{mangled(value.kind)}"
    return e.intrinsic(name, kind, value)
