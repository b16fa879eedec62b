"""Vector code applied to sums: activation functions, and requantisation of sums to codes.

NaN in gives NaN out, at no cost: x86's `max` and `min` return their second operand where either is
NaN, so the input is the second operand. What makes sums of products of codes codes again, or
float32, is the vector code of `spec.requantise`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, pi, sqrt

from leanconv.codegen import math
from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.codegen.values import mangled
from leanconv.spec.activation import Activation
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


def _clip(e: Function, x: Value, low: float, high: float) -> Value:
    """One instruction for each bound that is finite."""
    if low > -inf:
        x = math.at_least(e, x, low)
    return math.at_most(e, x, high) if high < inf else x


def _leaky(e: Function, x: Value, slope: float) -> Value:
    scaled = x * slope
    if 0.0 < slope <= 1.0:
        return e.maximum(scaled, x)
    return e.select(x.compare("olt", 0.0), scaled, x)


def _hard_sigmoid(e: Function, x: Value, slope: float, offset: float) -> Value:
    return _clip(e, e.fma(x, e.const(x.kind, slope), e.const(x.kind, offset)), 0.0, 1.0)


def _hard_swish(e: Function, x: Value) -> Value:
    return x * _hard_sigmoid(e, x, 1.0 / 6.0, 0.5)


def _silu(e: Function, x: Value) -> Value:
    return x / math.one_plus_exp(e, x)


def _gelu(e: Function, x: Value) -> Value:
    half = x * 0.5
    return e.fma(half, math.erf(e, x * sqrt(0.5)), half)


def _gelu_tanh(e: Function, x: Value) -> Value:
    """x (1 + tanh u) / 2 = x / (1 + e^(-2 u)), which loses nothing where tanh is near -1."""
    inner = math.polynomial(e, x * x, (-2.0 * sqrt(2.0 / pi), -2.0 * sqrt(2.0 / pi) * 0.044715))
    return x / (math.exp(e, x * inner) + 1.0)


def _elu(e: Function, x: Value, scale: float) -> Value:
    below = math.expm1(e, x) if scale == 1.0 else math.expm1(e, x) * scale
    return e.select(x.compare("olt", 0.0), below, x)


_BODIES: dict[str, Callable[..., Value]] = {
    "relu": lambda e, x: math.at_least(e, x, 0.0),
    "clip": _clip,
    "leaky_relu": _leaky,
    "sigmoid": math.sigmoid,
    "silu": _silu,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "tanh": math.tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "elu": _elu,
}


def apply(
    e: Function, value: Value, activation: Activation | None, slope: Value | None = None
) -> Value:
    """Apply an activation to every lane.

    Args:
        e: the function under construction.
        value: a float or double, or a vector of either.
        activation: to apply; None leaves the value as it is.
        slope: `prelu` only: the factor below zero, of the value's type.
    """
    if activation is None:
        return value
    if activation.kind == "prelu":
        assert slope is not None, "prelu needs its slope"
        value = e.select(value.compare("olt", 0.0), value * slope, value)
    else:
        value = _BODIES[activation.kind](e, value, *activation.parameters)
    if activation.affine:
        factor, summand = (e.const(value.kind, number) for number in activation.affine)
        value = e.fma(value, factor, summand)
    return value


def finish(
    e: Function,
    value: Value,
    activation: Activation | None,
    slope: Value | None = None,
    residual: Value | None = None,
) -> Value:
    """Add a residual and apply an activation to every lane, in the order that this one says.

    Args:
        e: the function under construction.
        value, activation, slope: as for `apply`.
        residual: of the value's type; None if there is none.
    """
    if residual is None:
        return apply(e, value, activation, slope)
    if activation is not None and activation.before_residual:
        return apply(e, value, activation, slope) + residual
    return apply(e, value + residual, activation, slope)


Numbers = tuple[Value, ...]  # of a quantisation, each in all lanes of a vector of float32
Factors = tuple[Value, ...]  # of each lane's channel: a scale, or also a factor and a summand

_INTEGERS_FROM = 1.5 * 2.0**23  # float32 numbers near it are integers


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
    factors: Factors,
    numbers: Numbers,
    residual: Value | None = None,
) -> Value:
    """Make the stored codes, or float32, of sums of products of codes.

    Args:
        e: the function under construction.
        sums: a vector of int32.
        how: the activation, and the order of operands.
        dtype: of what is stored: int8 or uint8, or float32.
        factors: of each lane's channel, float32: `how.factors` vectors.
        numbers: of the quantisation, as `load_numbers` gives them.
        residual: codes as int32; None if none are added.
    """
    value = _scaled(e, sums, how, factors)
    if residual is None:
        value = clamped(e, value, numbers[LOW], numbers[HIGH])
        if dtype == FLOAT32:
            return value
        whole = rounded(e, value) + e.convert("fptosi", numbers[ZERO], sums.kind)
    else:
        value = _with_residual(e, value, how, numbers, residual)
        whole = rounded(e, clamped(e, value, numbers[LAST_LOW], numbers[LAST_HIGH]))
    return e.convert("trunc", whole, vector(dtype.llvm, lanes_of(whole.kind)))


def _scaled(e: Function, sums: Value, how: Requantise, factors: Factors) -> Value:
    """Sums as floats in steps of the result's codes, behind their activation."""
    value = e.convert("sitofp", sums, factors[0].kind) * factors[0]
    if how.activation is None:
        return value
    _, factor, summand = factors
    return e.fma(apply(e, value, how.activation), factor, summand)


def _with_residual(
    e: Function, value: Value, how: Requantise, numbers: Numbers, residual: Value
) -> Value:
    """Scaled sums as codes of their own, added to a residual, before the last rounding."""
    own = clamped(e, value, numbers[LOW], numbers[HIGH])
    # To the nearest integer, half to even: beside a large number the last bit is worth 1.
    own = (own + _INTEGERS_FROM) - (e.const(own.kind, _INTEGERS_FROM) - numbers[ZERO])
    other = e.convert("sitofp", residual, value.kind)
    terms = [(own, numbers[OWN_RATIO]), (other, numbers[RESIDUAL_RATIO])]
    if not how.residual_first:
        terms.reverse()  # the first operand's product is added last
    value = numbers[FIXED]
    for codes, ratio in terms:
        value = e.exact_fma(codes, ratio, value)
    return value


def requantised_columns(
    e: Function,
    sums: Sequence[Value],
    how: Requantise,
    dtype: DType,
    factors: Factors,
    numbers: Numbers,
    residuals: Sequence[Value] = (),
) -> Value:
    """Make bytes of the sums of two to four columns, one after the other, as `requantised` does.

    On x86 alone. Two instructions narrow the sums to 16 bits and one to 8, all of which saturate,
    so that bytes are bounded at last. Numbers that may be beyond int32 are bounded from above
    before they are rounded; what no int32 holds becomes the least.
    """
    lanes = lanes_of(sums[0].kind)
    low, high = (LAST_LOW, LAST_HIGH) if residuals else (LOW, HIGH)
    whole = []
    for number, each in enumerate(sums):
        value = _scaled(e, each, how, factors)
        if residuals:
            value = _with_residual(e, value, how, numbers, residuals[number])
        if not (how.saturates if residuals else how.small):
            value = e.minimum(numbers[high], value)
        whole.append(rounded(e, value))
    whole += [whole[0]] * (4 - len(whole))  # anything
    pairs = [_packed(e, "packssdw", 16, *whole[i : i + 2]) for i in (0, 2)]
    zero = e.zero(whole[0].kind)
    if not residuals and not how.saturates:
        zero = e.convert("fptosi", numbers[ZERO], zero.kind)
        both = _packed(e, "packssdw", 16, zero, zero)
        name = f"llvm.sadd.sat.{mangled(both.kind)}"
        pairs = [e.intrinsic(name, both.kind, pair, both) for pair in pairs]
    sign = "s" if dtype.kind == "int" else "u"
    found = _packed(e, f"pack{sign}swb", 8, pairs[0], pairs[1])
    bounds = ((low, "max"), (high, "min")) if not how.saturates else ()
    for bound, op in bounds:
        word = e.convert("fptosi", numbers[bound], zero.kind) + zero
        limit = e.extract(e.convert("trunc", word, vector("i8", lanes)), 0)
        of_all = e.splat(limit, 4 * lanes)
        name = f"llvm.{sign}{op}.{mangled(found.kind)}"
        found = e.intrinsic(name, found.kind, found, of_all)
    # Packing is by parts of 128 bits: four bytes of each column, and so on.
    words = e.convert("bitcast", found, vector("i32", lanes))
    parts = lanes // 4
    order = [4 * part + column for column in range(4) for part in range(parts)]
    return e.convert("bitcast", e.shuffle(words, None, order), found.kind)


_PACKS = {16: "sse2.{}.128", 32: "avx2.{}", 64: "avx512.{}.512"}  # by bytes of a vector


def _packed(e: Function, name: str, bits: int, a: Value, b: Value) -> Value:
    """Two vectors of integers as one of half as many bits, saturated, by parts of 128 bits."""
    lanes = 2 * lanes_of(a.kind)
    full = f"llvm.x86.{_PACKS[lanes * bits // 8].format(name)}"
    return e.intrinsic(full, vector(f"i{bits}", lanes), a, b)


def clamped(e: Function, value: Value, low: Value, high: Value) -> Value:
    """A number within bounds; NaN becomes the lower one."""
    return e.minimum(e.maximum(value, low), high)


def rounded(e: Function, value: Value) -> Value:
    """The nearest int32 of floats that have one, half to even."""
    kind = vector(INT32.llvm, lanes_of(value.kind))
    if e.plain_floats:
        name = f"llvm.fptosi.sat.{mangled(kind)}.{mangled(value.kind)}"
        return e.intrinsic(name, kind, e.unary("rint", value))
    name = f"llvm.lrint.{mangled(kind)}.{mangled(value.kind)}"
    return e.intrinsic(name, kind, value)
