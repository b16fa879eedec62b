"""Unfolding: windows of the input copied so that each is contiguous. One kernel for all methods.

L[n, i, j, t, c] = x[n, ih, iw, c]
    ih = i*i_h + j*j_h + (t / taps)*t_h - pad_h
    iw = i*i_w + j*j_w + (t % taps)*t_w - pad_w

im2col  i = oh, j = ow,               t = (r, s)
MEC     i = ow, j = row of the input, t = s        (algorithm 2 of its paper, NHWC)
im2win  i = oh, j = column of it,     t = r        (algorithm 2 of the thesis, channels last)
"""

import triton
import triton.language as tl


@triton.jit
def unfold(
    x,
    y,
    rows,
    height,
    width,
    channels,
    extent_i,
    extent_j,
    extent_t,
    taps,
    i_h,
    j_h,
    t_h,
    pad_h,
    i_w,
    j_w,
    t_w,
    pad_w,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """Grid: (blocks of rows (n, i, j, t), blocks of channels)."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    t = (row % extent_t).to(tl.int32)
    rest = row // extent_t
    j = (rest % extent_j).to(tl.int32)
    rest = rest // extent_j
    i = (rest % extent_i).to(tl.int32)
    image = rest // extent_i
    ih = i * i_h + j * j_h + (t // taps) * t_h - pad_h
    iw = i * i_w + j * j_w + (t % taps) * t_w - pad_w
    cok = (c < channels)[None, :]
    inside = (row < rows) & (ih >= 0) & (ih < height) & (iw >= 0) & (iw < width)
    place = ((image * height + ih) * width + iw)[:, None] * channels + c[None, :]
    value = tl.load(x + place, inside[:, None] & cok, 0.0)
    tl.store(y + row[:, None] * channels + c[None, :], value, (row < rows)[:, None] & cok)
