"""Winograd on int8, exact: F(2×2, 3×3) as ncnn has it, and F(4×4, 3×3) with an exact division.

Integers come from scaling G: G' = 2G for F(2, 3), so that every U is a whole number and the result
4·y; for F(4, 3) G' = 24G but for its last row, which is 6G's and makes up for it in the output
transform (ncnn's pull request 1354). Then |U| fits 16 bits with full 8-bit weights:

    F(2, 3)   |U| ≤ 9·127 = 1143      |V| ≤ 4·127 = 508        4·y < 2^31    for C ≤ 3698
    F(4, 3)   |U| ≤ 144·127 = 18288   |V| ≤ 100·127 = 12700    |y| < 2^25    for C ≤ 231

The sums 576·y of F(4, 3) do not fit 32 bits, and need not: modulo 2^32, 576·y·9⁻¹ = 64·y, and an
arithmetic shift by 6 gives y wherever |y| < 2^25. More channels are summed in blocks.
"""

from __future__ import annotations

import numpy as np

from leanconv.records import dataclass
from leanconv.reference.direct import output_extents
from leanconv.reference.winograd import Matrices, input_tiles

_INVERSE_OF_9 = 0x38E38E39  # 9 · this = 1 modulo 2^32


@dataclass(frozen=True, eq=False)
class IntegerForm:
    """One F(m, 3) in integers.

    Attributes:
        at, g, bt: A^T, G' and B^T.
        channels: channels that may be summed before the division, for any int8 data.
    """

    at: np.ndarray
    g: np.ndarray
    bt: np.ndarray
    channels: int

    @property
    def m(self) -> int:
        """Outputs of a tile along one axis."""
        return int(self.at.shape[0])


F23 = IntegerForm(
    at=np.array([[1, 1, 1, 0], [0, 1, -1, -1]]),
    g=np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]),
    bt=np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]),
    channels=3698,
)
F43 = IntegerForm(
    at=np.array(
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 4]]
    ),
    g=np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 6]]),
    bt=np.array(
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ]
    ),
    channels=231,
)


def convolve(x: np.ndarray, w: np.ndarray, form: IntegerForm = F23) -> np.ndarray:
    """Convolve int8 with int8 to int32, exactly, with stride 1.

    Args:
        x: (N, C, H, W), int8 in -127 … 127, padding already applied.
        w: (K, C, 3, 3), int8 in -127 … 127.
        form: `F23` or `F43`.

    Returns:
        (N, K, oh, ow), int32.

    Raises:
        ValueError: the arrays are not int8, hold -128, or the kernel is not 3 × 3.
    """
    for label, array in (("x", x), ("w", w)):
        if array.dtype != np.int8 or array.min() < -127:
            raise ValueError(f"{label} is {array.dtype}; expected int8 between -127 and 127")
    if w.shape[2:] != (3, 3):
        raise ValueError(f"w is {w.shape}; expected kernels of 3x3")
    oh, ow = output_extents(x, w, (1, 1))
    total = np.zeros((x.shape[0], w.shape[0], oh, ow), np.int32)
    for first in range(0, x.shape[1], form.channels):
        part = slice(first, first + form.channels)
        total += _block(x[:, part], w[:, part], form)[:, :, :oh, :ow]
    return total


def transform_filters(w: np.ndarray, form: IntegerForm) -> np.ndarray:
    """U = G' g G'^T, (alpha, alpha, K, C), int16."""
    return _int16(np.einsum("xu,kcuv,yv->xykc", form.g, w.astype(np.int64), form.g))


def transform_inputs(x: np.ndarray, form: IntegerForm) -> np.ndarray:
    """V = B^T d B, (alpha, alpha, C, N, tiles_h, tiles_w), int16."""
    axis = Matrices(form.at, form.g, form.bt)
    tiles = input_tiles(x, axis, axis).astype(np.int64)
    return _int16(np.einsum("xi,ncabij,yj->xycnab", form.bt, tiles, form.bt))


def _block(x: np.ndarray, w: np.ndarray, form: IntegerForm) -> np.ndarray:
    u, v = transform_filters(w, form), transform_inputs(x, form)
    batch, th, tw = v.shape[3:]
    v = v.reshape(*v.shape[:3], -1)
    # From here on everything is 32 bits wide and wraps: unsigned arithmetic modulo 2^32.
    m = _wrapped(u) @ _wrapped(v)
    m = m.reshape(*m.shape[:3], batch, th, tw)
    at = _wrapped(form.at)
    scaled = np.einsum("ix,xyknab->iyknab", at, m)
    scaled = np.einsum("jy,iyknab->nkaibj", at, scaled)
    if form is F43:
        y = (scaled * np.uint32(_INVERSE_OF_9)).view(np.int32) >> 6
    else:
        y = scaled.view(np.int32) >> 2
    return np.asarray(y.reshape(batch, w.shape[0], th * form.m, tw * form.m))


def _int16(values: np.ndarray) -> np.ndarray:
    assert np.abs(values).max(initial=0) < 2**15, "a transform left 16 bits"
    return values.astype(np.int16)


def _wrapped(values: np.ndarray) -> np.ndarray:
    """The same integers modulo 2^32."""
    return values.astype(np.int64).astype(np.uint32)
