"""Depthwise convolution, alone and with the 1x1 convolution behind it, channels last.

    y[n, oh, ow, c] = act(sum over r, s of x[n, ih, iw, c / MULTIPLE] w[r, s, c])
    ih = oh*stride_h - pad_h + r*dilation_h, iw likewise

A program computes TH x TW outputs of BC channels; every tap is a shifted load of whole vectors,
of which the first comes from memory and the others from L1.
"""

import triton
import triton.language as tl

from leanconv.gpu.kernels.common import activate, finish, follow
from leanconv.gpu.kernels.gemm import multiply, unscaled


@triton.jit
def add_tap(acc, x_at, w_at, inside, channel_ok, step, ACC: tl.constexpr):
    """acc + x w for one tap; zero outside the input.

    Args:
        x_at: where the window of each position begins, in each channel of the input.
        w_at: the tap's weights of each channel.
        inside, channel_ok: positions whose tap lies within the input, and channels, that exist.
        step: elements from a window's beginning to the tap.
    """
    value = tl.load(x_at + step, inside[:, None] & channel_ok[None, :], 0.0).to(ACC)
    weight = tl.load(w_at, channel_ok, 0.0).to(ACC)
    return acc + value * weight[None, :]


@triton.jit
def depthwise(
    x,
    w,
    bias,
    residual,
    slope,
    y,
    height,
    width,
    out_h,
    out_w,
    channels,
    outputs,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    a0,
    a1,
    R: tl.constexpr,
    S: tl.constexpr,
    MULTIPLE: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    BC: tl.constexpr,
    UNROLLED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid: (tiles of the output plane, blocks of channels, images). w: (R, S, outputs)."""
    across = tl.cdiv(out_w, TW)
    pid = tl.program_id(0)
    t = tl.arange(0, TH * TW)
    oh = (pid // across) * TH + t // TW
    ow = (pid % across) * TW + t % TW
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    image = tl.program_id(2)
    ok = (oh < out_h) & (ow < out_w)
    cok = c < outputs
    of = c
    if MULTIPLE > 1:
        of = c // MULTIPLE
    top = oh * stride_h - pad_h
    left = ow * stride_w - pad_w
    x_at = x + ((image * height + top).to(tl.int64) * width + left)[:, None] * channels + of
    follow(EARLY)
    acc = tl.zeros((TH * TW, BC), ACC)
    if UNROLLED:
        for r in tl.static_range(0, R):
            ih = top + r * dilation_h
            in_row = ok & (ih >= 0) & (ih < height)
            for s in tl.static_range(0, S):
                iw = left + s * dilation_w
                inside = in_row & (iw >= 0) & (iw < width)
                step = (r * dilation_h * width + s * dilation_w) * channels
                acc = add_tap(acc, x_at, w + (r * S + s) * outputs + c, inside, cok, step, ACC)
    else:
        for tap in range(R * S):
            r = tap // S
            s = tap % S
            ih = top + r * dilation_h
            iw = left + s * dilation_w
            inside = ok & (ih >= 0) & (ih < height) & (iw >= 0) & (iw < width)
            step = (r * dilation_h * width + s * dilation_w) * channels
            acc = add_tap(acc, x_at, w + tap * outputs + c, inside, cok, step, ACC)
    m = (image * out_h + oh) * out_w + ow
    inside = ok[:, None] & cok[None, :]
    operands = (bias, residual, slope, a0, a1)
    finish(acc, operands, y, m, c, outputs, inside, HAS_BIAS, HAS_RESIDUAL, ACT)


@triton.jit
def column(y, v, w_at, at, outputs, channel_ok, S: tl.constexpr, ACC: tl.constexpr):
    """y + v w for a column that stands `at` columns into y's window; y where it is none of it."""
    if at >= 0 and at < S:
        weight = tl.load(w_at + at * outputs, channel_ok, 0.0).to(ACC)
        y = y + v * weight[None, :]
    return y


@triton.jit
def depthwise_row(
    x,
    w,
    bias,
    residual,
    slope,
    y,
    height,
    width,
    out_h,
    out_w,
    channels,
    outputs,
    stride_h,
    pad_h,
    pad_w,
    dilation_h,
    a0,
    a1,
    R: tl.constexpr,
    S: tl.constexpr,
    STRIDE_W: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    BC: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Compute what `depthwise` does; a position of the tile is four outputs, side by side.

    A column of the input that several of them share is loaded, and widened, once. One output for
    each channel, no dilation along w.
    """
    across = tl.cdiv(out_w, TW * 4)
    pid = tl.program_id(0)
    t = tl.arange(0, TH * TW)
    oh = (pid // across) * TH + t // TW
    ow = ((pid % across) * TW + t % TW) * 4
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    image = tl.program_id(2)
    ok = (oh < out_h) & (ow < out_w)
    cok = c < outputs
    top = oh * stride_h - pad_h
    left = ow * STRIDE_W - pad_w
    x_at = x + ((image * height + top).to(tl.int64) * width + left)[:, None] * channels + c
    follow(EARLY)
    y0 = tl.zeros((TH * TW, BC), ACC)
    y1 = tl.zeros((TH * TW, BC), ACC)
    y2 = tl.zeros((TH * TW, BC), ACC)
    y3 = tl.zeros((TH * TW, BC), ACC)
    for r in tl.static_range(0, R):
        ih = top + r * dilation_h
        in_row = ok & (ih >= 0) & (ih < height)
        w_at = w + r * S * outputs + c
        for s in tl.static_range(0, 3 * STRIDE_W + S):
            iw = left + s
            inside = in_row & (iw >= 0) & (iw < width)
            step = (r * dilation_h * width + s) * channels
            v = tl.load(x_at + step, inside[:, None] & cok[None, :], 0.0).to(ACC)
            y0 = column(y0, v, w_at, s, outputs, cok, S, ACC)
            y1 = column(y1, v, w_at, s - STRIDE_W, outputs, cok, S, ACC)
            y2 = column(y2, v, w_at, s - 2 * STRIDE_W, outputs, cok, S, ACC)
            y3 = column(y3, v, w_at, s - 3 * STRIDE_W, outputs, cok, S, ACC)
    m = (image * out_h + oh) * out_w + ow
    operands = (bias, residual, slope, a0, a1)
    inside = ok[:, None] & cok[None, :]
    finish(y0, operands, y, m, c, outputs, inside, HAS_BIAS, HAS_RESIDUAL, ACT)
    inside = inside & (ow + 1 < out_w)[:, None]
    finish(y1, operands, y, m + 1, c, outputs, inside, HAS_BIAS, HAS_RESIDUAL, ACT)
    inside = inside & (ow + 2 < out_w)[:, None]
    finish(y2, operands, y, m + 2, c, outputs, inside, HAS_BIAS, HAS_RESIDUAL, ACT)
    inside = inside & (ow + 3 < out_w)[:, None]
    finish(y3, operands, y, m + 3, c, outputs, inside, HAS_BIAS, HAS_RESIDUAL, ACT)


@triton.jit
def depthwise_pointwise(
    x,
    w_depth,
    bias_depth,
    w,
    w_low,
    scale,
    bias,
    residual,
    slope,
    y,
    rows,
    columns,
    height,
    width,
    out_area,
    out_width,
    channels,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    blocks,
    a0_depth,
    a1_depth,
    a0,
    a1,
    R: tl.constexpr,
    S: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    MODE: tl.constexpr,
    HAS_DEPTH_BIAS: tl.constexpr,
    DEPTH_ACT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The depthwise tile stays in registers, as the left operand of the 1x1 convolution.

    Grid: (tiles of rows x tiles of columns). MODE as in `kernels.gemm`, except
    fp16x3: the range of the tensor between the two is unknown. w: (columns, blocks * BK).
    """
    tiles_n = tl.cdiv(columns, BN)
    pid = tl.program_id(0)
    m = (pid // tiles_n) * BM + tl.arange(0, BM)
    n = (pid % tiles_n) * BN + tl.arange(0, BN)
    image = m // out_area
    top = ((m % out_area) // out_width) * stride_h - pad_h
    left = (m % out_width) * stride_w - pad_w
    inside_m = m < rows
    inside_n = n < columns
    kk = tl.arange(0, BK)
    x_row = x + ((image * height + top).to(tl.int64) * width + left)[:, None] * channels
    follow(EARLY)
    acc = tl.zeros((BM, BN), ACC)
    for block in range(blocks):
        c = block * BK + kk
        cok = c < channels
        d = tl.zeros((BM, BK), ACC)
        for r in tl.static_range(0, R):
            ih = top + r * dilation_h
            in_row = inside_m & (ih >= 0) & (ih < height)
            for s in tl.static_range(0, S):
                iw = left + s * dilation_w
                inside = in_row & (iw >= 0) & (iw < width)
                step = (r * dilation_h * width + s * dilation_w) * channels
                w_at = w_depth + (r * S + s) * channels + c
                d = add_tap(d, x_row + c[None, :], w_at, inside, cok, step, ACC)
        if HAS_DEPTH_BIAS:
            d += tl.load(bias_depth + c, cok, 0.0).to(ACC)[None, :]
        d = activate(d, d, a0_depth, a1_depth, DEPTH_ACT)
        d = tl.where(cok[None, :], d, 0.0)
        place = n[:, None] * (blocks * BK) + c[None, :]
        b = tl.load(w + place, inside_n[:, None], 0.0).T
        if MODE == "tf32x3":
            b_low = tl.load(w_low + place, inside_n[:, None], 0.0).T
            acc += multiply(d, b, b_low, tl.zeros((BM, BN), ACC), 1.0, MODE, ACC)
        else:
            acc = multiply(d, b, b, acc, 1.0, MODE, ACC)
    acc = unscaled(acc, scale, n, inside_n, 1.0, MODE)
    inside = inside_m[:, None] & inside_n[None, :]
    operands = (bias, residual, slope, a0, a1)
    finish(acc, operands, y, m, n, columns, inside, HAS_BIAS, HAS_RESIDUAL, ACT)
