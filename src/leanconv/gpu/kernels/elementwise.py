"""One or two tensors, element by element, with NumPy's broadcasting."""

import triton
import triton.language as tl

from leanconv.gpu.kernels.data_movement import strided_place
from leanconv.gpu.kernels.epilogue import activate, larger, smaller


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
