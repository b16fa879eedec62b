"""Integers of shapes as arrays: numbers, or objects where there are symbols among them.

An array of objects holds Python's integers and symbols; the type beside it says which of ONNX's
dtypes they are. What is computed with symbols must be what NumPy gives of the numbers: quotients
are rounded towards zero, and a result that would wrap around is refused, whereupon the network is
bound to numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ops.base import Array
from leanconv.symbolic import NeedsNumberError, Symbol, plain
from leanconv.types import INT32, INT64, DType

SYMBOLIC_DTYPES = (INT32, INT64)  # others hold numbers


def numbers(array: Array, dtype: DType) -> Array:
    """The array with numbers for its symbols; each of them becomes a guard."""
    if array.dtype != object:
        return array
    return np.array([int(each) for each in array.reshape(-1)], dtype).reshape(array.shape)


def checked_symbols(array: Array, dtype: DType) -> Array:
    """An array of objects, if they are integers of the dtype; as numbers where none is a symbol.

    Raises:
        NeedsNumberError: it holds something else, or a number that the dtype does not.
    """
    ends = np.iinfo(dtype)
    low, high = int(ends.min), int(ends.max)
    symbolic = False
    for each in array.reshape(-1):
        number = plain(each)
        if not isinstance(number, int) or isinstance(number, bool):
            raise NeedsNumberError(f"gives {number!r} from the extents; expected an integer")
        if not (low <= each and each <= high):
            raise NeedsNumberError(f"gives {number} from the extents; expected a number of {dtype}")
        symbolic = symbolic or isinstance(each, Symbol)
    return array if symbolic else array.astype(dtype)


def quotient(a: Array, b: Array) -> Array:
    """a / b of integers, rounded towards zero, as C and ONNX do.

    Raises:
        ModelError: a divisor is 0.
    """
    _check_divisors(b)
    if object in (a.dtype, b.dtype):
        return np.asarray(_quotient_each(a, b))
    floored = a // b
    return np.asarray(floored + ((a - floored * b != 0) & ((a < 0) != (b < 0))))


def remainder(a: Array, b: Array, towards_zero: bool) -> Array:
    """What is left of a by b: of the divisor's sign, or of a's where quotients go towards zero.

    Raises:
        ModelError: a divisor is 0.
    """
    _check_divisors(b)
    if not towards_zero:
        return np.asarray(np.mod(a, b))
    if object in (a.dtype, b.dtype):
        return np.asarray(a - b * _quotient_each(a, b))
    return np.asarray(np.fmod(a, b))


def _check_divisors(b: Array) -> None:
    if any(each == 0 for each in b.reshape(-1)) if b.dtype == object else not np.all(b):
        raise ModelError("got an integer division by zero; expected divisors other than 0")


def _quotient(a: Any, b: Any) -> Any:
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


_quotient_each = np.frompyfunc(_quotient, 2, 1)
