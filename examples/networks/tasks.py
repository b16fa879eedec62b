"""Small networks for tasks other than classification: a text detector, a recogniser, a segmenter.

Their layers have seeded random weights; only the last one, a 1x1 convolution, is fitted to pictures
that `examples.scenes` draws, by least squares (`fitting.py`), in a second or two and without a
framework. Random features and a fitted last layer go a surprisingly long way (Huang et al. 2006,
"Extreme learning machine"); for real pictures take a trained network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from examples.networks.builder import NetBuilder, Value
from examples.networks.layers import activation, concat, pool
from examples.networks.weighted import conv
from examples.scenes import DIGITS

Params = Mapping[str, NDArray[Any]]
HEAD = "head"  # the layer that is fitted
_METADATA = {"input_scale": str(1 / 255), "input_mean": "[0.5]", "input_std": "[0.5]"}


def _relu(b: NetBuilder, x: Value, name: str, channels: int, kernel: int, **options: Any) -> Value:
    return activation(b, conv(b, x, name, channels, kernel, bias=True, **options), "relu")


def _enlarged(b: NetBuilder, x: Value, factor: float, mode: str) -> Value:
    scales = b.constant([1.0, 1.0, factor, factor], np.float32)
    options: dict[str, Any] = {"coordinate_transformation_mode": "half_pixel"}
    if mode == "nearest":
        options = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return b.apply("Resize", x, "", scales, mode=mode, **options)


def _finished(
    b: NetBuilder,
    x: Value,
    outputs: int,
    head: bool,
    end: Callable[[Value], Value],
    shape: list[Any],
    metadata: Mapping[str, str],
) -> onnx.ModelProto:
    """End with the layer that is fitted, or with what it reads."""
    if not head:
        b.output(x, ["N", x.channels, None, None])
        return b.build()
    y = conv(b, x, HEAD, outputs, 1, bias=True)
    b.output(end(y), shape)
    return b.build({**_METADATA, **metadata})


def text_detector(
    *, seed: int = 0, params: Params | None = None, head: bool = True
) -> onnx.ModelProto:
    """A map of where text is, in the form of DB's (arXiv 1911.08947).

    Input (n, 1, height, width), both multiples of 4; output (n, 1, height, width), probabilities.

    Args:
        seed: of the weights.
        params: all weights, by name; drawn if None.
        head: False for the features (n, 120, height / 4, width / 4) that the last layer reads.
    """
    b = NetBuilder("text_detector", seed=seed, params=params)
    x = _relu(b, b.input(1, None), "0", 16, 5, stride=2)
    x = _relu(b, x, "1", 32, 3, stride=2)
    near = _relu(b, x, "2", 24, 3)
    wide = _relu(b, near, "3", 32, 3, dilation=2)
    wider = _relu(b, wide, "4", 64, 3, dilation=3)

    def end(y: Value) -> Value:
        return b.apply("Sigmoid", _enlarged(b, y, 4.0, "linear"))

    return _finished(b, concat(b, [near, wide, wider]), 1, head, end, ["N", 1, "H", "W"], {})


def text_recogniser(
    *, seed: int = 0, params: Params | None = None, head: bool = True
) -> onnx.ModelProto:
    """Letter by letter along a line of digits, for CTC (Graves et al. 2006).

    Input (n, 1, 16, width); output (n, width / 2, 11): probabilities of blank and of the digits,
    which the metadata `character` lists, one on each line.

    Args:
        seed, params: as of `text_detector`.
        head: False for the features (n, 256, 1, width / 2) that the last layer reads.
    """
    b = NetBuilder("text_recogniser", seed=seed, params=params)
    x = pool(b, _relu(b, b.input(1, (16, "W")), "0", 16, 3), "max", 2, 2)  # type: ignore[arg-type]
    x = _relu(b, x, "1", 24, 3)
    x = activation(b, conv(b, x, "2", 256, (8, 9), padding=(0, 4, 0, 4), bias=True), "relu")

    def end(y: Value) -> Value:
        line = b.apply("Squeeze", y, b.constant([2]))
        return b.apply("Softmax", b.apply("Transpose", line, perm=[0, 2, 1]), axis=2)

    classes = len(DIGITS) + 1
    shape = ["N", "T", classes]
    return _finished(b, x, classes, head, end, shape, {"character": "\n".join(DIGITS)})


def segmenter(
    *, classes: int = 4, seed: int = 0, params: Params | None = None, head: bool = True
) -> onnx.ModelProto:
    """A map of classes, by an encoder and a decoder with skips, after U-Net (arXiv 1505.04597).

    Input (n, 3, height, width), both multiples of 4; output (n, classes, height, width), scores.

    Args:
        classes: kinds of pixels.
        seed, params: as of `text_detector`.
        head: False for the features (n, 48, height, width) that the last layer reads.
    """
    b = NetBuilder("segmenter", seed=seed, params=params)
    full = _relu(b, b.input(3, None), "down.0", 16, 3)
    half = _relu(b, full, "down.1", 24, 3, stride=2)
    deep = _relu(b, _relu(b, half, "down.2", 32, 3, stride=2), "middle", 32, 3, dilation=2)
    y = _relu(b, concat(b, [_enlarged(b, deep, 2.0, "nearest"), half]), "up.1", 32, 3)
    y = concat(b, [_enlarged(b, y, 2.0, "linear"), full])
    return _finished(b, y, classes, head, lambda z: z, ["N", classes, "H", "W"], {})
