"""Products, operations and bytes of a convolution: one formula each, for specs and kernels."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from leanconv.types import DType


def reduction_length(group_inputs: int, kernel: Iterable[int]) -> int:
    """Products summed for one output, padding counted: C / groups by the taps of the kernel."""
    return group_inputs * prod(kernel)


def sum_flops(batch: int, out_channels: int, out: Iterable[int], reduction: int) -> int:
    """Floating point operations of the plain sum: two for each product, padding counted."""
    return 2 * batch * out_channels * prod(out) * reduction


def tensor_bytes(shape: Iterable[int], dtype: DType) -> int:
    """Bytes of the elements of a dense tensor."""
    return prod(shape) * dtype.bytes
