"""Arrays as they lie in memory: NumPy has no bfloat16, so that such numbers are their 16 bits."""

from __future__ import annotations

import numpy as np

from leanconv.types.dtype import BFLOAT16, DType

_NAN = 0x7FC0


def stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """An array as elements of a type in memory; bfloat16 as uint16, rounded to nearest even."""
    if dtype != BFLOAT16:
        return np.ascontiguousarray(array, dtype)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    held: np.ndarray = np.where(np.isnan(array), np.uint16(_NAN), rounded)
    return held


def unstored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """What `stored` keeps, as NumPy can compute with it: bfloat16 as float32."""
    if dtype != BFLOAT16:
        return array
    return (np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
