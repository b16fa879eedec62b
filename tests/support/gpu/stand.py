"""What cases run on, and how far an answer is from the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
