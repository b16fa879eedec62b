"""Activation functions as vector code, for epilogues and for layers of their own.

NaN in gives NaN out, at no cost: x86's `max` and `min` return their second operand where either is
NaN, so the input is the second operand.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, pi, sqrt

from leanconv.codegen import math
from leanconv.codegen.emitter import Function, Value
from leanconv.spec.activation import Activation


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
    return x / (math.exp(e, math.negate(e, x)) + 1.0)


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
        activation: what to apply; None leaves the value as it is.
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
