"""Activation functions as data: a kind and at most two numbers; their formulas in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from leanconv.errors import SpecError, short
from leanconv.records import dataclass
from leanconv.symbolic import Scalars

Array = npt.NDArray[Any]
_erf_each = np.frompyfunc(math.erf, 1, 1)


# -- formulas ---------------------------------------------------------------------------------
def erf(x: Array) -> Array:
    """The error function, to the last bit or two of a double."""
    return np.asarray(_erf_each(x.astype(np.float64)), dtype=np.float64).astype(x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + small), small / (1 + small)))


def _scaled_below(x: Array, slope: float | Array) -> Array:
    return np.asarray(np.where(x >= 0, x, slope * x))


def _clip(x: Array, low: float, high: float) -> Array:
    return np.minimum(np.maximum(x, _like(x, low)), _like(x, high))


def _like(x: Array, number: float) -> Array:
    """A scalar of the array's dtype; infinities become the ends of an integer's range."""
    if x.dtype.kind in "iu":
        ends = np.iinfo(x.dtype)
        number = min(max(number, ends.min), ends.max)
    return np.asarray(number).astype(x.dtype)


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.minimum(np.maximum(x * alpha + beta, 0), 1)


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + erf(x * math.sqrt(0.5))))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _elu(x: Array, alpha: float) -> Array:
    return np.asarray(np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))))


# -- kinds ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kind:
    """One kind of activation function.

    Attributes:
        op: the operation of a graph that it is.
        formula: its values of an array and the parameters, in the array's dtype or a wider one.
        parameters: their names, which are the operation's attributes, and their defaults.
    """

    op: str
    formula: Callable[..., Array]
    parameters: Mapping[str, float] = field(default_factory=dict)


KINDS: dict[str, Kind] = {
    "relu": Kind("Relu", lambda x: np.maximum(x, 0)),
    "clip": Kind("Clip", _clip, {"min": 0.0, "max": 6.0}),
    "leaky_relu": Kind("LeakyRelu", _scaled_below, {"alpha": 0.01}),
    "prelu": Kind("PRelu", _scaled_below),  # by slopes, which are an operand of their own
    "sigmoid": Kind("Sigmoid", sigmoid),
    "silu": Kind("Silu", lambda x: x * sigmoid(x)),
    "hard_sigmoid": Kind("HardSigmoid", _hard_sigmoid, {"alpha": 1.0 / 6.0, "beta": 0.5}),
    "hard_swish": Kind("HardSwish", lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5)),
    "tanh": Kind("Tanh", np.tanh),
    "gelu": Kind("Gelu", _gelu),
    "gelu_tanh": Kind("Gelu", _gelu_tanh),  # its approximation
    "elu": Kind("Elu", _elu, {"alpha": 1.0}),
}


@dataclass(frozen=True)
class Activation:
    """One activation function, applied element by element.

    Attributes:
        kind: a key of `KINDS`.
        parameters: as many numbers as the kind takes.
        affine: none, or two: a factor of its result, and a summand added after that.
        before_residual: whether a residual is added to its result, not to its argument.
    """

    kind: str
    parameters: tuple[float, ...] = ()
    affine: Scalars = ()
    before_residual: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise SpecError(
                f"activation {short(self.kind)} is not known; expected one of "
                f"{', '.join(sorted((*KINDS, 'relu6')))}"
            )
        defaults = tuple(KINDS[self.kind].parameters.values())
        try:
            given = tuple(float(p) for p in self.parameters)
        except (TypeError, ValueError, OverflowError) as error:
            raise SpecError(
                f"activation {self.kind} got {short(self.parameters)}; expected numbers as "
                "parameters, such as 'clip:0:6'"
            ) from error
        if len(given) > len(defaults):
            raise SpecError(
                f"activation {self.kind!r} got {len(given)} parameter(s); expected at most "
                f"{len(defaults)}"
            )
        object.__setattr__(self, "parameters", given + defaults[len(given) :])
        if len(self.affine) not in (0, 2):
            raise SpecError(
                f"activation {self.kind!r} got affine={short(self.affine)}; expected a factor and "
                "a summand, or neither"
            )

    def __str__(self) -> str:
        shown = [(f"{p:g}", p) for p in self.parameters]
        numbers = ":".join(text if float(text) == p else repr(p) for text, p in shown)
        text = f"{self.kind}:{numbers}" if numbers else self.kind
        if self.affine:
            text += " · {:g} + {:g}".format(*self.affine)
        return f"{text} before the residual" if self.before_residual else text

    @staticmethod
    def parse(text: str | Activation | None) -> Activation | None:
        """Read `"relu6"`, `"leaky_relu:0.1"`, `"clip:0:1"` or None.

        Raises:
            SpecError: it is no name, an unknown one, or a parameter is not a number.
        """
        if text is None:
            return None
        found = text if isinstance(text, Activation) else _read(text)
        shown = short(text if isinstance(text, str) else str(found))
        if any(math.isnan(number) for number in found.parameters):
            raise SpecError(f"activation {shown} has NaN as a parameter; expected numbers")
        if found.kind == "clip" and found.parameters[0] > found.parameters[1]:
            raise SpecError(f"activation {shown}: expected a lower bound, then an upper one")
        return found


def _read(text: str) -> Activation:
    if not isinstance(text, str):
        raise SpecError(f"activation is {short(text)}; expected a name such as 'relu', or None")
    kind, *numbers = text.split(":")
    if text == "relu6":
        kind, numbers = "clip", ["0", "6"]
    return Activation(kind, tuple(numbers))  # type: ignore[arg-type]  # texts of numbers
