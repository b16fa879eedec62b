"""Counting what planning does: lines of leanconv's own code, as a tracer sees them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import leanconv

_PACKAGE = leanconv.__file__.rpartition("/")[0]


class TooMuchWorkError(AssertionError):
    """More lines than allowed; the message says where they were run."""


def lines_of(work: Callable[[], object], most: float = float("inf")) -> int:
    """How many lines of leanconv are run, comprehensions and generators among them.

    Raises:
        TooMuchWorkError: as soon as they are more than `most`.
    """
    count = 0

    def line(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        if count > most:
            raise TooMuchWorkError(f"over {most:.0f} lines, the last of them in {_stack(frame)}")
        return line

    def call(frame: FrameType, _event: str, _arg: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(_PACKAGE) else None

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # what ends then was made by others
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count


def _stack(frame: FrameType | None) -> str:
    names = []
    while frame is not None and len(names) < 6:
        file = frame.f_code.co_filename.rpartition("/")[2]
        names.append(f"{file}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(names)


def check_growth(work: Callable[[int], object], small: int, large: int) -> None:
    """Check that work on a large extent takes hardly more lines than on a small one.

    Raises:
        TooMuchWorkError: it takes more than twice as many and 4,000.
    """
    few = lines_of(lambda: work(small))
    lines_of(lambda: work(large), 2 * few + 4000)
