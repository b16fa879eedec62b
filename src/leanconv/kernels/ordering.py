"""Order of numbers: comparisons, sort keys, and a radix sort of keys.

Comparisons (`precedes`) put NaN before all numbers, whether the larger or the smaller come first.

A key (`sort_key`) is a signed integer of a number's width; keys have the order of a TopK. Equal
numbers have equal keys: the zeros of both signs, and all NaN, which are beyond all numbers as
NumPy's sort and PyTorch's topk have it: the last of the smallest, the first of the largest.
Subnormal numbers differ whatever the processor does with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from leanconv.codegen.emitter import Carry, Function, Index, Pointer, Value, bytes_of, vector
from leanconv.codegen.values import Predicate
from leanconv.types import INT32, INT64, DType

# The bits of +inf as an integer, by the bytes of a float.
_INFINITY = {4: 0x7F800000, 8: 0x7FF0000000000000}


def key_kind(dtype: DType) -> str:
    """LLVM's type of a key, as which a number is loaded, too."""
    return f"i{8 * dtype.bytes}"


def least_key(dtype: DType) -> int:
    """The least key; from signed keys it makes unsigned ones of the same order, by `xor`."""
    return -(1 << (8 * dtype.bytes - 1))


def sort_key(e: Function, dtype: DType, x: Value, *, largest: bool) -> Value:
    """Return the key of a number, or of each in a vector.

    Args:
        e: the function under construction.
        dtype: of the numbers.
        x: their bits, of `key_kind`.
        largest: whether larger numbers come first.
    """
    if dtype.is_float:
        sign = least_key(dtype)
        size = x & ~sign
        x = e.select(x.compare("slt", 0), size.zero() - size, size)
        x = e.select(size.compare("ugt", _INFINITY[dtype.bytes]), e.const(x.kind, ~sign), x)
    elif dtype.kind == "uint":
        x = x ^ least_key(dtype)
    return x ^ -1 if largest else x


_DIGITS = 256


def count_bytes(key_bytes: int) -> int:
    """Return the bytes of the counts of all digits of keys of so many bytes."""
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
        """Count each digit in the keys, then turn counts into sums of the earlier ones."""
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
        e, old, new = self._e, byte % 2, (byte + 1) % 2
        with e.loop("i", total) as i:
            key, place = e.load(self._keys[old].at(i)), e.load(self._places[old].at(i))
            at = self._counts.at(self._digit(key, byte))
            number = e.load(at)
            e.store(number + 1, at)
            to = e.index(e.convert("zext", number, INT64.llvm))
            e.store(key, self._keys[new].at(to))
            e.store(place, self._places[new].at(to))


# By whether the least comes first, and whether ties count. Of floats `u` is: or one is NaN.
_SIGNED: Mapping[tuple[bool, bool], Predicate] = MappingProxyType(
    {(False, False): "sgt", (False, True): "sge", (True, False): "slt", (True, True): "sle"}
)
_OTHER: Mapping[tuple[bool, bool], Predicate] = MappingProxyType(
    {(False, False): "ugt", (False, True): "uge", (True, False): "ult", (True, True): "ule"}
)


def precedes(dtype: DType, x: Value, other: Value, *, least: bool, ties: bool = False) -> Value:
    """Return whether `x` comes before another number of its type, lane by lane.

    Args:
        dtype: of both.
        x, other: scalars, or vectors.
        least: whether smaller numbers come before larger ones.
        ties: the answer for equal numbers, and for two NaN.
    """
    how = (_SIGNED if dtype.kind == "int" else _OTHER)[least, ties]
    found = x.compare(how, other)
    if not dtype.is_float:
        return found
    allowed = other.compare("ord", other)
    return found & (allowed | x.compare("uno", x) if ties else allowed)


def precedes_at(
    dtype: DType,
    x: tuple[Value, Value],
    other: tuple[Value, Value],
    *,
    least: bool,
    last: bool = False,
) -> Value:
    """Return whether (number, place) precedes another; of equal numbers the first or last place."""
    before = precedes(dtype, x[0], other[0], least=least)
    not_after = precedes(dtype, x[0], other[0], least=least, ties=True)
    return before | (not_after & x[1].compare("sgt" if last else "slt", other[1]))
