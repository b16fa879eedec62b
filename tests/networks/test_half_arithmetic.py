"""Networks of which the user asked half precision: which layers multiply in it, and the errors."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.codegen.host import host

_SHAPES = {"w0": (64, 3, 3, 3), "w1": (96, 64, 3, 3), "w2": (64, 96, 1, 1)}


def model() -> bytes:
    """Three convolutions from x (1, 3, 32, 32), each followed by Relu."""
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in _SHAPES.items()
    }
    nodes, read = [], "x"
    for number, (name, shape) in enumerate(_SHAPES.items()):
        pad = [shape[2] // 2] * 4
        nodes.append(helper.make_node("Conv", [read, name], [f"c{number}"], name, pads=pad))
        read = "y" if number == 2 else f"r{number}"
        nodes.append(helper.make_node("Relu", [f"c{number}"], [read]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "three", [x], [y], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    ("half", "needs", "says", "error"),
    [
        ("float16", "fp16", "in float16", 2e-3),
        ("bfloat16", "amx_bf16", "by amx", 1.2e-2),
    ],
)
def test_layers_multiply_in_the_half_precision_that_is_asked_for(
    half: str, needs: str, says: str, error: float
) -> None:
    given = model()
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    exact = lc.load(given, dtype="float64")(x)
    net = lc.load(given, precision=half)
    found = net(x)
    assert np.abs(found - exact).max() / np.abs(exact).max() <= error
    usual = lc.load(given)
    usual(x)
    assert says not in usual.explain()
    if needs in host().extensions:
        assert says in net.explain()
