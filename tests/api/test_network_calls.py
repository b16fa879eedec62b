"""A network that was loaded: its shapes, inputs and answers, and the plans that it keeps."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.api import cpu_backend
from leanconv.api.plan_cache import PlanCache
from leanconv.errors import (
    InputError,
)
from leanconv.settings import Settings
from leanconv.types import FLOAT64
from support.onnx_models import model, small_cnn

IMAGE = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype("f4")


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def two_inputs() -> onnx.ModelProto:
    """s = a + b, d = a - b; the batch is one symbol."""
    nodes = [node("Add", "a b", "s"), node("Sub", "a b", "d")]
    return model(nodes, {"a": ("N", 4), "b": ("N", 4)}, ["s", "d"])


# -- shapes and inputs -------------------------------------------------------------------------


def test_the_plan_before_the_first_run() -> None:
    network = lc.load(small_cnn())
    with pytest.raises(InputError, match="x Nx3xHxW.*net.bind"):
        _ = network.plan
    plan = network.bind((2, 3, 16, 16))
    assert network.plan is plan
    assert network.used_bytes == plan.memory_bytes
    network(IMAGE)
    assert network.plan is plan
    assert network.bind({"x": (1, 3, 9, 16)}).inputs["x"].shape == (1, 3, 9, 16)
    static = lc.load(model([node("Relu", "x")], {"x": (2, 3)}, ["y"]))
    assert static.plan.outputs["y"].shape == (2, 3)
    with pytest.raises(InputError, match="shape"):
        network.bind((2, 4, 16, 16))
    with pytest.raises(InputError, match="got inputs"):
        network.bind({"z": (2, 3, 16, 16)})


def test_several_inputs_and_outputs() -> None:
    network = lc.load(two_inputs())
    assert [port.name for port in network.inputs] == ["a", "b"]
    assert [port.name for port in network.outputs] == ["s", "d"]
    a, b = (np.full((3, 4), value, "f4") for value in (5, 3))
    results = network.run({"b": b, "a": a})
    assert {name: y[0, 0] for name, y in results.items()} == {"s": 8, "d": 2}
    with pytest.raises(InputError, match="call net.run"):
        network(a)
    with pytest.raises(InputError, match="got inputs"):
        network.run({"a": a})
    with pytest.raises(InputError, match="got inputs"):
        network.profile({"a": a})
    with pytest.raises(InputError, match="by name"):
        network.profile(a)
    with pytest.raises(InputError, match="with N = 3"):
        network.run({"a": a, "b": b[:2]})
    with pytest.raises(InputError, match="got inputs"):
        network.bind((3, 4))
    assert len(network.profile({"a": a, "b": b}, repeats=2)) == 2


def test_an_output_that_is_an_input_or_a_constant() -> None:
    nodes = [node("Identity", "x", "y"), node("Identity", "c", "z"), node("Relu", "x", "r")]
    proto = model(nodes, {"x": (1, 4)}, ["y", "z", "r"], {"c": np.arange(3, dtype="f4")})
    network = lc.load(proto)
    x = np.array([[1, -1, 2, -2]], "f4")
    found = network.run({"x": x})
    assert np.array_equal(found["y"], x)
    assert np.array_equal(found["z"], [0, 1, 2])
    assert np.array_equal(found["r"], np.maximum(x, 0))
    found["y"][:] = 9
    assert x[0, 0] == 1


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            IMAGE.astype("f8"),
            r"float64\[2x3x16x16\]; expected float32.*give x.astype\(.float32.\)",
        ),
        (IMAGE.astype(">f4"), "expected float32"),
        (
            (255 * IMAGE).astype("u1"),
            "uint8.*; expected float32.*often divided by 255",
        ),
        (IMAGE[0], r"float32\[3x16x16\]; expected float32\[Nx3xHxW\]: give x\[None\]"),
        (IMAGE[:, :2], r"float32\[2x2x16x16\]; expected float32\[Nx3xHxW\]$"),
        (IMAGE.tolist(), "list; expected a NumPy array"),
        (None, "NoneType; expected a NumPy array"),
    ],
)
def test_inputs_that_do_not_fit(x: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lc.load(small_cnn())(x)


def test_any_memory_order_and_alignment_is_read() -> None:
    network = lc.load(small_cnn())
    expected = network(IMAGE)
    assert np.array_equal(network(np.asfortranarray(IMAGE)), expected)
    assert np.array_equal(network(np.flip(np.flip(IMAGE, 3).copy(), 3)), expected)
    raw = np.zeros(IMAGE.nbytes + 1, "u1")
    crooked = raw[1:].view("f4").reshape(IMAGE.shape)
    crooked[...] = IMAGE
    assert not crooked.flags.aligned
    assert np.array_equal(network(crooked), expected)
    frozen = IMAGE.copy()
    frozen.setflags(write=False)
    assert np.array_equal(network(frozen), expected)


def test_every_answer_is_an_array_of_its_own() -> None:
    net = lc.load(small_cnn(), threads=2)
    inputs = [IMAGE * (i + 1) for i in range(20)]
    kept = [net.run({net.inputs[0].name: x})[net.outputs[0].name] for x in inputs]
    answers = [net(x) for x in inputs]
    for a, b in itertools.combinations(answers, 2):
        assert not np.shares_memory(a, b)
    for answer, expected in zip(answers, kept, strict=True):
        assert answer.flags.owndata
        assert np.array_equal(answer, expected)


def test_another_batch_between_calls_is_planned_for() -> None:
    nodes = [node("Mul", "a a", "y")]
    net = lc.load(model(nodes, {"a": ("N", 4)}, ["y"]), threads=1)
    for batch in (1, 3, 1, 2, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 4)).astype("f4")
        assert np.array_equal(net(x), x * x)


def test_an_input_of_any_rank() -> None:
    proto = model([node("Relu", "x")], {"x": None}, ["y"])
    network = lc.load(proto)
    assert network.inputs[0].shape is None
    for shape in ((), (3,), (2, 3, 4)):
        x = np.full(shape, -1, "f4")
        assert np.array_equal(network(x), np.zeros(shape))


def test_float64() -> None:
    network = lc.load(small_cnn(), dtype="float64")
    assert network.inputs[0].dtype == FLOAT64
    y = network(IMAGE.astype("f8"))
    assert y.dtype == np.float64
    assert np.array_equal(network(IMAGE), y)  # float32 widens exactly
    assert np.abs(y - lc.load(small_cnn())(IMAGE)).max() < 1e-5


@pytest.mark.parametrize("opset", [7, 10, 13, 17, 20, 22])
def test_opsets(opset: int) -> None:
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "g"),
        node("Flatten", "g", "f"),
        node("Softmax", "f", "y", axis=1),
    ]
    held = {"w": np.random.default_rng(1).standard_normal((5, 3, 3, 3)).astype("f4")}
    y = lc.load(model(nodes, {"x": ("N", 3, "H", "W")}, ["y"], held, opset))(IMAGE)
    assert y.shape == (2, 5)
    assert np.allclose(y.sum(axis=1), 1)


# -- plans kept --------------------------------------------------------------------------------


def test_the_least_recently_used_plan_leaves_first() -> None:
    cache = PlanCache[str](300_000, keep_newest=True)
    for name in ("a", "b", "c"):
        cache.put(name, name.upper(), 10_000)
    assert cache.get("a") == "A"
    cache.put("d", "D", 10_000)  # over the limit, with what every plan takes beside
    assert [cache.get(name) for name in "abcd"] == ["A", None, "C", "D"]
    assert 30_000 < cache.held_bytes <= 300_000
    cache.put("huge", "H", 10**9)
    assert (len(cache), cache.get("huge")) == (1, "H")
    assert cache.take("huge") == "H"
    assert (len(cache), cache.held_bytes, cache.get("huge")) == (0, 0, None)
    strict = PlanCache[str](0, keep_newest=False)
    strict.put("a", "A", 0)
    assert (len(strict), strict.held_bytes) == (0, 0)


def test_plans_for_shapes_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.from_environment({"HOME": "/", "LEANCONV_PLAN_CACHE_BYTES": "1"})
    monkeypatch.setattr(cpu_backend, "current_settings", lambda: settings)
    network = lc.load(small_cnn())
    first = network.bind((1, 3, 16, 16))
    assert network.bind((1, 3, 16, 16)) is first
    network.bind((1, 3, 16, 17))
    assert network.bind((1, 3, 16, 16)) is not first
    monkeypatch.undo()
    network = lc.load(small_cnn())
    first = network.bind((1, 3, 16, 16))
    network.bind((1, 3, 16, 17))
    assert network.bind((1, 3, 16, 16)) is first


def test_new_shapes_from_many_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one plan only, every thread keeps throwing out the others' plans."""
    settings = Settings.from_environment({"HOME": "/", "LEANCONV_PLAN_CACHE_BYTES": "1"})
    monkeypatch.setattr(cpu_backend, "current_settings", lambda: settings)
    network = lc.load(small_cnn(), threads=2)
    images = [IMAGE[:, :, : 12 + i] for i in range(4)]
    expected = [lc.load(small_cnn(), threads=1)(x) for x in images]
    failures: list[object] = []

    def work(number: int) -> None:
        for turn in range(12):
            which = (number + turn) % len(images)
            try:
                y = network.run({"x": images[which]})["y"]
            except Exception as error:
                failures.append(error)
                return
            if not np.array_equal(y, expected[which]):
                failures.append(which)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_plan_is_shown_in_one_line() -> None:
    network = lc.load(small_cnn(), threads=2)
    plan = network.bind(IMAGE.shape)
    assert repr(plan).startswith(f"<NetworkPlan of {len(plan.steps)} steps, 2 threads: ")
    assert len(repr(plan)) < 100
