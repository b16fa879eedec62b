"""Hyperbolic functions and their inverses as vector code; `float` is computed in `double`.

All are made of `exp`, `expm1` and `log`; `tanh` has a form of its own in `codegen.math`. NaN in
gives NaN out, as does what a function is not defined for. Errors in units of the last place of a
double are at most 4, as the tests bound them, of a float 0.6.
"""

from __future__ import annotations

from math import inf, nan
from math import log as log_of_number

from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.math import copy_sign, exp, expm1, log
from leanconv.codegen.trigonometry import in_double

_FAR = 708.0  # beyond, e^x may be infinite where half of it is not
_ONE_IS_LOST = 2.0**28  # beyond, x^2 + 1 rounds to x^2
_LN2 = log_of_number(2.0)


def _log1p(e: Function, x: Value) -> Value:
    """log(1 + x), what 1 + x loses of x put back (Kahan); x is finite or NaN."""
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
