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
