"""FFT convolution: over whole images, and tiled by overlap-save.

    y[k] = F⁻¹( Σ_c F(x[c]) · conj(F(w[k, c])) )       conj, as CNNs correlate

Over whole images every filter is padded to the image's size (the memory that MEC's section 2.2
speaks of). Tiles of T × T, overlapping by k - 1, give (T - k + 1)² outputs each (fbfft, arXiv
1412.7580; T = 32 in cuDNN). A transform of real data has T·(T/2 + 1) different bins; each is one
product of complex matrices, with four real products or with Gauss' three (arXiv 1809.07851).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from leanconv.reference.direct import Steps, output_extents, polyphase
from leanconv.spec.format import ceil_div


def complex_product(u: np.ndarray, v: np.ndarray, multiplications: int = 4) -> np.ndarray:
    """Multiply complex matrices by real ones.

    Args:
        u: (…, K, C).
        v: (…, C, P).
        multiplications: 4, or 3: with k1 = (a + b)·c, k2 = a·(d - c) and k3 = b·(c + d),
            (a + ib)(c + id) = (k1 - k3) + i(k1 + k2).

    Returns:
        (…, K, P), complex.
    """
    a, b, c, d = u.real, u.imag, v.real, v.imag
    if multiplications == 4:
        return np.asarray((a @ c - b @ d) + 1j * (a @ d + b @ c))
    k1, k2, k3 = (a + b) @ c, a @ (d - c), b @ (c + d)
    return np.asarray((k1 - k3) + 1j * (k1 + k2))


def whole_image(x: np.ndarray, w: np.ndarray, multiplications: int = 4) -> np.ndarray:
    """Convolve with stride 1 by one transform of each image and filter.

    The transform has the image's own size: what wraps around lands in outputs that are cut off.

    Args:
        x: (N, C, H, W), padding already applied.
        w: (K, C, kh, kw).
        multiplications: 4 or 3 real ones for a complex one.

    Returns:
        (N, K, oh, ow), float64.
    """
    oh, ow = output_extents(x, w, (1, 1))
    size = x.shape[2], x.shape[3]
    y = _by_bins(x, w, size, multiplications)
    return np.ascontiguousarray(y[:, :, :oh, :ow])


def tiled(x: np.ndarray, w: np.ndarray, size: int = 16, multiplications: int = 4) -> np.ndarray:
    """Convolve with stride 1 by overlap-save in tiles of `size` × `size`.

    Args:
        x: (N, C, H, W), padding already applied.
        w: (K, C, kh, kw), kh and kw at most `size`.
        size: T, 16 or 32 as a rule.
        multiplications: 4 or 3 real ones for a complex one.

    Returns:
        (N, K, oh, ow), float64.

    Raises:
        ValueError: the kernel is larger than the tile.
    """
    (oh, ow), (kh, kw) = output_extents(x, w, (1, 1)), w.shape[2:]
    if max(kh, kw) > size:
        raise ValueError(f"kernel of {kh}x{kw}; expected at most {size}, the tile's size")
    step = size - kh + 1, size - kw + 1
    th, tw = ceil_div(oh, step[0]), ceil_div(ow, step[1])
    ends = (th * step[0] + kh - 1 - x.shape[2], tw * step[1] + kw - 1 - x.shape[3])
    padded = np.pad(x, ((0, 0), (0, 0), (0, ends[0]), (0, ends[1])))
    views = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))
    tiles = views[:, :, :: step[0], :: step[1]].transpose(0, 2, 3, 1, 4, 5)
    y = _by_bins(tiles.reshape(-1, x.shape[1], size, size), w, (size, size), multiplications)
    y = y[:, :, : step[0], : step[1]].reshape(x.shape[0], th, tw, w.shape[0], *step)
    y = y.transpose(0, 3, 1, 4, 2, 5).reshape(x.shape[0], w.shape[0], th * step[0], tw * step[1])
    return np.ascontiguousarray(y[:, :, :oh, :ow])


def _by_bins(
    x: np.ndarray, w: np.ndarray, size: tuple[int, int], multiplications: int
) -> np.ndarray:
    """Circular correlation of images (P, C, size) with filters (K, C, …): one product a bin."""
    v = np.fft.rfft2(x, size).transpose(2, 3, 1, 0)  # bins, C, P
    u = np.conj(np.fft.rfft2(w, size)).transpose(2, 3, 0, 1)  # bins, K, C
    m = complex_product(u, v, multiplications)
    return np.fft.irfft2(m.transpose(3, 2, 0, 1), size)


def convolve(
    x: np.ndarray,
    w: np.ndarray,
    stride: Steps = (1, 1),
    size: int | None = None,
    multiplications: int = 4,
) -> np.ndarray:
    """Convolve with any stride, by polyphase.

    Args:
        x: (N, C, H, W), padding already applied.
        w: (K, C, kh, kw).
        stride: (sh, sw).
        size: of a tile; None transforms whole images.
        multiplications: 4 or 3.

    Returns:
        (N, K, oh, ow), float64.
    """
    if size is None:
        dense = partial(whole_image, multiplications=multiplications)
    else:
        dense = partial(tiled, size=size, multiplications=multiplications)
    return polyphase(dense, x.astype(np.float64), w.astype(np.float64), stride)
