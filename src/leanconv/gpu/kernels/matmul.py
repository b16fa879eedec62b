"""Products of two matrices that are both computed: y[b] = a[b] c[b], any strides, any batch."""

import triton
import triton.language as tl


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
