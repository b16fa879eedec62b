"""im2win: rows of windows laid out so that each window is one contiguous run.

Lu's thesis, chapters 2 and 3 (HPEC 2022, arXiv 2306.14320); algorithms 2 to 7, in NCHW.

    Î[i][r][m][k·kh + u] = x[i][r][m·sh + u][k]              m < oh, k < W, u < kh      (eq. 2-2)
    y[i][j][m][n] = Σ_r Σ_v Σ_u Î[i][r][m][(n·sw + v)·kh + u] · w[j][r][u][v]           (eq. 2-3)

Corrected here, as everywhere in the text: a window starts at n·sw·kh (printed n·s·W_f, right for
square kernels only), the two strides are distinct, eq. 2-2 has k on both sides, and eq. 2-3 sums
over r, u and v. Where kh ≤ sh rows of windows share nothing: algorithm 2 then allocates the input's
size, which is to say the input itself is read, with an index of its own (`WindowOrder`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from leanconv.records import dataclass
from leanconv.reference.direct import Steps, output_extents, result_dtype


@dataclass(frozen=True)
class WindowOrder:
    """The place of element (u, v) of window (m, n) in the plane of one channel.

    Attributes:
        transformed: whether the plane is a row of windows after the other (kh > sh), or the input.
        width: W.
        kernel: (kh, kw).
        stride: (sh, sw).
    """

    transformed: bool
    width: int
    kernel: tuple[int, int]
    stride: Steps

    def offset(self, m: int, n: int, u: int, v: int) -> int:
        """Elements from the start of the plane."""
        column = n * self.stride[1] + v
        if self.transformed:
            return (m * self.width + column) * self.kernel[0] + u
        return (m * self.stride[0] + u) * self.width + column

    @property
    def step(self) -> int:
        """Elements between (u, v) and (u + 1, v): a vector along u is contiguous if it is 1."""
        return 1 if self.transformed else self.width


def transform(
    x: np.ndarray, kernel: tuple[int, int], stride: Steps
) -> tuple[np.ndarray, WindowOrder]:
    """Algorithm 2.

    Args:
        x: (N, C, H, W), padding already applied.
        kernel: (kh, kw).
        stride: (sh, sw).

    Returns:
        Î as (N, C, oh·W·kh), or x as (N, C, H·W) where kh ≤ sh; and the order of its elements.
    """
    (batch, channels, height, width), (kh, _), (sh, _) = x.shape, kernel, stride
    order = WindowOrder(kh > sh, width, kernel, stride)
    if not order.transformed:
        return x.reshape(batch, channels, height * width), order
    oh = (height - kh) // sh + 1
    windows = np.empty((batch, channels, oh, width * kh), x.dtype)
    for i in range(batch):
        for r in range(channels):
            for m in range(oh):
                for u in range(kh):  # k runs over the slice
                    windows[i, r, m, u::kh] = x[i, r, m * sh + u]
    return windows.reshape(batch, channels, oh * width * kh), order


def transform_filters(w: np.ndarray) -> np.ndarray:
    """F̂[j][r][v·kh + u] = w[j][r][u][v]: filters in the order of a window."""
    return np.ascontiguousarray(w.transpose(0, 1, 3, 2)).reshape(*w.shape[:2], -1)


def convolve(x: np.ndarray, w: np.ndarray, stride: Steps = (1, 1)) -> np.ndarray:
    """Algorithm 3 with the two innermost sums as one: a window is one run of kw·kh elements.

    Args:
        x: (N, C, H, W), padding already applied.
        w: (K, C, kh, kw).
        stride: (sh, sw).

    Returns:
        (N, K, oh, ow), in float64 or in int64.
    """
    oh, ow = output_extents(x, w, stride)
    dtype = result_dtype(x, w)
    kh, kw = w.shape[2:]
    planes, order = transform(x.astype(dtype), (kh, kw), stride)
    filters = transform_filters(w.astype(dtype))
    y = np.zeros((x.shape[0], w.shape[0], oh, ow), dtype)
    for m in range(oh):
        for n in range(ow):
            if order.transformed:
                start = order.offset(m, n, 0, 0)
                window = planes[:, :, start : start + kw * kh]
            else:
                places = [order.offset(m, n, u, v) for v in range(kw) for u in range(kh)]
                window = planes[:, :, places]
            y[:, :, m, n] = np.einsum("irx,jrx->ij", window, filters)
    return y


def base(x: np.ndarray, w: np.ndarray, stride: Steps = (1, 1)) -> np.ndarray:
    """Algorithms 3 and 4, one product at a time; arguments as in `convolve`."""
    oh, ow = output_extents(x, w, stride)
    dtype = result_dtype(x, w)
    planes, order = transform(x.astype(dtype), (w.shape[2], w.shape[3]), stride)
    y = np.zeros((x.shape[0], w.shape[0], oh, ow), dtype)
    for i in range(x.shape[0]):
        for j in range(w.shape[0]):
            for m in range(oh):
                for n in range(ow):
                    for r in range(w.shape[1]):
                        for u in range(w.shape[2]):
                            for v in range(w.shape[3]):
                                element = planes[i, r, order.offset(m, n, u, v)]
                                y[i, j, m, n] += element * w[j, r, u, v]
    return y


def reordered(x: np.ndarray, w: np.ndarray, stride: Steps = (1, 1), lanes: int = 8) -> np.ndarray:
    """Algorithm 5: loops j, i, m, r, n, v, vectors of `lanes` elements along u.

    The text prints H_f / N_vec steps along u; here the last vector may be shorter. Arguments as in
    `convolve`.
    """
    oh, ow = output_extents(x, w, stride)
    dtype = result_dtype(x, w)
    kh, kw = w.shape[2:]
    planes, order = transform(x.astype(dtype), (kh, kw), stride)
    filters = transform_filters(w.astype(dtype))
    y = np.zeros((x.shape[0], w.shape[0], oh, ow), dtype)
    for j in range(w.shape[0]):
        for i in range(x.shape[0]):
            for m in range(oh):
                for r in range(w.shape[1]):
                    for n in range(ow):
                        for v in range(kw):
                            for u, count in _vectors(kh, lanes):
                                inputs = _load(planes[i, r], order, (m, n, u, v), count)
                                start = v * kh + u
                                taps = filters[j, r, start : start + count]
                                y[i, j, m, n] += (inputs * taps).sum()
    return y


def high_performance(
    x: np.ndarray,
    w: np.ndarray,
    stride: Steps = (1, 1),
    lanes: int = 8,
    channels: int = 4,
    columns: int = 3,
    taps: int = 2,
) -> np.ndarray:
    """Algorithm 6: register tile over columns and taps, output channels in cache blocks.

    DOT_PRODUCT loads the windows' vectors of a register tile once, and uses them for every output
    channel of the block. The text leaves n' out of lines 15 and 20: each output column of the tile
    has its own sum.

    Args:
        x, w, stride: as in `convolve`.
        lanes: N_vec.
        channels: C_o,b, output channels of a block; a thread takes one block.
        columns: W_o,b, output columns of a register tile.
        taps: W_f,b, taps along the width of a register tile.
    """
    oh, ow = output_extents(x, w, stride)
    dtype = result_dtype(x, w)
    kh, kw = w.shape[2:]
    planes, order = transform(x.astype(dtype), (kh, kw), stride)
    filters = transform_filters(w.astype(dtype))
    y = np.zeros((x.shape[0], w.shape[0], oh, ow), dtype)
    for jj in range(0, w.shape[0], channels):  # in parallel
        for i in range(x.shape[0]):
            for m in range(oh):
                for r in range(w.shape[1]):
                    for nn in range(0, ow, columns):
                        for vv in range(0, kw, taps):
                            ns = range(nn, min(nn + columns, ow))
                            vs = range(vv, min(vv + taps, kw))
                            registers = {
                                (n, v, u): _load(planes[i, r], order, (m, n, u, v), count)
                                for n in ns
                                for v in vs
                                for u, count in _vectors(kh, lanes)
                            }
                            for j in range(jj, min(jj + channels, w.shape[0])):
                                for (n, v, u), inputs in registers.items():
                                    start = v * kh + u
                                    loaded = filters[j, r, start : start + len(inputs)]
                                    y[i, j, m, n] += (inputs * loaded).sum()
    return y


def _vectors(count: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Starts and lengths of the vectors that cover `count` elements."""
    for start in range(0, count, lanes):
        yield start, min(lanes, count - start)


def _load(
    plane: np.ndarray, order: WindowOrder, place: tuple[int, int, int, int], count: int
) -> np.ndarray:
    """SIMD_LOAD: `count` elements along u from (m, n, u, v) on."""
    start = order.offset(*place)
    return plane[start : start + (count - 1) * order.step + 1 : order.step]


def index_mapping(
    batch: int, channels: int, order: WindowOrder, out: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Algorithm 7: for row q of B[K×N] and column p, the element's place in Î.

    The text prints the coordinates in the input, with (r, u, v) as order of the rows; the order of
    the windows is (r, v, u), so that neighbouring rows are neighbours in Î.

    Args:
        batch, channels: N and C.
        order: of the elements of Î.
        out: (oh, ow).

    Returns:
        Image, channel and offset in the channel's plane, each (C·kw·kh, N·oh·ow).
    """
    (kh, kw), (oh, ow) = order.kernel, out
    q = np.arange(channels * kw * kh)[:, None]
    r, rest = q // (kw * kh), q % (kw * kh)
    v, u = rest // kh, rest % kh
    p = np.arange(batch * oh * ow)[None, :]
    i, rest = p // (oh * ow), p % (oh * ow)
    m, n = rest // ow, rest % ow
    offset = np.asarray(np.frompyfunc(order.offset, 4, 1)(m, n, u, v), dtype=np.intp)
    return np.broadcast_to(i, offset.shape), np.broadcast_to(r, offset.shape), offset


def implicit_product(x: np.ndarray, w: np.ndarray, stride: Steps = (1, 1)) -> np.ndarray:
    """The product of algorithm 7: y[M×N] = F̂[M×K] · B[K×N], B read through the index mapping."""
    out = output_extents(x, w, stride)
    dtype = result_dtype(x, w)
    planes, order = transform(x.astype(dtype), (w.shape[2], w.shape[3]), stride)
    image, channel, offset = index_mapping(x.shape[0], x.shape[1], order, out)
    filters = transform_filters(w.astype(dtype)).reshape(w.shape[0], -1)
    y = filters @ planes[image, channel, offset]
    return np.ascontiguousarray(y.reshape(w.shape[0], x.shape[0], *out).swapaxes(0, 1))
