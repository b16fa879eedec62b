"""What a memory limit and an error limit do to a plan on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from leanconv.errors import BudgetError
from leanconv.gpu.machine import Machine
from leanconv.units import counted, error_text, format_bytes

T = TypeVar("T")


def check_error(subject: str, predicted: float, limit: float | None) -> None:
    """Refuse a convolution whose error is expected to exceed a limit; None is no limit.

    Raises:
        BudgetError: it is.
    """
    if limit is not None and not predicted <= limit:
        raise BudgetError(
            f"{subject} is expected to err by {predicted:.3g}, the limit is {limit:.3g}; give "
            f"max_error={error_text(predicted)} or more, or float64 arrays",
            0,
            predicted,
        )


def fastest_within(
    lower: Callable[[bool], T],
    needed_bytes: Callable[[T], int],
    limit: int | None,
    subject: str,
    machine: Machine,
) -> T:
    """What is lowered for speed or, where that takes more than the limit, for least memory.

    Args:
        lower: given whether to take what needs least memory.
        needed_bytes: of what `lower` returned.
        limit: bytes, None for no limit.
        subject, machine: for the message.

    Raises:
        BudgetError: neither keeps the limit.
    """
    needed = []
    for lean in (False, True):
        lowered = lower(lean)
        needed.append(needed_bytes(lowered))
        if limit is None or needed[-1] <= limit:
            return lowered
    least = min(needed)
    raise BudgetError(
        f"{subject} needs {least} bytes ({format_bytes(least)}) at least on {machine.name}, the "
        f"limit is {counted(limit or 0, 'byte')}; give memory_limit={least} or more",
        least,
    )
