"""Inputs and outputs as the Open Inference Protocol has them: names of types, shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.api.inputs import InputSpec
from leanconv.errors import UnsupportedError
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


def check_types(specs: Iterable[InputSpec]) -> None:
    """Refuse inputs and outputs of a type that the protocol lacks.

    Raises:
        UnsupportedError: naming the input or output.
    """
    for spec in specs:
        if spec.dtype not in NAMES:
            raise UnsupportedError(
                f"{spec.name!r} is of {spec.dtype}, which the Open Inference Protocol lacks; "
                f"expected one of {', '.join(NAMES)}: add a Cast to the file"
            )


def described(specs: Sequence[InputSpec]) -> list[dict[str, Any]]:
    """Inputs or outputs as metadata."""
    return [
        {
            "name": spec.name,
            "datatype": NAMES[spec.dtype],
            "shape": extents(spec),
        }
        for spec in specs
    ]


def extents(spec: InputSpec) -> list[int]:
    """A shape as the protocol has it: -1 for an open extent, [-1] for an open rank."""
    if spec.shape is None:
        return [-1]
    return [extent if isinstance(extent, int) else -1 for extent in spec.shape]
