"""Winograd convolution F(m, r): one dimension, two nested ones, and the four stages over tiles.

    y = A^T [(G g) ⊙ (B^T d)]                        one dimension
    Y = A^T [(G K G^T) ⊙ (B^T D B)] A                nested: m outputs, r taps along each axis

    U^(ξ,ν)[k, c], V^(ξ,ν)[c, b]: element (ξ, ν) of every transformed filter and tile   (scatter)
    M^(ξ,ν)[k, b] = Σ_c U^(ξ,ν)[k, c] · V^(ξ,ν)[c, b]                              (eqs 12 and 13)
    Y_{k,b} = A^T M_{k,b} A                                                             (gather)

with b over the N·⌈oh/m⌉·⌈ow/m⌉ tiles, which overlap by r - 1 in the input. Lavin & Gray 2015
(arXiv 1509.09308); the document credits that title to Winograd's book of 1980, and one matrix in
the middle of its nested derivation has a corrupt row. Matrices come exact from `leanconv.winograd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import numpy as np

from leanconv.records import dataclass
from leanconv.reference.direct import Steps, output_extents, polyphase, split_kernel
from leanconv.spec.format import ceil_div
from leanconv.winograd.matrices import transform

LARGEST_PIECE = 7  # taps of a filter along one axis; larger ones are split


@dataclass(frozen=True, eq=False)
class Matrices:
    """F(m, r) in float64.

    Attributes:
        at: A^T, m × alpha.
        g: G, alpha × r.
        bt: B^T, alpha × alpha.
    """

    at: np.ndarray
    g: np.ndarray
    bt: np.ndarray

    @staticmethod
    def of(m: int, r: int, points: Sequence[Fraction | int | str] | None = None) -> Matrices:
        """The matrices of F(m, r), for the given finite points or the best known ones."""
        exact = transform(m, r, points)
        return Matrices(*(np.array(a, np.float64) for a in (exact.at, exact.g, exact.bt)))

    @property
    def m(self) -> int:
        """Outputs of a tile."""
        return int(self.at.shape[0])

    @property
    def r(self) -> int:
        """Taps."""
        return int(self.g.shape[1])

    @property
    def alpha(self) -> int:
        """Inputs of a tile, and its multiplications: m + r - 1."""
        return int(self.bt.shape[0])


def one_dimension(d: np.ndarray, g: np.ndarray, f: Matrices) -> np.ndarray:
    """y = A^T [(G g) ⊙ (B^T d)]: alpha inputs d, r taps g, m outputs."""
    return np.asarray(f.at @ ((f.g @ g) * (f.bt @ d)))


def nested(d: np.ndarray, k: np.ndarray, rows: Matrices, columns: Matrices) -> np.ndarray:
    """Y = A^T [(G K G^T) ⊙ (B^T D B)] A, with matrices of its own along each axis.

    Args:
        d: one tile, alpha_h × alpha_w.
        k: one filter, r_h × r_w.
        rows, columns: F(m, r) along the height and along the width.

    Returns:
        m_h × m_w outputs.
    """
    u = rows.g @ k @ columns.g.T
    v = rows.bt @ d @ columns.bt.T
    return np.asarray(rows.at @ (u * v) @ columns.at.T)


def transform_filters(w: np.ndarray, rows: Matrices, columns: Matrices) -> np.ndarray:
    """U, (alpha_h, alpha_w, K, C), of filters (K, C, kh, kw). Done once."""
    return np.asarray(np.einsum("xu,kcuv,yv->xykc", rows.g, w, columns.g, optimize=True))


def input_tiles(x: np.ndarray, rows: Matrices, columns: Matrices) -> np.ndarray:
    """Cut images into tiles that overlap by r - 1, with zeros past the end.

    Args:
        x: (N, C, H, W).
        rows, columns: F(m, r) along the height and along the width.

    Returns:
        (N, C, tiles_h, tiles_w, alpha_h, alpha_w).
    """
    axes = [(x.shape[2], rows), (x.shape[3], columns)]
    counts = [ceil_div(size - f.r + 1, f.m) for size, f in axes]
    ends = [n * f.m + f.r - 1 - size for n, (size, f) in zip(counts, axes, strict=True)]
    padded = np.pad(x, ((0, 0), (0, 0), (0, ends[0]), (0, ends[1])))
    views = np.lib.stride_tricks.sliding_window_view(padded, (rows.alpha, columns.alpha), (2, 3))
    return np.asarray(views[:, :, :: rows.m, :: columns.m])


def four_stages(x: np.ndarray, w: np.ndarray, rows: Matrices, columns: Matrices) -> np.ndarray:
    """Convolve with stride 1 by the four separate stages of the document.

    Args:
        x: (N, C, H, W), padding already applied.
        w: (K, C, kh, kw).
        rows, columns: F(m, kh) and F(m, kw).

    Returns:
        (N, K, oh, ow), float64.
    """
    oh, ow = output_extents(x, w, (1, 1))
    tiles = input_tiles(x, rows, columns)
    batch, channels, th, tw = tiles.shape[:4]
    # 1. input transform, scattered to alpha_h·alpha_w matrices C × P
    v = np.einsum("xi,ncabij,yj->xycnab", rows.bt, tiles, columns.bt, optimize=True)
    v = v.reshape(rows.alpha, columns.alpha, channels, batch * th * tw)
    # 2. filter transform, K × C
    u = transform_filters(w, rows, columns)
    # 3. batched product (eq. 13)
    m = u @ v
    # 4. output transform of what is gathered from the matrices
    m = m.reshape(rows.alpha, columns.alpha, w.shape[0], batch, th, tw)
    y = np.einsum("ix,xyknab,jy->nkaibj", rows.at, m, columns.at, optimize=True)
    y = y.reshape(batch, w.shape[0], th * rows.m, tw * columns.m)
    return np.ascontiguousarray(y[:, :, :oh, :ow])


def convolve(
    x: np.ndarray, w: np.ndarray, stride: Steps = (1, 1), tile: Steps = (4, 4)
) -> np.ndarray:
    """Convolve with any stride and kernel: polyphase, kernels split, then the four stages.

    Args:
        x: (N, C, H, W), padding already applied.
        w: (K, C, kh, kw).
        stride: (sh, sw).
        tile: (m_h, m_w); an axis along which a piece has one tap takes F(1, 1).

    Returns:
        (N, K, oh, ow), float64.
    """

    def piece(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        m, r = tile, w.shape[2:]
        rows, columns = (Matrices.of(m[a] if r[a] > 1 else 1, r[a]) for a in range(2))
        return four_stages(x.astype(np.float64), w.astype(np.float64), rows, columns)

    dense = partial(split_kernel, piece, most=LARGEST_PIECE)
    return polyphase(dense, x, w, stride)
