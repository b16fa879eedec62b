"""A driver whose buffers are poisoned before use, and guarded on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np

from leanconv.gpu.device.driver import Driver

GUARD = 256
_POISON, _GUARDED = 0xFF, 0x5A  # the first is NaN in every float format


class GuardedDriver(Driver):
    """As `Driver`; `check_guards` raises if anything was written beside a buffer."""

    def __init__(self, library: Any, number: int = 0) -> None:
        super().__init__(library, number)
        self._sizes: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        """Reserve memory between two guards, all of it NaN."""
        begin = super().allocate(size + 2 * GUARD)
        held = np.full(size + 2 * GUARD, _POISON, np.uint8)
        held[:GUARD] = held[size + GUARD :] = _GUARDED
        self.write(begin, held.ctypes.data, held.nbytes)
        self._sizes[begin + GUARD] = size
        return begin + GUARD

    def free(self, address: int) -> None:
        """Look at the guards, and give memory back."""
        self._check(address)
        del self._sizes[address]
        super().free(address - GUARD)

    def check_guards(self) -> None:
        """Look at all guards."""
        for address in self._sizes:
            self._check(address)

    def _check(self, address: int) -> None:
        found = np.empty(GUARD, np.uint8)
        for begin in (address - GUARD, address + self._sizes[address]):
            self.read(found.ctypes.data, begin, GUARD)
            assert (found == _GUARDED).all(), "written outside a buffer"
