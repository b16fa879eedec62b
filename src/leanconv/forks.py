"""Locks that a fork waits for, so that a forked child finds them free, and their data whole.

A child has the thread that forked and no other: what another thread of the parent had locked would
stay locked in it for ever. Before a fork these locks are therefore taken, in the order in which
threads take them inside one another, and both processes release them after it. Locks of what bears
being left half done are renewed in the child instead (`leanconv.runtime.locks`).
"""

from __future__ import annotations

import logging  # noqa: F401 (before `register_at_fork`, see below)
import os
import threading
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

# Order in which a thread takes them.
IMPORTS, COMPILER, LOADING, LLVM = range(4)

_locks: dict[int, Callable[[], Any]] = {}
_taken: dict[int, list[Any]] = {}  # by threads that fork at this moment
_importing = threading.RLock()


def hold_over_forks(place: int, lock: Callable[[], Any]) -> None:
    """Have forks wait for a lock.

    Args:
        place: in the order above.
        lock: gives the `threading.RLock`, at each fork.
    """
    _locks[place] = lock


def imported(name: str) -> ModuleType:
    """Import a module that is needed late; a fork waits until it is whole.

    Python's own lock of a module that another thread imports would stay taken in the child.
    """
    with _importing:
        return import_module(name)


def importing() -> Any:
    """The lock under which modules are imported, for `with`: a fork waits for it."""
    return _importing


def _before() -> None:
    locks = [_locks[place]() for place in sorted(_locks)]
    taken = _taken[threading.get_ident()] = []
    for number, lock in enumerate(locks):
        # A signal handler may fork while its thread has a later lock, for which the owner of this
        # one may be waiting: then nobody waits.
        later = any(each._is_owned() for each in locks[number + 1 :])
        if lock.acquire(blocking=not later):
            taken.append(lock)


def _after() -> None:
    for lock in reversed(_taken.pop(threading.get_ident(), [])):
        lock.release()


hold_over_forks(IMPORTS, lambda: _importing)
if hasattr(os, "register_at_fork"):
    # What was registered last is called first. logging has registered its own lock, and must not
    # take it before ours: who compiles logs.
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
