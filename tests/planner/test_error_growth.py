"""Layers whose errors grow no more, as their results are a network's outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

import leanconv as lc
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.operators.operator import LAYER_SHARE, network_error
from leanconv.planner.error_growth import last_layers
from leanconv.types import FLOAT32
from support.control_flow import node
from support.loops import body, hold, loop, made
from support.onnx_models import ints, model

RNG = np.random.default_rng(0)
W = (RNG.standard_normal((8, 8, 3, 3)) / 8).astype(np.float32)
X = RNG.standard_normal((1, 8, 24, 24)).astype(np.float32)


def conv(x: str, y: str) -> onnx.NodeProto:
    return node("Conv", f"{x} w", y, pads=[1] * 4)


CASES = {
    "alone": ([conv("x", "y")], "y", {"y"}),
    "behind another": ([conv("x", "a"), conv("a", "y")], "y", {"y"}),
    "an activation that keeps sizes": ([conv("x", "a"), node("Relu", "a", "y")], "y", {"y"}),
    "one that does not": ([conv("x", "a"), node("Sigmoid", "a", "y")], "y", set()),
    "moved": (
        [conv("x", "a"), node("Transpose", "a", "b", perm=[0, 2, 3, 1]), node("Flatten", "b", "y")],
        "y",
        {"a"},
    ),
    "beside others": (
        [
            conv("x", "a"),
            node("ConvTranspose", "x v", "b", pads=[1] * 4),
            node("Concat", "a b", "y", axis=1),
        ],
        "y",
        {"a", "b"},
    ),
    "a part": ([conv("x", "a"), node("Slice", "a zero two", "y")], "y", set()),
    "parts": ([conv("x", "a"), node("Split", "a", "y z", axis=1)], "y z", set()),
    "read by another as well": ([conv("x", "y"), conv("y", "z")], "y z", {"z"}),
    "added to what was there": (
        [conv("x", "a"), conv("a", "b"), node("Add", "a b", "y")],
        "y",
        set(),
    ),
    "normalised": ([conv("x", "a"), node("Softmax", "a", "y", axis=1)], "y", set()),
}


def file_of(nodes: Sequence[onnx.NodeProto], outputs: str) -> bytes:
    constants = {"w": W, "v": W, "zero": ints(0, 0).array, "two": ints(1, 2).array}
    proto = model(nodes, {"x": X.shape}, outputs.split(), constants)
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize("case", CASES)
def test_last_layers(case: str) -> None:
    nodes, outputs, last = CASES[case]
    graph = run_passes(read_model(file_of(nodes, outputs)).bind({}))
    assert last_layers(graph) == last


@pytest.mark.parametrize("stride", [1, 2])
def test_a_layer_alone_may_take_the_whole_aim(stride: int) -> None:
    """It states what it states by itself; a layer with others behind it, its share of the aim."""
    w = (RNG.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)
    x = RNG.standard_normal((1, 64, 48, 48)).astype(np.float32)
    nodes = [node("Conv", "x w", "y", pads=[1] * 4, strides=[stride] * 2)]
    proto = model(nodes, {"x": x.shape}, ["y"], {"w": w})
    net = lc.load(proto.SerializeToString())
    (cost,) = net.plan.node_costs
    aim = network_error(FLOAT32)
    assert LAYER_SHARE * aim < cost.error <= aim
    alone = lc.plan_conv2d(x.shape, w, padding=1, stride=stride, max_error=aim)
    assert net.plan.predicted_error == pytest.approx(cost.error, rel=0.02)
    assert cost.algorithm == alone.algorithm
    exact = lc.load(proto.SerializeToString(), dtype="float64")(x.astype(np.float64))
    assert np.abs(net(x) - exact).max() <= net.plan.predicted_error * np.abs(exact).max()

    two = model([*nodes, node("Sigmoid", "y", "z")], {"x": x.shape}, ["z"], {"w": w})
    followed = lc.load(two.SerializeToString())
    assert max(cost.error for cost in followed.plan.node_costs) <= LAYER_SHARE * aim


def test_the_last_layer_of_a_loop_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one iteration errs by, the next ones read."""
    hold(monkeypatch)
    w = (RNG.standard_normal((64, 64, 5, 5)) / 40).astype(np.float32)
    x = RNG.standard_normal((1, 64, 48, 48)).astype(np.float32)
    inside = body([node("Conv", "s w", "t", pads=[2] * 4)], "t")
    proto = made([loop("n true x", "y", inside)], 4, shape=x.shape, w=w)
    plan = lc.load(proto.SerializeToString()).plan
    assert 0 < max(cost.error for cost in plan.node_costs) <= 4 * LAYER_SHARE * 1e-5
