"""Matrix products whose operands are both loaded by bulk tensor copies (TMA): 1x1 convolutions.

    y[m, n] = act(sum over c of x[m, c] w[n, c] + bias[n] + residual[m, n])

A box of the input is a matrix as it comes: it goes from shared memory into the product, and no
register holds it. (Boxes of patches, `kernels.patches`, are reshaped, which takes registers.)
"""

import triton
import triton.language as tl

from leanconv.gpu.kernels.early import follow
from leanconv.gpu.kernels.epilogue import finish
from leanconv.gpu.kernels.gemm import multiply


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
