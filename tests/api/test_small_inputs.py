"""Small integer inputs that decide branches and shapes: known when a network is bound to them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import leanconv as lc
import leanconv.onnxruntime as ort
from leanconv.errors import InputError, LeanConvError
from support.control_flow import node
from support.onnx_models import Array, reference
from support.small_inputs import IMAGE, RATE, R, branch, by_rate, made


def check(network: lc.Network, model: onnx.ModelProto, feed: Mapping[str, Array]) -> None:
    found = network.run(feed)
    for name, wanted in reference(model, feed).items():
        assert found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name], wanted, 1e-5, 1e-5, err_msg=name)


@pytest.mark.parametrize("opened", [False, True])
def test_a_branch_by_a_scalar(opened: bool) -> None:
    model = by_rate(opened)
    net = lc.load(model, threads=1)
    plans = []
    for rate in (16000, 8000, 16000, 8000, 44100):
        check(net, model, {"x": IMAGE, "rate": np.array(rate)})
        plans.append(net.compiled)
    assert plans[0] is plans[2]
    assert plans[1] is plans[3]
    assert list(net.plan.inputs) == ["x"]
    if opened:
        for size in (9, 12, 7):
            check(net, model, {"x": np.ones((2, 3, size, 8), "f4"), "rate": np.array(16000)})


def test_numbers_stand_for_scalars() -> None:
    model = by_rate()
    net = lc.load(model, threads=1)
    wanted = net.run({"x": IMAGE, **RATE})["y"]
    for rate in (16000, np.int64(16000), np.int32(16000), np.array(16000)):
        np.testing.assert_array_equal(net(IMAGE, rate), wanted)
        np.testing.assert_array_equal(net(IMAGE, rate=rate), wanted)
    for wrong in (1 << 63, True, 1.5, "16000", np.array(16000.0), np.array([16000])):
        with pytest.raises(InputError, match="rate"):
            net(IMAGE, wrong)


def test_a_plan_is_made_for_a_value() -> None:
    for opened in (True, False):
        net = lc.load(by_rate(opened), threads=1)
        with pytest.raises(InputError, match="follows from the value of 'rate'; expected it where"):
            net.bind({"x": IMAGE.shape, "rate": ()})
        for rate in (8000, np.array(8000)):
            assert net.bind({"x": IMAGE.shape, "rate": rate}).outputs["y"].shape == (1, 4, 6, 5)
        before = net.compiled
        net(IMAGE, 8000)
        assert net.compiled is before
        assert net.profile({"x": IMAGE, "rate": np.array(8000)})


def test_sessions_and_copies() -> None:
    model = by_rate()
    session = ort.InferenceSession(model.SerializeToString())
    net = session.network
    for rate in (8000, 16000):
        feed = {"x": IMAGE, "rate": np.array(rate)}
        (wanted,) = reference(model, feed).values()
        np.testing.assert_allclose(session.run(None, feed)[0], wanted, 1e-5, 1e-5)
        for other in (copy.copy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            np.testing.assert_allclose(other(IMAGE, rate), wanted, 1e-5, 1e-5)
    assert not isinstance(session.network, type(None))


def test_shapes_and_sizes() -> None:
    feed = {
        "x": IMAGE,
        "start": np.array([1]),
        "end": np.array([2]),
        "shape": np.array([6, 15], np.int64),
        "from": np.array(1, np.int64),
        "to": np.array(9, np.int64),
        "sizes": np.array([1, 3, 7, 9]),
        "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1]),
        "axes": np.array([1, 2]),
    }
    nodes = [
        node("Conv", "x w", "c"),
        node("Slice", "c start end", "sliced"),
        node("Slice", "c zero end", "cut"),
        node("Reshape", "c shape", "reshaped"),
        node("ConstantOfShape", "shape", "zeros"),
        node("Range", "from to one", "places"),
        node("Cast", "places", "counted", to=TensorProto.FLOAT),
        node("Expand", "first shape", "expanded"),
        node("Resize", "c - - sizes", "resized", mode="nearest"),
        node("Conv", "resized w", "again"),
        node("Pad", "c pads", "padded"),
        node("ReduceSum", "c axes", "summed"),
    ]
    held = {
        "w": R.standard_normal((3, 3, 1, 1)).astype("f4"),
        "zero": np.array([0]),
        "one": np.int64(1),
        "first": np.float32(3),
    }
    ends = "cut reshaped zeros counted expanded again padded summed"
    model = made(nodes, feed, ends, **held)
    net = lc.load(model, threads=1)
    check(net, model, feed)
    other = {**feed, "shape": np.array([30, 3]), "to": np.array(4), "sizes": np.array([1, 3, 2, 5])}
    check(net, model, other)
    check(net, model, feed)
    with pytest.raises(LeanConvError, match="Reshape"):
        net.run({**feed, "shape": np.array([7, 15])})
    with pytest.raises(LeanConvError, match="Range"):
        net.run({**feed, "to": np.array(1 << 60)})
    check(net, model, feed)


def test_what_is_no_decision_stays_data() -> None:
    """Values that are only computed with need no plan of their own."""
    nodes = [node("Cast", "rate", "r", to=TensorProto.FLOAT), node("Mul", "x r", "y")]
    model = made(nodes, {"x": IMAGE, **RATE})
    net = lc.load(model, threads=1)
    check(net, model, {"x": IMAGE, **RATE})
    before = net.compiled
    check(net, model, {"x": IMAGE, "rate": np.array(3)})
    assert net.compiled is before


def test_a_value_that_decides_may_be_an_output_and_data_too() -> None:
    nodes = [
        node("Add", "rate wide", "more"),
        node("Cast", "more", "y", to=TensorProto.FLOAT),
        node("Greater", "rate wide", "is_wide"),
        helper.make_node(
            "If", ["is_wide"], ["z"], then_branch=branch("a", 3), else_branch=branch("b", 1)
        ),
    ]
    model = made(nodes, {"x": IMAGE, **RATE}, "y z", wide=np.int64(12000))
    net = lc.load(model, threads=1)
    for rate in (16000, 11000):
        check(net, model, {"x": IMAGE, "rate": np.array(rate)})


def test_a_loop_in_whose_body_a_value_decides() -> None:
    body = helper.make_graph(
        [
            node("Greater", "rate i", "more"),
            helper.make_node(
                "If",
                ["more"],
                ["next"],
                then_branch=helper.make_graph(
                    [node("Add", "v v", "twice")],
                    "t",
                    [],
                    [helper.make_tensor_value_info("twice", TensorProto.FLOAT, None)],
                ),
                else_branch=helper.make_graph(
                    [node("Abs", "v", "size")],
                    "e",
                    [],
                    [helper.make_tensor_value_info("size", TensorProto.FLOAT, None)],
                ),
            ),
            node("Identity", "go", "goes"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    loop = helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)
    feed = {"x": IMAGE, "rate": np.array(2), "count": np.array(5)}
    model = made([loop], feed)
    net = lc.load(model, threads=1)
    for rate, count in ((2, 5), (0, 5), (3, 1), (3, 0)):
        check(net, model, {"x": IMAGE, "rate": np.array(rate), "count": np.array(count)})


def test_many_values_are_kept_within_the_bounds_of_plans() -> None:
    model = by_rate()
    net = lc.load(model, threads=1)
    for rate in range(30):
        net(IMAGE, rate)
    assert net._plans.held_bytes <= net._backend.cache_bytes


def test_graphs_of_many_values_are_not_all_kept() -> None:
    net = lc.load(by_rate(), threads=1)
    for rate in range(80):
        net.backend.decided_graph((IMAGE.shape, ()), {"rate": np.array(rate)})
    assert sum(len(each.memos) for each in net.backend.templates) <= 64


def test_ranges_of_shapes_with_a_value() -> None:
    model = by_rate()
    stated = {"x": (1, 3, (6, 8), 5), "rate": 16000}
    net = lc.load(model, threads=1, shapes=stated)
    assert list(net.plan.inputs) == ["x"]
    feeds = [{"x": np.ones((1, 3, size, 5), "f4"), **RATE} for size in (6, 7, 8)]
    for each in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        for feed in feeds:
            check(each, model, feed)
    assert net.compiled.network.compiled_forms == 0
    with pytest.raises(InputError, match="'rate' is 8000; expected 16000, for which"):
        net.run({**feeds[0], "rate": np.array(8000)})
    with pytest.raises(InputError, match="input 'x' has the shape"):
        net.run({"x": np.ones((1, 3, 9, 5), "f4"), **RATE})
    with pytest.raises(InputError, match="follows from the value of 'rate'"):
        lc.load(model, threads=1, shapes={"x": stated["x"]})
    with pytest.raises(InputError, match="rate"):
        lc.load(model, threads=1, shapes={**stated, "rate": True})
    with pytest.raises(InputError, match="one extent for each axis"):
        lc.load(model, threads=1, shapes={**stated, "x": 4})


@pytest.mark.parametrize("opened", [False, True])
def test_samples_give_the_values(opened: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = by_rate(opened)
    samples = [{"x": R.standard_normal(IMAGE.shape).astype("f4"), "rate": 16000} for _ in range(2)]
    net = lc.load(model, threads=1, samples=samples, max_error=1e-4)
    assert "error measured on samples" in net.explain()
    assert 0 < net.plan.predicted_error < 1e-4
    check(net, model, {"x": IMAGE, **RATE})
    assert "error measured on samples" in net.explain()
    check(net, model, {"x": IMAGE, "rate": np.array(8000)})
    assert "error measured on samples" not in net.explain()
    assert not caplog.records
    with pytest.raises(InputError, match="several values of 'rate'"):
        lc.load(model, threads=1, samples=[*samples, {**samples[0], "rate": 8000}])


# Nodes of which the value of `n` decides the shape, after a convolution that it scales.
SHAPED = {
    "Reshape": [node("Concat", "minus n1", "s", axis=0), node("Reshape", "c s", "d")],
    "Slice": [node("Slice", "c zero n1 last", "d")],
    "ConstantOfShape": [
        node("ConstantOfShape", "n1", "z"),
        node("ReduceSum", "z", "s", keepdims=0),
        node("Add", "c s", "d"),
    ],
    "Tile": [node("Concat", "three n1", "s", axis=0), node("Tile", "c s", "d")],
    "Expand": [
        node("Expand", "f n1", "e"),
        node("ReduceSum", "e", "s", keepdims=0),
        node("Add", "c s", "d"),
    ],
    "Resize": [
        node("Concat", "sizes n1", "s", axis=0),
        node("Resize", "c - - s", "d", mode="nearest"),
    ],
    "Pad": [node("Concat", "seven n1", "s", axis=0), node("Pad", "c s", "d")],
    "TopK": [node("TopK", "c n1", "d i")],
    "Range": [
        node("Range", "none n unit", "r"),
        node("Cast", "r", "e", to=TensorProto.FLOAT),
        node("ReduceSum", "e", "s", keepdims=0),
        node("Add", "c s", "d"),
    ],
}


def by_size(nodes: Sequence[onnx.NodeProto], **more: Array) -> onnx.ModelProto:
    """A convolution times `n`; nodes follow where the image has over 9 rows."""
    ends = {
        name: [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)] for name in ("d", "r2")
    }
    large = helper.make_graph(list(nodes), "large", [], ends["d"])
    small = helper.make_graph([node("Relu", "c", "r2")], "small", [], ends["r2"])
    whole = [
        node("Shape", "x", "shape"),
        node("Gather", "shape two", "rows"),
        node("Greater", "rows nine", "is_large"),
        node("Cast", "n", "f", to=TensorProto.FLOAT),
        node("Unsqueeze", "n zero", "n1"),
        node("Conv", "x w", "product", pads=[1, 1, 1, 1]),
        node("Mul", "product f", "c"),
        helper.make_node("If", ["is_large"], ["y"], then_branch=large, else_branch=small),
    ]
    held = {
        "w": R.standard_normal((4, 3, 3, 3)).astype("f4"),
        "two": np.int64(2),
        "nine": np.int64(9),
        "zero": np.array([0]),
        "last": np.array([3]),
        "minus": np.array([-1]),
        "three": np.array([1, 1, 1]),
        "sizes": np.array([1, 4, 7]),
        "seven": np.zeros(7, np.int64),
        "none": np.int64(0),
        "unit": np.int64(1),
    }
    inputs = {"x": IMAGE, "n": np.array(3), **more}
    return made(whole, inputs, opened=("x",), **held)


def image(size: int) -> Array:
    return np.random.default_rng(size).standard_normal((1, 3, size, 6)).astype("f4")


def check_as_alone(net: lc.Network, model: onnx.ModelProto, feed: Mapping[str, Array]) -> None:
    """The bits, the plan, its bytes and errors are those of a network that has met nothing else."""
    alone = lc.load(model, threads=1)
    found, wanted = net.run(feed), alone.run(feed)
    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in wanted.items()}
    assert list(net.plan.inputs) == list(alone.plan.inputs)
    assert net.plan.memory_bytes == alone.plan.memory_bytes
    assert net.plan.predicted_error == alone.plan.predicted_error
    assert net.explain() == alone.explain()
    check(net, model, feed)


@pytest.mark.parametrize("op", SHAPED)
def test_a_value_decides_for_the_shapes_for_which_it_does(op: str) -> None:
    """Elsewhere it is data, whatever shapes came before: it is not folded into the weights."""
    model = by_size(SHAPED[op])
    net = lc.load(model, threads=1)
    for size in (12, 7):
        plans = []
        for n in (3, 4, 3):
            check_as_alone(net, model, {"x": image(size), "n": np.array(n)})
            plans.append(net.compiled)
        assert list(net.plan.inputs) == (["x"] if size > 9 else ["x", "n"])
        assert plans[0] is plans[2]
        assert (plans[0] is plans[1]) == (size < 10)


def test_a_value_decides_beside_the_values_for_which_it_does() -> None:
    """It scales the image in any case; the tile is in one branch."""
    end = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("t", "u")]
    tiled = [
        node("Unsqueeze", "m zero", "m1"),
        node("Concat", "three m1", "s2", axis=0),
        node("Tile", "c s2", "t"),
    ]
    nodes = [
        node("Cast", "m", "g", to=TensorProto.FLOAT),
        node("Greater", "n two", "many"),
        helper.make_node(
            "If",
            ["many"],
            ["v"],
            then_branch=helper.make_graph(tiled, "tiled", [], end[:1]),
            else_branch=helper.make_graph([node("Tanh", "c", "u")], "plain", [], end[1:]),
        ),
        node("Mul", "v g", "d"),
    ]
    model = by_size(nodes, m=np.array(2))
    net = lc.load(model, threads=1)
    for n, m in ((3, 2), (1, 2), (3, 1), (1, 1)):
        for size in (12, 7):
            check_as_alone(net, model, {"x": image(size), "n": np.array(n), "m": np.array(m)})
            decides = {"x", "m"} if n < 3 else {"x"}
            assert set(net.plan.inputs) == (decides if size > 9 else {"x", "n", "m"})


def test_what_decides_is_found_without_binding_for_sizes_that_answer_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = lc.load(by_size(SHAPED["Tile"]), threads=1)
    kind = type(net.backend.model)
    bind, bound = kind.bind, []

    def counted(self: object, *given: Any, **named: Any) -> Any:
        bound.append(named.get("values"))
        return bind(self, *given, **named)

    monkeypatch.setattr(kind, "bind", counted)
    for size, n, count in ((12, 3, 2), (15, 3, 0), (15, 4, 1), (11, 4, 0), (7, 4, 1), (8, 5, 0)):
        net.run({"x": image(size), "n": np.array(n)})
        assert len(bound) == count, (size, n)
        bound.clear()
