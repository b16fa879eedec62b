"""Fit the last layer of a seeded network by least squares; leanconv computes what it reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

import leanconv
from examples.networks.tasks import HEAD, segmenter, text_detector, text_recogniser
from examples.pictures import to_input
from examples.scenes import COLOURS, DIGITS, line_of_digits, page, shapes

Array = NDArray[np.floating]
_RIDGE = 1e-3  # of the mean square of what is fitted to
_MOST_SAMPLES = 40_000
_GAIN = 12.0  # from fitted values, 0 or 1, to what a softmax or sigmoid reads


def fitted(
    build: Callable[..., onnx.ModelProto],
    x: Array,
    truth: NDArray[np.integer],
    outputs: int,
    border: float = 0.5,
) -> onnx.ModelProto:
    """Return a network whose last layer tells the classes of places apart.

    Args:
        build: makes the network, `build(params=…, head=…)`.
        x: inputs (n, c, h, w).
        truth: the class of each place of the features, (n, h', w').
        outputs: channels of the last layer: as many as classes, or 1 for "is class 1".
        border: between no, 0, and yes, 1, where the network says half and half.
    """
    network = leanconv.load(build(head=False), threads=1)
    features = np.moveaxis(network(x), 1, -1).astype(np.float64)
    features, classes = features.reshape(truth.size, -1), truth.ravel()
    if len(features) > _MOST_SAMPLES:
        kept = np.random.default_rng(0).choice(len(features), _MOST_SAMPLES, replace=False)
        features, classes = features[kept], classes[kept]
    features = np.hstack([features, np.ones((len(features), 1))])
    wanted = (classes[:, None] == np.arange(outputs) + (outputs == 1)).astype(np.float64)
    squares = features.T @ features
    ridge = _RIDGE * np.trace(squares) / len(squares) * np.eye(len(squares))
    solved = np.linalg.solve(squares + ridge, features.T @ wanted)
    params = {t.name: numpy_helper.to_array(t) for t in build().graph.initializer if "." in t.name}
    params[f"{HEAD}.weight"] = _GAIN * solved[:-1].T[:, :, None, None]
    params[f"{HEAD}.bias"] = _GAIN * (solved[-1] - border)
    return build(params=params)


def fitted_detector(seed: int = 0) -> onnx.ModelProto:
    """A text detector for `scenes.page`."""
    rng = np.random.default_rng(seed)
    inputs, targets = [], []
    for _ in range(20):
        pixels, boxes, _ = page(rng)
        truth = np.zeros(pixels.shape, np.int64)
        for left, top, right, bottom in boxes:
            truth[top:bottom, left:right] = 1
        inputs.append(to_input(pixels, 1)[0])
        targets.append(truth[2::4, 2::4])
    # Rather too much than a number in two pieces.
    return fitted(text_detector, np.stack(inputs), np.stack(targets), 1, border=0.4)


def fitted_recogniser(seed: int = 0) -> onnx.ModelProto:
    """A recogniser for `scenes.line_of_digits`."""
    rng = np.random.default_rng(seed)
    width = 8 * 18  # eight digits, as wide as they may be
    inputs, targets = [], []
    for _ in range(300):
        text = "".join(rng.choice(list(DIGITS), 8))
        pixels, places = line_of_digits(text, rng)
        steps = np.zeros((1, width // 2), np.int64)
        for letter, (first, last) in zip(text, places, strict=True):
            middle = (first + last) // 4
            steps[0, middle - 1 : middle + 1] = DIGITS.index(letter) + 1
        padded = np.pad(pixels, ((0, 0), (0, width - pixels.shape[1])), mode="edge")
        inputs.append(to_input(padded, 1)[0])
        targets.append(steps)
    return fitted(text_recogniser, np.stack(inputs), np.stack(targets), len(DIGITS) + 1)


def fitted_segmenter(seed: int = 0) -> onnx.ModelProto:
    """A segmenter for `scenes.shapes`."""
    rng = np.random.default_rng(seed)
    drawn = [shapes(rng) for _ in range(8)]
    x = np.concatenate([to_input(pixels, 3) for pixels, _ in drawn])
    return fitted(segmenter, x, np.stack([truth for _, truth in drawn]), len(COLOURS))
