"""What happens to a sum before it is stored: bias, residual, activation."""

import triton
import triton.language as tl


@triton.jit
def larger(a, b):
    """The larger number; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    """The smaller number; NaN if either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def logistic(v):
    """1 / (1 + exp(-v)), without overflow on either side."""
    small = tl.exp(-tl.abs(v))
    return tl.where(v >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


@triton.jit
def hyperbolic_tangent(v):
    """tanh(v) = sign(v) (1 - e) / (1 + e) with e = exp(-2 |v|)."""
    small = tl.exp(-2.0 * tl.abs(v))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(v >= 0, size, -size)


@triton.jit
def activate(v, slope, a0, a1, ACT: tl.constexpr):
    """Apply number `ACT` of `lowering.gemm.ACTIVATION_NUMBERS`; prelu alone reads `slope`."""
    if ACT == 1:
        v = larger(v, tl.zeros_like(v))
    elif ACT == 2:
        v = smaller(larger(v, tl.zeros_like(v) + a0), tl.zeros_like(v) + a1)
    elif ACT == 3:
        v = tl.where(v >= 0, v, a0 * v)
    elif ACT == 4:
        v = tl.where(v >= 0, v, slope * v)
    elif ACT == 5:
        v = logistic(v)
    elif ACT == 6:
        v = v * logistic(v)
    elif ACT == 7:
        v = smaller(larger(a0 * v + a1, tl.zeros_like(v)), tl.zeros_like(v) + 1.0)
    elif ACT == 8:
        inner = v * (1.0 / 6.0) + 0.5
        v = v * smaller(larger(inner, tl.zeros_like(v)), tl.zeros_like(v) + 1.0)
    elif ACT == 9:
        v = hyperbolic_tangent(v)
    elif ACT == 10:
        v = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    elif ACT == 11:
        inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
        v = 0.5 * v * (1.0 + hyperbolic_tangent(inner))
    elif ACT == 12:
        v = tl.where(v > 0, v, a0 * (tl.exp(smaller(v, tl.zeros_like(v))) - 1.0))
    return v


@triton.jit
def finish(
    acc,
    bias,
    residual,
    slope,
    y,
    m,
    n,
    columns,
    ok,
    a0,
    a1,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
):
    """y[m, n] = activation(acc + bias[n] + residual[m, n]) for a tile of rows m and columns n."""
    inside = n < columns
    place = m.to(tl.int64)[:, None] * columns + n[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + n, inside, 0.0).to(acc.dtype)[None, :]
    if HAS_RESIDUAL:
        acc += tl.load(residual + place, ok, 0.0).to(acc.dtype)
    below = acc
    if ACT == 4:
        below = tl.load(slope + n, inside, 0.0).to(acc.dtype)[None, :]
    acc = activate(acc, below, a0, a1, ACT)
    tl.store(y + place, acc.to(y.dtype.element_ty), ok)
