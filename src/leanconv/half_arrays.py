"""Arrays of halves as NumPy holds them: float16, and bfloat16 as the upper halves of float32.

NumPy has no bfloat16. An array of it is one of the package ml_dtypes where that gave it, and else
one of uint16.
"""

from __future__ import annotations

import sys

import numpy as np

from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, HALVES, DType, find_dtype

_ROUND, _QUIET, _BITS = 0x7FFF, 0x400000, 16


def numpy_dtype(dtype: DType) -> np.dtype:
    """NumPy's type of arrays that a user gives or gets; of bfloat16 that of ml_dtypes, if used."""
    if dtype != BFLOAT16:
        return np.dtype(dtype)
    package = sys.modules.get("ml_dtypes")
    return np.dtype(package.bfloat16 if package else dtype.numpy)


def in_memory(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Floats as a type holds them in memory, rounded to the nearest, the even one of two."""
    if array.dtype == dtype.numpy or find_dtype(array.dtype) == dtype:
        return array.view(dtype.numpy)
    if dtype == BFLOAT16:
        return _upper_halves(np.ascontiguousarray(array, FLOAT32))
    if dtype == FLOAT16:
        with np.errstate(over="ignore"):  # infinite, as of kernels
            return array.astype(dtype.numpy)
    return array


def as_float32(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return halves in the form of `in_memory` as float32, exactly."""
    if dtype == BFLOAT16:
        return (array.view(np.uint16).astype(np.uint32) << _BITS).view(np.float32)
    return array.astype(np.float32)


def held_as(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Floats as float32 numbers that a half precision holds; arrays of other types as they are."""
    if dtype not in HALVES:
        return array
    return as_float32(in_memory(np.asarray(array).astype(FLOAT32), dtype), dtype)


def _upper_halves(array: np.ndarray) -> np.ndarray:
    words = array.view(np.uint32)
    rounded = words + (((words >> _BITS) & 1) + _ROUND)
    chosen = np.where(np.isnan(array), words | _QUIET, rounded)
    return (chosen >> _BITS).astype(np.uint16)
