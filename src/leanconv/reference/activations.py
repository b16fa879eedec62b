"""Activation functions as their formulas read, in float64: the last step of the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from leanconv.spec import Activation

_erf_each = np.frompyfunc(math.erf, 1, 1)


def activate(
    y: np.ndarray, activation: Activation | None, slope: np.ndarray | None = None
) -> np.ndarray:
    """Apply an activation element by element.

    Args:
        y: sums, integers or float64.
        activation: which, or None.
        slope: for "prelu": an array that broadcasts against y.

    Returns:
        The result. Integers stay integers under "relu" and under "clip" with whole bounds.
    """
    if activation is None:
        return y
    if activation.affine:
        factor, summand = activation.affine
        return activate(y, replace(activation, affine=()), slope) * factor + summand
    numbers = activation.parameters
    if activation.kind == "relu":
        return np.asarray(np.maximum(y, 0))
    if activation.kind == "clip" and all(float(n).is_integer() for n in numbers):
        low, high = (y.dtype.type(n) for n in numbers)
        return np.asarray(np.minimum(np.maximum(y, low), high))
    if activation.kind == "prelu":
        if slope is None:
            raise ValueError("activation 'prelu' needs slope; expected an array that fits y")
        return np.asarray(np.where(y >= 0, y, y * slope))
    return _FORMULAS[activation.kind](y.astype(np.float64), *numbers)


def finish(
    y: np.ndarray,
    activation: Activation | None,
    slope: np.ndarray | None,
    residual: np.ndarray | None,
) -> np.ndarray:
    """Add a residual and apply an activation, in the order that this one says.

    Args:
        y, activation, slope: as for `activate`.
        residual: of the shape of y, or None.
    """
    if residual is None:
        return activate(y, activation, slope)
    if activation is not None and activation.before_residual:
        return np.asarray(activate(y, activation, slope) + residual)
    return activate(y + residual, activation, slope)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))  # never overflows
    return np.asarray(np.where(x >= 0, 1 / (1 + small), small / (1 + small)))


def _hard_sigmoid(x: np.ndarray, slope: float, offset: float) -> np.ndarray:
    return np.clip(slope * x + offset, 0.0, 1.0)


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.asarray(_erf_each(x / math.sqrt(2)), dtype=np.float64))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


_FORMULAS: dict[str, Callable[..., np.ndarray]] = {
    "clip": lambda x, low, high: np.clip(x, low, high),
    "leaky_relu": lambda x, alpha: np.where(x >= 0, x, alpha * x),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5),
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "elu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0))),
}
