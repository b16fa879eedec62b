"""One arena for all plans of a network: they run in turn, and leave nothing for each other."""

from __future__ import annotations

import weakref

from leanconv.runtime.locks import Lock
from leanconv.runtime.memory import Block


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
