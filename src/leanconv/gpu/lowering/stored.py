"""Arrays as a device keeps them: bfloat16, which NumPy has not, as the 16 bits of each number."""

from __future__ import annotations

import numpy as np

from leanconv.half_arrays import as_float32, in_memory
from leanconv.types import BFLOAT16, DType


def stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """An array as the device keeps it; bfloat16 as uint16, rounded to nearest even."""
    given = array if dtype == BFLOAT16 else np.ascontiguousarray(array, dtype)
    return np.ascontiguousarray(in_memory(given, dtype))


def unstored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """What `stored` keeps, as NumPy can compute with it: bfloat16 as float32."""
    return as_float32(np.ascontiguousarray(array), dtype) if dtype == BFLOAT16 else array
