"""Memory that kernels work in: page-aligned, zero at first, counted."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import sys
from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import count
from math import prod

import numpy as np

from leanconv.errors import OutOfMemoryError
from leanconv.files import mapped_file
from leanconv.half_arrays import numpy_dtype
from leanconv.records import cached_property, dataclass
from leanconv.runtime.arrays import Lookup
from leanconv.spec.format import ALIGNMENT
from leanconv.types import UINT8, DType

_HUGE = 4 * 1024 * 1024
# Results from which on kernels that only move data gain more (a fifth of their time) than a view
# takes (0.7 us).
_LEAST_ALIGNED = 128 * 1024


def _private(size: int) -> mmap.mmap:
    """Map memory that a forked child copies; Python's default would share it with the parent."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


def mapped_files(arrays: Iterable[np.ndarray]) -> tuple[mmap.mmap, ...]:
    """The mapped files that arrays are views of, each once."""
    return tuple(dict.fromkeys(filter(None, map(mapped_file, arrays))))


def give_back(files: Iterable[mmap.mmap]) -> None:
    """Release the pages of mapped files, and those that freed arrays have left in the heap.

    What is read again comes from the file again. Where the system has no such calls, the pages
    stay until it takes them itself.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        for file in files:
            file.madvise(mmap.MADV_DONTNEED)
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    """The call of glibc that returns free pages amid the heap; None elsewhere."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


class NewArrays:
    """Makes arrays of one shape and type for results.

    Large ones begin a cache line, so that no vector crosses two.

    Args:
        shape, dtype: of the arrays.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType) -> None:
        self.shape, self.kind = shape, numpy_dtype(dtype)
        self.bytes = prod(shape) * self.kind.itemsize
        self._room = self.bytes + ALIGNMENT if self.bytes >= _LEAST_ALIGNED else 0
        self._lookup = Lookup((self._room,), UINT8) if self._room else Lookup(shape, dtype)

    def __call__(self) -> tuple[np.ndarray, int]:
        """A new array, and the address of its first element.

        Raises:
            OutOfMemoryError: the system does not give the memory.
        """
        try:
            if not self._room:
                array: np.ndarray = np.empty(self.shape, self.kind)
                return array, self._lookup(array) or array.ctypes.data
            memory = np.empty(self._room, np.uint8)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"memory for the outputs could not be had ({error}); free memory, or give a "
                "smaller batch"
            ) from error
        start = self._lookup(memory) or memory.ctypes.data
        skipped = -start % ALIGNMENT
        return np.ndarray(self.shape, self.kind, memory, skipped), start + skipped


@dataclass(frozen=True)
class Held:
    """What a plan keeps in memory.

    Attributes:
        own_bytes: of what no other plan holds.
        blocks: bytes of each block that other plans may hold, too, by its number.
        working_bytes: that it needs of the memory in which all plans of a network work.
    """

    own_bytes: int
    blocks: Mapping[int, int] = field(default_factory=dict)
    working_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.own_bytes + sum(self.blocks.values()) + self.working_bytes


_numbers = count(1)


class Block:
    """One anonymous mapping, released with its last reference (`FileBlock`: one of a file).

    Attributes:
        bytes: as requested.
        address: of its first byte, page-aligned.
    """

    def __init__(self, size: int) -> None:
        self.bytes = size
        try:
            self._map = _private(max(1, size))
        except (OSError, ValueError, OverflowError) as error:
            raise OutOfMemoryError(
                f"{size} bytes of memory could not be had ({error}); "
                "give a smaller memory_limit, or free memory"
            ) from error
        if size >= _HUGE and hasattr(self._map, "madvise") and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)

    @cached_property
    def number(self) -> int:
        """Its own: no other block of the process ever has it."""
        return next(_numbers)

    def view(self, offset: int, size: int) -> np.ndarray:
        """Bytes of the block as an array, for filling it."""
        return np.frombuffer(self._map, np.uint8, size, offset)

    def write(self, offset: int, array: np.ndarray) -> None:
        """Copy an array's elements, in order, to a place in the block."""
        place = self.view(offset, array.nbytes).view(array.dtype)
        np.copyto(place.reshape(array.shape), array)

    def release(self, offset: int = 0, size: int | None = None) -> None:
        """Let pages go that can be had again; of memory that is no file's, that is none."""


class Memory:
    """Counts the blocks that one plan or network holds."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}

    def allocate(self, purpose: str, size: int) -> Block:
        """Allocate a block for a purpose (`"weights"`, `"arena"`).

        Raises:
            OutOfMemoryError: the system does not give the memory.
        """
        return self.keep(purpose, Block(size))

    def keep(self, purpose: str, block: Block) -> Block:
        """Hold a block for a purpose."""
        assert purpose not in self.blocks
        self.blocks[purpose] = block
        return block

    @property
    def used_bytes(self) -> int:
        """Bytes requested in all blocks together."""
        return sum(block.bytes for block in self.blocks.values())
