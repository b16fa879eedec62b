"""Interrupts of a thread: another one that ends its run, and calls out of signal handlers.

Computations check now and then whether they are to go on. A run of less than 20 ms never does. A
longer one comes back to Python every few milliseconds, at the end of a stage (`runtime/program`):
there it looks here, and handlers of signals can raise.

A handler, or a `__del__`, may call back into what its own thread is in the middle of, which would
wait for ever for a lock of that thread: such calls are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from leanconv.errors import ReentrantCallError, TerminatedError

_Asked = Callable[[], bool]
_this_thread = threading.local()


@contextmanager
def ended_when(asked: _Asked) -> Iterator[None]:
    """End this thread's runs inside as soon as they see that `asked` gives True."""
    before = asking()
    _this_thread.asked = asked
    try:
        yield
    finally:
        _this_thread.asked = before


def asking() -> _Asked | None:
    """Return the function that says whether this thread's run is to end; None without one."""
    asked: _Asked | None = getattr(_this_thread, "asked", None)
    return asked


def check() -> None:
    """End this thread's run if another thread has said so.

    Raises:
        TerminatedError: this thread's run is to end.
    """
    asked = asking()
    if asked is not None and asked():
        raise TerminatedError("the run was ended by another thread; the network can run again")


def check_not_within(lock: Any, what: str) -> None:
    """Refuse a call of a thread that already has the lock which the call would take.

    Only what interrupts a thread can make such a call: a signal handler, or a `__del__` of an
    object that is collected. It would wait for ever, as nobody else is to release the lock.

    Args:
        lock: a `threading.RLock`.
        what: the thread is in the middle of.

    Raises:
        ReentrantCallError: the calling thread has the lock.
    """
    if owned(lock)():
        raise reentrant(what)


def owned(lock: Any) -> Callable[[], bool]:
    """A `threading.RLock`'s own function that says whether the calling thread has it.

    Conditions of Python's threading are made with it.
    """
    mine: Callable[[], bool] = lock._is_owned
    return mine


def of_a_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised an error, not the call inside the `try`.

    Args:
        error: caught around a single call of a function written in C, in the frame of the `except`.
    """
    traceback = error.__traceback__
    return traceback is not None and traceback.tb_next is not None


def reentrant(what: str) -> ReentrantCallError:
    """Make the error for a call from within `what`."""
    return ReentrantCallError(
        f"got a call from a signal handler or a `__del__` that interrupts {what} on the same "
        "thread; expected none until that is done: set a flag in the handler and make the call "
        "after it, or use another network and plan there"
    )
