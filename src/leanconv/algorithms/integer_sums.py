"""How large sums of products of codes become, by the weights.

An output is largest where its positive weights meet the largest codes and the others the least: of
uint8 codes it is 255 times the sum of the positive weights, at least 255 times that of the others.
"""

from __future__ import annotations

import numpy as np

from leanconv.types import INT8, UINT8, DType, as_dtype

# Bits that are told apart: those that tiles of Winograd leave (`leanconv.winograd.integers`).
# Layers that differ in nothing else share what is chosen for them.
_TOLD_APART = (26, 28, 30, 32)


def sum_bits(w: np.ndarray, codes: DType) -> int:
    """Bits, the sign counted, that hold every sum of products, whatever the codes are: 26 to 32.

    Args:
        w: integers (K, C/g, taps…).
        codes: element type of the input, int8 or uint8.
    """
    w = w if w.strides[0] else w[:1]  # outputs that are alike, as of `stand_in`
    flat = w.reshape(len(w), -1)
    up = np.maximum(flat, 0).sum(1, dtype=np.int64)
    down = up - flat.sum(1, dtype=np.int64)
    low, high = int(codes.low), int(codes.high)
    largest = int((up * high - down * low).max(initial=0))
    least = int((up * low - down * high).min(initial=0))
    needed = 1 + max(largest.bit_length(), (-least - 1).bit_length() if least else 0)
    return next((bits for bits in _TOLD_APART if needed <= bits), _TOLD_APART[-1])


def alike(w: np.ndarray) -> int:
    """An integer that as all weights gives sums of as many bits as w, or of more, but no fewer."""
    dtype, wanted = as_dtype(w.dtype), [sum_bits(w, codes) for codes in (UINT8, INT8)]
    for number in range(int(dtype.high) + 1):
        filled = np.broadcast_to(np.array(number, w.dtype), w.shape)
        found = [sum_bits(filled, codes) for codes in (UINT8, INT8)]
        if all(bits >= least for bits, least in zip(found, wanted, strict=True)):
            return number
    return int(dtype.high)
