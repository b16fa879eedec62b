"""Elementary functions as vector code: no library call, no branch, no table.

Every function takes a value of `float`, `double` or a vector of either and returns the same type.
NaN in gives NaN out. Results below 1.4 times the smallest normal number are flushed to zero by
what is made of `exp`. Errors in units of the last place (ulp), as the tests bound them:

| function | float | double | how |
|---|---|---|---|
| `exp` | 1.5 | 1.5 | `2^n e^r`, `r` within half of ln 2, `e^r = 1 + r + r^2 g(r)` |
| `expm1` | 2 | 2 | `2^n (e^r - 1) + (2^n - 1)`, for x up to 88 or 709 |
| `log` | 1.5 | 1.5 | `k ln 2 + log(1 + f)`, with `s = f / (2 + f)` and `log = 2 s + s^3 G(s^2)` |
| `softplus` | 3 | 3 | `max(x, 0) + log(1 + e^-abs(x))` |
| `sigmoid` | 3 | 3 | `1 / (1 + e^-x)` |
| `tanh` | 2.5 | 3 | `(e^2x - 1) / (e^2x + 1)`, both divided by `2^(n + 1)` |
| `erf` | 6 | 6 | `x P(x^2) / Q(x^2)`, one rational function up to where it rounds to 1 |
| `power` | 1 | see there | `exp(y log abs(x))`; float goes through double |

The coefficients are our own. `g`, and `G` over the two ranges of `s`, interpolate at the Chebyshev
nodes of their interval; `P / Q` is the iteratively reweighted least squares fit of `erf(x) / x` to
the relative error (minimax to a few per cent) at a degree where every coefficient is positive, so
that Horner's rule loses nothing. All were computed with 60 to 80 digits and then rounded; the
approximations alone are off by at most 1e-8 (float) and 3e-17 (double).
"""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.codegen.emitter import Function, Value, bytes_of, element_of, lanes_of, vector
from leanconv.codegen.values import mangled
from leanconv.records import dataclass

_LOG2_E = 1.4426950408889634
_LN2 = 0.6931471805599453


@dataclass(frozen=True)
class _Ratio:
    """An odd function as x P(x^2) / Q(x^2): coefficients, lowest power first."""

    limit: float  # beyond, the function rounds to 1
    above: tuple[float, ...]
    below: tuple[float, ...]


@dataclass(frozen=True)
class _Numbers:
    """Constants of one floating-point format, and its coefficients, lowest power first."""

    integer: str  # type with as many bits
    mantissa: int  # explicit bits of the mantissa
    bias: int  # of the exponent
    ln2_high: float  # ln 2 in few enough bits that its product with an exponent is exact
    ln2_low: float
    exp_range: tuple[float, float]  # beyond, e^x is 0 or infinity
    expm1_range: tuple[float, float]  # below, e^x - 1 rounds to -1; above, it is not computed
    tanh_limit: float  # beyond, tanh rounds to 1
    exp: tuple[float, ...]
    log: tuple[float, ...]  # G for s^2 up to 0.0295, f between sqrt(1/2) - 1 and sqrt(2) - 1
    log1p: tuple[float, ...]  # G for s^2 up to 1/9, f between 0 and 1
    erf: _Ratio

    @property
    def one(self) -> int:
        return self.bias << self.mantissa

    @property
    def root_half(self) -> int:
        """The bits of sqrt(1/2), rounded down."""
        return 0x3F3504F3 if self.mantissa == 23 else 0x3FE6A09E667F3BCC

    @property
    def to_integer(self) -> float:
        """Added to a small number, this leaves it, rounded, in the lowest bits of the mantissa."""
        return 1.5 * 2.0**self.mantissa


_FLOAT = _Numbers(
    integer="i32",
    mantissa=23,
    bias=127,
    ln2_high=0.693145751953125,
    ln2_low=1.4286068203094173e-06,
    exp_range=(-87.5, 89.0),
    expm1_range=(-18.0, 88.0),
    tanh_limit=9.1,
    exp=(0.5, 0.16666576266288757, 0.041666556149721146, 0.008363178931176662, 0.00139261840377003),
    log=(0.6666666865348816, 0.4000012278556824, 0.28550779819488525, 0.23331613838672638),
    log1p=(
        *(0.6666666865348816, 0.40000009536743164, 0.28570306301116943),
        *(0.22264711558818817, 0.1746470183134079, 0.20787617564201355),
    ),
    erf=_Ratio(
        limit=3.95,
        above=(
            *(1.128379147517586, 0.1906748628071287, 0.05277597936830893),
            *(0.003774969265320024, 0.0002847103105967757, 2.0428843585731607e-06),
        ),
        below=(
            *(1.0, 0.5023139437174408, 0.11421256881822957),
            *(0.014988138870624312, 0.0011640990797506699, 3.800840700251117e-05),
        ),
    ),
)

_DOUBLE = _Numbers(
    integer="i64",
    mantissa=52,
    bias=1023,
    ln2_high=0.693147180559663,
    ln2_low=2.8235290563031577e-13,
    exp_range=(-708.5, 710.0),
    expm1_range=(-38.0, 709.0),
    tanh_limit=19.1,
    exp=(
        *(0.5000000000000001, 0.16666666666666669, 0.04166666666662413, 0.008333333333330062),
        *(0.0013888888917213717, 0.00019841269863053618, 2.4801521295954376e-05),
        *(2.7557268459997064e-06, 2.7620088445409746e-07, 2.510038549551032e-08),
    ),
    log=(
        *(0.6666666666666666, 0.40000000000000885, 0.28571428570799784, 0.22222222392581045),
        *(0.18181795547521137, 0.15386244737621665, 0.13268638369266825, 0.13088034850927555),
    ),
    log1p=(
        *(0.6666666666666666, 0.4, 0.2857142857142882, 0.22222222222172788),
        *(0.18181818186880555, 0.15384615076709174, 0.13333345323305978, 0.1176439410267377),
        *(0.10531837812039883, 0.09457163207211484, 0.09231944273368248, 0.052834122281372714),
        0.14938828485979846,
    ),
    erf=_Ratio(
        limit=5.93,
        above=(
            *(1.1283791670955126, 0.22030949963977847, 0.06614548905722442, 0.006896976289689447),
            *(0.0008563182404992251, 5.702658658176311e-05, 3.904765431834602e-06),
            *(1.6976507764399375e-07, 6.767542356157031e-09, 1.7221594756086893e-10),
            *(3.3344410237623062e-12, 2.219908353282149e-14, 1.5634534693033592e-17),
        ),
        below=(
            *(1.0, 0.5285775438471271, 0.1348124280154969, 0.022001531521925476),
            *(0.0025670433068675546, 0.000226343659396966, 1.5518368864926104e-05),
            *(8.36190433287721e-07, 3.520563030995897e-08, 1.1259887964602046e-09),
            *(2.5511868585587545e-11, 3.312662686935909e-13, 8.81450357568829e-16),
        ),
    ),
)


_OF_ELEMENT = {"float": _FLOAT, "double": _DOUBLE}


def _numbers(x: Value) -> _Numbers:
    return _OF_ELEMENT[element_of(x.kind)]


def _integer_kind(x: Value) -> str:
    return vector(f"i{8 * bytes_of(element_of(x.kind))}", lanes_of(x.kind))


def _bits(e: Function, x: Value) -> Value:
    return e.convert("bitcast", x, _integer_kind(x))


def _wrapping(e: Function, op: str, a: Value, b: int) -> Value:
    """Integer arithmetic modulo 2^bits: the bits of NaN and infinity may overflow here."""
    return e.define(f"{op} {a.kind} {a.text}, {e.const(a.kind, b).text}", a.kind)


def negate(e: Function, x: Value) -> Value:
    """Change the sign."""
    return e.define(f"fneg {x}", x.kind)


def at_least(e: Function, x: Value, bound: float) -> Value:
    """The larger of x and a constant; NaN stays NaN."""
    return e.maximum(e.const(x.kind, bound), x)


def at_most(e: Function, x: Value, bound: float) -> Value:
    """The smaller of x and a constant; NaN stays NaN."""
    return e.minimum(e.const(x.kind, bound), x)


def larger(e: Function, a: Value, b: Value) -> Value:
    """The larger of two; NaN where either is NaN, which costs two instructions more."""
    return e.select(a.compare("uno", a), a, e.maximum(a, b))


def smaller(e: Function, a: Value, b: Value) -> Value:
    """The smaller of two; NaN where either is NaN."""
    return e.select(a.compare("uno", a), a, e.minimum(a, b))


def sign(e: Function, x: Value) -> Value:
    """1, -1, or x itself where it is zero or NaN."""
    below = e.select(x.compare("olt", 0.0), e.const(x.kind, -1.0), x)
    return e.select(x.compare("ogt", 0.0), e.const(x.kind, 1.0), below)


def remainder(e: Function, a: Value, b: Value) -> Value:
    """Remainder of a by b as C's `fmod`, exact, with the sign of a; b is no subnormal number.

    Each step takes as many bits from the quotient as make a product and a difference exact.
    """
    c = _numbers(a)
    integer = vector(c.integer, lanes_of(a.kind))
    x, y = e.unary("fabs", a), e.unary("fabs", b)
    bits = e.convert("bitcast", y, integer)
    exponents = 2 * c.bias + c.mantissa  # their largest difference
    left: list[Value] = [x]
    with e.loop("step", exponents // (c.mantissa - 1) + 2, [left]):
        above = e.convert("bitcast", left[0], integer) - bits
        shift = e.smax(above - ((c.mantissa - 1) << c.mantissa), 0)
        divisor = e.convert("bitcast", bits + (shift & -(1 << c.mantissa)), a.kind)
        quotient = e.unary("floor", left[0] / divisor)
        rest = e.exact_fma(negate(e, quotient), divisor, left[0])
        rest = e.select(rest.compare("olt", 0.0), rest + divisor, rest)
        left[0] = e.select(quotient.compare("oeq", 0.0), left[0], rest)
    return copy_sign(e, left[0], a)


def modulo(e: Function, a: Value, b: Value, towards_zero: bool) -> Value:
    """Remainder of a by b: of the sign of b, or of a where quotients are rounded towards zero."""
    left = remainder(e, a, b)
    if towards_zero:
        return left
    zero = left.compare("oeq", 0.0)
    other_sign = left.compare("olt", 0.0) ^ b.compare("olt", 0.0)
    found = e.select(other_sign, left + b, left)
    return e.select(zero, copy_sign(e, left, b), found)


def copy_sign(e: Function, x: Value, sign: Value) -> Value:
    """x with the sign of another value."""
    return e.intrinsic(f"llvm.copysign.{mangled(x.kind)}", x.kind, x, sign)


def polynomial(e: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule; the coefficient of the lowest power comes first."""
    result = e.const(x.kind, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = e.fma(result, x, e.const(x.kind, c))
    return result


def _split(e: Function, x: Value, offset: int) -> tuple[Value, Value]:
    """Return 2^(n + offset), with n the integer next to x / ln 2, and r = x - n ln 2.

    The power is zero where its exponent is one too small.
    """
    k = _numbers(x)
    to_integer = k.to_integer + k.bias + offset  # the exponent's bits are the lowest of the sum
    shifted = e.fma(x, e.const(x.kind, _LOG2_E), e.const(x.kind, to_integer))
    n = shifted - to_integer
    r = e.fma(n, e.const(x.kind, -k.ln2_high), x)
    power = e.convert("bitcast", _bits(e, shifted) << k.mantissa, x.kind)
    return power, e.fma(n, e.const(x.kind, -k.ln2_low), r)


def _exp(e: Function, x: Value) -> Value:
    """e^x within `exp_range`."""
    # 2 e^r times 2^(n - 1): so the largest n has a power of two, and the smallest has zero
    power, r = _split(e, x, -1)
    return polynomial(e, r, (2.0, 2.0, *(2.0 * c for c in _numbers(x).exp))) * power


def exp(e: Function, x: Value, positive: bool = True) -> Value:
    """e^x; infinity above 88.7 (709.7 for double), 0 below -87 (-708).

    Args:
        e: the function under construction.
        x: the exponent.
        positive: whether it may be; else one instruction less has the same bits.
    """
    low, high = _numbers(x).exp_range
    return _exp(e, at_least(e, at_most(e, x, high) if positive else x, low))


def expm1(e: Function, x: Value) -> Value:
    """e^x - 1, exact to the last bits near zero; larger x count as 88 (double: 709)."""
    k = _numbers(x)
    power, r = _split(e, at_least(e, at_most(e, x, k.expm1_range[1]), k.expm1_range[0]), 0)
    partial = e.fma(r * r, polynomial(e, r, k.exp), r)
    return e.fma(power, partial, power - 1.0)


def _log_one_plus(e: Function, f: Value, coefficients: Sequence[float]) -> tuple[Value, Value]:
    """Return h = f^2 / 2 and c with log(1 + f) = f - (h - c), c smaller than h."""
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    return half_square, s * e.fma(z, polynomial(e, z, coefficients), half_square)


def log(e: Function, x: Value) -> Value:
    """The natural logarithm: -infinity at 0, NaN below; subnormal numbers are taken as they are."""
    k = _numbers(x)
    small = x.compare("olt", 2.0 ** (1 - k.bias))
    normal = e.select(small, x * 2.0**k.mantissa, x)
    bits = _bits(e, normal)
    kind = bits.kind
    biased = _wrapping(e, "lshr", _wrapping(e, "add", bits, k.one - k.root_half), k.mantissa)
    mantissa = e.define(f"sub {kind} {bits.text}, {(biased << k.mantissa).text}", kind)
    m = e.convert("bitcast", _wrapping(e, "add", mantissa, k.one), x.kind)
    # the integer in the lowest bits of 2^mantissa, as a number, without a conversion
    offset = 2.0**k.mantissa + k.bias
    carrier = biased | ((k.bias + k.mantissa) << k.mantissa)
    shift = e.select(small, e.const(x.kind, offset + k.mantissa), e.const(x.kind, offset))
    n = e.convert("bitcast", carrier, x.kind) - shift

    f = m - 1.0
    half_square, correction = _log_one_plus(e, f, k.log)
    tail = e.fma(n, e.const(x.kind, k.ln2_low), correction)
    result = e.fma(n, e.const(x.kind, k.ln2_high), f - (half_square - tail))
    infinity = e.const(x.kind, float("inf"))
    result = e.select(x.compare("oeq", infinity), infinity, result)
    below = e.select(x.compare("oeq", 0.0), negate(e, infinity), e.const(x.kind, float("nan")))
    return e.select(x.compare("ogt", 0.0), result, below)


def softplus(e: Function, x: Value) -> Value:
    """log(1 + e^x), without overflow and exact to the last bits for very negative x."""
    f = exp(e, negate(e, e.unary("fabs", x)))
    half_square, correction = _log_one_plus(e, f, _numbers(x).log1p)
    return at_least(e, x, 0.0) + (f - (half_square - correction))


def one_plus_exp(e: Function, x: Value) -> Value:
    """1 + e^-x; infinity below -88.7 (-709.7)."""
    low, high = _numbers(x).exp_range
    # negated behind its bounds, the sign is one of the multiply-adds that read it
    minus = negate(e, at_most(e, at_least(e, x, -high), -low))
    return _exp(e, minus) + 1.0


def sigmoid(e: Function, x: Value) -> Value:
    """1 / (1 + e^-x)."""
    return 1.0 / one_plus_exp(e, x)


def tanh(e: Function, x: Value) -> Value:
    """The hyperbolic tangent: (e^2a - 1) / (e^2a + 1), a = abs(x), with the sign of x.

    Let e^2a be 2^n (1 + 2 h), h = (e^2u - 1) / 2, and s = 2^-(n + 1). Both divided by 2^(n + 1),
    numerator and denominator are p = 1/2 - s + h and p + 2 s: what p was rounded is in both, and
    cancels the more the smaller s is. Near 0, where s is 1/2, p is h. The error of ln 2, n times
    3e-9 at most, counts as little, so that u = a - n ln(2) / 2 is one multiply-add.
    """
    k = _numbers(x)
    size = at_most(e, e.unary("fabs", x), k.tanh_limit)
    to_integer = k.to_integer + k.bias - 1  # the bits of the exponent of s, as in `_split`
    shifted = e.fma(size, e.const(x.kind, -2 * _LOG2_E), e.const(x.kind, to_integer))
    s = e.convert("bitcast", _bits(e, shifted) << k.mantissa, x.kind)
    u = e.fma(shifted - to_integer, e.const(x.kind, 0.5 * _LN2), size)
    g = polynomial(e, u, [c * 2.0 ** (power + 1) for power, c in enumerate(k.exp)])
    p = (0.5 - s) + e.fma(u * u, g, u)
    return copy_sign(e, p / e.fma(s, e.const(x.kind, 2.0), p), x)


def erf(e: Function, x: Value) -> Value:
    """The error function."""
    return _odd(e, x, _numbers(x).erf)


def _odd(e: Function, x: Value, how: _Ratio) -> Value:
    """x P(x^2) / Q(x^2), at most 1 in size."""
    bounded = at_least(e, at_most(e, x, how.limit), -how.limit)
    z = bounded * bounded
    ratio = bounded * polynomial(e, z, how.above) / polynomial(e, z, how.below)
    return at_least(e, at_most(e, ratio, 1.0), -1.0)


def power(e: Function, x: Value, y: Value) -> Value:
    """x^y as C's `pow` has it, signed zeros and pow(-infinity, fraction) apart.

    The relative error is 1e-13 at most before rounding to float, and in double
    `abs(y log x) * 2^-52`.
    """
    if element_of(x.kind) == "float":
        wide = vector("double", lanes_of(x.kind))
        result = power(e, e.convert("fpext", x, wide), e.convert("fpext", y, wide))
        return e.convert("fptrunc", result, x.kind)
    size = e.unary("fabs", x)
    result = exp(e, y * log(e, size))
    one = e.const(x.kind, 1.0)
    result = e.select(size.compare("oeq", 1.0) | y.compare("oeq", 0.0), one, result)
    half = y * 0.5
    whole, fraction = e.unary("rint", y).compare("oeq", y), e.unary("rint", y).compare("une", y)
    odd = whole & e.unary("rint", half).compare("une", half)
    negative = x.compare("olt", 0.0)
    result = e.select(negative & odd, negate(e, result), result)
    return e.select(negative & fraction, e.const(x.kind, float("nan")), result)
