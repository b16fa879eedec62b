"""NaN, infinities and huge numbers: every operation does what NumPy does, NaN is never lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper

import leanconv as lc
from leanconv.graph.onnx_import import read_model
from support.interpret import interpret
from support.network_models import small, weights

SHAPE = (2, 5, 7, 9)
SPECIAL = (np.nan, -np.float32(np.nan), np.inf, -np.inf, 1e38, -1e38, 0.0, -0.0)
CHANNELS = np.linspace(-1, 2, 5, dtype="f4").reshape(5, 1, 1)

Constants = dict[str, np.ndarray]


def node(op: str, *inputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, ["x", *inputs], ["y"], op, **attributes)


def axes(*numbers: int) -> Constants:
    return {"axes": np.array(numbers)}


def scalar(value: float) -> np.ndarray:
    return np.array(value, "f4")


CASES: dict[str, tuple[NodeProto, Constants]] = {
    **{
        op: (node(op), {})
        for op in (
            *("Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu"),
            *("Softplus", "Abs", "Neg", "Sqrt", "Exp", "Log", "Erf", "Reciprocal", "Gelu", "Mish"),
            *("GlobalMaxPool", "GlobalAveragePool"),
        )
    },
    "Gelu tanh": (node("Gelu", approximate="tanh"), {}),
    "LeakyRelu -0.5": (node("LeakyRelu", alpha=-0.5), {}),
    "LeakyRelu 2": (node("LeakyRelu", alpha=2.0), {}),
    "Relu6": (node("Clip", "low", "high"), {"low": scalar(0), "high": scalar(6)}),
    "PRelu": (node("PRelu", "c"), {"c": CHANNELS}),
    **{op: (node(op, "c"), {"c": CHANNELS}) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max")},
    **{f"Pow {e}": (node("Pow", "e"), {"e": scalar(e)}) for e in (2, 3, -1, 0)},
    **{
        f"{op} {k}x{k}": (node(op, kernel_shape=[k, k], pads=[k // 2] * 4), {})
        for op in ("MaxPool", "AveragePool")
        for k in (2, 3)
    },
    **{
        f"Reduce{op} {numbers}": (node(f"Reduce{op}", "axes"), axes(*numbers))
        for op in ("Max", "Min", "Sum", "Mean", "L1", "L2", "SumSquare")
        for numbers in ((1,), (2, 3))
    },
    **{
        f"{op} {axis}": (node(op, axis=axis), {})
        for op in ("Softmax", "LogSoftmax")
        for axis in (1, 3)
    },
    "LRN": (node("LRN", size=3), {}),
    "MatMul": (node("MatMul", "w"), {"w": weights(9, 6)}),
    "Resize": (
        node("Resize", "", "scales", mode="nearest"),
        {"scales": np.array([1, 1, 2, 2], "f4")},
    ),
    "InstanceNormalization": (
        node("InstanceNormalization", "s", "b"),
        {"s": np.ones(5, "f4"), "b": np.zeros(5, "f4")},
    ),
}


def special(number: int) -> np.ndarray:
    """Random numbers among which stand special ones: of one kind, or (-1) of all kinds."""
    random = np.random.default_rng(3)
    x = random.normal(size=SHAPE).astype("f4")
    places = random.permutation(x.size)
    kinds = SPECIAL if number < 0 else (SPECIAL[number],)
    for place, value in zip(places, kinds * 2, strict=False):
        x.reshape(-1)[place] = value
    return x


@pytest.mark.parametrize("name", CASES)
def test_an_operation_gives_nan_and_infinities_where_numpy_does(name: str) -> None:
    made, constants = CASES[name]
    rank = ["a", "b", "c", "d"]
    built = small([made], {"x": SHAPE}, {"y": rank}, constants, opset=20)
    net, read = lc.load(built, threads=1), read_model(built)
    graph = read.bind({"x": SHAPE})
    for number in range(-1, len(SPECIAL)):
        x = special(number)
        with np.errstate(all="ignore"):
            (wanted,) = interpret(graph, {"x": x}).values()
        found = net(x)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), f"{name} {number}")
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5, err_msg=f"{name} {number}")


def test_nan_passes_through_a_network_and_only_its_own_image() -> None:
    """As in cascades of face detectors: pools and PRelu before dense layers and softmax."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("PRelu", ["a", "s"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Conv", ["c", "v"], ["d"]),
        helper.make_node("PRelu", ["d", "t"], ["e"]),
        helper.make_node("MaxPool", ["e"], ["f"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "u"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"]),
    ]
    constants = {
        "w": weights(28, 3, 3, 3),
        "s": weights(28, 1, 1),
        "v": weights(48, 28, 3, 3),
        "t": weights(48, 1, 1),
        "u": weights(48 * 16, 2),
    }
    built = small(nodes, {"x": ["N", 3, 24, 24]}, {"y": ["N", 2]}, constants)
    net = lc.load(built, threads=2, reproducible=True)
    x = np.random.default_rng(0).normal(size=(3, 3, 24, 24)).astype("f4")
    clean = net(x)
    for place in ((1, 0, 0, 0), (1, 2, 5, 7), (1, 1, 19, 19)):
        spoiled = x.copy()
        spoiled[place] = np.nan
        found = net(spoiled)
        assert np.isnan(found[1]).all()
        assert np.array_equal(found[::2], clean[::2])
