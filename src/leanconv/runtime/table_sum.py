"""A sum of the tables among constants that lie in a file beside a library's code.

Code takes what tables hold for places in memory: of channels, of taps, of outputs. From a damaged
file it would read and write beside its arrays. `PREFIX_init` therefore sums up the words of 32 bits
of each table, the i-th one times `_FACTOR`^i modulo 2^64, and compares the sum of all with what the
library says. Numbers that are only multiplied and added are not read for that: they may be more
than memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from leanconv.records import dataclass

_FACTOR = 0x9E3779B97F4A7C15  # odd, and its powers differ for 2^61 words
_MODULUS = 2**64
_WORD = 4  # bytes
_AT_ONCE = 2**16  # words


@dataclass(frozen=True)
class TableSum:
    """Ranges of constants, and their sum.

    Attributes:
        ranges: the first byte and the number of words of each; at multiples of 8.
        sum: of all of them.
    """

    ranges: tuple[tuple[int, int], ...]
    sum: int

    @staticmethod
    def of(ranges: Sequence[tuple[int, int]], read: Callable[[int, int], np.ndarray]) -> TableSum:
        """Sum up ranges.

        Args:
            ranges: first byte and number of bytes of each; zeros follow up to a whole word.
            read: gives so many bytes from one on.
        """
        total, found = 0, []
        for first, size in ranges:
            words = -(-size // _WORD)
            found.append((first, words))
            total = (total * _FACTOR + _sum(read(first, words * _WORD).view("<u4"))) % _MODULUS
        return TableSum(tuple(found), total)

    @property
    def text(self) -> str:
        """`@tables_fit` in LLVM IR: whether constants from an address on have the sum."""
        ranges = ", ".join(f"i64 {number}" for pair in self.ranges for number in pair)
        count = len(self.ranges)
        return _TEXT.format(
            count=count, numbers=2 * count, ranges=ranges, factor=_FACTOR, sum=self.sum
        )


def _sum(words: np.ndarray) -> int:
    """The sum of words times powers of the factor, the last one by the largest."""
    powers = np.cumprod(np.full(min(len(words), _AT_ONCE), _FACTOR, np.uint64))
    total, scale = 0, 1
    for first in range(0, len(words), _AT_ONCE):
        part = words[first : first + _AT_ONCE]
        total += scale * int((part * powers[: len(part)]).sum(dtype=np.uint64))
        scale = scale * pow(_FACTOR, len(part), _MODULUS) % _MODULUS
    return total % _MODULUS


_TEXT = """
@table.ranges = private constant [{numbers} x i64] [{ranges}]

define internal i1 @tables_fit(ptr %constants) nounwind {{
entry:
  br label %range
range:
  %r = phi i64 [0, %entry], [%next.range, %end]
  %total = phi i64 [0, %entry], [%summed, %end]
  %left = icmp ult i64 %r, {count}
  br i1 %left, label %begin, label %done
begin:
  %two = mul i64 %r, 2
  %first.at = getelementptr i64, ptr @table.ranges, i64 %two
  %first = load i64, ptr %first.at
  %words.at = getelementptr i64, ptr %first.at, i64 1
  %words = load i64, ptr %words.at
  %table = getelementptr i8, ptr %constants, i64 %first
  %scaled = mul i64 %total, {factor}
  br label %look
look:
  %i = phi i64 [0, %begin], [%next, %word]
  %before = phi i64 [1, %begin], [%power, %word]
  %summed = phi i64 [%scaled, %begin], [%added, %word]
  %more = icmp ult i64 %i, %words
  br i1 %more, label %word, label %end
word:
  %at = getelementptr i32, ptr %table, i64 %i
  %short = load i32, ptr %at
  %value = zext i32 %short to i64
  %power = mul i64 %before, {factor}
  %product = mul i64 %value, %power
  %added = add i64 %summed, %product
  %next = add i64 %i, 1
  br label %look
end:
  %next.range = add i64 %r, 1
  br label %range
done:
  %fit = icmp eq i64 %total, {sum}
  ret i1 %fit
}}
"""
