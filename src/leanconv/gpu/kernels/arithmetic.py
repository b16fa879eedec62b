"""Element by element with NumPy's broadcasting; along one axis: reductions, softmax, LRN.

One axis is the middle of (outer, count, inner).
"""

import triton
import triton.language as tl

from leanconv.gpu.kernels.common import activate, follow, larger, smaller
from leanconv.gpu.kernels.data_movement import strided_place


@triton.jit
def power(a, b):
    """a ** b in double precision, with the sign of odd powers of negative numbers."""
    a = a.to(tl.float64)
    b = b.to(tl.float64)
    size = tl.exp(b * tl.log(tl.abs(a)))
    whole = tl.floor(b) == b
    odd = whole & (tl.floor(b * 0.5) * 2.0 != b)
    negative = tl.where(whole, tl.where(odd, -size, size), float("nan"))
    result = tl.where(a < 0, negative, size)
    return tl.where((b == 0) | (a == 1), 1.0, result)


@triton.jit
def compute(a, b, a0, a1, OP: tl.constexpr, ACT: tl.constexpr):
    """Apply OP, the name of an ONNX operation, or "Activation" of kind ACT."""
    if OP == "Activation":
        a = activate(a, a, a0, a1, ACT)
    elif OP == "Sqrt":
        a = tl.sqrt(a)
    elif OP == "Exp":
        a = tl.exp(a)
    elif OP == "Log":
        a = tl.log(a)
    elif OP == "Erf":
        a = tl.erf(a)
    elif OP == "Neg":
        a = -a
    elif OP == "Abs":
        a = tl.abs(a)
    elif OP == "Reciprocal":
        a = 1.0 / a
    elif OP == "Softplus":
        a = larger(a, tl.zeros_like(a)) + tl.log(1.0 + tl.exp(-tl.abs(a)))
    elif OP == "Add":
        a = a + b
    elif OP == "Sub":
        a = a - b
    elif OP == "Mul":
        a = a * b
    elif OP == "Div":
        a = a / b
    elif OP == "Pow":
        a = power(a, b).to(a.dtype)
    elif OP == "Min":
        a = smaller(a, b)
    elif OP == "Max":
        a = larger(a, b)
    else:
        tl.static_assert(OP == "PRelu")
        a = tl.where(a >= 0, a, a * b)
    return a


@triton.jit
def elementwise(
    a,
    b,
    y,
    count,
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
    a0,
    a1,
    OP: tl.constexpr,
    ACT: tl.constexpr,
    BINARY: tl.constexpr,
    DENSE: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    ACC: tl.constexpr,
):
    """y[i] = OP(a[…], b[…]); strides s of a and t of b unless DENSE. Grid: (blocks,)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    of_a = i
    of_b = i
    if not DENSE:
        of_a = strided_place(i, e1, e2, e3, e4, e5, s0, s1, s2, s3, s4, s5)
        of_b = strided_place(i, e1, e2, e3, e4, e5, t0, t1, t2, t3, t4, t5)
    left = tl.load(a + of_a, ok, 1.0).to(ACC)
    right = left
    if BINARY:
        right = tl.load(b + of_b, ok, 1.0).to(ACC)
    result = compute(left, right, a0, a1, OP, ACT)
    tl.store(y + i, result.to(y.dtype.element_ty), ok)


@triton.jit
def reduce_axis(
    x,
    y,
    count,
    inner,
    BR: tl.constexpr,
    BI: tl.constexpr,
    KIND: tl.constexpr,
    ACC: tl.constexpr,
    EARLY: tl.constexpr,
):
    """KIND is mean, sum, max or min. Grid: (outer, blocks of inner)."""
    outer = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    rows = tl.arange(0, BR)
    empty = 0.0
    if KIND == "max":
        empty = float("-inf")
    if KIND == "min":
        empty = float("inf")
    follow(EARLY)
    acc = tl.zeros((BR, BI), ACC) + empty
    for first in range(0, count, BR):
        r = first + rows
        ok = (r < count)[:, None] & (i < inner)[None, :]
        place = (outer * count + r)[:, None] * inner + i[None, :]
        value = tl.load(x + place, ok, empty).to(ACC)
        if KIND == "max":
            acc = larger(acc, value)
        elif KIND == "min":
            acc = smaller(acc, value)
        else:
            acc += value
    if KIND == "max":
        total = tl.reduce(acc, 0, larger)
    elif KIND == "min":
        total = tl.reduce(acc, 0, smaller)
    else:
        total = tl.sum(acc, 0)
    if KIND == "mean":
        total = total / count.to(ACC)
    tl.store(y + outer * inner + i, total.to(y.dtype.element_ty), i < inner)


@triton.jit
def softmax(
    x,
    y,
    count,
    inner,
    BR: tl.constexpr,
    BI: tl.constexpr,
    LOGARITHM: tl.constexpr,
    ACC: tl.constexpr,
):
    """exp(x - max) / sum, or its logarithm. Grid: (outer, blocks of inner)."""
    outer = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    rows = tl.arange(0, BR)
    highest = tl.zeros((BR, BI), ACC) + float("-inf")
    for first in range(0, count, BR):
        r = first + rows
        ok = (r < count)[:, None] & (i < inner)[None, :]
        place = (outer * count + r)[:, None] * inner + i[None, :]
        highest = larger(highest, tl.load(x + place, ok, float("-inf")).to(ACC))
    top = tl.reduce(highest, 0, larger)[None, :]
    acc = tl.zeros((BR, BI), ACC)
    for first in range(0, count, BR):
        r = first + rows
        ok = (r < count)[:, None] & (i < inner)[None, :]
        place = (outer * count + r)[:, None] * inner + i[None, :]
        value = tl.load(x + place, ok, 0.0).to(ACC)
        acc += tl.where(ok, tl.exp(value - top), 0.0)
    total = tl.sum(acc, 0)[None, :]
    for first in range(0, count, BR):
        r = first + rows
        ok = (r < count)[:, None] & (i < inner)[None, :]
        place = (outer * count + r)[:, None] * inner + i[None, :]
        shifted = tl.load(x + place, ok, 0.0).to(ACC) - top
        if LOGARITHM:
            result = shifted - tl.log(total)
        else:
            result = tl.exp(shifted) / total
        tl.store(y + place, result.to(y.dtype.element_ty), ok)


@triton.jit
def normalise_locally(
    x,
    y,
    positions,
    channels,
    before,
    after,
    bias,
    share,
    beta,
    BM: tl.constexpr,
    BC: tl.constexpr,
    ACC: tl.constexpr,
):
    """x / (bias + share * sum of squares of the channels around) ** beta, channels last.

    Grid: (blocks of positions, blocks of channels).
    """
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = m < positions
    place = m[:, None] * channels + c[None, :]
    total = tl.zeros((BM, BC), ACC)
    for shift in range(-before, after + 1):
        near = (c + shift >= 0) & (c + shift < channels)
        value = tl.load(x + place + shift, ok[:, None] & near[None, :], 0.0).to(ACC)
        total += value * value
    inside = ok[:, None] & (c < channels)[None, :]
    value = tl.load(x + place, inside, 0.0).to(ACC)
    size = tl.exp(-beta * tl.log(bias + share * total))
    tl.store(y + place, (value * size).to(y.dtype.element_ty), inside)
