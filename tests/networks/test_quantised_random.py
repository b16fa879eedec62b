"""Random networks with QuantizeLinear and DequantizeLinear: the codes are ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import PASSES, run_passes
from leanconv.graph.passes.coded_values import unsigned_codes
from leanconv.types import FLOAT32, FLOAT64, INT8, UINT8
from support.interpret import interpret
from support.quantised_models import model, peer
from support.quantised_networks import QuantisedNetwork

CODES = (np.uint8, np.int8)


def agree(network: QuantisedNetwork, found: dict[str, np.ndarray]) -> None:
    """Hold codes to ONNX Runtime's."""
    for name, expected in zip(network.outputs, peer(network.proto, network.inputs), strict=True):
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected, f"{network.kinds}, {name}")


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("seed", range(24))
def test_the_graph_after_the_passes(seed: int, dtype: Any) -> None:
    network = QuantisedNetwork(seed + 100, dtype)
    model = read_model(network.proto.SerializeToString())
    graph = model.bind({"x": network.inputs["x"].shape})
    agree(network, interpret(run_passes(graph, PASSES, check=True), network.inputs))


@pytest.mark.parametrize("seed", range(6))
def test_what_is_compiled(seed: int) -> None:
    network = QuantisedNetwork(seed + 200, CODES[seed % 2], layers=8)
    loaded = lc.load(network.proto.SerializeToString())
    agree(network, loaded.run(network.inputs))


@pytest.mark.parametrize("dtype", CODES)
def test_layers_are_recognised(dtype: Any) -> None:
    """Of a usual network nothing is computed in floats but at its ends."""
    network = QuantisedNetwork(0, dtype, layers=0)
    name, shape = "x", (1, 8, 9, 9)
    network.inputs["x"] = np.ones(shape, np.float32)
    ((name, _),) = network.tensors
    for _ in range(2):
        weights = network.weights((8, 8, 3, 3), 0)
        y = network.node("Relu", network.node("Conv", name, *weights, pads=[1] * 4))
        y = network.quantised(y)
        name = network.quantised(network.node("Add", y, name))
    name = network.quantised(network.node("MaxPool", name, kernel_shape=[3, 3], strides=[2, 2]))
    name = network.quantised(network.node("HardSwish", name))
    name = network.quantised(network.node("GlobalAveragePool", name))
    name = network.quantised(network.node("Flatten", name))
    weights = network.weights((5, 8), 0)
    network.outputs[:] = [network.node("Gemm", name, *weights, transB=1)]
    model = read_model(network.proto.SerializeToString())
    graph = run_passes(model.bind({"x": shape}), PASSES, check=True)
    floats = [node.op for node in graph.nodes if node.op in ("Conv", "Relu", "Gemm")]
    assert not floats
    convolutions = [node for node in graph.nodes if node.op == "QLinearConv"]
    added = INT8 if dtype == np.int8 else UINT8  # sums of codes below 0 stay what they are
    read = [graph.types[node.inputs[0]].dtype for node in convolutions]
    assert read == [added, added, UINT8]
    assert sum(node.op == "DequantizeLinear" for node in graph.nodes) == 0
    (expected,) = peer(network.proto, network.inputs)
    (found,) = interpret(graph, network.inputs).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("code", "bound", "coded"), [("u", 9, True), ("i", 9, False), ("u", 0.2, False)]
)
def test_a_softmax_is_onnxruntimes(code: str, bound: float, coded: bool) -> None:
    """On codes where it is from codes to all codes of the same type."""
    rng, dtype = np.random.default_rng(3), np.dtype(f"{code}1")
    zero = np.zeros((), dtype)
    held = {"s": np.float32(0.05), "z": np.uint8(7), "t": np.float32(1 / 256), "y": zero}
    held |= {"low": np.float32(0), "high": np.float32(bound)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=1),
        helper.make_node("Clip", ["b", "low", "high"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "t", "y"], ["q"]),
    ]
    given = {"x": rng.integers(0, 256, (40, 19, 3), np.uint8)}
    proto = model(nodes, given, held, ["q"])
    graph = read_model(proto.SerializeToString()).bind({"x": given["x"].shape})
    graph = run_passes(graph, PASSES, check=True)
    assert any(node.op == "CumSum" for node in graph.nodes) == coded
    (expected,) = peer(proto, given)
    np.testing.assert_array_equal(interpret(graph, given)["q"], expected)
    np.testing.assert_array_equal(lc.load(proto.SerializeToString(), threads=1)(**given), expected)


@pytest.mark.parametrize("seed", range(40))
def test_int8_is_stored_as_uint8_inside(seed: int) -> None:
    """The last tensor alone is an output: those before it may change their type."""
    network = QuantisedNetwork(seed + 300, np.int8, layers=5)
    del network.outputs[:-1]
    bound = read_model(network.proto.SerializeToString()).bind({"x": network.inputs["x"].shape})
    graph = run_passes(bound, PASSES, check=True)
    signed = run_passes(bound, [each for each in PASSES if each is not unsigned_codes])
    (expected,) = interpret(signed, network.inputs).values()
    (found,) = interpret(graph, network.inputs).values()
    np.testing.assert_array_equal(found, expected)


def test_plans_are_explained() -> None:
    """All algorithms of all layers are compared; none of them has an error."""
    network = QuantisedNetwork(207, np.uint8, layers=6)
    assert "QLinearConv" in str(lc.load(network.proto.SerializeToString()).explain())


@pytest.mark.parametrize("seed", range(12))
def test_in_float64_codes_are_those_of_float32(seed: int) -> None:
    """A network in float64 is what `verify` compares with.

    But for ties of what is computed in floats, as a product is whose codes a Clip bounds.
    """
    network = QuantisedNetwork(seed + 400, CODES[seed % 2])
    model = read_model(network.proto.SerializeToString())
    found = []
    for dtype in (FLOAT32, FLOAT64):
        graph = run_passes(model.bind({"x": network.inputs["x"].shape}, dtype=dtype), check=True)
        given = {name: array.astype(dtype) for name, array in network.inputs.items()}
        found.append(interpret(graph, given))
    for name in network.outputs:
        away = np.abs(found[0][name].astype(int) - found[1][name].astype(int))
        assert away.max(initial=0) <= 1, network.kinds
        assert np.mean(away > 0) < 0.05, network.kinds
