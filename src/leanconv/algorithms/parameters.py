"""Choices: an algorithm and its parameters, typed in the code, text at the API and in files.

    "winograd:m=4x4,rows=7"  <->  Choice("winograd", WinogradParameters(m=(4, 4), rows=7))

An algorithm declares its parameters as a frozen dataclass; field names are the names that users
write, and each field has a kind. None leaves a parameter to the cost model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from typing import Generic, TypeVar

from leanconv.errors import SpecError, short
from leanconv.records import dataclass

_LONGEST_VALUE = 64  # characters of a parameter; a number of this length still fits a float

T = TypeVar("T")
P = TypeVar("P", bound="Parameters")


# -- kinds of parameters -----------------------------------------------------------------------
@dataclass(frozen=True)
class Kind(Generic[T]):
    """Type of a parameter's values, parsed from text.

    Attributes:
        read: parses text; None if the text is no such value.
        expected: for the message of that error: what the text should be.
    """

    read: Callable[[str], T | None]
    expected: str


def parameter(kind: Kind[T]) -> T | None:
    """The field of a parameter, left open."""
    return field(default=None, metadata={"kind": kind})


def one_of(*values: T) -> Kind[T]:
    """One of some words or numbers."""
    known = {str(value): value for value in values}
    return Kind(known.get, f"one of {', '.join(known)}" if len(known) > 3 else " or ".join(known))


def _count(text: str) -> int | None:
    """A number of at least 1."""
    return int(text) if text.isascii() and text.isdecimal() and int(text) else None


def _pair(text: str) -> tuple[int, int] | None:
    """Two numbers of at least 1 with an x between them."""
    found = [_count(number) for number in text.split("x")]
    return (found[0], found[1]) if len(found) == 2 and found[0] and found[1] else None


COUNT = Kind(_count, "an integer of at least 1")


def count_or(*words: str) -> Kind[int | str]:
    """A number of at least 1, or one of these words."""
    return Kind(
        lambda text: text if text in words else _count(text),
        f"an integer of at least 1, or {' or '.join(words)}",
    )


COUNT_OR_WHOLE = count_or("whole")
ON_OR_OFF = Kind({"on": True, "off": False}.get, "on or off")
PARTS = Kind(_pair, "two numbers of at least 1, such as 1x2")
TILE = Kind(
    lambda text: _pair(text if "x" in text else f"{text}x{text}"),
    "outputs of a tile, such as 4 or 4x6",
)


# -- parameters and choices --------------------------------------------------------------------
@dataclass(frozen=True)
class Parameters:
    """Base of all algorithms' parameters; itself for an algorithm that has none."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the parameters, as users write them."""
        return tuple(each.name for each in fields(cls))

    def given(self) -> dict[str, object]:
        """The parameters that are not left open."""
        pairs = ((name, getattr(self, name)) for name in self.names())
        return {name: value for name, value in pairs if value is not None}

    def filled(self: P, other: P) -> P:
        """These parameters, with the open ones taken from another record."""
        return replace(other, **self.given())

    def __str__(self) -> str:
        return ",".join(f"{name}={_text(value)}" for name, value in self.given().items())


def _text(value: object) -> str:
    """The text that a kind reads as this value."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value)


@dataclass(frozen=True)
class Choice:
    """An algorithm with its parameters, and its estimated cost and error for one problem.

    Choices are equal if algorithm and parameters are. A choice parsed from text has no costs.

    Attributes:
        algorithm: its name; empty where there is nothing to choose, or nothing has been chosen.
        parameters: some may be left open.
        cycles: estimated cycles of one core.
        error: expected relative error in the max norm, for data of random sign.
    """

    algorithm: str
    parameters: Parameters = field(default_factory=Parameters)
    cycles: float = field(default=math.nan, compare=False)
    error: float = field(default=math.nan, compare=False)

    def __str__(self) -> str:
        """Return the choice as the user selects it: `"winograd:m=4x4,rows=7"`."""
        text = str(self.parameters)
        return f"{self.algorithm}:{text}" if text else self.algorithm


AUTO = Choice("")  # leaves it to the cost model


def parse_choice(text: str, known: Mapping[str, type[Parameters]], where: str = "") -> Choice:
    """The choice that a text such as `"winograd"` or `"mec:solution=B"` names.

    Args:
        text: of the user or of a file.
        known: the parameters of each algorithm, by its name.
        where: `" on this device"`, for the message.

    Raises:
        SpecError: there is no such algorithm or parameter, or a value makes no sense.
    """
    name, _, rest = text.partition(":")
    if name not in known:
        names = ", ".join(known) or "none"
        raise SpecError(f"algorithm {short(name)} is not known{where}; expected one of {names}")
    kinds: dict[str, Kind[object]] = {f.name: f.metadata["kind"] for f in fields(known[name])}
    values: dict[str, object] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals or key not in kinds:
            expected = f"key=value with key in {tuple(kinds)}" if kinds else "none"
            raise SpecError(
                f"algorithm {short(text)}: {short(part)} is no parameter of {name}; expected "
                f"{expected}"
            )
        if len(value) > _LONGEST_VALUE:
            raise SpecError(
                f"algorithm {short(text)}: {key} has {len(value)} characters; expected at most "
                f"{_LONGEST_VALUE}"
            )
        values[key] = kinds[key].read(value)
        if values[key] is None:
            raise SpecError(f"algorithm {name}: {key} is {value!r}; expected {kinds[key].expected}")
    return Choice(name, known[name](**values))
