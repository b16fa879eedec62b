"""Waking a worker on another core than that of the thread that wakes it.

Linux puts a woken thread on an idle core. In a virtual machine an idle core counts as taken while
the host does not run it, so the worker is put on the core of its caller, waits there for the end of
the caller's time slice, and is put there again when it has parked: for 10 ms and more, every run
takes as long as on one thread. A worker is therefore forbidden the caller's core until it runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable

from leanconv.codegen.reentrancy import of_a_handler


class Cores:
    """The cores that a thread may run on, fewer while it is being woken.

    An interrupt may come between any two steps: what has not been undone then is recognised, and
    undone when the thread is woken the next time.
    """

    def __init__(self) -> None:
        self._all: set[int] = set()
        self._fewer: set[int] | None = None  # what it is held to now

    def leave_this_one(self, thread: int) -> None:
        """Forbid a sleeping thread the core that the calling thread is on, where it has others.

        Args:
            thread: the system's number of the thread.
        """
        current = _current_core()
        if current is None:
            return
        try:
            now = os.sched_getaffinity(thread)
            if now != self._fewer:
                self._all = now
            others = self._all - {current()}
            if others:
                self._fewer = others
                os.sched_setaffinity(thread, others)
        except OSError as error:  # the thread has ended, or may not be moved
            if of_a_handler(error):
                raise

    def take_all(self) -> None:
        """Allow the calling thread, which is the one, its cores again; it stays where it is."""
        if self._fewer is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._all)
            self._fewer = None


@functools.cache
def _current_core() -> Callable[[], int] | None:
    """The system's function that returns the core of the calling thread, None if there is none."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        function: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (OSError, TypeError, AttributeError):
        return None
    return function
