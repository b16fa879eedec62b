"""Max and average pooling, and the gather (col2im) of a transposed convolution, channels last."""

import triton
import triton.language as tl

from leanconv.gpu.kernels.epilogue import activate, larger


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
