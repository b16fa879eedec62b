"""im2col and one product of matrices: the lowering of Caffe and of the thesis, section 2.1.3.

    M[(r·kh + u)·kw + v][m·ow + n] = x[r][m·sh + u][n·sw + v]        y = F · M

for one image, with F the filters as a K × C·kh·kw matrix. The thesis writes M transposed (windows
are rows), and leaves the stride out of the formula: its M(m·W_o + n, …) = I'(r, m + u, n + v) is
right for stride 1 only. MEC's eq. 2 counts the same matrix over the batch; it prints k_c for i_c.
"""

from __future__ import annotations

import numpy as np

from leanconv.reference.direct import Steps, output_extents, result_dtype


def lower(image: np.ndarray, kernel: tuple[int, int], stride: Steps, rows: range) -> np.ndarray:
    """Copy the windows of some output rows into the columns of a matrix.

    Args:
        image: (C, H, W), padding already applied.
        kernel: (kh, kw).
        stride: (sh, sw).
        rows: output rows m; all of them for the whole matrix.

    Returns:
        (C·kh·kw, len(rows)·ow).
    """
    (channels, _, width), (kh, kw), (sh, sw) = image.shape, kernel, stride
    ow = (width - kw) // sw + 1
    matrix = np.empty((channels * kh * kw, len(rows) * ow), image.dtype)
    for r in range(channels):
        for u in range(kh):
            for v in range(kw):
                for place, m in enumerate(rows):
                    windows = image[r, m * sh + u, v : v + (ow - 1) * sw + 1 : sw]
                    matrix[(r * kh + u) * kw + v, place * ow : (place + 1) * ow] = windows
    return matrix


def convolve(
    x: np.ndarray, w: np.ndarray, stride: Steps = (1, 1), block: int | None = None
) -> np.ndarray:
    """Convolve image by image: lower, multiply.

    Args:
        x: (N, C, H, W), padding already applied.
        w: (K, C, kh, kw).
        stride: (sh, sw).
        block: output rows lowered at a time, so that the matrix stays small; None lowers all.

    Returns:
        (N, K, oh, ow), in float64 or in int64.
    """
    oh, ow = output_extents(x, w, stride)
    dtype = result_dtype(x, w)
    filters = w.astype(dtype).reshape(w.shape[0], -1)
    y = np.empty((x.shape[0], w.shape[0], oh, ow), dtype)
    size = block or oh
    for i, image in enumerate(x.astype(dtype)):
        for first in range(0, oh, size):
            rows = range(first, min(first + size, oh))
            matrix = lower(image, (w.shape[2], w.shape[3]), stride, rows)
            y[i, :, first : rows.stop] = (filters @ matrix).reshape(-1, len(rows), ow)
    return y
