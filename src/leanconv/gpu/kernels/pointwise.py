"""Matrix products for 1x1 convolutions, by bulk tensor copies (TMA), or for few rows.

    y[m, n] = act(sum over c of x[m, c] w[n, c] + bias[n] + residual[m, n])

Boxes: a box of the input is a matrix as it comes: it goes from shared memory into the product, and
no register holds it. (Boxes of patches, `kernels.patches`, are reshaped, which takes registers.)

Slices: the warps of a program share k, not the tile. One image leaves so few tiles that most
processors have none, and each of these a long loop over k. Here a step loads SLICES pieces of k at
once, a warp multiplies one of them, and the sums of all are added at the end: a program waits for
memory once or twice, not once for every 32 products.
"""

import triton
import triton.language as tl

from leanconv.gpu.kernels.common import finish, follow
from leanconv.gpu.kernels.gemm import high_part, multiply, unscaled


@triton.jit
def box_gemm(
    x,
    w,
    bias,
    residual,
    slope,
    y,
    rows,
    columns,
    blocks,
    a0,
    a1,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    MODE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid: (tiles of rows x tiles of columns).

    Args:
        x: descriptor of the input (rows, channels), in boxes (BM, BK).
        w: descriptor of the weights (columns, blocks * BK), in boxes (BN, BK).
        bias, residual, slope, y, rows, columns, a0, a1: as in `segment_gemm`.
        blocks: steps of BK.
        MODE: "tf32" or "native".
    """
    tiles_n = tl.cdiv(columns, BN)
    pid = tl.program_id(0)
    n0 = (pid % tiles_n) * BN
    m0 = (pid // tiles_n) * BM
    follow(EARLY)
    sums = tl.zeros((BM, BN), ACC)
    for k in range(blocks):
        a = x.load([m0, k * BK])
        b = w.load([n0, k * BK]).T
        sums = multiply(a, b, b, sums, 1.0, MODE, ACC)
    m = m0 + tl.arange(0, BM)
    n = n0 + tl.arange(0, BN)
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    operands = (bias, residual, slope, a0, a1)
    finish(sums, operands, y, m, n, columns, inside, HAS_BIAS, HAS_RESIDUAL, ACT)


@triton.jit
def sliced_gemm(
    x,
    w,
    w_low,
    scale,
    bias,
    residual,
    slope,
    y,
    rows,
    columns,
    length,
    pitch,
    steps,
    a0,
    a1,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SLICES: tl.constexpr,
    MODE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid: (tiles of rows x tiles of columns).

    Args:
        x: (rows, length).
        w, w_low, scale: weights (columns, pitch) as of `gemm.segment_gemm`.
        bias, residual, slope, y, a0, a1: as there.
        steps: of SLICES * BK elements of k each.
    """
    tiles_n = tl.cdiv(columns, BN)
    pid = tl.program_id(0)
    m = (pid // tiles_n) * BM + tl.arange(0, BM)
    n = (pid % tiles_n) * BN + tl.arange(0, BN)
    inside_m = m < rows
    inside_n = n < columns
    kk = tl.arange(0, SLICES)[:, None] * BK + tl.arange(0, BK)[None, :]
    sums = tl.zeros((SLICES, BM, BN), ACC)
    left = tl.zeros((SLICES, BM, BN), ACC)
    right = tl.zeros((SLICES, BM, BN), ACC)
    follow(EARLY)
    for step in range(steps):
        k = step * (SLICES * BK) + kk
        ok = (k < length)[:, None, :]
        place = (m * length)[None, :, None] + k[:, None, :]
        a = tl.load(x + place, inside_m[None, :, None] & ok, 0.0)
        w_place = (n * pitch)[None, :, None] + k[:, None, :]
        b = tl.load(w + w_place, inside_n[None, :, None] & ok, 0.0).trans(0, 2, 1)
        if MODE == "tf32x3":
            # Sums of their own: three products on one would each wait for the one before.
            b_low = tl.load(w_low + w_place, inside_n[None, :, None] & ok, 0.0).trans(0, 2, 1)
            a_high = high_part(a)
            b_high = b.to(tl.float32)
            left = tl.dot(a - a_high, b_high, left, input_precision="tf32")
            right = tl.dot(a_high, b_low.to(tl.float32), right, input_precision="tf32")
            sums = tl.dot(a_high, b_high, sums, input_precision="tf32")
        else:
            sums = multiply(a, b, b, sums, 1, MODE, ACC)
    if MODE == "tf32x3":
        sums += left + right
    total = unscaled(tl.sum(sums, 0), scale, n, inside_n, 1, MODE)
    inside = inside_m[:, None] & inside_n[None, :]
    operands = (bias, residual, slope, a0, a1)
    finish(total, operands, y, m, n, columns, inside, HAS_BIAS, HAS_RESIDUAL, ACT)
