"""Making things with symbols, where that is possible, and saying why it was not.

Who makes something with symbols can make it without them, too, for each size by itself: slower,
and never wrong. Something that needs numbers (`NeedsNumberError`) is made so quietly. Any other
exception is a defect that would otherwise show as slowness alone: it is logged at level WARNING,
and fails in leanconv's own tests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from leanconv.errors import LeanConvError, OutOfMemoryError, ReentrantCallError
from leanconv.symbolic.expressions import NeedsNumberError

log = logging.getLogger(__name__)

_Made = TypeVar("_Made")
# What defects raise. Anything else, such as a TimeoutError, may be a signal handler's own.
_FAILURES = (
    NeedsNumberError,
    LeanConvError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    LookupError,
)
_told: set[tuple[str, str]] = set()  # once in a process


def attempted(make: Callable[[], _Made]) -> _Made | Exception:
    """What is made with symbols, or why it is not.

    Raises:
        OutOfMemoryError, ReentrantCallError: nor would it be possible without.
    """
    try:
        return make()
    except (OutOfMemoryError, ReentrantCallError):
        raise
    except _FAILURES as error:
        return error


def tell(what: str, reason: Exception) -> str:
    """Log why something was made without symbols, where that was possible; it in words."""
    if isinstance(reason, NeedsNumberError):
        told = f"{what} by itself: {reason}"
        log.debug("%s", told)
        return told
    text = what, f"{type(reason).__name__}: {reason}"
    if text not in _told:
        _told.add(text)
        log.warning(
            "%s by itself, which takes longer, because of a defect of leanconv: %s; please "
            "report it",
            *text,
            exc_info=reason,
        )
    return ": ".join(text)
