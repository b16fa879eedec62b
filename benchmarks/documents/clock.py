"""How long figures may take, and how much memory their arrays may have.

A figure has a number of minutes of its own. Once these are over, every case that is left has the
least number of turns: a slow machine measures less often, not less.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

LEAST_TURNS = 3  # of each method, whatever the time
_SHARE = 0.7  # of the memory that is free, for arrays that are all there at once
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Deadline:
    """When turns should end; `time.monotonic()`'s seconds."""

    at: float = float("inf")

    @staticmethod
    def after(minutes: float) -> Deadline:
        """The deadline that is so far away."""
        return Deadline(time.monotonic() + 60 * minutes)

    def passed(self, turns: int) -> bool:
        """Whether no further turn is wanted after so many."""
        return turns >= LEAST_TURNS and time.monotonic() >= self.at


NEVER = Deadline()


def free_bytes() -> int:
    """Memory that this process may take: what the system calls available."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 4 * 2**30


def fitting(batch: int, image_bytes: int) -> int:
    """The batch, halved until arrays of so many bytes an image fit into the free memory."""
    room = _SHARE * free_bytes()
    while batch > 1 and batch * image_bytes > room:
        batch //= 2
    return batch
