"""The gradient of a convolution's weights: plain, by im2col, by MEC's tensor, by Winograd.

    dw[k, c, u, v] = Σ n, i, j:  dy[n, k, i, j] · x[n, c, i·sh + u, j·sw + v]

is what y = conv(x, w) has for w where a loss has dy for y: of each product w·x of the seven loops
in `direct`, dy·x belongs to that weight. The documents do not write it down.

im2col: of an image, y = W · M with the matrix M[(c, u, v), (i, j)]. So

    dW = Σ n:  dy[n] · M[n]ᵀ

MEC: of an image, the output row y[i] = P(i) · W, where P(i) are all rows j, and the kh·kw·ic
columns from sh·kw·ic·i on, of L[j, (h, v, c)] = x[h, j·sw + v, c]. So

    dW = Σ n, i:  P(n, i)ᵀ · dy[n, i]

P(n, i) and P(n, i + 1) overlap in L, as forward, and are read in place.

Winograd: along an axis at stride 1, dw[u] = Σ i: dy[i] · x[i + u] is a filter itself: inputs x,
as many "taps" as dy has elements, r results. m of these taps at a time are F(r, m), whose results
add up over tiles and images before the one inverse transform:

    dw = Aᵀ [ Σ tiles: (G dy) ⊙ (Bᵀ x) ]

with r + m - 1 products for r · m. Lavin and Gray 2015 (arXiv 1509.09308) say so of training.

All take x with its padding applied, and give float64, or int64 for integers. `of_spec` takes apart
what they do not know: groups, padding, dilation, a depth.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import prod

import numpy as np

from leanconv.reference import im2col, mec
from leanconv.reference.direct import Steps, channels_first, result_dtype
from leanconv.spec import ConvSpec
from leanconv.spec.format import ceil_div
from leanconv.winograd.matrices import transform

# x (N, C, H, W), dy (N, K, oh, ow), (kh, kw), stride -> dw (K, C, kh, kw)
Core = Callable[[np.ndarray, np.ndarray, Steps, Steps], np.ndarray]


def plain(x: np.ndarray, dy: np.ndarray, kernel: Steps, stride: Steps = (1, 1)) -> np.ndarray:
    """Add up the sum as it is written, one tap after the other.

    Args:
        x: input (N, C, H, W), padding already applied.
        dy: gradient of the output (N, K, oh, ow).
        kernel: (kh, kw).
        stride: (sh, sw).

    Returns:
        (K, C, kh, kw), in float64 or in int64.
    """
    (sh, sw), (oh, ow), dtype = stride, dy.shape[2:], result_dtype(x, dy)
    x, dy = x.astype(dtype), dy.astype(dtype)
    dw = np.zeros((dy.shape[1], x.shape[1], *kernel), dtype)
    for u, v in np.ndindex(*kernel):
        seen = x[:, :, u : u + (oh - 1) * sh + 1 : sh, v : v + (ow - 1) * sw + 1 : sw]
        dw[:, :, u, v] = np.einsum("nkij,ncij->kc", dy, seen)
    return dw


def by_im2col(x: np.ndarray, dy: np.ndarray, kernel: Steps, stride: Steps = (1, 1)) -> np.ndarray:
    """Lower image by image, as forward; the products' results add up.

    Args:
        x, dy, kernel, stride: as for `plain`.
    """
    dtype = result_dtype(x, dy)
    outputs, rows = dy.shape[1], range(dy.shape[2])
    dw = np.zeros((outputs, x.shape[1] * prod(kernel)), dtype)
    for image, gradient in zip(x.astype(dtype), dy.astype(dtype), strict=True):
        matrix = im2col.lower(image, kernel, stride, rows)
        dw += gradient.reshape(outputs, -1) @ matrix.T
    return dw.reshape(outputs, -1, *kernel)


def by_mec(x: np.ndarray, dy: np.ndarray, kernel: Steps, stride: Steps = (1, 1)) -> np.ndarray:
    """Multiply each partition of L, transposed, with its row of the output's gradient.

    Args:
        x, dy, kernel, stride: as for `plain`.
    """
    dtype = result_dtype(x, dy)
    (kh, kw), (sh, sw), (n, kc, oh, ow) = kernel, stride, dy.shape
    lowered = mec.lower(x.astype(dtype).transpose(0, 2, 3, 1), kw, sw)
    ih, ic = lowered.shape[2], lowered.shape[4]
    matrices = lowered.reshape(n, ow, ih * kw * ic)
    gradient = dy.astype(dtype).transpose(0, 2, 3, 1)  # n-h-w-c
    dw = np.zeros((kh * kw * ic, kc), dtype)
    for i in range(n):
        for h in range(oh):
            start = sh * kw * ic * h
            partition = matrices[i, :, start : start + kh * kw * ic]
            dw += partition.T @ gradient[i, h]
    return np.ascontiguousarray(dw.reshape(kh, kw, ic, kc).transpose(3, 2, 0, 1))


def by_winograd(
    x: np.ndarray,
    dy: np.ndarray,
    kernel: Steps,
    stride: Steps = (1, 1),
    tile: Steps = (2, 2),
    exact: bool = False,
) -> np.ndarray:
    """Transform tiles of x and of dy, multiply, add up, transform back once.

    A stride takes the taps apart: those of one remainder see one phase of the input at stride 1.

    Args:
        x, dy, kernel, stride: as for `plain`.
        tile: (m_h, m_w), outputs of a tile.
        exact: compute with rational numbers; the arrays are of integers.

    Returns:
        (K, C, kh, kw): float64, or int64 if it is exact.
    """
    dw = np.zeros((dy.shape[1], x.shape[1], *kernel), np.int64 if exact else np.float64)
    for p, q in np.ndindex(*(min(s, k) for s, k in zip(stride, kernel, strict=True))):
        phase = dw[:, :, p :: stride[0], q :: stride[1]]
        seen = x[:, :, p :: stride[0], q :: stride[1]]
        phase[...] = _dense_winograd(seen, dy, phase.shape[2:], tile, exact)
    return dw


def _dense_winograd(
    x: np.ndarray, dy: np.ndarray, kernel: tuple[int, ...], tile: Steps, exact: bool
) -> np.ndarray:
    """The gradient at stride 1: F(r, m) along both axes."""
    number = Fraction if exact else float
    matrices = []
    for r, m in zip(kernel, tile, strict=True):
        made = transform(r, m)
        parts = (made.at, made.g, made.bt)
        matrices.append([np.array([[number(a) for a in row] for row in p]) for p in parts])
    (at_h, g_h, bt_h), (at_w, g_w, bt_w) = matrices
    counts = [ceil_div(o, m) for o, m in zip(dy.shape[2:], tile, strict=True)]
    spans = [m + r - 1 for m, r in zip(tile, kernel, strict=True)]
    kind = object if exact else np.float64
    sums = np.zeros((*spans, dy.shape[1], x.shape[1]), kind)
    for n in range(len(x)):
        for i, j in np.ndindex(*counts):
            at = [p * m for p, m in zip((i, j), tile, strict=True)]
            d = _cut(x[n], at, spans).astype(kind)
            g = _cut(dy[n], at, tile).astype(kind)
            v = np.einsum("xa,cab,yb->xyc", bt_h, d, bt_w)
            u = np.einsum("xa,kab,yb->xyk", g_h, g, g_w)
            sums += u[..., :, None] * v[..., None, :]
    dw = np.einsum("ux,xykc,vy->kcuv", at_h, sums, at_w)
    return np.asarray(dw, np.int64 if exact else np.float64)


def _cut(planes: np.ndarray, start: list[int], extents: Steps | list[int]) -> np.ndarray:
    """A tile of all planes, with zeros past their ends."""
    (h, w), (rows, columns) = start, extents
    found = planes[:, h : h + rows, w : w + columns]
    missing = rows - found.shape[1], columns - found.shape[2]
    return np.pad(found, ((0, 0), (0, missing[0]), (0, missing[1])))


def of_spec(core: Core, spec: ConvSpec, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The gradient of any convolution's weights, by an algorithm for plain ones.

    Args:
        core: the algorithm.
        spec: of the convolution.
        x: of `spec.input_shape`.
        dy: of `spec.output_shape`.

    Returns:
        dw of `spec.weight_shape`, in float64 or in int64.
    """
    missing = 3 - len(spec.size)
    kernel, stride, dilation = (
        (1,) * missing + values for values in (spec.kernel, spec.stride, spec.dilation)
    )
    pads = ((0, 0), (0, 0), *zip(spec.pad_begin, spec.pad_end, strict=True))
    padded = np.pad(channels_first(spec, x), pads)
    gradient = channels_first(spec, dy)
    padded, gradient = (
        a.reshape(a.shape[0], spec.groups, -1, *(1,) * missing, *a.shape[2:])
        for a in (padded, gradient)
    )
    pieces = [
        _volume(core, padded[:, g], gradient[:, g], kernel, stride, dilation)
        for g in range(spec.groups)
    ]
    return np.concatenate(pieces).reshape(spec.weight_shape)


def _volume(
    core: Core,
    x: np.ndarray,
    dy: np.ndarray,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> np.ndarray:
    """One group: each tap along the depth sees planes of its own, as images of a batch.

    A dilated kernel is a dense one of which every dilation-th tap is a weight.
    """
    dense = tuple((k - 1) * apart + 1 for k, apart in zip(kernel, dilation, strict=True))
    outputs = np.moveaxis(dy, 2, 1).reshape(-1, dy.shape[1], *dy.shape[3:])
    dw = np.zeros((dy.shape[1], x.shape[1], *kernel), result_dtype(x, dy))
    for tap in range(kernel[0]):
        first = tap * dilation[0]
        planes = x[:, :, first : first + (dy.shape[2] - 1) * stride[0] + 1 : stride[0]]
        images = np.moveaxis(planes, 2, 1).reshape(-1, x.shape[1], *x.shape[3:])
        found = core(images, outputs, (dense[1], dense[2]), (stride[1], stride[2]))
        dw[:, :, tap] = found[:, :, :: dilation[1], :: dilation[2]]
    return dw
