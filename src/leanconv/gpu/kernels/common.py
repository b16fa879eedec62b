"""Begin and end of kernels: programs that start early; bias, residual and activation, the store.

A kernel starts while the one before it still runs (programmatic dependent launch, sm_90). Its
programs take their places and wait; what the launch of a kernel costs is over by the time they
may read. Without it the next of a row of small kernels starts a microsecond later.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


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
    """Apply the activation of kind ACT (as in `spec.Activation`); only prelu reads `slope`."""
    if ACT == "relu":
        v = larger(v, tl.zeros_like(v))
    elif ACT == "clip":
        v = smaller(larger(v, tl.zeros_like(v) + a0), tl.zeros_like(v) + a1)
    elif ACT == "leaky_relu":
        v = tl.where(v >= 0, v, a0 * v)
    elif ACT == "prelu":
        v = tl.where(v >= 0, v, slope * v)
    elif ACT == "sigmoid":
        v = logistic(v)
    elif ACT == "silu":
        v = v * logistic(v)
    elif ACT == "hard_sigmoid":
        v = smaller(larger(a0 * v + a1, tl.zeros_like(v)), tl.zeros_like(v) + 1.0)
    elif ACT == "hard_swish":
        inner = v * (1.0 / 6.0) + 0.5
        v = v * smaller(larger(inner, tl.zeros_like(v)), tl.zeros_like(v) + 1.0)
    elif ACT == "tanh":
        v = hyperbolic_tangent(v)
    elif ACT == "gelu":
        v = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
        v = 0.5 * v * (1.0 + hyperbolic_tangent(inner))
    elif ACT == "elu":
        v = tl.where(v > 0, v, a0 * (tl.exp(smaller(v, tl.zeros_like(v))) - 1.0))
    else:
        tl.static_assert(ACT == "")
    return v


@triton.jit
def finish(
    acc,
    operands,
    y,
    m,
    n,
    columns,
    ok,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
):
    """y[m, n] = activation(acc + bias[n] + residual[m, n]) for a tile of rows m and columns n.

    operands: bias, residual, slope, and the activation's two parameters.
    """
    bias, residual, slope, a0, a1 = operands
    inside = n < columns
    place = m.to(tl.int64)[:, None] * columns + n[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + n, inside, 0.0).to(acc.dtype)[None, :]
    if HAS_RESIDUAL:
        acc += tl.load(residual + place, ok, 0.0).to(acc.dtype)
    slopes = acc
    if ACT == "prelu":
        slopes = tl.load(slope + n, inside, 0.0).to(acc.dtype)[None, :]
    acc = activate(acc, slopes, a0, a1, ACT)
    tl.store(y + place, acc.to(y.dtype.element_ty), ok)


@triton.jit
def follow(EARLY: tl.constexpr):
    """Wait until the kernel before this one has written everything; then let the next one start.

    It must stand in front of the first access to memory. EARLY: whether the launcher asks for it.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
