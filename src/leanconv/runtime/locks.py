"""A lock that a forked child finds free, whoever held it in the parent."""

from __future__ import annotations

import os
import threading
import weakref


class Lock:
    """As `threading.Lock`, used by `with`; what it guards must bear being left half done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """In a forked child: forget that another thread of the parent had it."""
        self._lock = threading.Lock()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
