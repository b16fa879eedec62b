"""Memos of things that were made with symbols, for all sizes that answer their guards alike.

Templates of graphs, lowered nodes, what planning chose and forms of kernels are kept so.

Who makes something with symbols can make it without them, too, for each size by itself: slower,
and never wrong. Something that needs numbers (`NeedsNumberError`) is made so quietly, and so is
what a file is refused for: that is refused again. Any other exception is a defect. It is raised
where `LEANCONV_RAISE_DEFECTS` says so, as in leanconv's own tests and the processes they start;
elsewhere it is a WARNING, since the slower way is still right.

`Holes` are the places of symbols in a value, however nested; with them it is copied with numbers:

    holes = Holes()
    fill = holes.filler(kernel)                   None if it holds no symbol
    fill((56, 32))                                the same kernel with 56 and 32 in the holes

The holes of several values are counted together: equal expressions are one hole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import itemgetter
from traceback import clear_frames
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from leanconv.errors import LeanConvError, OutOfMemoryError, ReentrantCallError
from leanconv.settings import current_settings
from leanconv.symbolic.expressions import (
    Expression,
    Guarded,
    Guards,
    NeedsNumberError,
    Values,
    guarded,
)
from leanconv.symbolic.symbols import Symbol

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")
_Made = TypeVar("_Made")
# Exceptions of defects. Anything else, such as a TimeoutError, may be a signal handler's own.
_DEFECTS = (
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    LookupError,
)
_MOST_TOLD = 1000  # of a process; more defects are not logged
_told: set[tuple[str, str]] = set()  # once in a process
Fill = Callable[[Sequence[Any]], Any]  # of what is put into the holes, in order
_PLAIN = (bool, int, float, str, bytes, Enum, type)


class Holes:
    """Places of symbols in values.

    Attributes:
        symbols: one for each hole, in order, by their expressions.
    """

    def __init__(self) -> None:
        self.symbols: dict[Expression, Symbol] = {}
        self._places: dict[Expression, int] = {}

    @property
    def values(self) -> tuple[float, ...]:
        """Numbers of the symbols this time."""
        return tuple([symbol.value for symbol in self.symbols.values()])

    def filler(self, value: Any) -> Fill | None:
        """Return a function that fills a copy of the value with numbers; None without symbols.

        A value's own method `filler_with` is called with these holes.

        Raises:
            NeedsNumberError: an array holds symbols.
            TypeError: something else may hold them, where they would not be found.
        """
        if isinstance(value, Symbol):
            self.symbols.setdefault(value.expression, value)
            return itemgetter(self._places.setdefault(value.expression, len(self._places)))
        if value is None or isinstance(value, _PLAIN):
            return None
        if isinstance(value, (tuple, list)):
            return self._of_sequence(value)
        if isinstance(value, Mapping):
            return self._of_mapping(value)
        if hasattr(value, "filler_with"):
            own: Fill | None = value.filler_with(self)
            return own
        if is_dataclass(value):
            return self._of_record(value)
        holds_objects = getattr(getattr(value, "dtype", None), "hasobject", None)
        if holds_objects:
            raise NeedsNumberError("a table holds sizes")
        if holds_objects is None:
            raise TypeError(f"{type(value).__name__} may hide symbols")
        return None  # an array of numbers

    def _of_sequence(self, items: Sequence[Any]) -> Fill | None:
        moving = _moving((place, self.filler(item)) for place, item in enumerate(items))
        if not moving:
            return None
        kind: Any = type(items)
        make = getattr(kind, "_make", kind)  # that of a named tuple

        def filled(numbers: Sequence[Any]) -> Any:
            made = list(items)
            for place, fill in moving:
                made[place] = fill(numbers)
            return make(made)

        return filled

    def _of_mapping(self, items: Mapping[Any, Any]) -> Fill | None:
        moving = _moving((name, self.filler(item)) for name, item in items.items())
        if not moving:
            return None
        proxy = isinstance(items, MappingProxyType)

        def filled(numbers: Sequence[Any]) -> Any:
            made = dict(items)
            for name, fill in moving:
                made[name] = fill(numbers)
            return MappingProxyType(made) if proxy else made

        return filled

    def _of_record(self, record: Any) -> Fill | None:
        given = {each.name: getattr(record, each.name) for each in fields(record)}
        moving = _moving((name, self.filler(item)) for name, item in given.items())
        if not moving:
            return None
        kind = type(record)

        def filled(numbers: Sequence[Any]) -> Any:
            made = object.__new__(kind)  # checked when it was made with symbols
            held = made.__dict__
            held.update(given)
            for name, fill in moving:
                held[name] = fill(numbers)
            return made

        return filled


def fixed(value: _Value) -> _Value:
    """Return a copy with numbers for symbols, each of which becomes a guard.

    What follows from it is made for these numbers alone. It is written where that is meant: there
    are few of them, or they are seldom other ones.
    """
    if isinstance(value, int):
        return value
    holes = Holes()
    fill = holes.filler(value)
    if fill is None:
        return value
    found: _Value = fill([symbol.decided() for symbol in holes.symbols.values()])
    return found


def _moving(pairs: Any) -> list[tuple[Any, Fill]]:
    return [(name, fill) for name, fill in pairs if fill is not None]


def attempted(make: Callable[[], _Made]) -> _Made | Exception:
    """Return what `make` makes with symbols, or the error that prevents it.

    Raises:
        OutOfMemoryError, ReentrantCallError: it fails without symbols, too.
        Exception: a defect, where those are raised.
    """
    try:
        return make()
    except (OutOfMemoryError, ReentrantCallError):
        raise
    except (NeedsNumberError, LeanConvError) as error:
        return _without_values(error)
    except _DEFECTS as error:
        if current_settings().raise_defects:
            raise
        return _without_values(error)


def _without_values(error: Exception) -> Exception:
    """Clear the frames of an error, which keep values of the attempt, and return it."""
    each: BaseException | None = error
    seen = set[BaseException]()  # an error that is raised again may be among its own causes
    while each is not None and each not in seen:
        seen.add(each)
        clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__
    return error


def tell(what: str, reason: Exception) -> str:
    """Log why something was made without symbols, if that was possible; return that in words.

    Raises:
        AssertionError: the reason is a defect, and those are raised.
    """
    if isinstance(reason, NeedsNumberError):
        told = f"{what} by itself: {reason}"
        log.debug("%s", told)
        return told
    text = what, f"{type(reason).__name__}: {reason}"
    if current_settings().raise_defects:
        raise AssertionError(": ".join(text)) from reason
    if text not in _told and len(_told) < _MOST_TOLD:
        _told.add(text)
        log.warning(
            "%s by itself, which takes longer, because of a defect of leanconv: %s; please "
            "report it",
            *text,
            exc_info=reason,
        )
    return ": ".join(text)


_Result_co = TypeVar("_Result_co", covariant=True)
_Result = TypeVar("_Result")


class Entry(Protocol[_Result_co]):
    """Interface of a memo's entries."""

    @property
    def numbers(self) -> Guarded:
        """Guards and expressions of the entry."""

    def at(self, values: Values) -> _Result_co | None:
        """Return the entry's result for values of the variables; None if a guard does not hold."""


class Made(Generic[_Result]):
    """One thing that was made with symbols.

    Args:
        result: with symbols in it.
        guards: decisions on symbols while it was made.
        expressions: of the numbers that go into its holes.
        fill: makes the result with numbers in them; None where it has none.
    """

    def __init__(
        self,
        result: _Result,
        guards: Guards,
        expressions: Iterable[Expression] = (),
        fill: Fill | None = None,
    ) -> None:
        self.result, self.fill = result, fill
        self.numbers = guarded(guards, expressions)

    def at(self, values: Values) -> _Result | None:
        """The result for these values of the variables; None if a guard does not hold."""
        found = self.numbers(values)
        return None if found is None else self.filled(found)

    def filled(self, numbers: Sequence[Any]) -> _Result:
        """The result with numbers in its holes."""
        if self.fill is None:
            return self.result
        made: _Result = self.fill(numbers)
        return made


class Memo(Generic[_Result]):
    """Things of one kind, made with symbols: for some values, the one whose guards hold.

    Args:
        most: the most entries; the oldest go.
        names: of the variables, for people.

    Attributes:
        entries: the results that are kept.
        uses: how often one of them was returned.
        refusals: why others were made without symbols.
    """

    def __init__(self, most: int, names: Sequence[str] = ()) -> None:
        self._most, self.names = most, tuple(names)
        self.entries: list[Entry[_Result]] = []
        self.uses = 0
        self.refusals: list[str] = []

    @property
    def full(self) -> bool:
        """True if the next entry takes the place of another."""
        return len(self.entries) >= self._most

    def at(self, values: Values) -> _Result | None:
        """Return the first entry's result for these values whose guards hold; None without one."""
        for entry in self.entries:
            found = entry.at(values)
            if found is not None:
                self.uses += 1
                return found
        return None

    def keep(self, entry: Entry[_Result]) -> None:
        """Keep one more."""
        self.entries = [*self.entries, entry][-self._most :]

    def refuse(self, what: str, reason: Exception) -> None:
        """Take note, and tell, that something was made without symbols."""
        told = tell(what, reason)
        if len(self.refusals) < self._most:
            self.refusals.append(told)

    def attempt(self, what: str, make: Callable[[], Made[_Result] | None]) -> Made[_Result] | None:
        """Make one more entry and keep it; log the reason and return None where that fails."""
        made = attempted(make)
        if isinstance(made, Exception):
            self.refuse(what, made)
            return None
        if made is not None:
            self.keep(made)
        return made
