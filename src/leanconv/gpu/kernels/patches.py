"""Implicit GEMM over patches of the output, loaded by bulk tensor copies (TMA).

    y[m, n] = act(sum over taps t and channels c of x[cell(m) + t, c] w[n, t, c] + ...)

A program computes TH x TW output positions of each of TN images: of small ones several, so that
patches end where images do. A step of k reads one box of a tensor
descriptor; elements outside are zero. No thread computes addresses or bounds checks. The input has
two descriptors:

    taps     (n, h, w, c)        stride 1: a tap of all positions is the patch, shifted
    windows  (n, oh, ow, r, q)   im2win's window order, q running over S*C: for any stride, without
                                 padding. Its strides are those of the windows: the elements of
                                 windows overlap, and no copy is made first.
"""

import triton
import triton.language as tl

from leanconv.gpu.kernels.common import finish, follow
from leanconv.gpu.kernels.gemm import flag_tile, multiply, unscaled


@triton.jit
def patch_gemm(
    x,
    w,
    w_low,
    scale,
    bias,
    residual,
    slope,
    flags,
    y,
    columns,
    images,
    out_h,
    out_w,
    down,
    across,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    taps,
    each,
    blocks,
    least,
    a0,
    a1,
    WINDOWS: tl.constexpr,
    TN: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    X_SCALE: tl.constexpr,
    PROMOTED: tl.constexpr,
    MODE: tl.constexpr,
    FLAGS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid: (patches x tiles of columns).

    Args:
        x: descriptor of the input (images, height, width, channels), in boxes (TN, TH, TW, BK);
            if WINDOWS of (images, out_h, out_w, R, S * channels), in boxes (TN, TH, TW, 1, BK).
        w, w_low: descriptors of the weights of `segment_gemm`, tap by tap or row by row, in boxes
            (BN, BK).
        scale, bias, residual, slope, flags, y, pad_h, pad_w, dilation_h, dilation_w, least, a0,
            a1: as in `segment_gemm`.
        columns: output channels.
        images: of the batch.
        down, across: patches along each axis of an image.
        taps: of one row of the window; unused if WINDOWS, as are pad_h to dilation_w.
        each, blocks: steps of BK for one tap or row, and in all.
        BM: TN * TH * TW.
    """
    tiles_n = tl.cdiv(columns, BN)
    pid = tl.program_id(0)
    follow(EARLY)
    if FLAGS == "read":
        if tl.load(flags + pid) == 0:
            return
    n0 = (pid % tiles_n) * BN
    patch = pid // tiles_n
    left = (patch % across) * TW
    top = (patch // across % down) * TH
    image = patch // (across * down) * TN
    total = tl.zeros((BM, BN), ACC)
    high = tl.zeros((BM, BN), ACC)
    for k in range(blocks):
        tap = k // each
        if WINDOWS:
            a = x.load([image, top, left, tap, (k - tap * each) * BK])
        else:
            r = tap // taps
            s = tap - r * taps
            a = x.load(
                [
                    image,
                    top + r * dilation_h - pad_h,
                    left + s * dilation_w - pad_w,
                    (k - tap * each) * BK,
                ]
            )
        a = a.reshape(BM, BK)
        b = w.load([n0, k * BK]).T
        b_low = b
        if MODE == "tf32x3" or MODE == "fp16x3":
            b_low = w_low.load([n0, k * BK]).T
        high = multiply(a, b, b_low, high, X_SCALE, MODE, ACC)
        if MODE == "tf32x3" or MODE == "fp16x3":
            # Tensor cores truncate the running sum: restart it from zero every PROMOTED products.
            if k % (PROMOTED // BK) == PROMOTED // BK - 1:
                total += high
                high = tl.zeros((BM, BN), ACC)
    total += high
    cell = tl.arange(0, BM)
    of = image + cell // (TH * TW)
    oh = top + cell // TW % TH
    ow = left + cell % TW
    n = n0 + tl.arange(0, BN)
    inside_n = n < columns
    inside = ((of < images) & (oh < out_h) & (ow < out_w))[:, None] & inside_n[None, :]
    if FLAGS == "write":
        flag_tile(flags, pid, total, inside, least)
    total = unscaled(total, scale, n, inside_n, X_SCALE, MODE)
    place = (of * out_h + oh) * out_w + ow
    operands = (bias, residual, slope, a0, a1)
    finish(total, operands, y, place, n, columns, inside, HAS_BIAS, HAS_RESIDUAL, ACT)
