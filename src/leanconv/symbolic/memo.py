"""What was made with symbols, kept for all sizes that answer its guards alike.

Templates of graphs, lowered nodes, what planning chose and forms of kernels are kept so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from leanconv.symbolic.attempts import attempted, tell
from leanconv.symbolic.expressions import Expression, Values
from leanconv.symbolic.guarded import Guarded, Guards, guarded
from leanconv.symbolic.tree import Fill

_Result_co = TypeVar("_Result_co", covariant=True)
_Result = TypeVar("_Result")


class Entry(Protocol[_Result_co]):
    """What a memo keeps."""

    @property
    def numbers(self) -> Guarded:
        """Its guards."""

    def at(self, values: Values) -> _Result_co | None:
        """What it is for values of the variables; None if a guard does not hold."""


class Made(Generic[_Result]):
    """One thing that was made with symbols.

    Args:
        result: with symbols in it.
        guards: what its making asked.
        expressions: of what goes into its holes.
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
        most: how many are kept; the oldest go.
        names: of the variables, for people.

    Attributes:
        entries: what is kept.
        uses: how often one of them served.
        refusals: why others were made without symbols.
    """

    def __init__(self, most: int, names: Sequence[str] = ()) -> None:
        self._most, self.names = most, tuple(names)
        self.entries: list[Entry[_Result]] = []
        self.uses = 0
        self.refusals: list[str] = []

    @property
    def full(self) -> bool:
        """Whether the next one takes the place of another."""
        return len(self.entries) >= self._most

    def at(self, values: Values) -> _Result | None:
        """What one of them is for these values; None if none serves."""
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
        """Make one more and keep it; None where it cannot be, which is told."""
        made = attempted(make)
        if isinstance(made, Exception):
            self.refuse(what, made)
            return None
        if made is not None:
            self.keep(made)
        return made
