"""The gradient of a convolution's weights as a node; that of its data is a convolution, too."""

from __future__ import annotations

import math

import numpy as np

from leanconv.errors import ModelError
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
    required,
    same_dtype,
)
from leanconv.graph.ops.conv import behind, check_window, window_extent, window_steps
from leanconv.spec.typical import representative

_BATCH = 8  # for which a way is chosen that serves all


def gradient_shape(attributes: Attributes, x: TensorType, dy: TensorType) -> tuple[int, ...]:
    """The shape (K, C / g, kernel…) of the weights whose gradient a ConvWeightGradient is."""
    return dy.shape[1], x.shape[1] // attributes["group"], *attributes["kernel_shape"]


def _infer_weights(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    x, dy = first(types), required(types, 1)
    check_rank(x, 3, 5)
    spatial, kernel, group = len(x.shape) - 2, attributes["kernel_shape"], attributes["group"]
    check_window(attributes, spatial)
    if len(kernel) != spatial or min(kernel) < 1:
        raise ModelError(f"kernel_shape is {kernel}; expected {spatial} extents of at least 1")
    if len(dy.shape) != len(x.shape) or dy.shape[0] != x.shape[0]:
        raise ModelError(
            f"the gradient is {dy} and the input {x}; expected equal ranks and batches"
        )
    if group < 1 or x.shape[1] % group or dy.shape[1] % group:
        raise ModelError(
            f"attribute group is {group} with input {x} and gradient {dy}; expected a positive "
            "divisor of both numbers of channels"
        )
    axes = zip(x.shape[2:], kernel, window_steps(attributes), dy.shape[2:], strict=True)
    for extent, taps, steps, given in axes:
        most = window_extent(extent, taps, *steps, False)
        if given > most:
            raise ModelError(
                f"the gradient is {dy}, with {given} outputs of an input of extent {extent}; "
                f"expected at most {most}"
            )
    rows, inputs, *taps_of = gradient_shape(attributes, x, dy)
    dtype = same_dtype(types)
    found = checked((rows, inputs * math.prod(taps_of)), dtype)
    return (found, checked((rows,), dtype)) if attributes["with_bias"] else (found,)


def _fitting(types: Types, attributes: Attributes) -> Types:
    """The types of images and of as many gradients as they have outputs; one batch for all."""
    x, dy = first(types), required(types, 1)
    axes = zip(x.shape[2:], attributes["kernel_shape"], window_steps(attributes), strict=True)
    out = [window_extent(extent, taps, *steps, False) for extent, taps, steps in axes]
    batch = representative(_BATCH, 0)
    images = TensorType((batch, *x.shape[1:]), x.dtype)
    return [images, TensorType((batch, dy.shape[1], *out), dy.dtype)]


def _evaluate_weights(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    """A matrix product per group for each tap; the sums of dy."""
    x, dy = array(arrays), array(arrays, 1)
    spatial, group, out = x.ndim - 2, attributes["group"], dy.shape[2:]
    strides, dilations, pads = (attributes[n] for n in ("strides", "dilations", "pads"))
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:], strict=True)])
    padded = padded.reshape(x.shape[0], group, -1, *padded.shape[2:])
    factors = dy.reshape(x.shape[0], group, -1, math.prod(out))
    kernel = attributes["kernel_shape"]
    dw = np.zeros((group, factors.shape[2], padded.shape[2], *kernel), x.dtype)
    for tap in np.ndindex(*kernel):
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, out, strides, strict=True)
        )
        columns = padded[behind(window)].reshape(*padded.shape[:3], -1)
        dw[behind(tap)] = np.matmul(factors, columns.swapaxes(2, 3)).sum(axis=0)
    rows = dw.reshape(dy.shape[1], -1)
    return (rows, dy.sum(axis=(0, *range(2, dy.ndim)))) if attributes["with_bias"] else (rows,)


def _work_weights(types: Types, attributes: Attributes, results: tuple[TensorType, ...]) -> int:
    """Multiply-adds of all sums, padding counted."""
    del attributes
    dy = required(types, 1)
    return results[0].shape[1] * dy.elements


OPS: dict[str, Op] = {
    "ConvWeightGradient": Op(
        _infer_weights,
        _evaluate_weights,
        "x (N, C, spatial), dy (N, O, spatial); rows (O, C/group * taps) of a Conv's weights, its "
        "bias (O,) if with_bias",
        ("strides", "pads", "dilations", "group", "kernel_shape", "with_bias"),
        _work_weights,
        convolves=True,
        fitting=_fitting,
    ),
}
