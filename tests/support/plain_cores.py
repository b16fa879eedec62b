"""Any convolution by algorithms for plain ones: dense, without groups or padding, two-dimensional.

Every step is an identity between convolutions, so that an algorithm that is written for the plain
case (a `Core`) serves every spec.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

import numpy as np

from leanconv.reference.direct import Steps, channels_back, channels_first, finish, result_dtype
from leanconv.spec import ConvSpec

# x (N, C, H, W), w (K, C, kh, kw), stride -> y (N, K, oh, ow)
Core = Callable[[np.ndarray, np.ndarray, Steps], np.ndarray]


def convolve_by(
    core: Core,
    spec: ConvSpec,
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    slope: np.ndarray | None = None,
) -> np.ndarray:
    """Compute a spec with an algorithm for plain convolutions.

    Args:
        core: the algorithm.
        spec, x, w, bias, residual, slope: as in `direct.convolve`.

    Returns:
        y of `spec.output_shape`, in float64 or in int64.
    """
    missing = 3 - len(spec.size)
    kernel, stride, dilation = (
        (1,) * missing + values for values in (spec.kernel, spec.stride, spec.dilation)
    )
    padded = np.pad(
        channels_first(spec, x),
        ((0, 0), (0, 0), *zip(spec.pad_begin, spec.pad_end, strict=True)),
    )
    padded = padded.reshape(*padded.shape[:2], *(1,) * missing, *padded.shape[2:])
    filters = w.reshape(*w.shape[:2], *kernel)
    inputs, outputs = filters.shape[1], spec.out_channels // spec.groups
    pieces = [
        _volume(
            core,
            padded[:, g * inputs : (g + 1) * inputs],
            filters[g * outputs : (g + 1) * outputs],
            stride,
            dilation,
        )
        for g in range(spec.groups)
    ]
    y = np.concatenate(pieces, axis=1)
    y = y.reshape(*y.shape[:2], *spec.output_size)
    per_channel = (1, -1, *(1 for _ in spec.size))
    if bias is not None:
        y = y + bias.reshape(per_channel)
    slopes = None if slope is None else slope.reshape(per_channel)
    added = None if residual is None else channels_first(spec, residual)
    y = finish(y, spec.activation, slopes, added)
    return channels_back(spec, y)


def _volume(
    core: Core,
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> np.ndarray:
    """Sum two-dimensional convolutions over the depth of the kernel; depths join the batch."""
    batch, channels, depth = x.shape[:3]
    kd = w.shape[2]
    od = (depth - (kd - 1) * dilation[0] - 1) // stride[0] + 1
    total: np.ndarray | None = None
    for tap in range(kd):
        first = tap * dilation[0]
        planes = x[:, :, first : first + (od - 1) * stride[0] + 1 : stride[0]]
        images = planes.swapaxes(1, 2).reshape(batch * od, channels, *x.shape[3:])
        part = dilated(core, images, w[:, :, tap], (stride[1], stride[2]), dilation[1:])
        total = part if total is None else total + part
    assert total is not None
    return np.asarray(total.reshape(batch, od, *total.shape[1:]).swapaxes(1, 2))


def dilated(
    core: Core, x: np.ndarray, w: np.ndarray, stride: Steps, dilation: tuple[int, ...]
) -> np.ndarray:
    """Decimation: a dilation becomes dense convolutions of every d-th row and column.

    With g = gcd(s, d), outputs q + (d/g)·t read x[q·s + d·(s/g·t + k)]: the convolution of
    x[q·s::d] with stride s/g, one for each q < d/g and axis.
    """
    (sh, sw), (dh, dw) = stride, dilation
    spans = ((w.shape[2] - 1) * dh + 1, (w.shape[3] - 1) * dw + 1)
    oh, ow = ((i - k) // s + 1 for i, k, s in zip(x.shape[2:], spans, stride, strict=True))
    y = np.empty((x.shape[0], w.shape[0], oh, ow), result_dtype(x, w))
    common = gcd(sh, dh), gcd(sw, dw)
    phases = dh // common[0], dw // common[1]
    inner = (sh // common[0], sw // common[1])
    for qh in range(min(phases[0], oh)):
        for qw in range(min(phases[1], ow)):
            part = y[:, :, qh :: phases[0], qw :: phases[1]]
            result = core(x[:, :, qh * sh :: dh, qw * sw :: dw], w, inner)
            part[...] = result[:, :, : part.shape[2], : part.shape[3]]
    return y
