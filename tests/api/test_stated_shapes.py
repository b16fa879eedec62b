"""Networks for shapes that the user states: planned as if their files fixed them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import InputError
from support.onnx_models import model

SHAPE = (1, 8, 12, 20)


def network(*shape: Any) -> bytes:
    """Two layers, then a mean that any size has."""
    w = np.random.default_rng(0).standard_normal((8, 8, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Conv", ["a", "w"], ["b"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["b"], ["y"]),
    ]
    return bytes(model(nodes, {"x": shape}, ["y"], {"w": w}).SerializeToString())


def x_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def test_numbers_give_the_plan_of_a_file_that_fixes_them(tmp_path: Path) -> None:
    fixed = lc.load(network(*SHAPE), threads=1)
    open_ = lc.load(network("N", 8, "H", "W"), threads=1)
    assert open_.outputs[0].shape != (1, 8, 1, 1)
    path = tmp_path / "plan.json"
    fixed.plan.save(path)
    given = network("N", 8, "H", "W")
    for other in (
        open_.specialise(SHAPE),
        open_.specialise({"x": SHAPE}),
        open_.specialise(np.array(SHAPE)),
        lc.load(given, threads=1, shapes=np.array(SHAPE)),
        lc.load(given, threads=1, shapes={"x": tuple(np.int64(n) for n in SHAPE)}),
        lc.load(given, threads=1, shapes=SHAPE),
        lc.load(given, threads=1, shapes={"x": SHAPE}, plan=path),
        lc.load(network(3, 8, 40, 7), threads=1, shapes=list(SHAPE)),
        pickle.loads(pickle.dumps(open_.specialise(SHAPE))),
    ):
        assert other.explain() == fixed.explain()
        assert other.inputs == fixed.inputs
        assert other.outputs == fixed.outputs
        assert np.array_equal(other(x_of(*SHAPE)), fixed(x_of(*SHAPE)))
        with pytest.raises(InputError, match="expected float32"):
            other(x_of(1, 8, 12, 24))


def test_an_extent_may_be_0() -> None:
    given = network("N", 8, "H", "W")
    for net in (lc.load(given, shapes=(0, *SHAPE[1:])), lc.load(given).specialise((0, *SHAPE[1:]))):
        assert net(x_of(0, *SHAPE[1:])).shape == (0, 8, 1, 1)
    net = lc.load(given, shapes={"x": ((0, 2), *SHAPE[1:])})
    for images in range(3):
        assert net(x_of(images, *SHAPE[1:])).shape == (images, 8, 1, 1)


def test_ranges_open_what_a_file_fixes() -> None:
    net = lc.load(network(1, 8, 12, 20), threads=1, shapes={"x": (1, 8, 12, (16, 24, 8))})
    for width in (16, 24):
        alone = lc.load(network(1, 8, 12, width), threads=1)
        np.testing.assert_allclose(net(x_of(1, 8, 12, width)), alone(x_of(1, 8, 12, width)), 1e-4)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ((1, 9, 12, 20), "the file fixes x 1x8x12x20, and its nodes do not take x 1x9x12x20"),
        ((1, 8, 12), "gives 3 axes for 'x'; expected 4"),
        ({"z": SHAPE}, "names 'z'"),
        ((1, 8, 12, (16, 24)), "expected integers such as"),
        ({"x": "1x8"}, "expected integers such as"),
        (7, "expected integers such as"),
    ],
)
def test_what_is_no_shape_of_the_network_is_refused(shapes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lc.load(network(*SHAPE), threads=1).specialise(shapes)
