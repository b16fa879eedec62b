"""Strided copies, transposes, fills, and weighted sums of cells along one axis."""

import triton
import triton.language as tl

from leanconv.gpu.kernels.early import follow


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
