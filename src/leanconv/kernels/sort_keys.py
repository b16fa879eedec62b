"""Numbers as signed integers of the same width, in whose order they come out of a TopK.

Equal numbers have equal keys: the zeros of both signs, and all NaN, which are beyond all numbers
as NumPy's sort and PyTorch's topk have it: the last of the smallest, the first of the largest.
Subnormal numbers differ whatever the processor does with them.
"""

from __future__ import annotations

from leanconv.codegen.emitter import Function, Value
from leanconv.types import DType

# The bits of +inf as an integer, by the bytes of a float.
_INFINITY = {4: 0x7F800000, 8: 0x7FF0000000000000}


def key_kind(dtype: DType) -> str:
    """LLVM's type of a key, as which a number is loaded, too."""
    return f"i{8 * dtype.bytes}"


def least_key(dtype: DType) -> int:
    """The least key; from signed keys it makes unsigned ones of the same order, by `xor`."""
    return -(1 << (8 * dtype.bytes - 1))


def sort_key(e: Function, dtype: DType, x: Value, *, largest: bool) -> Value:
    """The key of a number, or of each in a vector.

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
