"""MobileNetV2 in NumPy and float64, straight from the paper: what outputs are compared with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from examples.report.formats import Topology

Array = NDArray[np.float64]


def _windows(x: Array, stride: int) -> Array:
    """Return the 3x3 windows of an image padded by one: `(c, h, w)` to `(c, oh, ow, 3, 3)`."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    return sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::stride, ::stride]


def _relu6(x: Array) -> Array:
    return np.clip(x, 0.0, 6.0)


def forward(params: Mapping[str, Array], topology: Topology, image: Array) -> Array:
    """Return the logits of one image.

    Args:
        params: weights with batch norm folded, by name.
        topology: the network.
        image: float64 `(3, h, w)`.
    """

    def bias(name: str) -> Array:
        return params[f"{name}.conv.bias"][:, None, None]

    def pointwise(y: Array, name: str) -> Array:
        return np.tensordot(params[f"{name}.conv.weight"][:, :, 0, 0], y, 1) + bias(name)

    stem = np.tensordot(params["stem.conv.weight"], _windows(image, 2), ((1, 2, 3), (0, 3, 4)))
    x = _relu6(stem + bias("stem"))
    index = 0
    for expansion, channels, blocks, first_stride in topology.stages:
        for block in range(blocks):
            name, stride = f"blocks.{index}", first_stride if block == 0 else 1
            y = x if expansion == 1 else _relu6(pointwise(x, f"{name}.expand"))
            taps = params[f"{name}.depthwise.conv.weight"][:, 0]
            y = np.einsum("chwij,cij->chw", _windows(y, stride), taps)
            y = pointwise(_relu6(y + bias(f"{name}.depthwise")), f"{name}.project")
            x = x + y if stride == 1 and x.shape[0] == channels else y
            index += 1
    features = _relu6(pointwise(x, "head")).mean(axis=(1, 2))
    logits: Array = params["classifier.weight"] @ features + params["classifier.bias"]
    return logits
