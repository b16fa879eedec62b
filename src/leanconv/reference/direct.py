"""Direct convolution: the seven loops as they are written, and the oracle of every test.

Thesis, algorithm 1:  O[i][j][m][n] += I[i][r][m·s + u][n·s + v] × F[j][r][u][v]

The document has one stride for both axes; here height and width have their own.

Activations are as their formulas read, in float64: the last step of the oracle.

Other references reduce strides (`polyphase`) and large kernels (`split_kernel`) to what they take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from leanconv.records import replace
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.activation import KINDS
from leanconv.spec.conv import output_extent
from leanconv.spec.format import ceil_div


def activate(
    y: np.ndarray, activation: Activation | None, slope: np.ndarray | None = None
) -> np.ndarray:
    """Apply an activation element by element.

    Args:
        y: sums, integers or float64.
        activation: to apply, or None.
        slope: for "prelu": an array that broadcasts against y.

    Returns:
        The result. Integers stay integers under "relu" and under "clip" with whole bounds.
    """
    if activation is None:
        return y
    if activation.affine:
        factor, summand = activation.affine
        return activate(y, replace(activation, affine=()), slope) * factor + summand
    numbers = activation.parameters
    if activation.kind == "relu":
        return np.asarray(np.maximum(y, 0))
    if activation.kind == "clip" and all(float(n).is_integer() for n in numbers):
        low, high = (y.dtype.type(n) for n in numbers)
        return np.asarray(np.minimum(np.maximum(y, low), high))
    if activation.kind == "prelu":
        if slope is None:
            raise ValueError("activation 'prelu' needs slope; expected an array that fits y")
        return np.asarray(np.where(y >= 0, y, y * slope))
    return np.asarray(KINDS[activation.kind].formula(np, y.astype(np.float64), *numbers))


def finish(
    y: np.ndarray,
    activation: Activation | None,
    slope: np.ndarray | None,
    residual: np.ndarray | None,
) -> np.ndarray:
    """Add a residual and apply an activation, in the order that this one says.

    Args:
        y, activation, slope: as for `activate`.
        residual: of the shape of y, or None.
    """
    if residual is None:
        return activate(y, activation, slope)
    if activation is not None and activation.before_residual:
        return np.asarray(activate(y, activation, slope) + residual)
    return activate(y + residual, activation, slope)


Steps = tuple[int, int]  # along height and width


def output_extents(x: np.ndarray, w: np.ndarray, stride: Steps) -> tuple[int, int]:
    """Output height and width of a convolution without padding (MEC eq. 1).

    Raises:
        ValueError: channels do not agree, or the kernel does not fit.
    """
    if x.ndim != 4 or w.ndim != 4 or x.shape[1] != w.shape[1]:
        raise ValueError(f"x is {x.shape} and w {w.shape}; expected (N, C, H, W), (K, C, kh, kw)")
    oh = output_extent(x.shape[2], w.shape[2], stride[0], 1, 0)
    ow = output_extent(x.shape[3], w.shape[3], stride[1], 1, 0)
    if oh < 1 or ow < 1:
        raise ValueError(f"w is {w.shape}; expected a kernel that fits the input {x.shape}")
    return oh, ow


def result_dtype(*arrays: np.ndarray) -> np.dtype:
    """int64 if every array holds integers, else float64, or wider if an array is."""
    if all(np.issubdtype(a.dtype, np.integer) for a in arrays):
        return np.dtype(np.int64)
    return np.result_type(np.float64, *arrays)


def seven_loops(x: np.ndarray, w: np.ndarray, stride: Steps = (1, 1)) -> np.ndarray:
    """Convolve by the seven loops of algorithm 1, one product at a time.

    Args:
        x: input (N, C, H, W), padding already applied.
        w: filters (K, C, kh, kw).
        stride: (sh, sw).

    Returns:
        (N, K, oh, ow), in float64 or in int64.
    """
    sh, sw = stride
    oh, ow = output_extents(x, w, stride)
    dtype = result_dtype(x, w)
    x, w = x.astype(dtype), w.astype(dtype)
    y = np.zeros((x.shape[0], w.shape[0], oh, ow), dtype)
    for i in range(x.shape[0]):
        for j in range(w.shape[0]):
            for m in range(oh):
                for n in range(ow):
                    for r in range(w.shape[1]):
                        for u in range(w.shape[2]):
                            for v in range(w.shape[3]):
                                y[i, j, m, n] += x[i, r, m * sh + u, n * sw + v] * w[j, r, u, v]
    return y


def convolve(
    spec: ConvSpec,
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    slope: np.ndarray | None = None,
) -> np.ndarray:
    """Compute any convolution that a spec describes: the oracle.

    One product of matrices for each tap: y += w[…, tap] · x[…, every window's element at the tap].

    Args:
        spec: of the convolution.
        x: of `spec.input_shape`.
        w: of `spec.weight_shape`.
        bias, slope: (K,), where the spec has them.
        residual: of `spec.output_shape`, where the spec has one.

    Returns:
        y of `spec.output_shape`: in int64, exact, if all arrays are integers, else in float64
        (or a wider kind that an array has).

    Raises:
        ValueError: an array has another shape than the spec says.
    """
    _check(spec, x, w, bias, residual, slope)
    dtype = result_dtype(*(a for a in (x, w, bias, residual) if a is not None))
    padded = np.pad(
        channels_first(spec, x).astype(dtype),
        ((0, 0), (0, 0), *zip(spec.pad_begin, spec.pad_end, strict=True)),
    )
    out, groups = spec.output_size, spec.groups
    outputs, inputs = spec.out_channels // groups, spec.in_channels // groups
    filters = w.astype(dtype).reshape(groups, outputs, inputs, *spec.kernel)
    y = np.zeros((spec.batch, groups, outputs, prod(out)), dtype)
    for tap in product(*(range(k) for k in spec.kernel)):
        places = (slice(None), slice(None), *_positions(spec, tap))
        windows = padded[places].reshape(spec.batch, groups, inputs, prod(out))
        here: Any = (..., *tap)
        y += filters[here] @ windows
    y = y.reshape(spec.batch, spec.out_channels, *out)
    per_channel = (1, -1, *(1 for _ in out))
    if bias is not None:
        y = y + bias.astype(dtype).reshape(per_channel)
    slopes = None if slope is None else slope.reshape(per_channel)
    added = None if residual is None else channels_first(spec, residual).astype(dtype)
    y = finish(y, spec.activation, slopes, added)
    return channels_back(spec, y)


def _positions(spec: ConvSpec, tap: tuple[int, ...]) -> tuple[slice, ...]:
    """Along each axis, where the windows have this tap in the padded input."""
    axes = zip(tap, spec.dilation, spec.stride, spec.output_size, strict=True)
    return tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in axes)


def channels_first(spec: ConvSpec, x: np.ndarray) -> np.ndarray:
    """View an array in the spec's layout as (N, C, spatial…)."""
    return x if spec.layout == "NCHW" else np.moveaxis(x, -1, 1)


def channels_back(spec: ConvSpec, y: np.ndarray) -> np.ndarray:
    """Turn (N, C, spatial…) into the spec's layout."""
    return np.ascontiguousarray(y if spec.layout == "NCHW" else np.moveaxis(y, 1, -1))


def _check(
    spec: ConvSpec,
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    residual: np.ndarray | None,
    slope: np.ndarray | None,
) -> None:
    channels = (spec.out_channels,)
    wants_slope = spec.activation is not None and spec.activation.kind == "prelu"
    for label, array, shape in (
        ("x", x, spec.input_shape),
        ("w", w, spec.weight_shape),
        ("bias", bias, channels if spec.bias else None),
        ("residual", residual, spec.output_shape if spec.residual else None),
        ("slope", slope, channels if wants_slope else None),
    ):
        got = None if array is None else array.shape
        if got != shape:
            raise ValueError(f"{spec}: {label} has shape {got}; expected {shape}")


# -- strides and large kernels by dense convolutions of few taps ----------------------------------
# x (N, C, H, W), w (K, C, kh, kw) -> y (N, K, oh, ow), with stride 1
DenseCore = Callable[[np.ndarray, np.ndarray], np.ndarray]


def polyphase(core: DenseCore, x: np.ndarray, w: np.ndarray, stride: Steps) -> np.ndarray:
    """Strides by polyphase: O = Σ_{p < min(s, k)} Σ_q conv(I[p::s, q::s], F[p::s, q::s]), cropped.

    The 3 taps of a stride of 2 become phases of 2 and 1 taps; 11 taps of stride 4: 3, 3, 3, 2.
    """
    (sh, sw), (oh, ow) = stride, output_extents(x, w, stride)
    total = np.zeros((x.shape[0], w.shape[0], oh, ow), result_dtype(x, w))
    for p in range(min(sh, w.shape[2])):
        for q in range(min(sw, w.shape[3])):
            part = core(x[:, :, p::sh, q::sw], w[:, :, p::sh, q::sw])
            total += part[:, :, :oh, :ow]
    return total


def split_kernel(core: DenseCore, x: np.ndarray, w: np.ndarray, most: int) -> np.ndarray:
    """Large kernels by pieces of at most `most` taps along each axis, of nearly equal size."""
    oh, ow = output_extents(x, w, (1, 1))
    total = np.zeros((x.shape[0], w.shape[0], oh, ow), result_dtype(x, w))
    for u, kh in _pieces(w.shape[2], most):
        for v, kw in _pieces(w.shape[3], most):
            region = x[:, :, u : u + oh + kh - 1, v : v + ow + kw - 1]
            total += core(region, w[:, :, u : u + kh, v : v + kw])
    return total


def _pieces(taps: int, most: int) -> Iterator[tuple[int, int]]:
    """First tap and number of taps of each piece."""
    count = ceil_div(taps, most)
    for number in range(count):
        first, stop = taps * number // count, taps * (number + 1) // count
        yield first, stop - first
