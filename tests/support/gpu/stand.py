"""What cases run on, and how far an answer is from the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from leanconv.gpu.device.compiler import Compile
from leanconv.gpu.device.driver import Driver

Row = dict[str, Any]
Case = tuple[str, Callable[[], Row]]


@dataclass(frozen=True)
class Stand:
    """What cases run on: a device, what makes its code, and what looks beside its buffers."""

    driver: Driver
    compile_code: Compile
    check_guards: Callable[[], None]


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference relative to the largest value; infinite for NaN or another shape."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300))
