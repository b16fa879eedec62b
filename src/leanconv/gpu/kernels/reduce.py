"""Reductions, softmax and local response normalisation along one axis of (outer, count, inner)."""

import triton
import triton.language as tl

from leanconv.gpu.kernels.early import follow
from leanconv.gpu.kernels.epilogue import larger, smaller


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
