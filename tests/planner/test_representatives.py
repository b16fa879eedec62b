"""Networks of open extents choose for sizes that stand for a range of sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.codegen.host import host
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.passes.store_in_halves import store_in_halves
from leanconv.graph.template import Templates
from leanconv.operators import Accuracy, Operator, operator_of
from leanconv.operators.chains import ConvChain
from leanconv.operators.convolution import Convolution
from leanconv.planner import decisions as choices
from leanconv.planner.decisions import representative, representative_types
from leanconv.planner.formats import default_decisions, format_rules
from leanconv.types import FLOAT16, FLOAT32
from support.network_models import images, model
from support.onnx_models import model as onnx_model
from support.onnx_models import reference

ACCURACY = Accuracy(1e-5)


def bound(name: str, batch: int) -> Graph:
    read = read_model(model(name))
    templates = Templates(read, lambda shapes: run_passes(read.bind(shapes, dtype=FLOAT32)))
    return templates.graph([(batch, *images(model(name), 2).shape[1:])])


def test_ranges_end_at_powers_of_two() -> None:
    assert {representative(images, axis=0) for images in range(1, 5)} == {4}
    assert {representative(images, axis=0) for images in range(5, 17)} == {14}
    assert {representative(extent, axis=2) for extent in range(1, 65)} == {56}
    assert {representative(extent, axis=2) for extent in range(65, 1025)} == {224}
    assert {representative(extent, axis=3) for extent in (1025, 4096)} == {3584}
    for extent in (56, 224, 3584):
        assert representative(extent, axis=3) == extent


@pytest.mark.parametrize("name", ["squeezenet_like", "mobilenetv2", "resnet50"])
def test_nodes_of_one_range_have_the_same_types(name: str) -> None:
    first, second = bound(name, 9), bound(name, 16)
    assert first.open_axes
    for a, b in zip(first.nodes, second.nodes, strict=True):
        if not operator_of(a).algorithms:
            continue
        types = representative_types(a, first)
        assert types == representative_types(b, second)
        for each, kind in types.items():
            assert kind.shape[1:] == first.types[each].shape[1:]
            if each in first.open_axes:
                assert kind.shape[0] == 14


def test_values_that_are_stored_in_halves_stay_halves() -> None:
    """An operation's results have its inputs' type, unless they are stored in another."""
    w, v = np.ones((4, 8, 4, 4), np.float32), np.ones((8, 8, 1, 1), np.float32)
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[4, 4]),
        helper.make_node("Conv", ["y", "v"], ["z"]),
    ]
    proto = onnx_model(nodes, {"x": ("N", 4, 32, 32)}, ["z"], {"w": w, "v": v})
    read = read_model(proto.SerializeToString())
    templates = Templates(
        read, lambda shapes: store_in_halves(run_passes(read.bind(shapes, dtype=FLOAT32)), FLOAT16)
    )
    graph = templates.graph([(3, 4, 32, 32)])
    assert [graph.types[name].dtype for name in ("x", "y")] == [FLOAT32, FLOAT16]
    types = representative_types(graph.nodes[0], graph)
    assert [types[name].dtype for name in ("x", "y")] == [FLOAT32, FLOAT16]


def test_a_graph_without_open_extents_stands_for_itself() -> None:
    graph = run_passes(read_model(model("resnet50")).bind({"input": (9, 3, 64, 64)}))
    for node in graph.nodes:
        types = representative_types(node, graph)
        assert all(types[each] == graph.types[each] for each in types)


def test_one_range_is_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(ask: Callable[..., object]) -> Callable[..., object]:
        def default_choice(self: Operator, context: object) -> object:
            asked.append(context)
            return ask(self, context)

        return default_choice

    for operator in (Convolution, ConvChain):
        monkeypatch.setattr(operator, "default_choice", counted(operator.default_choice))
    monkeypatch.setattr(choices, "_recall", lambda key, nodes: None)
    choices._known.cache_clear()
    found = []
    for batch in (9, 16, 11, 14):
        graph = bound("resnet50", batch)
        decisions = default_decisions(format_rules(graph, host()))
        resolved = choices.resolved_choices(graph, host(), ACCURACY, decisions)
        found.append([decision.choice for decision in resolved])
        if batch == 9:
            first = len(asked)
    assert len(asked) == first > 0
    assert all(each == found[0] for each in found)


def test_bits_do_not_depend_on_the_shapes_before() -> None:
    built = model("resnet50")
    answers: dict[int, np.ndarray] = {}
    for order in ((2, 3, 9, 16), (16, 9, 3, 2)):
        net = lc.load(built)
        for batch in order:
            found = net(images(built, batch))
            assert np.array_equal(answers.setdefault(batch, found), found)
            choices = [node_cost.decision.choice for node_cost in net.plan.node_costs]  # type: ignore[attr-defined]
            assert choices == [d.choice for d in net.plan.decisions]  # type: ignore[attr-defined]


def test_windows_longer_than_a_representative_and_pads_that_follow_from_sizes() -> None:
    """Without a word of a defect, which would fail this test."""
    w = np.ones((2, 1, 256), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["long"], strides=[128]),
        helper.make_node("Conv", ["long", "v"], ["y"], auto_pad="SAME_UPPER", strides=[2]),
    ]
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "long",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "c", "t"])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [
                numpy_helper.from_array(w, "w"),
                numpy_helper.from_array(np.ones((3, 2, 3), np.float32), "v"),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    net = lc.load(proto, threads=1)
    for count, size in ((1, 640), (2, 700), (1, 800), (3, 2000)):
        x = np.random.default_rng(size).standard_normal((count, 1, size), dtype=np.float32)
        wanted = reference(proto, {"x": x})["y"]
        np.testing.assert_allclose(net(x), wanted, rtol=1e-4, atol=1e-3)
