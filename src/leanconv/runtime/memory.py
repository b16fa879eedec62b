"""Memory that kernels work in: page-aligned, zero at first, counted; arenas that plans share.

Memory of large results is taken again once no array and no view of an array lies in it
(`Outputs`). Beyond 32 MiB glibc maps new memory for each array, and the system clears every page of
it: that takes as long as many a network. Memory that was used before has its pages.

The system counts the bytes of the process that are in memory (`resident`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import mmap
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.errors import OutOfMemoryError
from leanconv.files import mapped_file
from leanconv.half_arrays import numpy_dtype
from leanconv.records import cached_property, dataclass, field
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.locks import Lock
from leanconv.settings import current_settings
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


Placed = tuple[np.ndarray, int]  # an array, and where it lies


class NewArrays:
    """Makes arrays of one type and number of axes for results.

    Large ones begin a cache line, so that no vector crosses two.

    Args:
        axes, dtype: of the arrays.
    """

    def __init__(self, axes: int, dtype: DType) -> None:
        self.kind = numpy_dtype(dtype)
        self._small, self._large = Lookup((-1,) * axes, dtype), Lookup((-1,), UINT8)

    def __call__(self, shape: tuple[int, ...], size: int) -> Placed:
        """A new array of so many bytes, and the address of its first element.

        Raises:
            OutOfMemoryError: the system does not give the memory.
        """
        try:
            if size < _LEAST_ALIGNED:
                array: np.ndarray = np.empty(shape, self.kind)
                return array, self._small(array) or array.ctypes.data
            memory = np.empty(size + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"memory for the outputs could not be had ({error}); free memory, or give a "
                "smaller batch"
            ) from error
        start = self._large(memory) or memory.ctypes.data
        skipped = -start % ALIGNMENT
        return np.ndarray(shape, self.kind, memory, skipped), start + skipped


@dataclass(frozen=True)
class Held:
    """Bytes that a plan keeps in memory.

    Attributes:
        own_bytes: in no other plan.
        blocks: bytes of each block that other plans may hold, too, by its number.
        working_bytes: needed of the memory in which all plans of a network work.
    """

    own_bytes: int
    blocks: Mapping[int, int] = field(default_factory=dict)
    working_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all kinds together."""
        return self.own_bytes + sum(self.blocks.values()) + self.working_bytes


_numbers = itertools.count(1)


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
        """Number of the block, which no other block of the process ever has."""
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


_LLVM = "libllvmlite"
_MOST_BYTES = 64 * 2**20  # of the text: a process may have a million mappings


@dataclass(frozen=True)
class Resident:
    """Bytes of a process that are in memory.

    Attributes:
        llvm: of LLVM's library.
        libraries: of Python itself, NumPy and all other libraries, their variables included.
        files: of other mapped files: models whose weights are read in place, shared weights.
        other: of no file: Python's objects, arrays, what libraries have allocated.
    """

    llvm: int
    libraries: int
    files: int
    other: int

    @property
    def total(self) -> int:
        """Bytes of all kinds together."""
        return self.llvm + self.libraries + self.files + self.other


def resident() -> Resident | None:
    """Count this process's bytes in memory; None where the system does not say it (not Linux)."""
    if sys.platform != "linux":
        return None
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as file:
            return counted_resident(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None


def counted_resident(text: str) -> Resident:
    """The bytes that a text in the form of `/proc/self/smaps` counts.

    A file of which any part may be run is a library.

    Raises:
        ValueError: the text has another form.
    """
    sizes: dict[str, int] = {}
    libraries: set[str] = set()
    path = ""
    for line in text.splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):  # addresses, permissions, …, file
            permissions, *others = rest.split(maxsplit=4)
            path = others[3] if len(others) > 3 else ""
            if "x" in permissions:
                libraries.add(path)
        elif first == "Rss:":
            sizes[path] = sizes.get(path, 0) + int(rest.split()[0]) * 1024
    llvm = sum(size for path, size in sizes.items() if Path(path).name.startswith(_LLVM))
    named = {path: size for path, size in sizes.items() if path.startswith("/")}
    code = sum(size for path, size in named.items() if path in libraries) - llvm
    files = sum(named.values()) - code - llvm
    return Resident(llvm, code, files, sum(sizes.values()) - sum(named.values()))


# Smaller ones come from the heap, which has the pages of those before; two of 24 MiB still do, on
# any thread.
_LEAST_BYTES = 24 * 2**20
_SPARE = 4  # a block is at most a quarter larger than the array in it
_MOST_UNUSED = 64  # results later, a block that nothing lies in is given up


class _Lease:
    """Owner of all arrays and views in a block: they refer to it, and it keeps the block.

    NumPy reads `__array_interface__`, and keeps the object that has it as the array's `base`.
    """

    __slots__ = ("__array_interface__", "__weakref__", "block")

    def __init__(self, block: Block, size: int) -> None:
        self.block = block
        self.__array_interface__: dict[str, Any] = {
            "data": (block.address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


class Outputs:
    """The memory of results of one network, or of one kind of call.

    A block is free when the weak reference to its lease is dead: nothing that was made of the
    array lives any more, be it a view, a tensor of another library or a buffer. Nothing runs when
    an array ends (see `Registry`): free blocks are found when the next result is wanted. Blocks
    that are lent count as well, so that all of them are within the limit once they are free. The
    oldest is given up for a new one; its array keeps it.

    Every step on the blocks is one of the interpreter's own, so that threads and signal handlers
    may take arrays at any moment.

    Args:
        limit_bytes: the most that all blocks may take; 0 for none. By default as the settings say.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit = current_settings().output_cache_bytes if limit_bytes is None else limit_bytes
        self._blocks: dict[int, tuple[weakref.ref[_Lease], Block]] = {}  # the oldest first
        self._numbers = itertools.count()

    @property
    def free_bytes(self) -> int:
        """Bytes of free blocks."""
        return sum(block.bytes for _, block in self._free())

    def maker(self, shape: tuple[int, ...], dtype: DType) -> Callable[[], Placed]:
        """Return a function that makes arrays for one result, of any content.

        Returns:
            The function gives an array and the address of its first element. It raises
            `OutOfMemoryError` if the system does not give the memory.
        """
        new = NewArrays(len(shape), dtype)
        size = prod(shape) * new.kind.itemsize
        make = partial(self._pooled, new) if self._pools(size) else new
        return partial(make, shape, size)

    def maker_of_any(self, axes: int, dtype: DType) -> Callable[[tuple[int, ...]], Placed]:
        """Return a function that makes arrays as `maker` does, of the shapes that it is given."""
        new = NewArrays(axes, dtype)

        def made(shape: tuple[int, ...]) -> Placed:
            size = prod(shape) * new.kind.itemsize
            return self._pooled(new, shape, size) if self._pools(size) else new(shape, size)

        return made

    def _pools(self, size: int) -> bool:
        return _LEAST_BYTES <= size <= self._limit

    def _pooled(self, new: NewArrays, shape: tuple[int, ...], size: int) -> Placed:
        """An array in a block that nothing lies in any more, or in a new one."""
        block = self._taken(size)
        if block is None:
            try:
                block = self._made(size)
            except OutOfMemoryError:
                self._blocks.clear()
                return new(shape, size)
        lease = _Lease(block, size)
        self._blocks[next(self._numbers)] = weakref.ref(lease), block
        return np.ndarray(shape, new.kind, np.asarray(lease)), block.address

    def _free(self) -> Iterator[tuple[int, Block]]:
        """Blocks in which nothing lies, with their numbers."""
        for number, (lease, block) in list(self._blocks.items()):
            if lease() is None:
                yield number, block

    def _taken(self, size: int) -> Block | None:
        """The smallest free block that fits, which is ours now; blocks long unused go."""
        now, fitting = next(self._numbers), []
        for number, block in self._free():
            if number + _MOST_UNUSED < now:
                self._blocks.pop(number, None)
            elif size <= block.bytes <= size + size // _SPARE:
                fitting.append((block.bytes, number))
        for _, number in sorted(fitting):
            found = self._blocks.pop(number, None)  # another thread may have been faster
            if found is not None:
                return found[1]
        return None

    def _made(self, size: int) -> Block:
        """A new block; the oldest ones go where all would exceed the limit, free ones first."""
        blocks = list(self._blocks.items())
        total = size + sum(block.bytes for _, (_, block) in blocks)
        for number, (_, block) in sorted(blocks, key=lambda each: each[1][0]() is not None):
            if total <= self._limit:
                break
            self._blocks.pop(number, None)
            total -= block.bytes
        return Block(size)


class ArenaPart:
    """Part of an arena that one plan needs, until this object ends.

    Attributes:
        arena: shared with other plans.
        bytes: from its beginning.
        growth: bytes by which the arena became larger for it.
    """

    def __init__(self, arena: SharedArena, size: int) -> None:
        self.arena, self.bytes, self.growth = arena, size, 0

    def address(self) -> int:
        """The arena's address, for a run; only under its lock.

        Raises:
            OutOfMemoryError: the system does not give the memory.
        """
        block = self.arena.block
        if block is None or block.bytes < self.bytes:
            block = self.arena.resize(self.bytes)
        return block.address


class SharedArena:
    """Memory that runs work in one after the other, as large as the largest plan in use needs.

    Attributes:
        lock: held by whoever runs in it, and while it is moved.
        block: the memory.
        version: another one, never 0, when the memory has grown, shrunk or moved.
    """

    def __init__(self) -> None:
        self.lock = Lock("a run of the same network")
        self.block: Block | None = None
        self.version = 1
        self._parts: list[weakref.ref[ArenaPart]] = []

    def part(self, size: int) -> ArenaPart:
        """Make room for a plan, and give back memory that only ended plans needed.

        Raises:
            OutOfMemoryError: the system does not give the memory.
            ReentrantCallError: the calling thread is in a run.
        """
        part = ArenaPart(self, size)
        with self.lock.held:
            parts = [(ref, held.bytes) for ref in self._parts if (held := ref()) is not None]
            most = max((needed for _, needed in parts), default=0)
            part.growth = max(0, size - most)
            if self.block is None or self.block.bytes != max(size, most):
                self.resize(max(size, most))
            self._parts = [*(ref for ref, _ in parts), weakref.ref(part)]
        return part

    def give_back(self) -> None:
        """Hold no memory until a run asks again."""
        with self.lock.held:
            self.version += 1
            self.block = None

    def resize(self, size: int) -> Block:
        """Replace the memory by another of so many bytes, for all programs; only under the lock.

        Raises:
            OutOfMemoryError: the system does not give the memory; there is none until a run or a
                plan asks again.
        """
        self.version += 1
        self.block = None  # so that the old and the new are not held at once
        self.block = Block(size)
        return self.block
