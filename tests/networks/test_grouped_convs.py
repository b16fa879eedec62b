"""Grouped convolutions between others, whose groups fill blocks of channels on one side or none."""

from __future__ import annotations

import pytest
from onnx import helper

import leanconv as lc
from support.errors import relative_error
from support.network_models import by_numpy, images, small, weights

GROUPS = 2
node = helper.make_node


# Blocks have 4 to 16 channels: 16 fills all of them, 12 only the smallest, 10 none.
@pytest.mark.parametrize("outputs", [10, 12, 16])
@pytest.mark.parametrize("inputs", [10, 12, 16])
def test_groups_beside_blocks(inputs: int, outputs: int) -> None:
    held = {
        "w0": weights(GROUPS * inputs, 3, 3, 3, seed=1),
        "w1": weights(GROUPS * outputs, inputs, 3, 3, seed=2) / 12,
        "w2": weights(7, GROUPS * outputs, 1, 1, seed=3) / 4,
    }
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w1"], ["c"], pads=[1] * 4, group=GROUPS),
        node("Relu", ["c"], ["d"]),
        node("Conv", ["d", "w2"], ["y"]),
    ]
    shape = (1, 3, 13, 11)
    data = small(nodes, {"x": shape}, {"y": (1, 7, 13, 11)}, held)
    x = images(data, 1)
    found = lc.load(data, threads=1)(x)
    assert relative_error(found, by_numpy(data, {"x": x})["y"]) < 1e-5


@pytest.mark.parametrize("kernel", [(1, 1), (2, 3)])
def test_transposed_groups_have_phases_without_a_tap_in_blocks_too(kernel: tuple[int, int]) -> None:
    held = {
        "w0": weights(GROUPS * 16, 3, 3, 3, seed=1),
        "w1": weights(GROUPS * 16, 16, *kernel, seed=2) / 12,
        "w2": weights(7, GROUPS * 16, 1, 1, seed=3) / 4,
    }
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        node("ConvTranspose", ["a", "w1"], ["b"], strides=[3, 3], group=GROUPS),
        node("Conv", ["b", "w2"], ["y"]),
    ]
    size = (8 * 3 + kernel[0], 7 * 3 + kernel[1])
    data = small(nodes, {"x": (1, 3, 9, 8)}, {"y": (1, 7, *size)}, held)
    x = images(data, 1)
    found = lc.load(data, threads=1)(x)
    assert relative_error(found, by_numpy(data, {"x": x})["y"]) < 1e-5
