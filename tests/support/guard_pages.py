"""Memory between pages that nobody may touch, and whether the test session uses it everywhere.

A read or write beyond one side ends the process at once, and faulthandler names the test. On the
other side the rest of a page is full of NaN, which whoever reads it gets, and which must be there
after a run. Lanes that a mask turns off reach nothing: no kernel is refused a masked load.
"""

from __future__ import annotations

import ctypes
import functools
import mmap

import numpy as np

SIDES = ("end", "start")
FILL = 0xFF  # NaN in every float format
_PAGE = mmap.PAGESIZE
_GUARD_BYTES = 64 * _PAGE  # before and after: what is read is often a row or a channel away
_NONE = 0  # PROT_NONE

_side: list[str] = []  # that of this session


def side() -> str:
    """The side on which this session's buffers meet a guard, "" where they need not."""
    return _side[-1] if _side else ""


def use(wanted: str) -> None:
    """Let this session's buffers meet guards from now on, or not ("").

    Raises:
        LookupError: there is no such side.
    """
    if wanted and wanted not in SIDES:
        raise LookupError(f"got the side {wanted!r}; expected one of {', '.join(SIDES)}")
    _side[:] = [wanted] if wanted else []


class Region:
    """Memory that ends, or begins, at a page that nobody may touch; or equal pieces of such memory.

    Args:
        size: bytes.
        alignment: of its first byte; it ends so far before the page as this takes.
        fill: the bytes at first.
        count: pieces.
        at: the side that meets the page; that of the session by default.

    Attributes:
        address: of the first byte.
        stride: bytes from one piece to the next.
        pages: of each piece the whole pages, as bytes; what is beside it is full of NaN.
        data: the first piece, as bytes.
    """

    def __init__(
        self, size: int, alignment: int = 1, fill: int = FILL, count: int = 1, at: str = ""
    ) -> None:
        held = -(-max(1, size + -size % alignment) // _PAGE) * _PAGE
        self.stride = held + _GUARD_BYTES
        self._map = mmap.mmap(
            -1, count * self.stride + _GUARD_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        anchor = ctypes.c_char.from_buffer(self._map)
        first = ctypes.addressof(anchor)
        for piece in range(count + 1):
            _protect(first + piece * self.stride, _GUARD_BYTES, _NONE)
        starts = [piece * self.stride + _GUARD_BYTES for piece in range(count)]
        self.pages = [np.frombuffer(self._map, np.uint8, held, start) for start in starts]
        start = (held - size) // alignment * alignment if (at or side()) == "end" else 0
        self._inside = slice(start, start + size)
        for pages in self.pages:
            pages[:] = FILL
            pages[self._inside] = fill
        self.address = first + _GUARD_BYTES + start
        self.data = self.pages[0][self._inside]

    def check(self) -> None:
        """Raise AssertionError if a byte beside the memory was changed."""
        for pages in self.pages:
            before, after = pages[: self._inside.start], pages[self._inside.stop :]
            assert (before == FILL).all(), "written before the start of a buffer"
            assert (after == FILL).all(), "written past the end of a buffer"


def _protect(address: int, size: int, protection: int) -> None:
    if _mprotect()(address, size, protection):
        raise OSError(ctypes.get_errno(), "mprotect failed")


@functools.cache
def _mprotect() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
