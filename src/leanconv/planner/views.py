"""Buffers that are the bytes of others, whole or in part."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Buffer = TypeVar("Buffer", bound=Hashable)


class Views(Generic[Buffer]):
    """Which buffers are bytes of others, and from which byte on."""

    def __init__(self) -> None:
        self._parents: dict[Buffer, tuple[Buffer, int]] = {}

    def find(self, buffer: Buffer) -> tuple[Buffer, int]:
        """The buffer that a buffer lies in and that lies in no other, and the offset there."""
        chain = []
        while buffer in self._parents:
            chain.append(buffer)
            buffer = self._parents[buffer][0]
        offset = 0
        for each in reversed(chain):  # so that long chains are walked once
            offset += self._parents[each][1]
            self._parents[each] = buffer, offset
        return buffer, offset

    def add(self, view: Buffer, of: Buffer, offset: int = 0) -> None:
        """Let a buffer begin at a byte of another one; what it is part of moves with it."""
        inner, before = self.find(view)
        outer, start = self.find(of)
        if inner != outer:
            self._parents[inner] = outer, start + offset - before

    def place(
        self,
        parts: Sequence[tuple[Buffer | None, int]],
        whole: Buffer,
        size: Callable[[Buffer], int],
        is_fixed: Callable[[Buffer], bool],
    ) -> list[bool]:
        """Let parts of a buffer be computed where they belong, as far as they can be.

        A part that is bytes of another buffer takes that one with it, if all that this covers of
        the whole are its own bytes.

        Args:
            parts: which buffers the whole consists of, in order, and from which byte on; None for
                those that are never computed in their place.
            whole: nothing is part of it yet.
            size: bytes of a buffer.
            is_fixed: whether a buffer that lies in no other must remain where it is.

        Returns:
            Of each part whether it is placed.
        """
        length = size(whole)
        begins = [offset for _, offset in parts]
        ends = [*begins[1:], length]
        placed = [False] * len(parts)
        for number, (part, offset) in enumerate(parts):
            if part is None:
                continue
            root, inside = self.find(part)
            if root == whole:
                placed[number] = self._lies_at(part, whole, offset)
                continue
            first = offset - inside
            last = first + size(root)
            if is_fixed(root) or first < 0 or last > length:
                continue
            covered = parts[bisect_right(ends, first) : bisect_left(begins, last)]
            if all(
                each is not None and self.find(each) == (root, at - first) for each, at in covered
            ):
                self.add(root, whole, first)
                placed[number] = True
        return placed

    def _lies_at(self, part: Buffer, whole: Buffer, offset: int) -> bool:
        """Whether a part of the whole is where it belongs: a value that is there twice is not."""
        return self.find(part) == (whole, offset)
