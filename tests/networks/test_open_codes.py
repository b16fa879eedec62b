"""Convolutions of codes with open sizes: Winograd's tiles, fused and in stages, have equal bits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc

SHAPES = ((1, 24, 20, 20), (2, 24, 7, 9), (1, 24, 21, 33), (1, 24, 1, 1), (1, 24, 3, 70))
# Channels before and after, zeros of codes before and after: of the first, padding is not code 0.
LAYERS = ((24, 40, 128, 0), (40, 33, 0, 100))


def network() -> bytes:
    """x (N, 24, H, W), quantised, through both layers, to y in float32."""
    rng = np.random.default_rng(0)
    held: dict[str, np.ndarray] = {}

    def constant(name: str, value: np.ndarray) -> str:
        held[name] = np.asarray(value)
        return name

    def codes(number: int, zero: int) -> list[str]:
        scale = np.float32(0.02 * 12**number)
        return [constant(f"s{number}", scale), constant(f"z{number}", np.uint8(zero))]

    before = codes(0, LAYERS[0][2])
    nodes = [helper.make_node("QuantizeLinear", ["x", *before], ["q0"])]
    for number, (inputs, outputs, _, zero) in enumerate(LAYERS):
        weights = rng.integers(-127, 128, (outputs, inputs, 3, 3), np.int8)
        after = codes(number + 1, zero)
        names = [
            *(f"q{number}", *before),
            constant(f"w{number}", weights),
            constant(f"ws{number}", (rng.random(outputs) * 0.01 + 0.001).astype(np.float32)),
            constant(f"wz{number}", np.zeros(outputs, np.int8)),
            *after,
            constant(f"b{number}", rng.integers(-3000, 3000, outputs).astype(np.int32)),
        ]
        result = f"q{number + 1}"
        nodes.append(helper.make_node("QLinearConv", names, [result], f"c{number}", pads=[1] * 4))
        before = after
    nodes.append(helper.make_node("DequantizeLinear", [result, *before], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 24, "H", "W"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "codes", [x], [y], tensors)
    opsets = [helper.make_opsetid("", 13)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return made.SerializeToString()


@pytest.mark.parametrize("algorithm", ["winograd:m=4", "winograd:form=stages,m=2"])
def test_tiles_of_open_sizes_have_the_bits_of_the_direct_convolution(algorithm: str) -> None:
    model, rng = network(), np.random.default_rng(1)
    nets = [
        lc.load(model, algorithms=dict.fromkeys(("c0", "c1"), a)) for a in ("direct", algorithm)
    ]
    for shape in SHAPES:
        x = (2 * rng.standard_normal(shape)).astype(np.float32)
        expected, found = (net(x) for net in nets)
        np.testing.assert_array_equal(found, expected)
