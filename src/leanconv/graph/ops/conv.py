"""Conv and ConvTranspose: extents of windows, shapes, and their value one kernel tap at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import (
    Array,
    Arrays,
    Op,
    Types,
    array,
    check_rank,
    checked,
    first,
    given,
    required,
    same_dtype,
    single,
)
from leanconv.graph.ops.pointwise import activate
from leanconv.spec.activation import Activation
from leanconv.spec.conv import effective_extent, output_extent, transposed_reach
from leanconv.types import DType

MAX_STEP = (1 << 31) - 1


def window_steps(attributes: Attributes) -> list[tuple[int, int, int, int]]:
    """Stride, dilation, padding before and after of each spatial axis; see `check_window`."""
    pads, spatial = attributes["pads"], len(attributes["strides"])
    ends = (pads[:spatial], pads[spatial:])
    return list(zip(attributes["strides"], attributes["dilations"], *ends, strict=True))


def window_extent(
    extent: int, kernel: int, stride: int, dilation: int, before: int, after: int, ceil: bool
) -> int:
    """Return the number of windows that fit along one axis.

    With `ceil` a last, partly empty window counts as well, be it the only one, unless it would
    begin in the padding behind the input (the rule of PyTorch and of ONNX since opset 22).

    Raises:
        ModelError: not even one window fits.
    """
    count = output_extent(extent, kernel, stride, dilation, before + after)
    if ceil:
        covered = (count - 1) * stride + effective_extent(kernel, dilation)
        if covered < extent + before + after and count * stride < extent + before:
            count += 1
    if count < 1:
        raise ModelError(
            f"a kernel of extent {kernel} (dilation {dilation}) does not fit an input of extent "
            f"{extent} padded by {before} and {after}; bind a larger input"
        )
    return count


def transposed_extent(
    extent: int, kernel: int, stride: int, dilation: int, before: int, after: int, extra: int
) -> int:
    """Return the output extent of a transposed convolution along one axis.

    Raises:
        ModelError: the padding leaves nothing.
    """
    count = transposed_reach(extent, kernel, stride, dilation, extra) - before - after
    if count < 1:
        raise ModelError(
            f"a transposed convolution of an input of extent {extent} (kernel {kernel}, stride "
            f"{stride}) cut by {before} and {after} leaves an extent of {count}; expected at "
            "least 1; bind a larger input"
        )
    return count


def same_padding(
    extent: int, kernel: int, stride: int, dilation: int, upper: bool
) -> tuple[int, int]:
    """Return the padding before and after that makes ceil(extent / stride) windows.

    With `upper` the odd one comes after the input (SAME_UPPER), otherwise before it.
    """
    windows = -(-extent // stride)
    total = max((windows - 1) * stride + effective_extent(kernel, dilation) - extent, 0)
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def check_window(attributes: Attributes, spatial: int) -> None:
    """Raise unless strides, dilations and pads are sound for that many spatial axes."""
    for name, count, least in (
        ("strides", spatial, 1),
        ("dilations", spatial, 1),
        ("pads", 2 * spatial, 0),
    ):
        numbers = attributes[name]
        if len(numbers) != count or any(not least <= n <= MAX_STEP for n in numbers):
            raise ModelError(
                f"attribute {name} is {numbers}; expected {count} integers from {least} to "
                f"{MAX_STEP} for an input with {spatial} spatial axes"
            )


def _check_operands(types: Types, attributes: Attributes, channels_axis: int) -> int:
    """Check what Conv and ConvTranspose share; return the number of output channels."""
    x, w = first(types), required(types, 1)
    check_rank(x, 3, 5)
    if len(w.shape) != len(x.shape):
        raise ModelError(
            f"the weight is {w}, of rank {len(w.shape)}, and the input {x}, of rank "
            f"{len(x.shape)}; expected equal ranks"
        )
    check_window(attributes, len(x.shape) - 2)
    group = attributes["group"]
    if not 1 <= group <= max(w.shape[0], 1) or w.shape[0] % group or x.shape[1] % group:
        raise ModelError(
            f"attribute group is {group} with input {x} and weight {w}; expected a positive "
            "divisor of the channels"
        )
    if min(w.shape) < 1:
        kind = ModelError if min(w.shape[2:]) < 1 else UnsupportedError
        raise kind(f"the weight is {w}; expected extents of at least 1")
    channels = w.shape[1] * (group if channels_axis == 1 else 1)
    expected = channels if channels_axis == 1 else w.shape[0]
    if x.shape[1] != expected:
        raise ModelError(
            f"the input is {x} and the weight {w} with group {group}; expected an input of "
            f"{expected} channels"
        )
    return w.shape[0] if channels_axis == 1 else w.shape[1] * group


def check_channels(kind: TensorType | None, channels: int, what: str) -> None:
    """Raise unless an optional operand has one number for each channel."""
    if kind is not None and kind.shape != (channels,):
        raise ModelError(f"{what} is {kind}; expected one number for each of {channels} channels")


def _check_slope(types: Types, attributes: Attributes, index: int, channels: int) -> None:
    activation: Activation | None = attributes["activation"]
    slope = given(types, index)
    if (activation is not None and activation.kind == "prelu") != (slope is not None):
        raise ModelError(
            f"got {'a' if slope else 'no'} slope for the activation {activation}; expected one for "
            "prelu only"
        )
    check_channels(slope, channels, "the slope")


def conv_type(types: Types, attributes: Attributes, dtype: DType) -> TensorType:
    """The type of a convolution's result, if x, w and bias fit each other and the attributes."""
    channels = _check_operands(types, attributes, 1)
    x, w = first(types), required(types, 1)
    axes = zip(x.shape[2:], w.shape[2:], window_steps(attributes), strict=True)
    extents = [window_extent(extent, kernel, *steps, False) for extent, kernel, steps in axes]
    check_channels(given(types, 2), channels, "the bias")
    return checked((x.shape[0], channels, *extents), dtype)


def _infer_conv(types: Types, attributes: Attributes) -> TensorType:
    result = conv_type(types, attributes, same_dtype(types))
    channels = result.shape[1]
    residual = given(types, 3)
    if residual is not None and residual.shape != result.shape:
        raise ModelError(f"the residual is {residual}; expected {result}")
    _check_slope(types, attributes, 4, channels)
    return result


def _epilogue(y: Array, arrays: Arrays, attributes: Attributes, residual: int, slope: int) -> Array:
    bias, added = given(arrays, 2), given(arrays, residual) if residual else None
    if bias is not None:
        y = y + bias.reshape((-1,) + (1,) * (y.ndim - 2))
    activation, slopes = attributes["activation"], given(arrays, slope)
    if added is None:
        return activate(y, activation, slopes)
    if activation is not None and activation.before_residual:
        return np.asarray(activate(y, activation, slopes) + added)
    return activate(y + added, activation, slopes)


def behind(index: tuple[Any, ...]) -> Any:
    """An index of the last axes."""
    return (Ellipsis, *index)


def _evaluate_conv(arrays: Arrays, attributes: Attributes) -> Array:
    y = sums_over_taps(array(arrays), array(arrays, 1), attributes)
    return _epilogue(y, arrays, attributes, 3, 4)


def sums_over_taps(x: Array, w: Array, attributes: Attributes) -> Array:
    """The sums of a convolution in the type of x and w: for each tap a matrix product per group."""
    spatial, group = x.ndim - 2, attributes["group"]
    strides, dilations, pads = (attributes[n] for n in ("strides", "dilations", "pads"))
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:], strict=True)])
    padded = padded.reshape(x.shape[0], group, w.shape[1], *padded.shape[2:])
    kernel = w.shape[2:]
    extents = [
        output_extent(padded.shape[3 + i], kernel[i], strides[i], dilations[i], 0)
        for i in range(spatial)
    ]
    weights = w.reshape(group, w.shape[0] // group, w.shape[1], *kernel)
    area = math.prod(extents)
    y = np.zeros((x.shape[0], group, weights.shape[1], area), x.dtype)
    for tap in np.ndindex(*kernel):
        window = tuple(
            slice(t * d, t * d + n * s, s)
            for t, d, n, s in zip(tap, dilations, extents, strides, strict=True)
        )
        columns = padded[behind(window)].reshape(*padded.shape[:3], area)
        rows = weights[behind(tap)]
        y += rows * columns if w.shape[1] == 1 else np.matmul(rows, columns)
    return y.reshape(x.shape[0], w.shape[0], *extents)


def transposed_type(types: Types, attributes: Attributes, dtype: DType) -> TensorType:
    """The type of a transposed convolution's result, as `conv_type`."""
    channels = _check_operands(types, attributes, 0)
    x, w = first(types), required(types, 1)
    spatial = len(x.shape) - 2
    extra = attributes["output_padding"]
    if len(extra) != spatial or any(not 0 <= n <= MAX_STEP for n in extra):
        raise ModelError(
            f"attribute output_padding is {extra}; expected {spatial} integers of at least 0"
        )
    axes = zip(x.shape[2:], w.shape[2:], window_steps(attributes), extra, strict=True)
    extents = [transposed_extent(extent, kernel, *steps, n) for extent, kernel, steps, n in axes]
    check_channels(given(types, 2), channels, "the bias")
    return checked((x.shape[0], channels, *extents), dtype)


def _infer_transposed(types: Types, attributes: Attributes) -> TensorType:
    result = transposed_type(types, attributes, same_dtype(types))
    _check_slope(types, attributes, 4, result.shape[1])
    if given(types, 3) is not None:
        raise ModelError("got a residual as input 3 of ConvTranspose; expected none")
    return result


def _evaluate_transposed(arrays: Arrays, attributes: Attributes) -> Array:
    y = _sums_at_taps(array(arrays), array(arrays, 1), attributes)
    return _epilogue(y, arrays, attributes, 0, 4)


def _sums_at_taps(x: Array, w: Array, attributes: Attributes) -> Array:
    """Add, for every tap of the kernel, the product of its weights to the cells it reaches."""
    spatial, group = x.ndim - 2, attributes["group"]
    strides, dilations, pads = (attributes[n] for n in ("strides", "dilations", "pads"))
    inner, kernel = x.shape[2:], w.shape[2:]
    full = [
        transposed_extent(
            inner[i], kernel[i], strides[i], dilations[i], 0, 0, attributes["output_padding"][i]
        )
        for i in range(spatial)
    ]
    columns = x.reshape(x.shape[0], group, x.shape[1] // group, math.prod(inner))
    weights = w.reshape(group, w.shape[0] // group, w.shape[1], *kernel)
    y = np.zeros((x.shape[0], group, w.shape[1], *full), x.dtype)
    for tap in np.ndindex(*kernel):
        cells = tuple(
            slice(t * d, t * d + n * s, s)
            for t, d, n, s in zip(tap, dilations, inner, strides, strict=True)
        )
        product = np.matmul(weights[behind(tap)].swapaxes(1, 2), columns)
        y[behind(cells)] += product.reshape(*y.shape[:3], *inner)
    kept = tuple(
        slice(before, extent - after)
        for before, after, extent in zip(pads[:spatial], pads[spatial:], full, strict=True)
    )
    return np.asarray(y.reshape(x.shape[0], w.shape[1] * group, *full)[behind(kept)])


def unfolded(attributes: Attributes, w: TensorType) -> TensorType:
    """The weights that a convolution by data is given as rows.

    Args:
        attributes: `kernel_shape`, and `taps_first`: whether a row has all channels of a tap, then
            those of the next one.
        w: (K, C / g · taps), of a transposed convolution (C, K / g · taps).

    Returns:
        (K, C / g, kernel…), of a transposed convolution (C, K / g, kernel…).

    Raises:
        ModelError: the rows have other numbers of weights than whole kernels have.
    """
    kernel = attributes["kernel_shape"]
    taps = math.prod(kernel)
    if len(w.shape) != 2 or taps < 1 or w.shape[1] % taps:
        raise ModelError(f"the weight is {w}; expected rows of kernels of {kernel}")
    return TensorType((w.shape[0], w.shape[1] // taps, *kernel), w.dtype)


def unfolded_rows(attributes: Attributes, w: Array) -> Array:
    """The same of weights, as a view of contiguous rows."""
    rows, kernel = np.ascontiguousarray(w), attributes["kernel_shape"]
    if attributes["taps_first"]:
        return np.moveaxis(np.asarray(rows.reshape(len(rows), *kernel, -1)), -1, 1)
    return np.asarray(rows.reshape(len(rows), -1, *kernel))


def _infer_data_conv(types: Types, attributes: Attributes) -> TensorType:
    weights = unfolded(attributes, required(types, 1))
    return conv_type([types[0], weights, *types[2:]], attributes, same_dtype(types))


def _evaluate_data_conv(arrays: Arrays, attributes: Attributes) -> Array:
    w = np.ascontiguousarray(unfolded_rows(attributes, array(arrays, 1)))
    return _with_bias(sums_over_taps(array(arrays), w, attributes), given(arrays, 2))


def _with_bias(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + bias.reshape((-1,) + (1,) * (y.ndim - 2))


def _work_data_conv(types: Types, attributes: Attributes, result: TensorType) -> int:
    weights = unfolded(attributes, required(types, 1))
    return weights.elements + work_conv([types[0], weights], attributes, result)


def _infer_data_transposed(types: Types, attributes: Attributes) -> TensorType:
    weights = unfolded(attributes, required(types, 1))
    return transposed_type([types[0], weights, *types[2:]], attributes, same_dtype(types))


def _evaluate_data_transposed(arrays: Arrays, attributes: Attributes) -> Array:
    w = np.ascontiguousarray(unfolded_rows(attributes, array(arrays, 1)))
    return _with_bias(_sums_at_taps(array(arrays), w, attributes), given(arrays, 2))


def _work_data_transposed(types: Types, attributes: Attributes, result: TensorType) -> int:
    weights = unfolded(attributes, required(types, 1))
    return weights.elements + _work_transposed([types[0], weights], attributes, result)


def _padded_elements(kind: TensorType, attributes: Attributes) -> int:
    axes = zip(kind.shape[2:], window_steps(attributes), strict=True)
    padded = (extent + before + after for extent, (_, _, before, after) in axes)
    return kind.shape[0] * kind.shape[1] * math.prod(padded)


def work_conv(types: Types, attributes: Attributes, result: TensorType) -> int:
    """Multiply-adds of a convolution, padding counted."""
    x, w = first(types), required(types, 1)
    return _padded_elements(x, attributes) + result.elements * math.prod(w.shape[1:])


def _work_transposed(types: Types, attributes: Attributes, result: TensorType) -> int:
    x, w = first(types), required(types, 1)
    return _padded_elements(result, attributes) + x.elements * math.prod(w.shape[1:])


_SHARED = ("strides", "pads", "dilations", "group", "activation")
_OF_DATA = ("strides", "pads", "dilations", "group", "kernel_shape", "taps_first", "exact")
OPS: dict[str, Op] = {
    "Conv": single(
        _infer_conv,
        _evaluate_conv,
        "x (N, C, spatial), w (O, C/group, kernel), bias (O,)?, residual?, slope (O,)?",
        _SHARED,
        work_conv,
        halves="rounded",
        routes="convolution",
        convolves=True,
    ),
    "DataConv": single(
        _infer_data_conv,
        _evaluate_data_conv,
        "x, w (O, C/group * taps), bias (O,)?; a Conv whose weights a run computes",
        _OF_DATA,
        _work_data_conv,
        convolves=True,
    ),
    "DataConvTranspose": single(
        _infer_data_transposed,
        _evaluate_data_transposed,
        "x, w (C, O/group * taps), bias (O,)?; a ConvTranspose whose weights a run computes",
        (*_OF_DATA, "output_padding"),
        _work_data_transposed,
        convolves=True,
    ),
    "ConvTranspose": single(
        _infer_transposed,
        _evaluate_transposed,
        "x, w (C, O/group, kernel), bias (O,)?, absent?, slope (O,)?",
        (*_SHARED, "output_padding"),
        _work_transposed,
        halves="rounded",
        routes="transposed convolution",
        convolves=True,
    ),
}
