"""ConvTranspose between DequantizeLinear and QuantizeLinear: on integers, judged by onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import leanconv as lc
from support.networks_to_quantise import model, normal

# C, K, kernel, strides, pads, output_padding, groups, input, bias, ends in codes, Relu, integers
CASES = [
    (6, 4, (2, 2), (2, 2), (0,) * 4, (0, 0), 1, (5, 7), True, True, False, True),
    (6, 4, (3, 3), (2, 2), (1,) * 4, (1, 1), 1, (5, 7), False, True, False, True),
    (5, 3, (4, 4), (2, 2), (1,) * 4, (0, 0), 1, (4, 6), True, True, True, True),
    (5, 3, (3, 3), (2, 2), (0,) * 4, (0, 0), 1, (4, 6), True, True, False, True),
    (8, 6, (2, 3), (2, 3), (0,) * 4, (0, 0), 2, (4, 3), True, True, False, True),
    (5, 3, (3,), (2,), (1, 0), (0,), 1, (6,), True, True, True, True),
    (4, 3, (2, 2, 2), (2, 2, 2), (0,) * 6, (0, 0, 0), 1, (3, 2, 4), True, True, False, True),
    (5, 3, (3, 3), (1, 1), (1,) * 4, (0, 0), 1, (4, 6), False, False, False, True),
    (5, 2, (2, 2), (2, 2), (0, 0, 1, 1), (0, 0), 1, (1, 6), False, False, True, True),
    (5, 3, (1, 1), (2, 2), (0,) * 4, (1, 0), 1, (4, 6), True, True, False, False),  # many zeros
    (5, 3, (3, 3), (2, 2), (3,) * 4, (1, 1), 1, (6, 6), True, True, False, False),  # cuts inputs
]


def coded(name: str, result: str, scale: str, zero: str) -> list[onnx.NodeProto]:
    kept = f"{result}_codes"
    return [
        helper.make_node("QuantizeLinear", [name, scale, zero], [kept]),
        helper.make_node("DequantizeLinear", [kept, scale, zero], [result]),
    ]


def network(case: tuple[Any, ...], zero: int = 100) -> bytes:
    inputs, outputs, kernel, strides, pads, extra, groups, size, bias, ends, relu, _ = case
    random = np.random.default_rng(1)
    weights = {
        "w": random.integers(-127, 128, (inputs, outputs // groups, *kernel)).astype(np.int8),
        "ws": np.float32(1e-3),
        "s": np.float32(0.03),
        "z": np.uint8(zero),
    }
    if groups == 1:
        weights["ws"] = random.uniform(5e-4, 1e-3, outputs).astype(np.float32)
    nodes = coded("x", "d", "s", "z")
    nodes.append(helper.make_node("DequantizeLinear", ["w", "ws"], ["wf"], axis=1))
    reads = ["d", "wf"]
    if bias:
        weights["b"] = normal(outputs)
        reads.append("b")
    given = {"strides": strides, "pads": pads, "output_padding": extra, "group": groups}
    names = ["t", "r"] if relu else ["t"]
    nodes.append(helper.make_node("ConvTranspose", reads, ["t"], **given))
    if relu:
        nodes.append(helper.make_node("Relu", ["t"], ["r"]))
    if ends:
        weights.update(s2=np.float32(0.2), z2=np.uint8(130))
        nodes += coded(names[-1], "y", "s2", "z2")
    else:
        nodes[-1].output[0] = "y"
    return model(nodes, ["n", inputs, *size], weights, rank=2 + len(size))


@pytest.mark.drawn
@pytest.mark.parametrize("case", CASES)
def test_transposed_convolutions_of_codes(case: tuple[Any, ...]) -> None:
    data = network(case)
    x = normal(2, case[0], *case[7])
    (expected,) = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    net = lc.load(data, threads=1)
    found = net(x)
    ops = {step.op for step in net.bind(x.shape).steps}
    assert ("QLinearConv" in ops, "ConvTranspose" in ops) == (case[-1], not case[-1])
    if case[9]:  # of the same codes but where the result is between two of them
        steps = np.rint((found - expected) / 0.2)
        assert np.abs(steps).max() <= 1
        assert np.mean(steps != 0) < 0.002
    else:
        np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def test_an_open_size() -> None:
    case = (6, 4, (3, 3), (2, 2), (1,) * 4, (1, 1), 1, ("h", "w"), True, True, False, True)
    net = lc.load(network(case), threads=1)
    for size in ((1, 1), (3, 5)):
        x = normal(1, 6, *size)
        assert net(x).shape == (1, 4, *(2 * extent for extent in size))
    small = lc.load(network((*case[:7], (3, 5), *case[8:])), threads=1)
    np.testing.assert_array_equal(small(x), net(x))
