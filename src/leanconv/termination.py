"""Ending a run from another thread: what computes looks now and then whether it is to go on.

A run of less than 20 ms is never asked. A longer one comes back to Python every few milliseconds,
at the end of a stage (`runtime/program`): there it looks here, and handlers of signals can raise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from leanconv.errors import TerminatedError

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
    """What says whether this thread's run is to end; None where nothing may end it."""
    asked: _Asked | None = getattr(_this_thread, "asked", None)
    return asked


def check() -> None:
    """End what this thread is doing where another one has said so.

    Raises:
        TerminatedError: this thread's run is to end.
    """
    asked = asking()
    if asked is not None and asked():
        raise TerminatedError("the run was ended by another thread; the network can run again")
