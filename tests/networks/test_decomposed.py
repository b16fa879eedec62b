"""A network of operations that are imported as several simpler ones, kernels and all."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from support.errors import relative_error
from support.network_models import by_numpy, by_onnxruntime, small, weights

node = helper.make_node


def network(opset: int = 22) -> bytes:
    """Quantised weights, Mish, Celu and Softsign, repetition and cubic enlargement.

    Input (N, 3, H, W), output (N, 8, 4 H, 3 W).
    """
    random = np.random.default_rng(0)
    held = {
        "q0": random.integers(-128, 128, (8, 3, 3, 3)).astype(np.int8),
        "scale": random.uniform(0.001, 0.003, 8).astype(np.float32),
        "w1": weights(8, 8, 1, 1, seed=2) / 4,
        "repeats": np.array([1, 1, 2, 1]),
        "scales": np.array([1, 1, 2, 3], np.float32),
    }
    nodes = [
        node("DequantizeLinear", ["q0", "scale"], ["w0"], axis=0),
        node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        node("Mish", ["c0"], ["m0"]),
        node("Conv", ["m0", "w1"], ["c1"]),
        node("Celu", ["c1"], ["e1"], alpha=0.7),
        node("Softsign", ["c0"], ["s0"]),
        node("Mean", ["e1", "s0", "m0"], ["n0"]),
        node("Tile", ["n0", "repeats"], ["t0"]),
        node("Resize", ["t0", "", "scales"], ["y"], mode="cubic"),
    ]
    return small(nodes, {"x": ("N", 3, "H", "W")}, {"y": ("N", 8, "P", "Q")}, held, opset=opset)


@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (3, 3, 9, 14)])
def test_equal_to_onnxruntime_and_to_float64(shape: tuple[int, ...]) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    built, x = network(), weights(*shape)
    net = lc.load(built, threads=2)
    found = net(x)
    assert found.shape == (shape[0], 8, 4 * shape[2], 3 * shape[3])
    assert relative_error(found, by_onnxruntime(built, {"x": x})["y"]) < 1e-5
    assert relative_error(found, by_numpy(built, {"x": x})["y"]) < 1e-5
    assert net.used_bytes == net.plan.memory_bytes


def test_in_double_precision() -> None:
    built, x = network(), weights(2, 3, 8, 10)
    found = lc.load(built, threads=2, dtype="float64")(x)
    assert relative_error(found, by_numpy(built, {"x": x})["y"]) < 1e-12
