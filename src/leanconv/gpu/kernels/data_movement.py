"""Copies, transposes, fills, weighted sums of cells along one axis; windows: pools and unfolding.

Unfolding copies the windows of the input so that each is contiguous. One kernel for all methods:

L[n, i, j, t, c] = x[n, ih, iw, c]
    ih = i*i_h + j*j_h + (t / taps)*t_h - pad_h
    iw = i*i_w + j*j_w + (t % taps)*t_w - pad_w

im2col  i = oh, j = ow,               t = (r, s)
MEC     i = ow, j = row of the input, t = s        (algorithm 2 of its paper, NHWC)
im2win  i = oh, j = column of it,     t = r        (algorithm 2 of the thesis, channels last)
"""

import triton
import triton.language as tl

from leanconv.gpu.kernels.common import activate, follow, larger


@triton.jit
def strided_place(i, e1, e2, e3, e4, e5, s0, s1, s2, s3, s4, s5):
    """The offset of element number i of a box (…, e1, …, e5) with the given strides."""
    place = (i % e5) * s5
    i = i // e5
    place += (i % e4) * s4
    i = i // e4
    place += (i % e3) * s3
    i = i // e3
    place += (i % e2) * s2
    i = i // e2
    place += (i % e1) * s1
    return place + (i // e1) * s0


@triton.jit
def copy(
    x,
    y,
    count,
    x_start,
    y_start,
    e1,
    e2,
    e3,
    e4,
    e5,
    s0,
    s1,
    s2,
    s3,
    s4,
    s5,
    t0,
    t1,
    t2,
    t3,
    t4,
    t5,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """y[box with strides t] = x[box with strides s]. Grid: (blocks of elements,).

    WIDE: there are elements behind the first 2^31.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    of = x_start + strided_place(i, e1, e2, e3, e4, e5, s0, s1, s2, s3, s4, s5)
    to = y_start + strided_place(i, e1, e2, e3, e4, e5, t0, t1, t2, t3, t4, t5)
    tl.store(y + to, tl.load(x + of, ok, 0), ok)


@triton.jit
def fill(y, count, value, BLOCK: tl.constexpr):
    """y[i] = value. Grid: (blocks of elements,)."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, (tl.zeros((BLOCK,), tl.float64) + value).to(y.dtype.element_ty), i < count)


@triton.jit
def transpose(x, y, rows, columns, BR: tl.constexpr, BC: tl.constexpr, EARLY: tl.constexpr):
    """y[b, j, i] = x[b, i, j] for i < rows, j < columns. Grid: (tiles of both, batch)."""
    across = tl.cdiv(columns, BC)
    follow(EARLY)
    i = (tl.program_id(0) // across) * BR + tl.arange(0, BR)
    j = (tl.program_id(0) % across) * BC + tl.arange(0, BC)
    base = tl.program_id(1).to(tl.int64) * rows * columns
    ok = (i < rows)[:, None] & (j < columns)[None, :]
    tile = tl.load(x + base + i.to(tl.int64)[:, None] * columns + j[None, :], ok, 0)
    place = base + j.to(tl.int64)[:, None] * rows + i[None, :]
    tl.store(y + place, tile.T, ok.T)


@triton.jit
def mix_cells(
    x,
    cells,
    weights,
    y,
    count,
    extent,
    size,
    inner,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    ACC: tl.constexpr,
):
    """y[o, j, i] = sum over t of weights[j, t] x[o, cells[j, t], i], x (·, extent, inner).

    Resize along one axis, and padding by reflection or by the edge. Grid: (blocks of elements,).
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < count
    i = at % inner
    j = (at // inner) % size
    o = at // (inner * size)
    acc = tl.zeros((BLOCK,), ACC)
    for t in tl.static_range(0, TAPS):
        cell = tl.load(cells + j * TAPS + t, ok, 0)
        weight = tl.load(weights + j * TAPS + t, ok, 0.0).to(ACC)
        value = tl.load(x + (o * extent + cell) * inner + i, ok, 0.0).to(ACC)
        acc += weight * value
    tl.store(y + at, acc.to(y.dtype.element_ty), ok)


@triton.jit
def pool(
    x,
    y,
    positions,
    height,
    width,
    out_h,
    out_w,
    channels,
    kernel_h,
    kernel_w,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    low_h,
    high_h,
    low_w,
    high_w,
    BM: tl.constexpr,
    BC: tl.constexpr,
    IS_MAX: tl.constexpr,
    ACC: tl.constexpr,
):
    """Grid: (blocks of output positions, blocks of channels).

    An average divides by the cells of the window that lie within [low, high) on both axes:
    the input, or the input with its padding.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = m < positions
    cok = c < channels
    image = m // (out_h * out_w)
    top = ((m // out_w) % out_h) * stride_h - pad_h
    left = (m % out_w) * stride_w - pad_w
    empty = float("-inf") if IS_MAX else 0.0
    acc = tl.zeros((BM, BC), ACC) + empty
    count = tl.zeros((BM,), tl.int32)
    for tap in range(kernel_h * kernel_w):
        ih = top + (tap // kernel_w) * dilation_h
        iw = left + (tap % kernel_w) * dilation_w
        inside = ok & (ih >= 0) & (ih < height) & (iw >= 0) & (iw < width)
        place = ((image * height + ih) * width + iw).to(tl.int64)[:, None] * channels + c[None, :]
        value = tl.load(x + place, inside[:, None] & cok[None, :], empty).to(ACC)
        if IS_MAX:
            acc = larger(acc, value)
        else:
            acc += value
            counted = (ih >= low_h) & (ih < high_h) & (iw >= low_w) & (iw < high_w)
            count += counted.to(tl.int32)
    if not IS_MAX:
        acc = acc / tl.maximum(count, 1).to(ACC)[:, None]
    place = m.to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(y + place, acc.to(y.dtype.element_ty), ok[:, None] & cok[None, :])


@triton.jit
def gather_products(
    products,
    bias,
    slope,
    y,
    positions,
    height,
    width,
    out_h,
    out_w,
    outputs,
    each,
    kernel_h,
    kernel_w,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    a0,
    a1,
    BM: tl.constexpr,
    BC: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
):
    """col2im: sum, for every output, the products that contribute to it; then the epilogue.

    products: (images, height, width, groups, kernel_h * kernel_w, each), y: (positions, outputs)
    with outputs = groups * each. Grid: (blocks of positions, blocks of channels).
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = m < positions
    kok = k < outputs
    image = m // (out_h * out_w)
    oh = (m // out_w) % out_h
    ow = m % out_w
    taps = kernel_h * kernel_w
    acc = tl.zeros((BM, BC), ACC)
    for tap in range(taps):
        at_h = oh + pad_h - (tap // kernel_w) * dilation_h
        at_w = ow + pad_w - (tap % kernel_w) * dilation_w
        ih = at_h // stride_h
        iw = at_w // stride_w
        meets = (at_h >= 0) & (at_w >= 0) & (at_h % stride_h == 0) & (at_w % stride_w == 0)
        inside = ok & meets & (ih < height) & (iw < width)
        cell = ((image * height + ih) * width + iw).to(tl.int64) * (taps * outputs)
        column = (k // each) * (taps * each) + tap * each + k % each
        place = cell[:, None] + column[None, :]
        acc += tl.load(products + place, inside[:, None] & kok[None, :], 0.0).to(ACC)
    slopes = acc
    if HAS_BIAS:
        acc += tl.load(bias + k, kok, 0.0).to(ACC)[None, :]
    if ACT == "prelu":
        slopes = tl.load(slope + k, kok, 0.0).to(ACC)[None, :]
    acc = activate(acc, slopes, a0, a1, ACT)
    place = m.to(tl.int64)[:, None] * outputs + k[None, :]
    tl.store(y + place, acc.to(y.dtype.element_ty), ok[:, None] & kok[None, :])


@triton.jit
def unfold(
    x,
    y,
    rows,
    height,
    width,
    channels,
    extent_i,
    extent_j,
    extent_t,
    taps,
    i_h,
    j_h,
    t_h,
    pad_h,
    i_w,
    j_w,
    t_w,
    pad_w,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """Grid: (blocks of rows (n, i, j, t), blocks of channels)."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    t = (row % extent_t).to(tl.int32)
    rest = row // extent_t
    j = (rest % extent_j).to(tl.int32)
    rest = rest // extent_j
    i = (rest % extent_i).to(tl.int32)
    image = rest // extent_i
    ih = i * i_h + j * j_h + (t // taps) * t_h - pad_h
    iw = i * i_w + j * j_w + (t % taps) * t_w - pad_w
    cok = (c < channels)[None, :]
    inside = (row < rows) & (ih >= 0) & (ih < height) & (iw >= 0) & (iw < width)
    place = ((image * height + ih) * width + iw)[:, None] * channels + c[None, :]
    value = tl.load(x + place, inside[:, None] & cok, 0.0)
    tl.store(y + row[:, None] * channels + c[None, :], value, (row < rows)[:, None] & cok)
