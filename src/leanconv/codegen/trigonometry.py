"""Trigonometric and hyperbolic functions, their inverses; `float` is computed in `double`.

NaN in gives NaN out, as does what a function is not defined for. Errors in units of the last place
of a double, as the tests bound them (of a float 0.6, as what rounds is the conversion):

| function | ulp | how |
|---|---|---|
| `sin`, `cos` | 1 | the angle less a multiple of pi/2, as a sum of two doubles; Taylor-like sums |
| `tan` | 2 | the quotient of both |
| `asin`, `acos` | 2 | `x + x^3 R(x^2)` to 1/2, then `asin x = pi/2 - 2 asin sqrt((1-x)/2)` |
| `atan` | 2 | `t + t^3 T(t^2)`, `t` within tan(pi/8) of one of 0, 1 and infinity |
| hyperbolic | 4 | `exp`, `expm1` and `log`; `tanh` has a form of its own in `codegen.math` |

Up to 2^40 multiples of pi/2 are subtracted in three parts (Cody and Waite, 1980), whose first two
are exact by fused multiply-adds. Larger angles are multiplied by as many bits of 2/pi as matter
(Payne and Hanek, 1983), one lane after the other and only where there is one.

The coefficients are our own: they interpolate at the Chebyshev nodes of their interval, computed
with 3000 bits; the approximations alone are off by at most 2e-17.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf, nan, pi
from math import log as log_of_number

from leanconv.codegen.emitter import Function, Pointer, Value, element_of, lanes_of, vector
from leanconv.codegen.math import copy_sign, exp, expm1, log, negate, polynomial
from leanconv.codegen.values import mangled

_Reduced = tuple[Value, Value, Value]

# pi/2 as a sum of doubles
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_TO_INTEGER = 1.5 * 2.0**52  # added to a number below 2^51, leaves it rounded in the lowest bits
_LARGE = 2.0**40
_SIN = (
    *(-0.16666666666666666, 0.008333333333330936, -0.00019841269836740532),
    *(2.7557316093198404e-06, -2.5051129896450185e-08, 1.5917988979397435e-10),
)
_COS = (
    *(0.041666666666666664, -0.0013888888888887389, 2.48015872987544e-05),
    *(-2.755731726587808e-07, 2.087614504941318e-09, -1.138254464534925e-11),
)
_ASIN = (
    *(0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247),
    *(0.02237217294214989, 0.017352392720869973, 0.013971212973552933, 0.011479177415184906),
    *(0.01032281435018578, 0.005457506718640358, 0.01740087944269402, -0.014851887071247204),
    0.028757851367421566,
)
_ATAN = (
    *(-0.3333333333333333, 0.1999999999999548, -0.14285714284657894, 0.11111111014561013),
    *(-0.09090904549884611, 0.07692182535116648, -0.06664502215671447, 0.058580687568615106),
    *(-0.05085030492810941, 0.03921955253255129, -0.019162068915902573),
)
_TAN_PI_8 = 0.4142135623730951

# 2/pi in words of 32 bits, behind two words of zeros
_WORDS = 8  # what is read of them for one angle
_TWO_OVER_PI = (
    *(0x00000000, 0x00000000, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599),
    *(0x3C439041, 0xFE5163AB, 0xDEBBC561, 0xB7246E3A, 0x424DD2E0, 0x06492EEA, 0x09D1921C),
    *(0xFE1DEB1C, 0xB129A73E, 0xE88235F5, 0x2EBB4484, 0xE99C7026, 0xB45F7E41, 0x3991D639),
    *(0x835339F4, 0x9C845F8B, 0xBDF9283B, 0x1FF897FF, 0xDE05980F, 0xEF2F118B, 0x5A0A6D1F),
    *(0x6D367ECF, 0x27CB09B7, 0x4F463F66, 0x9E5FEA2D, 0x7527BAC7, 0xEBE5F17B, 0x3D0739F7),
    *(0x8A5292EA, 0x6BFB5FB1, 0x1F8D5D08, 0x56033046),
)


def in_double(function: Callable[..., Value]) -> Callable[..., Value]:
    """The function of doubles for floats, too."""

    def converted(e: Function, x: Value) -> Value:
        if element_of(x.kind) != "float":
            return function(e, x)
        wide = e.convert("fpext", x, vector("double", lanes_of(x.kind)))
        return e.convert("fptrunc", function(e, wide), x.kind)

    return converted


# -- the angle ----------------------------------------------------------------------------------
def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b as the double next to it and the exact rest."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _split(e: Function, x: Value) -> _Reduced:
    """Return the multiple of pi/2 in an angle, in the lowest bits; the rest, as two doubles."""
    size = e.unary("fabs", x)
    large = size.compare("ogt", _LARGE) & size.compare("olt", float("inf"))
    found = [*_split_small(e, x)]
    kind = large.kind
    some = large
    if lanes_of(kind) > 1:
        some = e.intrinsic(f"llvm.vector.reduce.or.{mangled(kind)}", "i1", large)
    with e.when(some, [found]):
        others = _split_each(e, x)
        found[:] = [e.select(large, a, b) for a, b in zip(others, found, strict=True)]
    return found[0], found[1], found[2]


def _split_small(e: Function, x: Value) -> _Reduced:
    """`_split` of angles up to `_LARGE`."""
    kind = x.kind
    shifted = e.fma(x, e.const(kind, 2.0 / pi), e.const(kind, _TO_INTEGER))
    n = shifted - _TO_INTEGER
    first, second, third = (e.const(kind, part) for part in _HALF_PI)
    left = e.exact_fma(negate(e, n), first, x)  # exact: a multiple of 2^-53, below 1
    product = n * second
    high, low = _two_sum(left, negate(e, product))
    low = low - e.exact_fma(n, second, negate(e, product)) - n * third
    return _bits(e, shifted), high, low


def _split_each(e: Function, x: Value) -> _Reduced:
    """`_split` of large angles, lane by lane through memory."""
    lanes = lanes_of(x.kind)
    table = e.table([word - (1 << 32 if word >> 31 else 0) for word in _TWO_OVER_PI])
    given, highs, lows = (e.local("double", lanes) for _ in range(3))
    counts = e.local("i64", lanes)
    e.store(x, given)
    with e.loop("lane", lanes) as i:
        angle = e.load(given.at(i))
        fraction, count = _times_two_over_pi(e, angle, table)
        high = fraction[0] * _HALF_PI[0]
        left = e.exact_fma(fraction[0], e.const("double", _HALF_PI[0]), negate(e, high))
        low = left + fraction[0] * _HALF_PI[1] + fraction[1] * _HALF_PI[0]
        negative = angle.compare("olt", 0.0)
        e.store(e.select(negative, negate(e, high), high), highs.at(i))
        e.store(e.select(negative, negate(e, low), low), lows.at(i))
        e.store(e.select(negative, count.zero() - count, count), counts.at(i))
    kind = vector("i64", lanes)
    return e.load(counts, kind), e.load(highs, x.kind), e.load(lows, x.kind)


def _times_two_over_pi(e: Function, x: Value, table: Pointer) -> tuple[tuple[Value, Value], Value]:
    """abs(x) · 2/pi, x a double of at least 2^20: the fraction next to 0, and the whole modulo 4.

    x is an integer of 53 bits times a power of two; the latter shifts the words of 2/pi, of which
    those are left out that make multiples of 4 and those that do not reach the last bits. The
    integer has two words, which are multiplied by each of those that are left.
    """
    bits = _bits(e, x)
    exponent = e.smax((_shifted(e, bits, 52) & 0x7FF) - (1075 - 32), 0)
    integer = (bits & ((1 << 52) - 1)) | (1 << 52)
    start, shift = e.index(_shifted(e, exponent, 5)), exponent & 31
    words = [e.convert("zext", e.load(table.at(start + i)), "i64") for i in range(_WORDS)]
    back = shift.zero() - shift + 32
    window = [_low(_shifted(e, (a << 32) | b, back)) for a, b in pairwise(words)]
    lower = [word * _low(integer) for word in window]
    upper = [word * _shifted(e, integer, 32) for word in window]
    digits: list[Value] = []
    total = e.zero("i64")
    for k in reversed(range(len(window) - 1)):
        total = total + _low(lower[k]) + _shifted(e, lower[k + 1], 32) + _low(upper[k + 1])
        if k + 2 < len(window):
            total = total + _shifted(e, upper[k + 2], 32)
        digits.insert(0, _low(total))
        total = _shifted(e, total, 32)
    half = _shifted(e, digits[1], 31)  # 1 where the fraction is at least 1/2: then less 1
    parts = [_as_double(e, digit) * 2.0 ** (-32 * (i + 1)) for i, digit in enumerate(digits[1:5])]
    first = parts[0] - e.convert("uitofp", half, "double")
    high, low = _two_sum(first, parts[1])
    return _two_sum(high, low + (parts[2] + parts[3])), digits[0] + half


def _low(x: Value) -> Value:
    return x & 0xFFFFFFFF


def _shifted(e: Function, x: Value, by: Value | int) -> Value:
    """Shifted to the right, zeros from the left."""
    right = by if isinstance(by, Value) else e.const(x.kind, by)
    return e.define(f"lshr {x}, {right.text}", x.kind)


def _as_double(e: Function, digit: Value) -> Value:
    return e.convert("uitofp", digit, "double")


def _bits(e: Function, x: Value) -> Value:
    return e.convert("bitcast", x, vector("i64", lanes_of(x.kind)))


# -- functions of an angle ----------------------------------------------------------------------
def _sine(e: Function, high: Value, low: Value) -> Value:
    z = high * high
    cube = z * high
    inner = e.fma(cube, polynomial(e, z, _SIN[1:]), low * -0.5)
    return high + e.fma(cube, e.const(high.kind, _SIN[0]), e.fma(z, inner, low))


def _cosine(e: Function, high: Value, low: Value) -> Value:
    z = high * high
    half = z * 0.5
    whole = 1.0 - half
    rest = e.fma(z * z, polynomial(e, z, _COS), negate(e, high * low))
    return whole + (((1.0 - whole) - half) + rest)


def _of_quadrant(e: Function, quadrant: Value, high: Value, low: Value) -> Value:
    """sin of an angle: of the rest in quadrants 0 and 2, its cosine in 1 and 3."""
    odd = (quadrant & 1).compare("ne", 0)
    found = e.select(odd, _cosine(e, high, low), _sine(e, high, low))
    sign = (quadrant & 2) << 62
    return e.convert("bitcast", _bits(e, found) ^ sign, found.kind)


@in_double
def sin(e: Function, x: Value) -> Value:
    """The sine."""
    return _of_quadrant(e, *_split(e, x))


@in_double
def cos(e: Function, x: Value) -> Value:
    """The cosine."""
    quadrant, high, low = _split(e, x)
    return _of_quadrant(e, quadrant + 1, high, low)


@in_double
def tan(e: Function, x: Value) -> Value:
    """The tangent."""
    quadrant, high, low = _split(e, x)
    odd = (quadrant & 1).compare("ne", 0)
    sine, cosine = _sine(e, high, low), _cosine(e, high, low)
    above = e.select(odd, negate(e, cosine), sine)
    return above / e.select(odd, sine, cosine)


# -- inverses -----------------------------------------------------------------------------------
def _arc(e: Function, x: Value) -> tuple[Value, Value, Value]:
    """Return whether abs(x) < 1/2; asin(abs(x)) there, else half of acos(abs(x)), as a sum."""
    size = e.unary("fabs", x)
    near = size.compare("olt", 0.5)
    z = e.select(near, size * size, (1.0 - size) * 0.5)
    s = e.select(near, size, e.unary("sqrt", z))
    return near, s, s * z * polynomial(e, z, _ASIN)


@in_double
def asin(e: Function, x: Value) -> Value:
    """The inverse sine; NaN outside of -1 to 1."""
    near, s, rest = _arc(e, x)
    far = _HALF_PI[0] - (((s + rest) + rest) + (s - _HALF_PI[1]))
    return copy_sign(e, e.select(near, s + rest, far), x)


@in_double
def acos(e: Function, x: Value) -> Value:
    """The inverse cosine; NaN outside of -1 to 1."""
    near, s, rest = _arc(e, x)
    middle = copy_sign(e, s, x)
    shift = copy_sign(e, rest, x) - _HALF_PI[1]
    between = _HALF_PI[0] - (middle + shift)
    twice = (s + rest) * 2.0
    below = 2.0 * _HALF_PI[0] - (twice - 2.0 * _HALF_PI[1])
    far = e.select(x.compare("olt", 0.0), below, twice)
    return e.select(near, between, far)


@in_double
def atan(e: Function, x: Value) -> Value:
    """The inverse tangent."""
    size = e.unary("fabs", x)
    one = e.const(x.kind, 1.0)
    middle, far = size.compare("ogt", _TAN_PI_8), size.compare("ogt", 1.0 / _TAN_PI_8)
    above = e.select(far, negate(e, one), e.select(middle, size - 1.0, size))
    t = above / e.select(far, size, e.select(middle, size + 1.0, one))
    z = t * t
    base, rest = (
        e.select(far, e.const(x.kind, part), e.select(middle, e.const(x.kind, part / 2), x.zero()))
        for part in _HALF_PI[:2]
    )
    return copy_sign(e, base + (e.fma(t * z, polynomial(e, z, _ATAN), rest) + t), x)


_FAR = 708.0  # beyond, e^x may be infinite where half of it is not
_ONE_IS_LOST = 2.0**28  # beyond, x^2 + 1 rounds to x^2
_LN2 = log_of_number(2.0)


def _log1p(e: Function, x: Value) -> Value:
    """log(1 + x), with the rounding of 1 + x corrected (Kahan); x is finite or NaN."""
    total = x + 1.0
    return log(e, total) + (x - (total - 1.0)) / total


def _half_exp(e: Function, size: Value) -> Value:
    """e^x / 2, without overflow before the quotient does."""
    root = exp(e, size * 0.5)
    return root * 0.5 * root


@in_double
def sinh(e: Function, x: Value) -> Value:
    """The hyperbolic sine."""
    size = e.unary("fabs", x)
    t = expm1(e, size)
    near = (t + t / (t + 1.0)) * 0.5
    return copy_sign(e, e.select(size.compare("ogt", _FAR), _half_exp(e, size), near), x)


@in_double
def cosh(e: Function, x: Value) -> Value:
    """The hyperbolic cosine."""
    size = e.unary("fabs", x)
    half = exp(e, size) * 0.5
    return e.select(size.compare("ogt", _FAR), _half_exp(e, size), half + 0.25 / half)


@in_double
def asinh(e: Function, x: Value) -> Value:
    """The inverse hyperbolic sine."""
    size = e.unary("fabs", x)
    far = size.compare("ogt", _ONE_IS_LOST)
    bounded = e.select(far, size.zero(), size)
    square = bounded * bounded
    near = _log1p(e, bounded + square / (e.unary("sqrt", square + 1.0) + 1.0))
    return copy_sign(e, e.select(far, log(e, size) + _LN2, near), x)


@in_double
def acosh(e: Function, x: Value) -> Value:
    """The inverse hyperbolic cosine; NaN below 1."""
    far = x.compare("ogt", _ONE_IS_LOST)
    above = e.select(far, x.zero(), x - 1.0)
    near = _log1p(e, above + e.unary("sqrt", (above + 2.0) * above))
    found = e.select(far, log(e, x) + _LN2, near)
    return e.select(x.compare("olt", 1.0), e.const(x.kind, nan), found)


@in_double
def atanh(e: Function, x: Value) -> Value:
    """The inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond."""
    size = e.unary("fabs", x)
    found = _log1p(e, (size + size) / (1.0 - size)) * 0.5
    found = e.select(size.compare("oeq", 1.0), e.const(x.kind, inf), found)
    found = e.select(size.compare("ogt", 1.0), e.const(x.kind, nan), found)
    return copy_sign(e, found, x)
