"""Inputs and outputs of every kind: shared, constant, passed through, of several names."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from support.errors import relative_error
from support.network_models import by_numpy, by_onnxruntime, images, model, small, weights
from support.waiting import HANG_S

node = helper.make_node
W = weights(20, 3, 3, 3)
W2 = weights(8, 20, 1, 1, seed=4)
X = (1, 3, 9, 10)


def same(built: bytes, inputs: dict[str, np.ndarray], **options: object) -> dict[str, np.ndarray]:
    """Run a model, and compare every output with float64 and with ONNX Runtime."""
    net = lc.load(built, **options)  # type: ignore[arg-type]
    found = net.run(inputs)
    exact = by_numpy(built, inputs)
    assert list(found) == list(exact)
    given = by_onnxruntime(built, inputs)
    for name, array in found.items():
        assert relative_error(array, exact[name]) < 1e-5, name
        assert relative_error(array, given[name]) < 1e-5, name
    again = net.run(inputs)
    assert all(np.array_equal(found[name], again[name]) for name in found)
    return found


# -- outputs -------------------------------------------------------------------------------
def test_several_outputs_one_of_them_used_inside() -> None:
    built = small(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "w2"], ["c"]),
            node("GlobalAveragePool", ["c"], ["d"]),
        ],
        {"x": X},
        {"b": (1, 20, 9, 10), "d": (1, 8, 1, 1), "a": (1, 20, 9, 10)},
        {"w": W, "w2": W2},
    )
    found = same(built, {"x": weights(*X, seed=1)})
    assert np.array_equal(found["b"], np.maximum(found["a"], 0))


def test_an_output_that_is_an_input() -> None:
    built = small(
        [node("Conv", ["x", "w"], ["y"])],
        {"x": X},
        {"x": X, "y": (1, 20, 7, 8)},
        {"w": W},
    )
    x = weights(*X, seed=1)
    found = same(built, {"x": x})
    assert np.array_equal(found["x"], x)
    assert not np.shares_memory(found["x"], x)


def test_only_an_input_passed_through() -> None:
    built = small([node("Identity", ["x"], ["y"])], {"x": (2, 3)}, {"y": (2, 3)})
    x = weights(2, 3)
    found = same(built, {"x": x})
    assert np.array_equal(found["y"], x)
    assert not np.shares_memory(found["y"], x)
    x = weights(*X)
    reshaped = small([node("Flatten", ["x"], ["y"])], {"x": X}, {"y": (1, 270)})
    assert not np.shares_memory(same(reshaped, {"x": x})["y"], x)


def test_an_output_that_is_a_constant() -> None:
    c = weights(2, 5, seed=8)
    built = small(
        [
            node("Relu", ["x"], ["y"]),
            node("Constant", [], ["k"], value_floats=[1.0, -2.0, 3.0]),
            node("Neg", ["c"], ["folded"]),
        ],
        {"x": (2, 3)},
        {"y": (2, 3), "c": (2, 5), "k": (3,), "folded": (2, 5)},
        {"c": c},
    )
    found = same(built, {"x": weights(2, 3)})
    assert np.array_equal(found["c"], c)
    assert np.array_equal(found["folded"], -c)
    found["c"][:] = 0  # the caller's own array: the constant is not touched
    assert np.array_equal(lc.load(built).run({"x": weights(2, 3)})["c"], c)


def test_two_names_for_one_value() -> None:
    built = small(
        [
            node("Conv", ["x", "w"], ["y"], pads=[1] * 4),
            node("Identity", ["y"], ["first"]),
            node("Identity", ["y"], ["second"]),
            node("Dropout", ["first"], ["third"]),
        ],
        {"x": X},
        dict.fromkeys(("first", "second", "third", "y"), (1, 20, 9, 10)),
        {"w": W},
    )
    found = same(built, {"x": weights(*X, seed=1)})
    arrays = list(found.values())
    assert all(np.array_equal(a, arrays[0]) for a in arrays)
    arrays[0][:] = 0
    assert arrays[1].any()


def test_two_names_for_one_input() -> None:
    built = small(
        [node("Identity", ["x"], ["a"]), node("Identity", ["x"], ["b"])],
        {"x": (2, 3)},
        {"a": (2, 3), "b": (2, 3)},
    )
    found = same(built, {"x": weights(2, 3)})
    assert not np.shares_memory(found["a"], found["b"])


def test_views_of_one_value_as_outputs() -> None:
    """The value, a flat view of it, and something computed from the view."""
    built = small(
        [
            node("Relu", ["x"], ["a"]),
            node("Flatten", ["a"], ["b"]),
            node("Exp", ["b"], ["c"]),
            node("Flatten", ["c"], ["d"], axis=0),
        ],
        {"x": X},
        {"a": X, "b": (1, 270), "c": (1, 270), "d": (1, 270)},
    )
    found = same(built, {"x": weights(*X, seed=1)})
    assert np.array_equal(found["a"].reshape(-1), found["b"].reshape(-1))
    assert np.array_equal(found["c"], found["d"])


def test_an_output_that_is_read_after_it_is_given() -> None:
    """A residual is added to a value that the caller gets too: not in place."""
    built = small(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
            node("Conv", ["x", "w"], ["b"], pads=[1] * 4),
            node("Add", ["a", "b"], ["sum"]),
            node("Relu", ["sum"], ["y"]),
            node("Add", ["y", "a"], ["z"]),
        ],
        {"x": X},
        {"a": (1, 20, 9, 10), "z": (1, 20, 9, 10)},
        {"w": W},
    )
    same(built, {"x": weights(*X, seed=1)})


def test_a_convolution_whose_residual_is_its_input() -> None:
    """The input is plain, the result in blocks: what is added is read as the result is written."""
    shape = (1, 32, 14, 14)
    built = small(
        [
            node("Conv", ["x", "square"], ["a"], pads=[1] * 4),
            node("Add", ["a", "x"], ["sum"]),
            node("MaxPool", ["sum"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", ["half", "last"], ["y"]),
        ],
        {"x": shape},
        {"y": (1, 32, 7, 7)},
        {"square": weights(32, 32, 3, 3), "last": weights(32, 32, 1, 1, seed=4)},
    )
    same(built, {"x": weights(*shape, seed=1)})


# -- inputs --------------------------------------------------------------------------------
TWO = small(
    [
        node("Conv", ["left", "w"], ["a"], pads=[1] * 4),
        node("Conv", ["right", "w"], ["b"], pads=[1] * 4),
        node("Mul", ["a", "b"], ["c"]),
        node("ReduceMean", ["b"], ["mean"], axes=[2, 3], keepdims=1),
        node("Add", ["c", "mean"], ["y"]),
    ],
    {"left": ("N", 3, "H", "V"), "right": ("N", 3, "H", "V")},
    {"y": ("N", 20, "H", "V"), "mean": ("N", 20, 1, 1)},
    {"w": W},
)


def test_several_inputs_and_outputs() -> None:
    for shape in ((1, 3, 9, 10), (2, 3, 5, 17), (1, 3, 9, 10)):
        same(TWO, {"left": weights(*shape, seed=1), "right": weights(*shape, seed=2)})


def test_symbols_must_agree() -> None:
    net = lc.load(TWO)
    with pytest.raises(lc.InputError, match="right"):
        net.run({"left": weights(1, 3, 9, 10), "right": weights(1, 3, 9, 11)})
    good = net.run({"left": weights(1, 3, 9, 10), "right": weights(1, 3, 9, 10)})
    assert set(good) == {"y", "mean"}


def test_an_input_that_nothing_reads() -> None:
    built = small([node("Relu", ["x"], ["y"])], {"x": (2, 3), "unused": (4, 4)}, {"y": (2, 3)})
    same(built, {"x": weights(2, 3), "unused": weights(4, 4)})


def test_one_array_for_two_inputs() -> None:
    x = weights(1, 3, 9, 10)
    same(TWO, {"left": x, "right": x})


def test_inputs_of_any_memory_layout() -> None:
    built = model("squeezenet_like")
    net, x = lc.load(built, threads=2), images(model("squeezenet_like"), 2)
    expected = net(x)
    wide = np.zeros((*x.shape[:3], 2 * x.shape[3]), "f4")
    wide[..., ::2] = x
    shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32)
    held = x.copy()
    held.flags.writeable = False
    for given in (
        np.asfortranarray(x),
        x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2),
        wide[..., ::2],
        x[::-1].copy()[::-1],
        shifted.reshape(x.shape),
        held,
    ):
        assert np.array_equal(given, x)
        assert np.array_equal(net(given), expected)


WRONG = {
    "another size": lambda x: x[:, :, :-1],
    "another number of channels": lambda x: x[:, :2],
    "one axis less": lambda x: x[0],
    "one axis more": lambda x: x[None],
    "float64": lambda x: x.astype("f8"),
    "float16": lambda x: x.astype("f2"),
    "integers": lambda x: x.astype("i4"),
    "the other byte order": lambda x: x.astype(">f4"),
    "a list": lambda x: x.tolist(),
    "None": lambda x: None,
    "a scalar": lambda x: np.float32(1),
    "objects": lambda x: x.astype(object),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_input_that_does_not_fit_is_refused(what: str) -> None:
    built = model("squeezenet_like")
    net, x = lc.load(built, threads=1), images(model("squeezenet_like"), 2)
    good = net(x)
    with pytest.raises(lc.InputError, match="'input'.*expected"):
        net(WRONG[what](x))
    with pytest.raises(lc.InputError):
        net.run({"input": WRONG[what](x)})
    assert np.array_equal(net(x), good)


def test_names_that_do_not_fit_are_refused() -> None:
    net = lc.load(TWO)
    x = weights(1, 3, 9, 10)
    for given in ({}, {"left": x}, {"left": x, "right": x, "more": x}, {"Left": x, "right": x}):
        with pytest.raises(lc.InputError, match=r"left.*right"):
            net.run(given)
    with pytest.raises(lc.InputError, match="call net.run"):
        net(x)


def test_unknown_rank_takes_any() -> None:
    value = onnx.ValueInfoProto(name="x")
    value.type.tensor_type.elem_type = TensorProto.FLOAT
    result = onnx.ValueInfoProto(name="y")
    result.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph([node("Relu", ["x"], ["y"])], "g", [value], [result])
    built = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    net = lc.load(built)
    for shape in ((3,), (2, 5), (1, 2, 3, 4)):
        x = weights(*shape)
        assert np.array_equal(net(x), np.maximum(x, 0))


def test_float64_models() -> None:
    built = small(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
            node("Sigmoid", ["a"], ["b"]),
            node("GlobalMaxPool", ["b"], ["y"]),
        ],
        {"x": X},
        {"y": (1, 20, 1, 1)},
        {"w": W.astype("f8")},
        TensorProto.DOUBLE,
    )
    x = np.random.default_rng(1).normal(size=X)
    net = lc.load(built)
    found = net(x)
    assert found.dtype == np.float64
    assert relative_error(found, by_numpy(built, {"x": x})["y"]) < 1e-13
    assert np.array_equal(net(x.astype("f4")), net(x.astype("f4").astype("f8")))
    with pytest.raises(lc.UnsupportedError, match="precision"):
        lc.load(built, dtype="float32")


# -- plans for shapes ----------------------------------------------------------------------
def test_a_plan_is_kept_for_every_shape() -> None:
    built = model("squeezenet_like")
    net = lc.load(built, threads=2)
    with pytest.raises(lc.InputError, match="not fix"):
        _ = net.plan
    answers, plans = {}, {}
    for batch in (1, 2, 4):
        x = images(built, batch)
        answers[batch], plans[batch] = net(x), net.plan
    for batch in (4, 1, 2):
        assert np.array_equal(net(images(built, batch)), answers[batch])
        assert net.plan is plans[batch]
        assert net.used_bytes == plans[batch].memory_bytes
    assert net.bind((2, *net.inputs[0].shape[1:])) is plans[2]


def test_plans_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    from leanconv.settings import Settings, current_settings

    assert Settings.from_environment({"HOME": "/"}).plan_cache_bytes > 2**20
    built = model("squeezenet_like")
    monkeypatch.setenv("LEANCONV_PLAN_CACHE_BYTES", "300000")
    current_settings.cache_clear()
    try:
        net = lc.load(built, threads=1)
        first = net(images(built, 1))
        plan = net.plan
        for batch in (2, 3, 4):
            net(images(built, batch))
            assert net._plans.held_bytes <= 300_000 or len(net._plans) == 1
        assert np.array_equal(net(images(built, 1)), first)
        assert net.plan is not plan
    finally:
        monkeypatch.undo()
        current_settings.cache_clear()


def test_shapes_are_planned_once_whoever_asks() -> None:
    built = model("squeezenet_like")
    net = lc.load(built, threads=1)
    x, plans = images(built, 5), []

    def caller() -> None:
        net(x)
        plans.append(net.plan)

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(timeout=HANG_S)
    assert len(plans) == 4
    assert len({id(plan) for plan in plans}) == 1
