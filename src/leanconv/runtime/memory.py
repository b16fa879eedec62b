"""Memory that kernels work in: page-aligned, zero at first, counted."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import numpy as np

from leanconv.errors import LeanConvError

_HUGE = 4 * 1024 * 1024


def _private(size: int) -> mmap.mmap:
    """Map memory that a forked child copies; Python's default would share it with the parent."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


class Block:
    """One anonymous mapping, released with its last reference.

    Attributes:
        bytes: what was asked for.
        address: of its first byte, page-aligned.
    """

    def __init__(self, size: int) -> None:
        self.bytes = size
        try:
            self._map = _private(max(1, size))
        except (OSError, ValueError, OverflowError) as error:
            raise LeanConvError(
                f"{size} bytes of memory could not be had ({error}); "
                "give a smaller memory_limit, or free memory"
            ) from error
        if size >= _HUGE and hasattr(self._map, "madvise") and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)

    def view(self, offset: int, size: int) -> np.ndarray:
        """Bytes of the block as an array, for filling it."""
        return np.frombuffer(self._map, np.uint8, size, offset)


class Memory:
    """Counts the blocks that one plan or network holds."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}

    def allocate(self, purpose: str, size: int) -> Block:
        """Allocate a block for a purpose (`"weights"`, `"arena"`).

        Raises:
            LeanConvError: the system does not give the memory.
        """
        assert purpose not in self.blocks
        block = Block(size)
        self.blocks[purpose] = block
        return block

    @property
    def used_bytes(self) -> int:
        """Bytes asked for in all blocks together."""
        return sum(block.bytes for block in self.blocks.values())
