"""A lock that a forked child finds free, whoever held it in the parent."""

from __future__ import annotations

import os
import threading
import weakref


class Lock:
    """A lock to be taken by `with lock.held:`; what it guards must bear being left half done.

    `with` is given the system's own lock: methods of ours around it would be places where a
    KeyboardInterrupt can strike after the lock is taken and before anybody is to release it.
    """

    def __init__(self) -> None:
        self.held = threading.Lock()
        _locks.add(self)

    def renew(self) -> None:
        """In a forked child: forget that another thread of the parent had it."""
        self.held = threading.Lock()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
