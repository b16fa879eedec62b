"""Winograd's transforms F(MH x MW) of input and products, any exact matrices, channels last.

    V[p, a, b, c] = sum BT_h[a, i] BT_w[b, j] x[tile p, i, j, c]
    y[tile p, u, v, k] = act(sum AT_h[u, a] AT_w[v, b] M[p, a, b, k] + ...)

Between the two are AH * AW products, one grouped GEMM. Small tiles are transformed in registers,
several in a program; large ones, which do not fit the registers, by two small matrix products.
"""

import triton
import triton.language as tl

from leanconv.gpu.kernels.common import finish


@triton.jit
def transform_input(
    x,
    bt_h,
    bt_w,
    y,
    tiles,
    tiles_h,
    tiles_w,
    height,
    width,
    channels,
    pad_h,
    pad_w,
    MH: tl.constexpr,
    MW: tl.constexpr,
    AH: tl.constexpr,
    AW: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    ACC: tl.constexpr,
):
    """Grid: (blocks of tiles, blocks of channels). y: (tiles, AH * AW, channels)."""
    p = tl.program_id(0) * BT + tl.arange(0, BT)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = p < tiles
    cok = (c < channels)[None, :]
    image = p // (tiles_h * tiles_w)
    top = ((p // tiles_w) % tiles_h) * MH - pad_h
    left = (p % tiles_w) * MW - pad_w
    # One column of the tile after the other: BT_h d, kept for all columns.
    columns = ()
    for j in tl.static_range(0, AW):
        column = ()
        iw = left + j
        for i in tl.static_range(0, AH):
            ih = top + i
            inside = ok & (ih >= 0) & (ih < height) & (iw >= 0) & (iw < width)
            place = ((image * height + ih) * width + iw).to(tl.int64)[:, None] * channels
            column = column + (tl.load(x + place + c[None, :], inside[:, None] & cok, 0.0).to(ACC),)
        for a in tl.static_range(0, AH):
            value = tl.zeros((BT, BC), ACC)
            for i in tl.static_range(0, AH):
                value += tl.load(bt_h + a * AH + i).to(ACC) * column[i]
            columns = columns + (value,)
    target = y + p.to(tl.int64)[:, None] * (AH * AW * channels) + c[None, :]
    for a in tl.static_range(0, AH):
        for b in tl.static_range(0, AW):
            value = tl.zeros((BT, BC), ACC)
            for j in tl.static_range(0, AW):
                value += tl.load(bt_w + b * AW + j).to(ACC) * columns[j * AH + a]
            tl.store(
                target + (a * AW + b) * channels,
                value.to(y.dtype.element_ty),
                ok[:, None] & cok,
            )


@triton.jit
def matrix(values, rows, columns, P: tl.constexpr, ACC: tl.constexpr):
    """A small row-major matrix, filled up with zeros to (P, P)."""
    i = tl.arange(0, P)
    ok = (i < rows)[:, None] & (i < columns)[None, :]
    return tl.load(values + i[:, None] * columns + i[None, :], ok, 0.0).to(ACC)


@triton.jit
def transform_both_axes(first, second, cells, P: tl.constexpr, BC: tl.constexpr, ACC: tl.constexpr):
    """sum over i, j of first[a, i] second[b, j] cells[i, (j, c)], as [b, (a, c)]."""
    rows = tl.dot(first, cells, input_precision="ieee", out_dtype=ACC)
    transposed = rows.reshape(P, P, BC).permute(1, 0, 2).reshape(P, P * BC)
    return tl.dot(second, transposed, input_precision="ieee", out_dtype=ACC)


@triton.jit
def transform_input_by_products(
    x,
    bt_h,
    bt_w,
    y,
    tiles_h,
    tiles_w,
    height,
    width,
    channels,
    pad_h,
    pad_w,
    MH: tl.constexpr,
    MW: tl.constexpr,
    AH: tl.constexpr,
    AW: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    ACC: tl.constexpr,
):
    """Compute `transform_input` by matrix products, a tile of up to BT x BT points in a program."""
    p = tl.program_id(0)
    image = p // (tiles_h * tiles_w)
    i = tl.arange(0, BT)[:, None]
    column = tl.arange(0, BT * BC)[None, :]
    j = column // BC
    c = tl.program_id(1) * BC + column % BC
    ih = ((p // tiles_w) % tiles_h) * MH - pad_h + i
    iw = (p % tiles_w) * MW - pad_w + j
    inside = (i < AH) & (ih >= 0) & (ih < height) & (j < AW) & (iw >= 0) & (iw < width)
    place = ((image * height + ih) * width + iw).to(tl.int64) * channels + c
    cells = tl.load(x + place, inside & (c < channels), 0.0).to(ACC)
    first = matrix(bt_h, AH, AH, BT, ACC)
    value = transform_both_axes(first, matrix(bt_w, AW, AW, BT, ACC), cells, BT, BC, ACC)
    # Rows are the points along w now, columns those along h with their channels.
    place = (p.to(tl.int64) * AH * AW + j * AW + i) * channels + c
    tl.store(y + place, value.to(y.dtype.element_ty), (i < AW) & (j < AH) & (c < channels))


@triton.jit
def transform_output(
    products,
    at_h,
    at_w,
    bias,
    residual,
    slope,
    y,
    tiles,
    tiles_h,
    tiles_w,
    out_h,
    out_w,
    outputs,
    a0,
    a1,
    MH: tl.constexpr,
    MW: tl.constexpr,
    AH: tl.constexpr,
    AW: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
):
    """Grid: (blocks of tiles, blocks of channels). products: (tiles, AH * AW, outputs)."""
    p = tl.program_id(0) * BT + tl.arange(0, BT)
    k = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = p < tiles
    kok = (k < outputs)[None, :]
    image = p // (tiles_h * tiles_w)
    top = ((p // tiles_w) % tiles_h) * MH
    left = (p % tiles_w) * MW
    source = products + p.to(tl.int64)[:, None] * (AH * AW * outputs) + k[None, :]
    rows = ()
    for u in tl.static_range(0, MH):
        for b in tl.static_range(0, AW):
            rows = rows + (tl.zeros((BT, BC), ACC),)
    for a in tl.static_range(0, AH):
        made = ()
        for b in tl.static_range(0, AW):
            value = tl.load(source + (a * AW + b) * outputs, ok[:, None] & kok, 0.0).to(ACC)
            made = made + (value,)
        added = ()
        for u in tl.static_range(0, MH):
            weight = tl.load(at_h + u * AH + a).to(ACC)
            for b in tl.static_range(0, AW):
                added = added + (rows[u * AW + b] + weight * made[b],)
        rows = added
    for u in tl.static_range(0, MH):
        for v in tl.static_range(0, MW):
            value = tl.zeros((BT, BC), ACC)
            for b in tl.static_range(0, AW):
                value += tl.load(at_w + v * AW + b).to(ACC) * rows[u * AW + b]
            oh = top + u
            ow = left + v
            inside = ok & (oh < out_h) & (ow < out_w)
            place = (image * out_h + oh) * out_w + ow
            inside = inside[:, None] & kok
            operands = (bias, residual, slope, a0, a1)
            finish(value, operands, y, place, k, outputs, inside, HAS_BIAS, HAS_RESIDUAL, ACT)


@triton.jit
def transform_output_by_products(
    products,
    at_h,
    at_w,
    bias,
    residual,
    slope,
    y,
    tiles_h,
    tiles_w,
    out_h,
    out_w,
    outputs,
    a0,
    a1,
    MH: tl.constexpr,
    MW: tl.constexpr,
    AH: tl.constexpr,
    AW: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    ACC: tl.constexpr,
):
    """Compute `transform_output` by matrix products, tiles of up to BT x BT points in a program."""
    p = tl.program_id(0)
    image = p // (tiles_h * tiles_w)
    a = tl.arange(0, BT)[:, None]
    column = tl.arange(0, BT * BC)[None, :]
    b = column // BC
    k = tl.program_id(1) * BC + column % BC
    place = (p.to(tl.int64) * AH * AW + a * AW + b) * outputs + k
    made = tl.load(products + place, (a < AH) & (b < AW) & (k < outputs), 0.0).to(ACC)
    first = matrix(at_h, MH, AH, BT, ACC)
    value = transform_both_axes(first, matrix(at_w, MW, AW, BT, ACC), made, BT, BC, ACC)
    # (v, (u, k)) -> one row for each output of the tile.
    cell = tl.arange(0, BT * BT)
    v = cell // BT
    u = cell % BT
    oh = ((p // tiles_w) % tiles_h) * MH + u
    ow = (p % tiles_w) * MW + v
    n = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = (u < MH) & (v < MW) & (oh < out_h) & (ow < out_w)
    value = value.reshape(BT * BT, BC)
    place = (image * out_h + oh) * out_w + ow
    inside = ok[:, None] & (n < outputs)[None, :]
    operands = (bias, residual, slope, a0, a1)
    finish(value, operands, y, place, n, outputs, inside, HAS_BIAS, HAS_RESIDUAL, ACT)
