"""Objects that are known while they live, and what must outlive them for a moment."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

_Object = TypeVar("_Object")
_LEAST = 64


class Registry(Generic[_Object]):
    """Objects that are held weakly, with what is to outlive them until it may go.

    A `WeakSet` or a `__del__` runs Python's code at the end of an object, where an exception of a
    signal handler, such as a KeyboardInterrupt, is lost or leaves half undone. Here nothing runs
    then: what has ended is dropped when more is added. Every step is one of the interpreter's own,
    so that threads and signal handlers may add at any moment.

    Args:
        may_drop: whether what belongs to objects that ended before it is called may go.
    """

    def __init__(self, may_drop: Callable[[], bool] = lambda: True) -> None:
        self._may_drop = may_drop
        self._entries: dict[int, tuple[weakref.ref[_Object], object]] = {}
        self._numbers = itertools.count()
        self._sweep_at = _LEAST

    def __iter__(self) -> Iterator[_Object]:
        """Iterate over those that live."""
        found = [ref() for ref, _ in list(self._entries.values())]
        return (each for each in found if each is not None)

    def __len__(self) -> int:
        """Return how many entries are kept, those of ended objects counted."""
        return len(self._entries)

    def add(self, each: _Object, outliving: object = None) -> None:
        """Add an object, and what is to be kept for a while after its end."""
        self._entries[next(self._numbers)] = weakref.ref(each), outliving
        if len(self._entries) >= self._sweep_at:
            self.sweep()

    def sweep(self) -> None:
        """Drop what has ended; `add` does so when the entries have doubled."""
        ended = [number for number, (ref, _) in list(self._entries.items()) if ref() is None]
        if self._may_drop():
            for number in ended:
                self._entries.pop(number, None)
        self._sweep_at = max(_LEAST, 2 * len(self._entries))
