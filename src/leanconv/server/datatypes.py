"""Element types under the names of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Mapping

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
)

NAMES: Mapping[DType, str] = {
    BOOL: "BOOL",
    **{each: each.upper() for each in (INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64)},
    FLOAT16: "FP16",
    BFLOAT16: "BF16",
    FLOAT32: "FP32",
    FLOAT64: "FP64",
}
