"""Layers with weights: convolution, transposed convolution, batch norm, fully connected."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from examples.networks.builder import FloatArray, IntPair, NetBuilder, Padding, Stats, Value, pair

_SMALLEST_VARIANCE = 1e-6
_DOUBT = 0.25  # share of the squared means that counts as variance: the means are only estimates


def _std(x: Value, fan_in: float, gain: float) -> float:
    """Return the spread of weights that turns `x` into something of variance `gain`."""
    power = float((x.var + _DOUBT * np.square(x.mean)).mean())
    return math.sqrt(gain / (fan_in * max(power, _SMALLEST_VARIANCE)))


def _filters(b: NetBuilder, shape: tuple[int, int, int, int], std: float) -> FloatArray:
    """Draw filters; dense ones sum to zero, so that errors in the expected means die out."""
    drawn = b.normal(shape, std)
    if shape[1] > 4:
        drawn -= drawn.mean(axis=(1, 2, 3), keepdims=True)
    return drawn


def _moments(x: Value, weight: FloatArray, groups: int) -> tuple[Stats, Stats]:
    """Return mean and variance of each output channel, were the input independent noise."""
    first = weight.sum(axis=(2, 3), dtype=np.float64).reshape(groups, -1, weight.shape[1])
    second = np.square(weight).sum(axis=(2, 3), dtype=np.float64).reshape(first.shape)
    doubted = x.var + _DOUBT * np.square(x.mean)
    # einsum, not @: BLAS may round otherwise with other threads, and the same seed is the same file
    mean = np.einsum("goi,gi->go", first, x.mean.reshape(groups, -1))
    var = np.einsum("goi,gi->go", second, doubted.reshape(groups, -1))
    return mean.ravel(), var.ravel()


def _add_bias(b: NetBuilder, name: str, mean: Stats, var: Stats) -> Stats:
    """Add a bias that takes the mean away, nearly; return the mean that is left."""
    spread = 0.1 * math.sqrt(float(var.mean()))
    size = (len(mean),)
    return mean + b.param(f"{name}.bias", lambda: b.normal(size, spread) - mean, size)


def conv(
    b: NetBuilder,
    x: Value,
    name: str,
    channels: int,
    kernel: IntPair,
    *,
    stride: IntPair = 1,
    padding: Padding | None = None,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = False,
    gain: float = 1.0,
) -> Value:
    """Convolve; adds weights `(channels, x.channels / groups, kh, kw)`, perhaps a bias.

    Args:
        b: the network being written.
        x: `(n, c, h, w)`.
        name: prefix of the weights' names.
        channels: output channels.
        kernel: kernel height and width, or one number for both.
        stride: step, likewise.
        padding: all four sides, or (top, left, bottom, right); None keeps the size at stride 1.
        dilation: 1 is dense.
        groups: divides both channel counts; `x.channels` makes it depthwise.
        bias: whether to add one.
        gain: the variance that the output shall have.
    """
    kh, kw = pair(kernel)
    depth = x.channels // groups
    shape = (channels, depth, kh, kw)
    std = _std(x, depth * kh * kw, gain)
    weight = b.param(f"{name}.weight", lambda: _filters(b, shape, std), shape)
    mean, var = _moments(x, weight, groups)
    inputs: list[Value | str] = [x, f"{name}.weight"]
    if bias:
        mean = _add_bias(b, name, mean, var)
        inputs.append(f"{name}.bias")
    if padding is None:
        padding = (kh // 2 * dilation, kw // 2 * dilation, kh // 2 * dilation, kw // 2 * dilation)
    return b.apply(
        "Conv",
        *inputs,
        mean=mean,
        var=var,
        kernel_shape=[kh, kw],
        strides=list(pair(stride)),
        pads=[padding] * 4 if isinstance(padding, int) else list(padding),
        dilations=[dilation, dilation],
        group=groups,
    )


def conv_transpose(
    b: NetBuilder,
    x: Value,
    name: str,
    channels: int,
    kernel: int,
    stride: int,
    padding: int,
    **attributes: Any,
) -> Value:
    """Transposed convolution; weights `(x.channels, channels, kernel, kernel)`, and a bias."""
    taps = (kernel / stride) ** 2  # of the kernel that meet in one output, on average
    shape = (x.channels, channels, kernel, kernel)
    std = _std(x, x.channels * taps, 1.0)
    weight = b.param(f"{name}.weight", lambda: b.normal(shape, std), shape)
    mean, var = _moments(x, weight.transpose(1, 0, 2, 3), 1)
    share = taps / kernel**2
    mean = _add_bias(b, name, mean * share, var * share)
    return b.apply(
        "ConvTranspose",
        x,
        f"{name}.weight",
        f"{name}.bias",
        mean=mean,
        var=var * share,
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[padding] * 4,
        **attributes,
    )


def batch_norm(
    b: NetBuilder, x: Value, name: str, *, gain: float = 1.0, epsilon: float = 1e-5
) -> Value:
    """Batch norm at inference, a node of its own: scale, shift, running mean and variance.

    Args:
        b: the network being written.
        x: `(n, c, h, w)`.
        name: prefix of the four weights' names.
        gain: the typical scale; branches that end in an addition use less than one.
        epsilon: added to the variance.
    """
    size = (x.channels,)
    spread = np.sqrt(x.var)

    def weight(suffix: str, drawn: Any) -> FloatArray:
        return b.param(f"{name}.{suffix}", lambda: drawn, size)

    scale = weight("weight", b.uniform(0.8 * gain, 1.2 * gain, x.channels))
    shift = weight("bias", b.normal(size, 0.2 * gain))
    mean = weight("running_mean", x.mean + 0.1 * spread * b.normal(size, 1.0))
    var = weight("running_var", x.var * b.uniform(0.6, 1.4, x.channels))
    slope = scale / np.sqrt(var + epsilon)
    return b.apply(
        "BatchNormalization",
        x,
        *(f"{name}.{suffix}" for suffix in ("weight", "bias", "running_mean", "running_var")),
        mean=shift + slope * (x.mean - mean),
        var=np.square(slope) * x.var,
        epsilon=epsilon,
    )


def linear(b: NetBuilder, x: Value, name: str, features: int, *, std: float = 1.0) -> Value:
    """Fully connected layer on `(n, c)`; weights `(features, c)` as torch keeps them, and a bias.

    Args:
        b: the network being written.
        x: `(n, c)`.
        name: prefix of the weights' names.
        features: outputs.
        std: the spread its output shall have.
    """
    shape = (features, x.channels)
    spread = _std(x, x.channels, std**2)
    weight = b.param(f"{name}.weight", lambda: b.normal(shape, spread), shape)
    doubted = (x.var + _DOUBT * np.square(x.mean)).astype(np.float32)
    mean = np.einsum("oi,i->o", weight, x.mean.astype(np.float32)).astype(np.float64)
    var = np.einsum("oi,oi,i->o", weight, weight, doubted).astype(np.float64)  # no copy of 400 MB
    mean = _add_bias(b, name, mean, var)
    return b.apply("Gemm", x, f"{name}.weight", f"{name}.bias", mean=mean, var=var, transB=1)
