"""Radix sort of keys with their places, stable: byte by byte of the keys, the last byte first.

Keys and places move from one pair of buffers to another and back, once for each byte of a key: an
even number of bytes leaves them where they were.
"""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.codegen.emitter import Carry, Function, Index, Pointer, Value, bytes_of, vector
from leanconv.types import INT32, INT64

_DIGITS = 256


def count_bytes(key_bytes: int) -> int:
    """Memory for the counts of the digits of keys of that many bytes."""
    return key_bytes * _DIGITS * INT32.bytes


class RadixSort:
    """Sorts, while a kernel is written.

    Args:
        e: the function under construction.
        keys: two buffers of unsigned keys, the first of which is sorted.
        places: two buffers of i32, of what belongs to the keys.
        counts: memory for `count_bytes`.
    """

    def __init__(
        self, e: Function, keys: Sequence[Pointer], places: Sequence[Pointer], counts: Pointer
    ) -> None:
        self._e, self._keys, self._places, self._counts = e, keys, places, counts
        self._element = keys[0].element
        self._bytes = bytes_of(self._element)

    def sort(self, total: Value) -> None:
        """Sort the first `total` keys, at least one, which is where an odd number leaves them."""
        self._count(total)
        for byte in range(self._bytes):
            self._move(total, byte)

    def _digit(self, key: Value, byte: int) -> Index:
        """One byte of a key, from the last one on, and where its count is."""
        e = self._e
        moved = key // (1 << 8 * byte) if byte else key
        wide = moved if self._element == "i64" else e.convert("zext", moved, "i64")
        return e.index(wide & (_DIGITS - 1)) + byte * _DIGITS

    def _count(self, total: Value) -> None:
        """How often each digit occurs in the keys, then how many come before it."""
        e, counts = self._e, self._counts
        zeros = e.zero(vector(INT32.llvm, 8))
        with e.loop("digit", self._bytes * _DIGITS, step=8) as digit:
            e.store(zeros, counts.at(digit))
        with e.loop("i", total) as i:
            key = e.load(self._keys[0].at(i))
            for byte in range(self._bytes):
                at = counts.at(self._digit(key, byte))
                e.store(e.load(at) + 1, at)
        for byte in range(self._bytes):
            before: Carry = [e.const(INT32.llvm, 0)]
            with e.loop("digit", _DIGITS, [before]) as digit:
                at = counts.at(digit + byte * _DIGITS)
                found = e.load(at)
                e.store(before[0], at)
                before[0] = before[0] + found

    def _move(self, total: Value, byte: int) -> None:
        """Keys and places into the other buffers, in the order of one byte."""
        e, old, new = self._e, byte % 2, (byte + 1) % 2
        with e.loop("i", total) as i:
            key, place = e.load(self._keys[old].at(i)), e.load(self._places[old].at(i))
            at = self._counts.at(self._digit(key, byte))
            number = e.load(at)
            e.store(number + 1, at)
            to = e.index(e.convert("zext", number, INT64.llvm))
            e.store(key, self._keys[new].at(to))
            e.store(place, self._places[new].at(to))
