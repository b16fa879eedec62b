"""Locks that a forked child finds free, and objects that are registered while they live."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import ClassVar, Generic, NoReturn, SupportsIndex, TypeVar

from leanconv.errors import ReentrantCallError, UnsupportedError
from leanconv.interrupts import owned, reentrant

_Object = TypeVar("_Object")
_LEAST = 64


class Registry(Generic[_Object]):
    """Weakly held objects, with data that is kept for a while after their end.

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
        found = [ref() for ref, _ in list(self._entries.values())]
        return (each for each in found if each is not None)

    def __len__(self) -> int:
        """Count the entries, those of ended objects included."""
        return len(self._entries)

    def add(self, each: _Object, outliving: object = None) -> None:
        """Add an object, and data to keep for a while after its end."""
        self._entries[next(self._numbers)] = weakref.ref(each), outliving
        if len(self._entries) >= self._sweep_at:
            self.sweep()

    def sweep(self) -> None:
        """Drop entries of ended objects; `add` does so when the entries have doubled."""
        ended = [number for number, (ref, _) in list(self._entries.items()) if ref() is None]
        if self._may_drop():
            for number in ended:
                self._entries.pop(number, None)
        self._sweep_at = max(_LEAST, 2 * len(self._entries))


class Lock:
    """A lock to be taken by `with lock.held:`; its data must bear being left half changed.

    `with` is given the system's own lock: methods of ours around it would be places where a
    KeyboardInterrupt can strike after the lock is taken and before anybody is to release it.

    Args:
        doing: work of a thread while it has the lock, for the message.

    Attributes:
        bare: the lock itself, for callers that have called `mine` before.
        mine: whether the calling thread has it, which a signal handler or a `__del__` has then
            interrupted.
    """

    bare: threading.RLock
    mine: Callable[[], bool]

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self.renew()
        _locks.add(self)

    @property
    def held(self) -> threading.RLock:
        """The lock itself, not taken yet.

        Raises:
            ReentrantCallError: the calling thread has it.
        """
        if self.mine():
            raise self.reentrant()
        return self.bare

    def reentrant(self) -> ReentrantCallError:
        """The error for a call of the thread that has it."""
        return reentrant(self._doing)

    def renew(self) -> None:
        """Forget, in a forked child, that another thread of the parent had the lock."""
        self.bare = threading.RLock()
        self.mine = owned(self.bare)


_locks: Registry[Lock] = Registry()


def _after_fork() -> None:
    for lock in _locks:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Unpicklable:
    """A base of classes whose objects cannot be pickled, with an error that says what to send.

    Attributes:
        instead: the end of that message.
    """

    instead: ClassVar[str]

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UnsupportedError(
            f"a {type(self).__name__} cannot be pickled or copied: what it is made of belongs to "
            f"this process and machine; {self.instead}"
        )
