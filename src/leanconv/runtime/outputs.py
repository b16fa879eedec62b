"""Memory of large results, taken again once no array and no view of an array lies in it.

Beyond 32 MiB glibc maps new memory for each array, and the system clears every page of it: that
takes as long as many a network. Memory that was used before has its pages.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from leanconv.errors import OutOfMemoryError
from leanconv.runtime.memory import Block, NewArrays
from leanconv.settings import current_settings
from leanconv.types import DType

# Smaller ones come from the heap, which has the pages of those before; two of 24 MiB still do, on
# any thread.
_LEAST_BYTES = 24 * 2**20
_SPARE = 4  # a block is at most a quarter larger than the array in it
_MOST_UNUSED = 64  # results later, a block that nothing lies in is given up

Placed = tuple[np.ndarray, int]  # an array, and where it lies


class _Lease:
    """What every array and view in a block refers to, and which holds the block.

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
    an array ends (see `Registry`): that is found when the next result is wanted. Until then free
    blocks stay, and blocks that are lent count as well, so that all that stays when everything is
    let go is within the limit. The oldest is given up for a new one; its array keeps it.

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
        """Bytes that wait for a result."""
        return sum(block.bytes for _, block in self._free())

    def maker(self, shape: tuple[int, ...], dtype: DType) -> Callable[[], Placed]:
        """What makes arrays for one result, of any content.

        Returns:
            A function that gives an array and the address of its first element. It raises
            `OutOfMemoryError` if the system does not give the memory.
        """
        new = NewArrays(shape, dtype)
        return partial(self._pooled, new) if _LEAST_BYTES <= new.bytes <= self._limit else new

    def _pooled(self, new: NewArrays) -> Placed:
        """An array in a block that nothing lies in any more, or in a new one."""
        block = self._taken(new.bytes)
        if block is None:
            try:
                block = self._made(new.bytes)
            except OutOfMemoryError:
                self._blocks.clear()
                return new()
        lease = _Lease(block, new.bytes)
        self._blocks[next(self._numbers)] = weakref.ref(lease), block
        return np.ndarray(new.shape, new.kind, np.asarray(lease)), block.address

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
