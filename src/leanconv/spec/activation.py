"""Activation functions as data: a kind and at most two numbers.

The record of a kind has all that is known of it but for the code that computes it. NumPy is given
to its formula, as this folder imports the standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from leanconv.errors import SpecError, short
from leanconv.records import dataclass, field
from leanconv.symbolic import Scalars


# -- formulas ---------------------------------------------------------------------------------
def erf(np: Any, x: Any) -> Any:
    """The error function, to the last bit or two of a double."""
    each = np.frompyfunc(math.erf, 1, 1)
    return np.asarray(each(x.astype(np.float64)), dtype=np.float64).astype(x.dtype)


def sigmoid(np: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _scaled_below(np: Any, x: Any, slope: Any) -> Any:
    return np.where(x >= 0, x, slope * x)


def _clip(np: Any, x: Any, low: float, high: float) -> Any:
    """Bounds that the array's type has no number for are the ends of its range."""
    if x.dtype.kind in "iu":
        ends = np.iinfo(x.dtype)
        low, high = (min(max(number, ends.min), ends.max) for number in (low, high))
    low, high = (np.asarray(number).astype(x.dtype) for number in (low, high))
    return np.minimum(np.maximum(x, low), high)


def _hard_sigmoid(np: Any, x: Any, alpha: float, beta: float) -> Any:
    return np.minimum(np.maximum(x * alpha + beta, 0), 1)


def _gelu(np: Any, x: Any) -> Any:
    return 0.5 * x * (1 + erf(np, x * math.sqrt(0.5)))


def _gelu_tanh(np: Any, x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _elu(np: Any, x: Any, alpha: float) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


# -- kinds ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kind:
    """One kind of activation function.

    Attributes:
        op: the operation of a graph that it is.
        formula: its results, given NumPy, an array and the parameters.
        parameters: their names, which are the operation's attributes, and their defaults.
        bounded: whether its results are within bounds, whatever it is given.
        homogeneous: whether a positive factor may follow it instead.
        series: whether it takes some ten multiply-adds for each element.
        since: the opset from which on files have the operation, with these defaults; 0 where a rule
            says what becomes of a node of a file.
    """

    op: str
    formula: Callable[..., Any]
    parameters: Mapping[str, float] = field(default_factory=dict)
    bounded: bool = False
    homogeneous: bool = False
    series: bool = False
    since: int = 0


_SIXTH = {"alpha": 1.0 / 6.0, "beta": 0.5}
KINDS: dict[str, Kind] = {
    "relu": Kind("Relu", lambda np, x: np.maximum(x, 0), homogeneous=True),
    "clip": Kind("Clip", _clip, {"min": 0.0, "max": 6.0}),
    "leaky_relu": Kind("LeakyRelu", _scaled_below, {"alpha": 0.01}, homogeneous=True, since=1),
    "prelu": Kind(
        "PRelu", _scaled_below, homogeneous=True
    ),  # by slopes, which are an operand of their own
    "sigmoid": Kind("Sigmoid", sigmoid, bounded=True, series=True, since=1),
    "silu": Kind("Silu", lambda np, x: x * sigmoid(np, x), series=True),
    "hard_sigmoid": Kind("HardSigmoid", _hard_sigmoid, _SIXTH, bounded=True),
    "hard_swish": Kind("HardSwish", lambda np, x: x * _hard_sigmoid(np, x, 1 / 6, 0.5), since=14),
    "tanh": Kind("Tanh", lambda np, x: np.tanh(x), bounded=True, series=True, since=1),
    "gelu": Kind("Gelu", _gelu, series=True),
    "gelu_tanh": Kind("Gelu", _gelu_tanh, series=True),  # its approximation
    "elu": Kind("Elu", _elu, {"alpha": 1.0}, series=True, since=1),
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
