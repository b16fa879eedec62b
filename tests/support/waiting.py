"""Waiting for what another thread or process does: no moment is guessed, no machine is too busy."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

HANG_S = 240.0  # what has not come by then never comes; a test may take 300 s


def wait_until(holds: Callable[[], object]) -> None:
    """Look again and again until it holds.

    Raises:
        AssertionError: it never does.
    """
    end = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < end, f"not so after {HANG_S:g} s"
        time.sleep(0.002)


def alarm(delay: float) -> None:
    """Ring after `delay` seconds, and again: Python drops what is raised while it finalises.

    Args:
        delay: 0 ends it.
    """
    signal.setitimer(signal.ITIMER_REAL, delay, 0.5)
