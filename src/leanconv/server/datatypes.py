"""Element types under the names of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from leanconv.api.inputs import InputSpec
from leanconv.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
    as_dtype,
)

NAMES: Mapping[DType, str] = {
    BOOL: "BOOL",
    **{each: each.upper() for each in (INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64)},
    FLOAT16: "FP16",
    BFLOAT16: "BF16",
    FLOAT32: "FP32",
    FLOAT64: "FP64",
}


def datatype(spec: InputSpec, array: np.ndarray) -> str:
    """The type of an output: its array's, which need not be what the file says, if it says one."""
    given = as_dtype(array.dtype)
    return NAMES[spec.dtype if spec.dtype.held == given else given]
