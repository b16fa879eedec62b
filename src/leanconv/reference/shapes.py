"""What the plain two-dimensional algorithms share: x (N, C, H, W), w (K, C, kh, kw), no padding."""

from __future__ import annotations

import numpy as np

from leanconv.spec.conv import output_extent

Steps = tuple[int, int]  # along height and width


def output_extents(x: np.ndarray, w: np.ndarray, stride: Steps) -> tuple[int, int]:
    """Output height and width of a convolution without padding (MEC eq. 1).

    Raises:
        ValueError: channels do not agree, or the kernel does not fit.
    """
    if x.ndim != 4 or w.ndim != 4 or x.shape[1] != w.shape[1]:
        raise ValueError(f"x is {x.shape} and w {w.shape}; expected (N, C, H, W), (K, C, kh, kw)")
    oh = output_extent(x.shape[2], w.shape[2], stride[0], 1, 0)
    ow = output_extent(x.shape[3], w.shape[3], stride[1], 1, 0)
    if oh < 1 or ow < 1:
        raise ValueError(f"w is {w.shape}; expected a kernel that fits the input {x.shape}")
    return oh, ow


def result_dtype(*arrays: np.ndarray) -> np.dtype:
    """int64 if every array holds integers, else float64, or wider if an array is."""
    if all(np.issubdtype(a.dtype, np.integer) for a in arrays):
        return np.dtype(np.int64)
    return np.result_type(np.float64, *arrays)
