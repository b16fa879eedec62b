"""The main kernel: implicit GEMM over windows that are runs of contiguous elements.

    y[m, n] = act(sum over segments g and elements q of x[row(m) + offset(g) + q] w[n, g, q] + ...)

A row m is an output position (image, od, oh, ow), and row(m) an affine function of them. The
elements that belong to it lie in `segments` runs of `length` contiguous ones:

    a convolution, row by row     R segments of S*C   im2win's window order, read without a copy
    a convolution, whole windows  one of R*S*C        R runs of S*C, side by side (few channels)
    a convolution, tap by tap     R*S segments of C/g (dilated along w, or grouped)
    im2col, MEC, im2win, 1x1, FC  one segment         of the unfolded tensor, or of x itself

All methods share this kernel, so that a comparison between them compares the methods alone.
"""

import triton
import triton.language as tl

from leanconv.gpu.kernels.common import finish, follow

# Constants that select a variant, by name:
# MODE   how products are computed (`leanconv.gpu.machine`): "ieee", "tf32", "tf32x3", "fp16x3",
#        or "native" for float16, bfloat16 and float64.
# FLAGS  the tiles that left the range of fp16x3: "write" marks them, "read" recomputes only them.


@triton.jit
def high_part(a):
    """The leading 11 bits of float32 numbers, as tf32 keeps them."""
    return (a.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)


@triton.jit
def multiply(a, b, b_low, sums, X_SCALE: tl.constexpr, MODE: tl.constexpr, ACC: tl.constexpr):
    """sums + a b, computed as MODE says; `b_low` is the low half of split weights."""
    if MODE == "fp16x3":
        a = a * X_SCALE
        a_high = a.to(tl.float16)
        sums = tl.dot((a - a_high.to(tl.float32)).to(tl.float16), b, sums)
        sums = tl.dot(a_high, b_low, sums)
        sums = tl.dot(a_high, b, sums)
    elif MODE == "tf32x3":
        b_high = b.to(tl.float32)
        a_high = high_part(a)
        sums = tl.dot(a - a_high, b_high, sums, input_precision="tf32")
        sums = tl.dot(a_high, b_low.to(tl.float32), sums, input_precision="tf32")
        sums = tl.dot(a_high, b_high, sums, input_precision="tf32")
    elif MODE == "tf32":
        sums = tl.dot(a, b, sums, input_precision="tf32")
    elif MODE == "ieee":
        sums = tl.dot(a, b, sums, input_precision="ieee", out_dtype=ACC)
    else:
        tl.static_assert(MODE == "native")
        sums = tl.dot(a.to(b.dtype), b, sums, out_dtype=ACC)
    return sums


@triton.jit
def flag_tile(flags, tile, total, inside, least):
    """Write whether a tile of fp16x3 must be recomputed."""
    # Inputs beyond fp16's range have become infinite or NaN; a comparison with NaN is false.
    magnitude = tl.where(inside, tl.abs(total), 0.0)
    broken = tl.max(tl.where(magnitude < 3.0e38, 0, 1))
    small = tl.max(tl.where(magnitude >= least, 1, 0)) == 0
    tl.store(flags + tile, tl.where(small, 1, broken))


@triton.jit
def unscaled(total, scale, column, inside_n, X_SCALE: tl.constexpr, MODE: tl.constexpr):
    """Undo the powers of two that split weights, and for fp16x3 the input, were scaled by."""
    if MODE == "tf32x3":
        total = total * tl.load(scale + column, inside_n, 0.0)[None, :]
    if MODE == "fp16x3":
        total = total * (tl.load(scale + column, inside_n, 0.0) * (1.0 / X_SCALE))[None, :]
    return total


@triton.jit
def segment_gemm(
    x,
    w,
    w_low,
    scale,
    bias,
    residual,
    slope,
    flags,
    y,
    rows,
    columns,
    height,
    width,
    out_area,
    out_width,
    depth,
    out_depth,
    stride_d,
    pad_d,
    dilation_d,
    x_stride_d,
    window_h,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    x_stride_n,
    x_stride_h,
    x_stride_w,
    channels,
    length,
    taps,
    blocks,
    blocks_each,
    least,
    a0,
    a1,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    X_SCALE: tl.constexpr,
    PROMOTED: tl.constexpr,
    MODE: tl.constexpr,
    HAS_DEPTH: tl.constexpr,
    BY_ROW: tl.constexpr,
    RUN: tl.constexpr,
    CHECKED: tl.constexpr,
    EVEN: tl.constexpr,
    SPLIT: tl.constexpr,
    FLAGS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid: (tiles of rows x tiles of columns, splits of k, groups).

    Args:
        x: the input, or an unfolded tensor.
        w: weights (groups * columns, blocks * BK), zeros behind each segment; for
            fp16x3 and tf32x3 their high halves, `w_low` their low halves, both float16.
        scale: (groups * columns,) for fp16x3 and tf32x3: undoes the weights' powers of two.
        flags: one int32 for each program, nonzero where its tile must be recomputed; see FLAGS.
        y: (rows, groups * columns); (splits, rows, groups * columns) sums if SPLIT.
        rows, columns: output positions, and channels of one group.
        height, width: of the input, for the padding.
        out_area, out_width: oh*ow and ow.
        depth, out_depth, stride_d, pad_d, dilation_d, x_stride_d: of the third axis, if HAS_DEPTH;
            window_h: rows of a window in one plane.
        stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w: of the convolution.
        x_stride_n, x_stride_h, x_stride_w: strides of x in elements.
        channels: elements from one group to the next.
        length, taps: elements of a segment; segments of one window row (S; 1 if BY_ROW).
        blocks, blocks_each: steps of BK in all, and in one split.
        X_SCALE: power of two that x is multiplied by for fp16x3.
        RUN: contiguous elements of a segment that is a whole window; 0 otherwise.
        least: fp16x3 flags tiles all of whose sums are smaller than this.
        a0, a1: the activation's parameters.
    """
    tiles_n = tl.cdiv(columns, BN)
    pid = tl.program_id(0)
    split = tl.program_id(1)
    group = tl.program_id(2)
    tile = (group * tl.num_programs(1) + split) * tl.num_programs(0) + pid
    follow(EARLY)
    if FLAGS == "read":
        if tl.load(flags + tile) == 0:
            return
    m = (pid // tiles_n) * BM + tl.arange(0, BM)
    n = (pid % tiles_n) * BN + tl.arange(0, BN)
    image = m // out_area
    if HAS_DEPTH:
        od = image % out_depth
        image = image // out_depth
        front = od * stride_d - pad_d
    oh = (m % out_area) // out_width
    ow = m % out_width
    if CHECKED:
        top = oh * stride_h - pad_h
        left = ow * stride_w - pad_w
    else:
        top = oh * stride_h
        left = ow * stride_w
    base = (
        image.to(tl.int64) * x_stride_n
        + top.to(tl.int64) * x_stride_h
        + left.to(tl.int64) * x_stride_w
        + group.to(tl.int64) * channels
    )
    if HAS_DEPTH:
        base += front.to(tl.int64) * x_stride_d
    x_row = x + base
    inside_m = m < rows
    kk = tl.arange(0, BK)
    w_row = (group * columns + n).to(tl.int64) * (blocks * BK)
    inside_n = n < columns

    first = split * blocks_each
    last = tl.minimum(first + blocks_each, blocks)
    each = tl.cdiv(length, BK)
    segment = first // each
    q0 = (first - segment * each) * BK
    r = segment // taps
    s = segment - r * taps

    total = tl.zeros((BM, BN), ACC)
    high = tl.zeros((BM, BN), ACC)
    for k in range(first, last):
        q = q0 + kk
        row = r
        ok = inside_m[:, None]
        if HAS_DEPTH:
            plane = r // window_h
            row = r - plane * window_h
        offset = row * dilation_h * x_stride_h + s * dilation_w * x_stride_w
        place = q
        if RUN > 0:
            # Each element has a row of its own.
            row = q // RUN
            place = q - row * RUN
            offset = row * dilation_h * x_stride_h
        if HAS_DEPTH:
            offset += plane * dilation_d * x_stride_d
        if CHECKED:
            if HAS_DEPTH:
                at = front + plane * dilation_d
                ok = ok & ((at >= 0) & (at < depth))[:, None]
            if RUN > 0:
                ih = top[:, None] + (row * dilation_h)[None, :]
                ok = ok & (ih >= 0) & (ih < height)
            else:
                ih = top + row * dilation_h
                ok = ok & ((ih >= 0) & (ih < height))[:, None]
            if BY_ROW:
                e = (left * x_stride_w)[:, None] + place[None, :]
                ok = ok & (e >= 0) & (e < width * x_stride_w)
            else:
                iw = left + s * dilation_w
                ok = ok & ((iw >= 0) & (iw < width))[:, None]
        if not EVEN:
            ok = ok & (q < length)[None, :]
        a = tl.load(x_row[:, None] + (offset + place)[None, :], ok, 0.0)
        w_place = w_row[:, None] + (k * BK + kk)[None, :]
        b = tl.load(w + w_place, inside_n[:, None], 0.0).T
        b_low = b
        if MODE == "tf32x3" or MODE == "fp16x3":
            b_low = tl.load(w_low + w_place, inside_n[:, None], 0.0).T
        high = multiply(a, b, b_low, high, X_SCALE, MODE, ACC)
        if MODE == "tf32x3" or MODE == "fp16x3":
            # Tensor cores truncate the running sum: restart it from zero every PROMOTED products.
            if (k - first) % (PROMOTED // BK) == PROMOTED // BK - 1:
                total += high
                high = tl.zeros((BM, BN), ACC)
        q0 += BK
        over = q0 >= length
        q0 = tl.where(over, 0, q0)
        s += over.to(tl.int32)
        wrapped = s >= taps
        s = tl.where(wrapped, 0, s)
        r += wrapped.to(tl.int32)
    if MODE == "tf32x3" or MODE == "fp16x3":
        total += high
    else:
        total = high
    column = group * columns + n
    inside = inside_m[:, None] & inside_n[None, :]
    if FLAGS == "write":
        flag_tile(flags, tile, total, inside, least)
    total = unscaled(total, scale, column, inside_n, X_SCALE, MODE)
    all_columns = columns * tl.num_programs(2)
    if SPLIT:
        place = (split * rows + m).to(tl.int64)[:, None] * all_columns + column[None, :]
        tl.store(y + place, total, inside)
    else:
        operands = (bias, residual, slope, a0, a1)
        finish(total, operands, y, m, column, all_columns, inside, HAS_BIAS, HAS_RESIDUAL, ACT)


@triton.jit
def add_splits(
    sums,
    bias,
    residual,
    slope,
    y,
    rows,
    columns,
    splits,
    a0,
    a1,
    BM: tl.constexpr,
    BN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Sum the splits of `segment_gemm` in order, then the epilogue. Grid: (tiles m, tiles n)."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    ok = (m < rows)[:, None] & (n < columns)[None, :]
    follow(EARLY)
    total = tl.zeros((BM, BN), ACC)
    for split in range(splits):
        place = (split * rows + m).to(tl.int64)[:, None] * columns + n[None, :]
        total += tl.load(sums + place, ok, 0.0)
    operands = (bias, residual, slope, a0, a1)
    finish(total, operands, y, m, n, columns, ok, HAS_BIAS, HAS_RESIDUAL, ACT)


@triton.jit
def matmul(
    a,
    c,
    y,
    rows,
    columns,
    inner,
    batch_columns,
    a_outer,
    a_inner,
    a_row,
    a_column,
    c_outer,
    c_inner,
    c_row,
    c_column,
    y_batch,
    alpha,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    MODE: tl.constexpr,
    ACC: tl.constexpr,
):
    """Grid: (tiles of rows x tiles of columns, batch); y (batch, rows, columns) is dense.

    Batch b has the strides `outer` times b / batch_columns and `inner` times b % batch_columns.
    MODE as in `kernels.gemm`: ieee or native.
    """
    tiles_n = tl.cdiv(columns, BN)
    pid = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    m = (pid // tiles_n) * BM + tl.arange(0, BM)
    n = (pid % tiles_n) * BN + tl.arange(0, BN)
    kk = tl.arange(0, BK)
    a_base = a + (batch // batch_columns) * a_outer + (batch % batch_columns) * a_inner
    c_base = c + (batch // batch_columns) * c_outer + (batch % batch_columns) * c_inner
    a_rows = a_base + m.to(tl.int64)[:, None] * a_row
    c_columns = c_base + n.to(tl.int64)[None, :] * c_column
    acc = tl.zeros((BM, BN), ACC)
    for first in range(0, inner, BK):
        k = (first + kk).to(tl.int64)
        left = tl.load(
            a_rows + k[None, :] * a_column, (m < rows)[:, None] & (k < inner)[None, :], 0.0
        )
        right = tl.load(
            c_columns + k[:, None] * c_row, (k < inner)[:, None] & (n < columns)[None, :], 0.0
        )
        if MODE == "ieee":
            acc = tl.dot(left, right, acc, input_precision="ieee", out_dtype=ACC)
        else:
            acc = tl.dot(left, right, acc, out_dtype=ACC)
    place = batch * y_batch + m.to(tl.int64)[:, None] * columns + n[None, :]
    ok = (m < rows)[:, None] & (n < columns)[None, :]
    tl.store(y + place, (acc * alpha).to(y.dtype.element_ty), ok)
