"""MEC: lower along the width only; the height comes back by overlapping sub-matrices.

Cho & Brand, ICML 2017 (arXiv 1706.06873), algorithms 1 and 2. In the paper's order: the input I is
n-h-w-c, the kernel K is kh × kw × ic × kc, the output O is n-h-w-c, padding already applied.

    L[n, w, h, 0:kw, 0:ic] = I[n, h, sw·w : sw·w + kw, 0:ic]                       (line 5)
    O[n, h] = L[n] as (ow × ih·kw·ic) [:, sh·kw·ic·h : sh·kw·ic·h + kh·kw·ic] · K  (line 24)

A sub-matrix is passed to the product by its first element and leading dimension (a NumPy view
here), never copied. The formulas for the sizes of L print k_c where i_c is meant (eqs 2 to 4).
"""

from __future__ import annotations

import numpy as np

from leanconv.reference.direct import Steps, output_extents, result_dtype

THRESHOLD = 100  # T: the paper found about 100 good on GPUs of its time


def vanilla(image: np.ndarray, kernel: np.ndarray, stride: Steps = (1, 1)) -> np.ndarray:
    """Algorithm 1: one image, one channel, one filter (i_n = i_c = k_c = 1).

    Args:
        image: (ih, iw).
        kernel: (kh, kw).
        stride: (sh, sw).

    Returns:
        (oh, ow).
    """
    (ih, iw), (kh, kw), (sh, sw) = image.shape, kernel.shape, stride
    oh, ow = (ih - kh) // sh + 1, (iw - kw) // sw + 1
    dtype = result_dtype(image, kernel)
    lowered = np.empty((ow, ih, kw), dtype)  # A, B, C … of figure 2
    for w in range(ow):
        for h in range(ih):
            lowered[w, h] = image[h, sw * w : sw * w + kw]
    matrix = lowered.reshape(ow, ih * kw)
    column = kernel.astype(dtype).reshape(kh * kw)
    y = np.empty((oh, ow), dtype)
    for h in range(oh):  # partitions P, Q, R … of figure 2
        y[h] = matrix[:, sh * kw * h : sh * kw * h + kh * kw] @ column
    return y


def lower(x: np.ndarray, kw: int, sw: int) -> np.ndarray:
    """Algorithm 2, lines 2 to 6: the lowered tensor L, i_n × o_w × i_h × k_w × i_c.

    Args:
        x: (N, H, W, C).
        kw: kernel width.
        sw: stride along the width.
    """
    n, ih, iw, ic = x.shape
    ow = (iw - kw) // sw + 1
    lowered = np.empty((n, ow, ih, kw, ic), x.dtype)
    for w in range(ow):
        lowered[:, w] = x[:, :, sw * w : sw * w + kw]
    return lowered


def solution_a(lowered: np.ndarray, kernel: np.ndarray, sh: int) -> np.ndarray:
    """Algorithm 2, lines 9 to 19: o_h large products, then h-n-w-c to n-h-w-c through L.

    Args:
        lowered: L; overwritten, as the paper reuses it as auxiliary space.
        kernel: (kh, kw, ic, kc).
        sh: stride along the height.

    Returns:
        O, (N, oh, ow, kc).

    Raises:
        ValueError: |O| > |L|, so that O does not fit the auxiliary space.
    """
    n, ow, ih, kw, ic = lowered.shape
    kh, kc = kernel.shape[0], kernel.shape[3]
    oh = (ih - kh) // sh + 1
    if n * oh * ow * kc > lowered.size:
        raise ValueError(f"|O| = {n * oh * ow * kc} > |L| = {lowered.size}; use solution B")
    matrix = lowered.reshape(n * ow, ih * kw * ic)
    columns = kernel.reshape(kh * kw * ic, kc)
    y = np.empty((oh, n * ow, kc), lowered.dtype)
    for h in range(oh):
        start = sh * kw * ic * h
        y[h] = matrix[:, start : start + kh * kw * ic] @ columns
    auxiliary = lowered.reshape(-1)[: y.size]
    auxiliary[:] = y.reshape(-1)
    moved = auxiliary.reshape(oh, n, ow * kc)
    y = y.reshape(n, oh, ow * kc)
    for i in range(n):
        for h in range(oh):
            y[i, h] = moved[h, i]
    return y.reshape(n, oh, ow, kc)


def solution_b(lowered: np.ndarray, kernel: np.ndarray, sh: int) -> np.ndarray:
    """Algorithm 2, lines 21 to 25: i_n·o_h small products, n-h-w-c at once.

    Args:
        lowered: L.
        kernel: (kh, kw, ic, kc).
        sh: stride along the height.

    Returns:
        O, (N, oh, ow, kc).
    """
    n, ow, ih, kw, ic = lowered.shape
    kh, kc = kernel.shape[0], kernel.shape[3]
    oh = (ih - kh) // sh + 1
    matrices = lowered.reshape(n, ow, ih * kw * ic)
    columns = kernel.reshape(kh * kw * ic, kc)
    y = np.empty((n, oh, ow, kc), lowered.dtype)
    for i in range(n):
        for h in range(oh):
            start = sh * kw * ic * h
            y[i, h] = matrices[i, :, start : start + kh * kw * ic] @ columns
    return y


def takes_solution_a(lowered: int, outputs: int, ow: int, threshold: int = THRESHOLD) -> bool:
    """Line 8: o_w ≤ T and |O| ≤ |L|.

    Args:
        lowered, outputs: elements of L and O.
        ow: output width.
        threshold: T.
    """
    return ow <= threshold and outputs <= lowered


def mec(
    x: np.ndarray, kernel: np.ndarray, stride: Steps = (1, 1), threshold: int = THRESHOLD
) -> np.ndarray:
    """Algorithm 2 whole.

    Args:
        x: (N, H, W, C), padding already applied.
        kernel: (kh, kw, ic, kc).
        stride: (sh, sw).
        threshold: T; 0 always takes solution B.

    Returns:
        (N, oh, ow, kc), in float64 or in int64.
    """
    dtype = result_dtype(x, kernel)
    kh, kw, _, kc = kernel.shape
    lowered = lower(x.astype(dtype), kw, stride[1])
    n, ow, ih = lowered.shape[:3]
    outputs = n * ((ih - kh) // stride[0] + 1) * ow * kc
    chosen = takes_solution_a(lowered.size, outputs, ow, threshold)
    return (solution_a if chosen else solution_b)(lowered, kernel.astype(dtype), stride[0])


def convolve(
    x: np.ndarray, w: np.ndarray, stride: Steps = (1, 1), threshold: int = THRESHOLD
) -> np.ndarray:
    """Algorithm 2 between arrays x (N, C, H, W), w (K, C, kh, kw) and y (N, K, oh, ow)."""
    output_extents(x, w, stride)
    y = mec(x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), stride, threshold)
    return np.ascontiguousarray(y.transpose(0, 3, 1, 2))
