"""The element types: bytes of one element, and the unit roundoff of one operation."""

from __future__ import annotations

# int32 holds tables and counters on a GPU; nothing is convolved in it.
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4}
INT64_BYTES = 8  # of an offset or a number in a table that a kernel reads
ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}  # half of the spacing of numbers at 1
CPU_DTYPES = ("float32", "float64")
GPU_DTYPES = (*CPU_DTYPES, "float16", "bfloat16")
