"""Tile against NumPy: any axes, short rows and long ones, none and one of an axis."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc

CASES = [
    ((1, 3, 7, 5), (2, 2, 3, 5)),
    ((4, 4), (9, 17)),
    ((2, 5, 33), (3, 1, 2)),
    ((2, 5, 33), (1, 4, 1)),
    ((3, 1, 40), (2, 197, 1)),
    ((1, 1, 1), (2, 3, 4)),
    ((2, 3), (1, 1)),
    ((2, 3, 4), (2, 0, 2)),
    ((2, 1, 2, 1, 2, 1, 2, 17), (1, 2, 1, 3, 2, 1, 2, 2)),
    ((1, 2) * 5 + (3,), (2,) * 11),
]


def loaded(shape: tuple[int, ...], repeats: tuple[int, ...]) -> lc.Network:
    graph = helper.make_graph(
        [helper.make_node("Tile", ["x", "r"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(repeats, np.int64), "r")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return lc.load(model.SerializeToString(), threads=2)


@pytest.mark.parametrize(("shape", "repeats"), CASES, ids=str)
def test_tile(shape: tuple[int, ...], repeats: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    np.testing.assert_array_equal(loaded(shape, repeats)(x), np.tile(x, repeats))


def test_long_rows_are_moved_once() -> None:
    net = loaded((1, 8, 20, 56), (1, 1, 2, 2))
    assert len(net.profile(np.zeros((1, 8, 20, 56), np.float32))) == 1
