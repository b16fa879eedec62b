"""Tensors quantised by one scale and zero point, tables of functions of codes, weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leanconv.graph.ops.base import Array
from leanconv.graph.ops.quantised import dequantise, quantise
from leanconv.records import dataclass
from leanconv.types import FLOAT32, INT8, UINT8, DType

_MIDDLE = 128  # of the codes of uint8


@dataclass(frozen=True)
class Code:
    """Scale and zero point of a tensor's codes, which stand for (code - zero) * scale.

    Attributes:
        scale: a number that float32 has.
        zero: a code.
        dtype: of the codes.
    """

    scale: float
    zero: int
    dtype: DType

    def floats(self, codes: Array) -> Array:
        """Return the numbers that codes stand for, in float32."""
        return dequantise(codes, np.float32(self.scale), np.asarray(self.zero), FLOAT32)

    def codes(self, floats: Array) -> Array:
        """The codes of numbers of float32."""
        scale, zero = np.asarray(self.scale, np.float32), np.asarray(self.zero, self.dtype)
        return quantise(floats, scale, zero)

    def code_of(self, number: float) -> int:
        """The code of one number, in the range of its type."""
        return int(self.codes(np.asarray(number, np.float32)))


def fused(codes: Sequence[Code]) -> dict[str, Any]:
    """The attributes of an operation on codes: of its inputs, and last of its result."""
    *_, result = codes
    return {
        "scales": tuple(each.scale for each in codes),
        "zeros": tuple(each.zero for each in codes),
        "low": int(result.dtype.low),
        "high": int(result.dtype.high),
        "dtype": result.dtype,
    }


def all_codes(dtype: DType) -> Array:
    """All codes of 8 bits, in the order of their bytes without a sign."""
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def table(
    source: Code, result: Code | None, function: Callable[[Array], Array] | None = None
) -> Array:
    """A function of floats as a function of codes, for a Lookup.

    Args:
        source: of the codes that are looked up.
        result: of those that are found; None where they are float32.
        function: of float32 arrays; None for none.
    """
    with np.errstate(all="ignore"):
        floats = source.floats(all_codes(source.dtype))
        if function is not None:
            floats = np.asarray(function(floats), np.float32)
        return floats if result is None else result.codes(floats)


def signed_weights(w: Array, zero: Array, unsigned: bool) -> tuple[Array, Array | None]:
    """Weights without their zero point, and the rest of it where 8 bits do not hold them.

    Args:
        w: codes (K, ...).
        zero: one, or one for each k.
        unsigned: whether weights may be uint8.
    """
    if not np.any(zero) and (w.dtype == np.int8 or unsigned):
        return w, None
    zeros = zero.astype(np.int64).reshape(-1, *(1,) * (w.ndim - 1))
    apart = w.astype(np.int16) - zeros.astype(np.int16)
    low, high = int(apart.min(initial=0)), int(apart.max(initial=0))
    for dtype in (INT8, UINT8) if unsigned else (INT8,):
        if dtype.low <= low and high <= dtype.high:
            return apart.astype(dtype), None
    middle = _MIDDLE if w.dtype == np.uint8 else 0
    left = np.broadcast_to(zeros, (len(w), *(1,) * (w.ndim - 1))) - middle
    return (w.astype(np.int16) - middle).astype(np.int8), np.ascontiguousarray(left)
