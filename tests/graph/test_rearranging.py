"""Crops, reversals, columns and pooled cells put back, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import ModelError, UnsupportedError
from support.import_cases import Numbers
from support.onnx_models import Const, agree, imported, ints, model, reference, single

N = Numbers(7)
X = N.normal(2, 5, 6, 7)


def check(op: str, operands: list[Any], opset: int, **attributes: Any) -> None:
    """The graph, and what is compiled."""
    proto, given = single(op, operands, opset, **attributes)
    for value in proto.graph.input:
        if given[value.name].dtype == np.int64:
            value.type.tensor_type.elem_type = 7
    agree(proto, given)
    found, wanted = lc.load(proto, threads=1).run(given)["out0"], reference(proto, given)["out0"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 5, 6, 7), (3, 4, 9, 2), (1, 8, 3, 7), (2, 5, 1, 12)])
def test_center_crop_pad(shape: tuple[int, ...]) -> None:
    check("CenterCropPad", [X, ints(*shape)], 18)
    check("CenterCropPad", [X, ints(*shape[:1:-1])], 18, axes=[-1, 2])


@pytest.mark.parametrize("time", [0, 1])
def test_reverse_sequence(time: int) -> None:
    lengths = np.array([4, 1, 3, 2, 4])
    x = N.normal(4, 5, 3) if time == 0 else N.normal(5, 4, 3)
    for own in (x, x[:, :, 0].copy()):
        check("ReverseSequence", [own, lengths], 10, time_axis=time, batch_axis=1 - time)


@pytest.mark.parametrize(
    ("image", "kernel", "attributes"),
    [
        ((5, 6), (2, 3), {}),
        ((7, 9), (3, 3), {"strides": [2, 3], "pads": [1, 0, 1, 0]}),
        ((9, 8), (2, 3), {"dilations": [2, 1], "pads": [0, 1, 2, 1], "strides": [1, 2]}),
        ((8,), (3,), {"strides": [2]}),
        ((4, 5, 3), (2, 2, 1), {}),
    ],
)
def test_columns_to_images(
    image: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    axes, windows = len(image), 1
    pads = attributes.get("pads", [0] * (2 * axes))
    for i in range(axes):
        reach = (kernel[i] - 1) * attributes.get("dilations", [1] * axes)[i] + 1
        free = image[i] + pads[i] + pads[axes + i] - reach
        windows *= free // attributes.get("strides", [1] * axes)[i] + 1
    x = N.normal(2, 3 * int(np.prod(kernel)), windows)
    check("Col2Im", [x, ints(*image), ints(*kernel)], 18, **attributes)


@pytest.mark.parametrize("size", [[], [12, 14], [11, 13]])
def test_a_pool_undone(size: list[int]) -> None:
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a", "places"], **pool),
        helper.make_node("MaxUnpool", ["a", "places", "size"][: 3 if size else 2], ["y"], **pool),
    ]
    held = {"size": np.array([2, 3, *size])} if size else {}
    proto = model(nodes, {"x": (2, 3, 10, 12)}, ["y"], held, 18)
    x = N.normal(2, 3, 10, 12)
    kept = x.reshape(2, 3, 5, 2, 6, 2).max(axis=(3, 5)).repeat(2, axis=2).repeat(2, axis=3)
    wanted = np.where(kept == x, x, 0)
    for found in (imported(proto, {"x": x})["y"], lc.load(proto, threads=1).run({"x": x})["y"]):
        assert found.shape == (2, 3, *(size or (10, 12)))
        np.testing.assert_array_equal(found[:, :, :10, :12], wanted)
        assert not found[:, :, 10:].any()


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "message"),
    [
        ("CenterCropPad", [X, ints(1, 2)], {}, "an extent for each"),
        ("ReverseSequence", [X, Const(np.array([1, 2]))], {}, "a length for each"),
        ("ReverseSequence", [X, Const(np.arange(5))], {"batch_axis": 2}, "axes 0 and 1"),
        ("ReverseSequence", [X, Const(np.arange(5))], {}, "length 4; expected at most 2 steps"),
        ("Col2Im", [X[0], ints(5, 5), ints(2, 2)], {}, "whole windows"),
        ("Col2Im", [X[0, :4], ints(5, 5), ints(2, 2)], {"strides": [0, 1]}, "2 numbers from 1"),
        ("Col2Im", [N.normal(1, 4, 7), ints(5, 5), ints(2, 2)], {}, "one for each"),
        ("MaxUnpool", [X, Const(np.zeros((2, 5), int))], {"kernel_shape": [2, 2]}, "a place"),
    ],
)
def test_refusals(op: str, operands: list[Any], attributes: dict[str, Any], message: str) -> None:
    proto, given = single(op, operands, 18, **attributes)
    with pytest.raises((ModelError, UnsupportedError), match=f"{op}.*{message}"):
        lc.load(proto, threads=1).run(given)
