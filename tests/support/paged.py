"""Arrays that touch a page which nobody may read: whoever reads one element too far, dies.

Unlike the zones of `guarded`, pages notice reads whose values are not used. A vector that is loaded
under a mask, and a prefetch, reach nothing where they do not read.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from support.guarded import FILL

PAGE_BYTES = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


def _forbid(address: int) -> None:
    """Let nobody read or write a page."""
    result = _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE_BYTES), 0)
    assert result == 0, f"mprotect: error {ctypes.get_errno()}"


class Paged:
    """A copy of an array between two pages that cannot be read, right beside one of them.

    Attributes:
        array: the copy.
        memory: the pages of the copy, as bytes.
    """

    def __init__(self, array: np.ndarray, at_end: bool) -> None:
        """Copy.

        Args:
            array: what to copy.
            at_end: end where the page behind begins; else begin where the page before ends.
        """
        array = np.ascontiguousarray(array)
        inside = -(-max(1, array.nbytes) // PAGE_BYTES) * PAGE_BYTES
        memory = mmap.mmap(-1, inside + 2 * PAGE_BYTES)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for address in (base, base + PAGE_BYTES + inside):
            _forbid(address)
        everything = np.frombuffer(memory, np.uint8)
        self.memory = everything[PAGE_BYTES : PAGE_BYTES + inside]
        self.memory[...] = FILL
        start = inside - array.nbytes if at_end else 0
        self._inside = slice(start, start + array.nbytes)
        self.array = self.memory[self._inside].view(array.dtype).reshape(array.shape)
        self.array[...] = array

    @classmethod
    def before_end(cls, array: np.ndarray) -> Paged:
        """A copy that ends where the page behind begins."""
        return cls(array, at_end=True)

    @classmethod
    def after_start(cls, array: np.ndarray) -> Paged:
        """A copy that begins where the page before ends."""
        return cls(array, at_end=False)

    def check(self) -> None:
        """Raise AssertionError if a byte beside the copy, in its own pages, was changed."""
        before, after = self.memory[: self._inside.start], self.memory[self._inside.stop :]
        assert (before == FILL).all(), "written before the start of an array"
        assert (after == FILL).all(), "written past the end of an array"
