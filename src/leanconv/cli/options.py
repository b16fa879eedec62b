"""Parsers of the command line, and the options that several sub-commands share."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from leanconv.api.options import NetworkOptions, checked_threads
from leanconv.errors import InputError, SpecError
from leanconv.types import FLOAT32, FLOAT64, HALVES
from leanconv.units import parse_bytes, parse_ns

Shape = tuple[int, ...]
Extents = tuple[int | tuple[int, ...], ...]
_Extent = TypeVar("_Extent")
_Read = TypeVar("_Read")
IMAGES_HELP = (
    "pictures (PNG, JPEG, BMP, GIF, PPM, TIFF, WebP, JPEG 2000), or arrays: .npy (of a single "
    "input) or .npz (by the inputs' names)"
)


# What `leanconv.load` takes that commands which load a network take, too.
_USUAL = (
    *("threads", "dtype", "precision", "max_error", "memory_limit", "stream_weights"),
    *("reproducible", "tune", "algorithms"),
)


class UsageError(InputError):
    """The command line itself is wrong, whatever the files hold: exit code 2, as argparse's own."""


def add_load_options(
    parser: argparse.ArgumentParser, names: Sequence[str] = _USUAL, **helps: str
) -> None:
    """Add options of `leanconv.load`.

    Args:
        parser: that takes them.
        names: of the options, in the order of the help.
        helps: help of some of them in place of the usual.
    """
    known = {each.name: each for each in fields(NetworkOptions)}
    for name in names:
        flag = "--algorithm" if name == "algorithms" else f"--{name.replace('_', '-')}"
        held = _HELD.get(name, {"action": "store_true"})
        said = helps.get(name) or known[name].metadata["help"]
        parser.add_argument(flag, dest=name, help=said, **held)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how results are printed."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--wide", action="store_true", help="print every column, however narrow the terminal"
    )


def load_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `leanconv.load` that the options ask for."""
    known = {each.name for each in fields(NetworkOptions)}
    found = {name: value for name, value in vars(options).items() if name in known}
    if "algorithms" in found:
        found["algorithms"] = dict(found["algorithms"]) or None
    return found


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """Add `--shape`, for extents that a model leaves open, or other ones, and `--value`, for small
    integer inputs that decide what a network computes.
    """
    parser.add_argument(
        "--shape",
        action="append",
        type=named_shape,
        default=[],
        metavar="[NAME=]NxCxHxW",
        help="input shape, where the model leaves it open (a batch left open is 1)",
    )
    add_value_option(parser)


def add_value_option(parser: argparse.ArgumentParser) -> None:
    """Add `--value` alone."""
    parser.add_argument(
        "--value",
        action="append",
        type=named_value,
        default=[],
        metavar="NAME=N[,N]",
        help="value of a small integer input, such as a sampling rate that decides what runs",
    )


def _named_algorithm(text: str) -> tuple[str, str]:
    """Read a layer's name and its algorithm (an argparse type)."""
    layer, equals, algorithm = text.partition("=")
    if not (layer and equals and algorithm):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not LAYER=ALGORITHM; give one such as conv1=winograd:m=4"
        )
    return layer, algorithm


def positive(text: str) -> int:
    """Read an integer of at least 1 (an argparse type)."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def positive_number(text: str) -> float:
    """Read a number above 0 (an argparse type)."""
    number = _number(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, such as 1e-5")
    return number


def not_negative(text: str) -> float:
    """Read a number of at least 0 (an argparse type)."""
    number = _number(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def part(text: str) -> float:
    """Read a number from 0 to 1 (an argparse type)."""
    number = _number(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1, such as 0.9")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _typed(read: Callable[[str], _Read]) -> Callable[[str], _Read]:
    """Make an argparse type of a function that reads a text: it shows the function's message."""

    def typed(text: str) -> _Read:
        try:
            return read(text)
        except SpecError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return typed


byte_count = _typed(parse_bytes)
duration = _typed(parse_ns)  # such as `2ms`, in nanoseconds
thread_count = _typed(lambda text: checked_threads(positive(text)))


_HELD: dict[str, dict[str, Any]] = {  # how options of `load` are read that are no flags
    "threads": {"type": thread_count, "metavar": "N"},
    "dtype": {"choices": (FLOAT32, FLOAT64)},
    "precision": {"choices": HALVES},
    "max_error": {"type": positive_number, "metavar": "X"},
    "memory_limit": {"type": byte_count, "metavar": "BYTES"},
    "algorithms": {
        "action": "append",
        "type": _named_algorithm,
        "default": [],
        "metavar": "LAYER=ALGORITHM",
    },
}


def named_shape(text: str) -> tuple[str, Shape]:
    """Read `NAME=1x3x224x224`, or a shape in any form that messages have (an argparse type)."""
    return _named(text, positive, "1x3x224x224")


def named_value(text: str) -> tuple[str, tuple[int, ...]]:
    """Read `NAME=16000` or `NAME=1,3,-1` (an argparse type)."""
    name, _, numbers = text.rpartition("=")
    try:
        found = tuple(int(number) for number in numbers.split(","))
    except ValueError:
        found = ()
    if not (name and found):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no value; give integers such as {name or 'NAME'}=16000"
        )
    return name, found


def named_range(text: str) -> tuple[str, Extents]:
    """Read `NAME=1x3x48x32-2304`, with steps `1x3x32-960/32x640`, or a shape (an argparse type)."""
    return _named(text, _extents, "1x3x48x32-2304")


def _extents(text: str) -> int | tuple[int, ...]:
    """Read `224`, `32-2304` or `32-960/32`."""
    least, dash, rest = text.partition("-")
    if not dash:
        return positive(text)
    most, slash, step = rest.partition("/")
    ends = positive(least), positive(most)
    return (*ends, positive(step)) if slash else ends


def _named(
    text: str, read: Callable[[str], _Extent], example: str
) -> tuple[str, tuple[_Extent, ...]]:
    name, _, extents = text.rpartition("=")
    bare = extents.strip().strip("()[]").strip()
    parts = re.split(r"\s*[,x]\s*|\s+", bare)
    try:
        return name, tuple(read(part) for part in parts)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape ({error}); give one such as {example}, or "
            f"{name or 'NAME'}={example} for one of several inputs"
        ) from error


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names for a message, the first ones where there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def unknown(kind: str, name: str, known: Sequence[str]) -> InputError:
    """Make the error for an unknown name: the nearest known one, or all of them."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {near[0]!r}? There are" if near else "expected one of"
    return InputError(f"there is no {kind} {name!r}; {meant} {listed(names)}")


class Parser(argparse.ArgumentParser):
    """Says which command or choice a wrong one may have meant."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2, the usage and the message."""
        super().error(with_a_guess(message))


class CommandParser(Parser):
    """Take `verify MODEL --threads 2 SAMPLE`, which argparse refuses by itself.

    argparse gives a list its arguments where it first meets some: after `MODEL` an empty list of
    samples is taken, and what follows the option belongs to nobody.
    """

    _reading = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse options first, and then what is left of the arguments; all must be known."""
        if self._reading:  # some versions of argparse come back here for each of the two passes
            return super().parse_known_args(args, namespace)
        self._reading = True
        try:
            found, left = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._reading = False
        if left:
            self.error(self._unknown(left))
        return found, left

    def _unknown(self, left: Sequence[str]) -> str:
        """Say which arguments are unknown, and which options they may mean."""
        options = [text for text in left if text.startswith("-")]
        if not options:
            return f"got more than expected: {' '.join(left)}"
        known = [name for name in self._option_string_actions if name.startswith("--")]
        shown = []
        for option in options:
            meant = guess(option.partition("=")[0], known)
            shown.append(
                f"there is no option {option}{f'; did you mean {meant}?' if meant else ''}"
            )
        return "; ".join(shown) + f" (`{self.prog} --help` lists all)"


def guess(word: str, known: Iterable[str]) -> str | None:
    """The known word that a wrong one is most like, None where it is like none."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return near[0] if near else None


def with_a_guess(message: str) -> str:
    """argparse's message about a wrong choice, and what may have been meant."""
    found = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL)
    if found is None:
        return message
    meant = guess(found[1], re.findall(r"[^', ]+", found[2]))
    return f"{message}; did you mean {meant}?" if meant else message
