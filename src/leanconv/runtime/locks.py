"""A lock that a forked child finds free, whoever held it in the parent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from leanconv.codegen.reentrancy import owned, reentrant
from leanconv.errors import ReentrantCallError
from leanconv.runtime.registry import Registry


class Lock:
    """A lock to be taken by `with lock.held:`; what it guards must bear being left half done.

    `with` is given the system's own lock: methods of ours around it would be places where a
    KeyboardInterrupt can strike after the lock is taken and before anybody is to release it.

    Args:
        doing: what a thread is in the middle of while it has the lock, for the message.

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
        """In a forked child: forget that another thread of the parent had it."""
        self.bare = threading.RLock()
        self.mine = owned(self.bare)


_locks: Registry[Lock] = Registry()


def _after_fork() -> None:
    for lock in _locks:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
