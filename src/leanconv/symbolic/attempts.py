"""Making things with symbols, where that is possible, and saying why it was not.

Who makes something with symbols can make it without them, too, for each size by itself: slower,
and never wrong. Something that needs numbers (`NeedsNumberError`) is made so quietly, and so is
what a file is refused for: that is refused again. Any other exception is a defect. It is raised
where `LEANCONV_RAISE_DEFECTS` says so, as in leanconv's own tests and the processes they start;
elsewhere it is a WARNING, since the slower way is still right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from traceback import clear_frames
from typing import TypeVar

from leanconv.errors import LeanConvError, OutOfMemoryError, ReentrantCallError
from leanconv.settings import current_settings
from leanconv.symbolic.expressions import NeedsNumberError

log = logging.getLogger(__name__)

_Made = TypeVar("_Made")
# What defects raise. Anything else, such as a TimeoutError, may be a signal handler's own.
_DEFECTS = (
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    LookupError,
)
_MOST_TOLD = 1000  # of a process; more defects are not told
_told: set[tuple[str, str]] = set()  # once in a process


def attempted(make: Callable[[], _Made]) -> _Made | Exception:
    """What is made with symbols, or why it is not.

    Raises:
        OutOfMemoryError, ReentrantCallError: nor would it be possible without.
        Exception: a defect, where those are raised.
    """
    try:
        return make()
    except (OutOfMemoryError, ReentrantCallError):
        raise
    except (NeedsNumberError, LeanConvError) as error:
        return _without_values(error)
    except _DEFECTS as error:
        if current_settings().raise_defects:
            raise
        return _without_values(error)


def _without_values(error: Exception) -> Exception:
    """The error, whose frames keep nothing of what was begun: it is made again beside it."""
    each: BaseException | None = error
    seen: set[int] = set()  # an error that is raised again may be among its own causes
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__
    return error


def tell(what: str, reason: Exception) -> str:
    """Log why something was made without symbols, where that was possible; it in words.

    Raises:
        AssertionError: the reason is a defect, and those are raised.
    """
    if isinstance(reason, NeedsNumberError):
        told = f"{what} by itself: {reason}"
        log.debug("%s", told)
        return told
    text = what, f"{type(reason).__name__}: {reason}"
    if current_settings().raise_defects:
        raise AssertionError(": ".join(text)) from reason
    if text not in _told and len(_told) < _MOST_TOLD:
        _told.add(text)
        log.warning(
            "%s by itself, which takes longer, because of a defect of leanconv: %s; please "
            "report it",
            *text,
            exc_info=reason,
        )
    return ": ".join(text)
