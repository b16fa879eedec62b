"""Activation functions as data: a kind and at most two numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from leanconv.errors import SpecError, short
from leanconv.records import dataclass
from leanconv.symbolic import Scalars


@dataclass(frozen=True)
class Kind:
    """One kind of activation function.

    Attributes:
        op: the operation of a graph that it is.
        parameters: their names, which are the operation's attributes, and their defaults.
    """

    op: str
    parameters: Mapping[str, float] = field(default_factory=dict)


KINDS: dict[str, Kind] = {
    "relu": Kind("Relu"),
    "clip": Kind("Clip", {"min": 0.0, "max": 6.0}),
    "leaky_relu": Kind("LeakyRelu", {"alpha": 0.01}),
    "prelu": Kind("PRelu"),  # whose slopes, one for each channel, are an operand of their own
    "sigmoid": Kind("Sigmoid"),
    "silu": Kind("Silu"),
    "hard_sigmoid": Kind("HardSigmoid", {"alpha": 1.0 / 6.0, "beta": 0.5}),
    "hard_swish": Kind("HardSwish"),
    "tanh": Kind("Tanh"),
    "gelu": Kind("Gelu"),  # exact, through erf
    "gelu_tanh": Kind("Gelu"),  # the tanh approximation
    "elu": Kind("Elu", {"alpha": 1.0}),
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
