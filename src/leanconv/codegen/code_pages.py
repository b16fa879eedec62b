"""Pages of memory that hold machine code: written first, then run, never both."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Mapping


class CodePages:
    """One private mapping of code and of what only that reads, freed with the last reference.

    Args:
        code_bytes: of the first part, which is run.
        constant_bytes: of the second part, which begins at a page of its own.

    Attributes:
        code, constants: addresses of the two parts.

    Raises:
        OSError: the system gives no such memory.
    """

    def __init__(self, code_bytes: int, constant_bytes: int = 0) -> None:
        self._code_bytes = _whole(code_bytes)
        self._bytes = self._code_bytes + _whole(constant_bytes)
        self._map = mmap.mmap(-1, self._bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._anchor = ctypes.c_char.from_buffer(self._map)  # which keeps it where it is
        self.code = ctypes.addressof(self._anchor)
        self.constants = self.code + self._code_bytes

    def write(self, address: int, data: bytes) -> None:
        """Put bytes at an address of one of the parts; before `seal`."""
        start = address - self.code
        self._map[start : start + len(data)] = data

    def seal(self) -> None:
        """Let the first part be run, and neither be written to any more.

        Raises:
            OSError: the system does not allow it.
        """
        parts = (
            (self.code, self._code_bytes, mmap.PROT_READ | mmap.PROT_EXEC),
            (self.constants, self._bytes - self._code_bytes, mmap.PROT_READ),
        )
        for address, size, permitted in parts:
            if size and _mprotect()(address, size, permitted):
                number = ctypes.get_errno()
                raise OSError(number, f"mprotect refuses {size} bytes of code")


class LoadedObjects:
    """Objects in this process; their code is freed with the last reference to this.

    Args:
        pages: where they are.
        symbols: addresses of their functions.
    """

    def __init__(self, pages: CodePages, symbols: Mapping[str, int]) -> None:
        self._pages, self._symbols = pages, symbols

    def __getitem__(self, symbol: str) -> int:
        return self._symbols[symbol]


def _whole(size: int) -> int:
    """Bytes of the pages that hold as many."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


@functools.cache
def _mprotect() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
