"""Files in which some layers are float16 and others float32 or codes, judged by onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import leanconv as lc
from leanconv.api.cpu_backend import CpuBackend
from leanconv.graph.passes import run_passes
from leanconv.graph.passes.store_in_halves import store_in_halves
from leanconv.graph.verify import verify
from leanconv.types import FLOAT16, FLOAT32
from support.networks_to_quantise import model, normal

C = 64  # values of more than 4096 elements are stored in halves


def coded(name: str, result: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{result}_codes"]),
        helper.make_node("DequantizeLinear", [f"{result}_codes", "s", "z"], [result]),
    ]


def cast(name: str, result: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [name], [result], to=to)


def weights(*names: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    held = {
        "w": random.integers(-127, 128, (C, C, 1, 1)).astype(np.int8),
        "ws": np.full(C, 1e-3, np.float32),
        "s": np.float32(0.05),
        "z": np.uint8(100),
        "h": (normal(C, C, 1, 1) * 0.1).astype(np.float16),
        "f": normal(C, C, 1, 1) * np.float32(0.1),
    }
    return {name: held[name] for name in names}


def run_both(
    nodes: list[onnx.NodeProto], held: dict[str, np.ndarray]
) -> tuple[lc.Network, np.ndarray, np.ndarray]:
    data = model(nodes, [1, C, 9, 9], held)
    x = normal(1, C, 9, 9)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    net = lc.load(data, threads=1)
    return net, net(x), expected


def coded_conv(result: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wf"], axis=0),
        helper.make_node("Conv", ["d", "wf"], [result]),
    ]


@pytest.mark.parametrize("op", ["Relu", "Sigmoid"])
def test_functions_of_codes_in_float16_are_tables(op: str) -> None:
    nodes = [
        *coded("x", "a"),
        cast("a", "h1", FLOAT16.onnx),
        helper.make_node(op, ["h1"], ["h2"]),
        cast("h2", "b", FLOAT32.onnx),
        *coded("b", "d"),
        *coded_conv("y"),
    ]
    net, found, expected = run_both(nodes, weights("w", "ws", "s", "z"))
    assert "Cast" not in {step.op for step in net.bind((1, C, 9, 9)).steps}
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


def test_float16_layers_between_others_are_stored_so() -> None:
    nodes = [
        *coded("x", "d"),
        *coded_conv("c"),
        cast("c", "h1", FLOAT16.onnx),
        helper.make_node("Conv", ["h1", "h"], ["h2"], name="half"),
        helper.make_node("Relu", ["h2"], ["h3"]),
        cast("h3", "g", FLOAT32.onnx),
        helper.make_node("Conv", ["g", "f"], ["y"], name="whole"),
    ]
    net, found, expected = run_both(nodes, weights("w", "ws", "s", "z", "h", "f"))
    assert np.abs(found - expected).max() < 4e-3 * np.abs(expected).max()
    assert isinstance(net.backend, CpuBackend)
    model_ = net.backend.model
    graph = run_passes(model_.bind({"x": (1, C, 9, 9)}))
    graph = verify(store_in_halves(graph, FLOAT16, model_.half_names))
    types = {node.name: graph.types[node.output].dtype for node in graph.nodes}
    assert (types["half"], types["whole"]) == (FLOAT16, FLOAT32)
    data = model(nodes, [1, C, 9, 9], weights("w", "ws", "s", "z", "h", "f"))
    double = lc.load(data, dtype="float64", threads=1)(normal(1, C, 9, 9))
    np.testing.assert_allclose(double, expected, atol=4e-3 * np.abs(expected).max())
