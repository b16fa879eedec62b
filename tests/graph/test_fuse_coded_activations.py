"""Activations behind convolutions of codes become part of them, and codes are made of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from support.quantised_models import model, peer

_STEP = np.float32(0.05)  # of the codes of results
_KINDS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "HardSwish": ([], {}),
    "Sigmoid": ([], {}),
    "LeakyRelu": ([], {"alpha": 0.2}),
    "HardSigmoid": ([], {"alpha": 0.25, "beta": 0.4}),
    "Tanh": ([], {}),
    "Elu": ([], {"alpha": 0.7}),
}


class Network:
    """x as codes, a convolution of codes, an activation, what follows it, and codes again."""

    def __init__(self, seed: int, activation: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = [np.uint8, np.int8][seed % 2]
        self.nodes: list[onnx.NodeProto] = []
        self.held: dict[str, Any] = {"zero": self.dtype(self.rng.integers(3, 120)), "step": _STEP}
        inputs, outputs = (int(n) for n in self.rng.integers(1, 40, 2))
        group = 1
        if seed % 3 == 0:
            inputs = outputs = group = int(self.rng.integers(2, 36))
        self.outputs = outputs
        size = self.rng.integers(3, 12, 2)
        self.x = self.rng.normal(0, 2, (2, inputs, *size)).astype(np.float32)
        w = self.rng.integers(-127, 128, (outputs, inputs // group, 3, 3), np.int8)
        scale = np.float32(4 / (74 * np.sqrt(9 * inputs / group)))
        self.held |= {"w": w, "ws": np.full(outputs, scale), "wz": np.zeros(outputs, np.int8)}
        self.held["b"] = self.rng.normal(0, 1, outputs).astype(np.float32)
        codes = self.add("QuantizeLinear", "x", "step", "zero")
        weights = self.add("DequantizeLinear", "w", "ws", "wz", axis=0)
        floats = self.add("DequantizeLinear", codes, "step", "zero")
        conv = self.add("Conv", floats, weights, "b", pads=[1] * 4, group=group)
        more, given = _KINDS[activation]
        self.value = self.add(activation, conv, *more, **given)

    def add(self, op: str, *inputs: str, **given: Any) -> str:
        """Add a node; its result's name."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **given))
        return name

    def affine(self) -> None:
        """Factors and summands, of one number or one for each channel, on either side."""
        for op in self.rng.choice(["Mul", "Add", "Sub"], self.rng.integers(0, 4)):
            shape = [(), (1,), (self.outputs, 1, 1), (1, self.outputs, 1, 1)][self.rng.integers(4)]
            name = f"c{len(self.nodes)}"
            self.held[name] = self.rng.uniform(-1.5, 1.5, shape).astype(np.float32)
            operands = [self.value, name]
            self.value = self.add(str(op), *operands[:: self.rng.choice([1, -1])])

    def quantise(self) -> None:
        """Codes, and what these stand for."""
        codes = self.add("QuantizeLinear", self.value, "step", "zero")
        self.value = self.add("DequantizeLinear", codes, "step", "zero")

    def file(self, *others: str) -> onnx.ModelProto:
        return model(self.nodes, {"x": self.x}, self.held, [self.value, *others])


def operations(made: onnx.ModelProto, x: np.ndarray) -> list[str]:
    """The operations of the planned network."""
    net = lc.load(made, threads=1)
    return [row.op for row in net.profile({"x": x}, repeats=1)]


@pytest.mark.drawn
@pytest.mark.parametrize("activation", _KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_onnxruntimes(seed: int, activation: str) -> None:
    made = Network(seed, activation)
    made.affine()
    if seed != 1:
        made.quantise()
    file = made.file()
    found = lc.load(file, threads=1).run({"x": made.x})[made.value]
    (expected,) = peer(file, {"x": made.x})
    if seed == 1:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    else:
        steps = np.rint((found - expected) / _STEP)
        assert np.abs(steps).max() <= 1.0
        assert np.count_nonzero(steps) <= 0.01 * steps.size + 1
    names = operations(file, made.x)
    assert "QLinearConv" in names
    assert not {activation, "Mul", "Add", "Sub"} & set(names)
    assert names.count("QuantizeLinear") == 1  # of x


def test_floats_that_others_read_stay() -> None:
    made = Network(1, "HardSwish")
    floats = made.value
    made.affine()
    made.quantise()
    file = made.file(floats)
    expected = dict(zip((made.value, floats), peer(file, {"x": made.x}), strict=True))
    for name, array in lc.load(file, threads=1).run({"x": made.x}).items():
        np.testing.assert_allclose(array, expected[name], atol=_STEP * 1.01, err_msg=name)
    found = operations(file, made.x)
    assert found.count("QuantizeLinear") == found.count("Expression") == 1  # the floats', fused
