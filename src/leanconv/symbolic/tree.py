"""Values that hold symbols, however nested: their places, and copies with numbers for them.

    holes = Holes()
    fill = holes.filler(kernel)                   None if it holds no symbol
    fill((56, 32))                                the same kernel with 56 and 32 in the holes

The holes of several values are counted together: equal expressions are one hole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeVar

from leanconv.symbolic.expressions import Expression, NeedsNumberError
from leanconv.symbolic.symbols import Symbol

_Value = TypeVar("_Value")
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
