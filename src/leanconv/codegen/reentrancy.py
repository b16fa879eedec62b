"""Calls that come back into what their own thread is in the middle of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leanconv.errors import ReentrantCallError


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
    """Whether a signal handler raised it rather than the call that an `except` is about.

    Args:
        error: caught around a single call of a function written in C, in the frame of the `except`.
    """
    traceback = error.__traceback__
    return traceback is not None and traceback.tb_next is not None


def reentrant(what: str) -> ReentrantCallError:
    """The error for a call from within `what`."""
    return ReentrantCallError(
        f"got a call from a signal handler or a `__del__` that interrupts {what} on the same "
        "thread; expected none until that is done: set a flag in the handler and make the call "
        "after it, or use another network and plan there"
    )
