"""Values without elements inside of networks, whatever makes or reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from support.import_cases import Numbers
from support.onnx_models import model, reference

N = Numbers(11)
HELD = {
    "w": N.normal(4, 4, 3, 3),
    "v": N.normal(4, 4, 2, 2),
    "c": N.positive(4),
    "m": N.normal(6, 5),
    "one": N.normal(4, 1, 1),
    "at": np.array([1, 0]),
    "pads": np.array([0, 0, 1, 0, 0, 0, 1, 2]),
    "sizes": np.array([1, 2], np.float32).repeat(2),
    "k": np.array([2]),
    "low": np.float32(-1),
}
UNARY = ("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Floor", "Softplus", "Erf", "Sign", "IsNaN")
WINDOW = {"kernel_shape": [2, 2], "strides": [2, 1]}
NODES: list[tuple[str, str, dict[str, Any]]] = [
    *((op, "", {}) for op in UNARY),
    *((op, "one", {}) for op in ("Add", "Mul", "Sub", "Less", "PRelu")),
    *((op, "", WINDOW) for op in ("MaxPool", "AveragePool")),
    *((op, "", {}) for op in ("GlobalAveragePool", "GlobalMaxPool", "Flatten", "Identity")),
    *((op, "", {"axes": [2, 3]}) for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")),
    *((op, "", {"axis": 1}) for op in ("Softmax", "LogSoftmax", "ArgMax", "Split")),
    ("Hardmax", "", {"axis": 0}),
    ("Conv", "w c", {"pads": [1] * 4}),
    ("ConvTranspose", "v", {"strides": [2, 2]}),
    ("BatchNormalization", "c c c c", {}),
    ("InstanceNormalization", "c c", {}),
    ("LRN", "", {"size": 3}),
    ("Clip", "low", {}),
    ("MatMul", "m", {}),
    ("Transpose", "", {"perm": [0, 2, 3, 1]}),
    ("Gather", "at", {"axis": 1}),
    ("Pad", "pads low", {"mode": "constant"}),
    ("Resize", "- sizes", {"mode": "linear"}),
    ("TopK", "k", {"axis": 3}),
]


@pytest.mark.parametrize(("op", "others", "attributes"), NODES, ids=[each[0] for each in NODES])
def test_no_images_and_some(op: str, others: str, attributes: dict[str, Any]) -> None:
    """None from an input that holds none, and from one of which none is left."""
    operands = ["" if name == "-" else name for name in others.split()]
    outputs = 2 if op in ("Split", "TopK") else 1
    nodes = [helper.make_node("Slice", ["x", "zero", "zero", "zero"], ["none"])]
    for source in ("x", "none"):
        made = [f"{source}_{number}" for number in range(outputs)]
        nodes.append(helper.make_node(op, [source, *operands], made, **attributes))
    nodes.append(helper.make_node("Concat", ["none_0", "x_0", "none_0"], ["y"], axis=0))
    held = {name: HELD[name] for name in operands if name} | {"zero": np.array([0])}
    proto = model(nodes, {"x": ("N", 4, 5, 6)}, ["y", "none_0"], held, 17)
    for value in proto.graph.output:
        value.ClearField("type")
    net = lc.load(proto, threads=1)
    for images in (3, 0, 1):
        x = N.positive(images, 4, 5, 6)
        found, expected = net.run({"x": x}), reference(proto, {"x": x})
        for name, wanted in expected.items():
            assert found[name].dtype == wanted.dtype
            np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)


def test_a_transposed_convolution_of_no_rows_that_are_known() -> None:
    """Where no row reaches a tap's cells, they end before they begin, and are none of the last."""
    held = {"w": np.ones((1, 2, 5, 5), "f4"), "less": np.array([-1])}
    held["at"], held["ones"] = np.array([2]), np.array([1, 1])
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "at"], ["h"]),
        helper.make_node("Add", ["h", "less"], ["n"]),
        helper.make_node("Concat", ["ones", "n", "h"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["c"]),
        helper.make_node("ConvTranspose", ["c", "w"], ["t"], strides=[2, 2]),
        helper.make_node("ReduceSum", ["t"], ["y"], keepdims=0),
    ]
    net = lc.load(model(nodes, {"x": (1, 1, "H", "W")}, ["y"], held, 17), threads=1)
    for size in (4, 1, 2):
        assert net(np.ones((1, 1, size, size), "f4")).tolist() == 0


@pytest.mark.parametrize("opset", [17, 18, 20])
def test_reductions_of_nothing(opset: int) -> None:
    """Their neutral elements, where ONNX Runtime has some."""
    names = ("Sum", "Prod", "SumSquare", "L1", "L2", "LogSum")
    for op in (f"Reduce{name}" for name in names):
        inputs = ["x", "axes"] if opset >= 18 or op == "ReduceSum" else ["x"]
        given = {} if len(inputs) > 1 else {"axes": [1]}
        held = {"axes": np.array([1])} if len(inputs) > 1 else {}
        nodes = [helper.make_node(op, inputs, ["y"], **given)]
        nodes.append(helper.make_node("Add", ["y", "u"], ["z"]))
        proto = model(nodes, {"x": (2, "N", 4), "u": (2, 1, 4)}, ["z"], held, opset)
        net, u = lc.load(proto, threads=1), N.normal(2, 1, 4)
        for extent in (0, 3):
            arrays = {"x": N.positive(2, extent, 4), "u": u}
            wanted = reference(proto, arrays)["z"]
            np.testing.assert_allclose(net.run(arrays)["z"], wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", ["f4", "i4", "u1"])
def test_reductions_of_nothing_that_is_known(kind: str) -> None:
    """Of an initializer, as of what a run computes: the least number, or the largest."""
    ops = ("ReduceMax", "ReduceMin", "ReduceSum") if kind != "u1" else ("ReduceMax", "ReduceMin")
    nodes = [helper.make_node(op, ["none"], [f"n{op}"], keepdims=0) for op in ops]
    nodes += [helper.make_node("Cast", [f"n{op}"], [f"r{op}"], to=1) for op in ops]
    nodes += [helper.make_node("Max", ["x", f"r{op}"], [f"y{op}"]) for op in ops]
    proto = model(
        nodes, {"x": ("N",)}, [f"y{op}" for op in ops], {"none": np.empty((0, 2), kind)}, 18
    )
    net, feed = lc.load(proto, threads=1), {"x": N.normal(3)}
    for name, array in reference(proto, feed).items():
        np.testing.assert_array_equal(net.run(feed)[name], array)


def test_products_of_no_columns() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Gemm", ["x", "w", "u"], ["g"]),
        helper.make_node("Add", ["p", "g"], ["y"]),
    ]
    shapes = {"x": (3, "K"), "w": ("K", 5), "u": (3, 5)}
    proto = model(nodes, shapes, ["y"], {}, 17)
    net, u = lc.load(proto, threads=1), N.normal(3, 5)
    for inner in (0, 4):
        arrays = {"x": N.normal(3, inner), "w": N.normal(inner, 5), "u": u}
        wanted = 2 * arrays["x"] @ arrays["w"] + u
        np.testing.assert_allclose(net.run(arrays)["y"], wanted, rtol=1e-5)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("opset", [23, 24])
def test_an_empty_past(opset: int, folded: bool, causal: int) -> None:
    """The first step of a decoder: a past without steps adds nothing, and the next step has one."""
    shape: tuple[Any, ...] = ("B", "S", 8) if folded else ("B", 2, "S", 4)
    heads = {"q_num_heads": 2, "kv_num_heads": 2} if folded else {}
    names = ["q", "k", "v", "", "p", "pv"]
    node = helper.make_node("Attention", names, ["y", "z", "zv"], is_causal=causal, **heads)
    inputs = dict.fromkeys("qkv", shape) | dict.fromkeys(("p", "pv"), ("B", 2, "P", 4))
    proto = model([node], inputs, ["y", "z", "zv"], {}, opset)
    net = lc.load(proto, threads=1)
    past = past_value = np.empty((1, 2, 0, 4), np.float32)
    for steps in (3, 1, 1):
        q, k, v = (N.normal(*((1, steps, 8) if folded else (1, 2, steps, 4))) for _ in range(3))
        arrays = {"q": q, "k": k, "v": v, "p": past, "pv": past_value}
        found = net.run(arrays)
        by_heads = [
            x.reshape(1, steps, 2, 4).transpose(0, 2, 1, 3) if folded else x for x in (q, k, v)
        ]
        keys = np.concatenate([past, by_heads[1]], axis=2)
        scores = by_heads[0] @ keys.transpose(0, 1, 3, 2) / 2
        if causal:
            before = np.arange(keys.shape[2]) > np.arange(steps)[:, None] + past.shape[2]
            scores = np.where(before, -np.inf, scores)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        past, past_value = keys, np.concatenate([past_value, by_heads[2]], axis=2)
        wanted = shares / shares.sum(-1, keepdims=True) @ past_value
        if folded:
            wanted = wanted.transpose(0, 2, 1, 3).reshape(1, steps, 8)
        np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found["z"], past)
        np.testing.assert_array_equal(found["zv"], past_value)


def test_nothing_is_joined_to_something() -> None:
    """Whatever joins tensors: one without elements adds nothing, and has to fit all the same."""
    codes = {"s": np.float32(0.5), "o": np.uint8(3)}
    read = [name for each in ("a", "b") for name in (each, "s", "o")]
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "u"], ["both"]),
        helper.make_node("ConcatFromSequence", ["both"], ["y"], axis=1),
        helper.make_node("QuantizeLinear", ["x", "s", "o"], ["a"]),
        helper.make_node("QuantizeLinear", ["u", "s", "o"], ["b"]),
        helper.make_node("QLinearConcat", ["s", "o", *read], ["z"], axis=1, domain="com.microsoft"),
    ]
    proto = model(nodes, {"x": (2, "N", 4), "u": (2, 3, 4)}, ["y", "z"], codes, 17)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    net, u = lc.load(proto, threads=1), N.normal(2, 3, 4)
    for extent in (0, 2):
        x = N.normal(2, extent, 4)
        found, joined = net.run({"x": x, "u": u}), np.concatenate([x, u], axis=1)
        np.testing.assert_array_equal(found["y"], joined)
        np.testing.assert_array_equal(found["z"], np.clip(np.rint(joined / 0.5) + 3, 0, 255))
