"""Arrays between two zones of memory that nobody may write, and whose values nobody may use.

In a session with guard pages (`guard_pages`) one zone ends at the array: a page behind it that
nobody may touch.
"""

from __future__ import annotations

import numpy as np

from support import guard_pages
from support.guard_pages import FILL  # whoever reads a zone and uses what is there gets NaN

GUARD_BYTES = 4096  # before and after


class Guarded:
    """A copy of an array between two zones.

    Attributes:
        array: the copy.
        memory: the copy with its zones, as bytes.
    """

    def __init__(self, array: np.ndarray, aligned: bool = True) -> None:
        """Copy.

        Args:
            array: what to copy.
            aligned: begin at a multiple of 64 bytes; else one element after one.
        """
        array = np.ascontiguousarray(array)
        if guard_pages.side():
            alignment = 64 if aligned else array.itemsize
            region = guard_pages.Region(array.nbytes, alignment)
            self.memory, start = region.pages[0], region.address - region.pages[0].ctypes.data
            self._place(array, start)
            return
        self.memory = np.full(array.nbytes + 2 * GUARD_BYTES + 128, FILL, np.uint8)
        start = GUARD_BYTES + (-(self.memory.ctypes.data + GUARD_BYTES)) % 64
        start += 0 if aligned else array.itemsize
        self._place(array, start)

    def _place(self, array: np.ndarray, start: int) -> None:
        """Copy the array to where it begins in the memory."""
        self._inside = slice(start, start + array.nbytes)
        self.array = self.memory[self._inside].view(array.dtype).reshape(array.shape)
        self.array[...] = array

    @classmethod
    def unwritten(cls, shape: tuple[int, ...], dtype: str) -> Guarded:
        """An array full of NaN, aligned to one element only: where results are to be written."""
        return cls(np.full(shape, np.nan, dtype), aligned=False)

    def check(self) -> None:
        """Raise AssertionError if a byte of a zone was changed."""
        before, after = self.memory[: self._inside.start], self.memory[self._inside.stop :]
        assert (before == FILL).all(), "written before the start of an array"
        assert (after == FILL).all(), "written past the end of an array"
