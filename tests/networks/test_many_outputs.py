"""Random networks of nodes with several outputs, against ONNX Runtime."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from support.errors import relative_error
from support.network_models import by_onnxruntime, small, weights

Shape = tuple[int, ...]


class SplitNetwork:
    """Maps (batch, channels, height, width) that are split, computed with and put together.

    Args:
        seed: decides.
        batch: of `x`.
    """

    def __init__(self, seed: int, batch: int) -> None:
        self.random = Random(seed)
        self.maps: dict[str, Shape] = {"x": (batch, self.random.choice([8, 32, 33]), 6, 5)}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        for _ in range(self.random.randint(3, 8)):
            way = self.random.choice([self.split, self.split, self.conv, self.unary, self.joined])
            way(self.random.choice(list(self.maps)))
        made = [name for name in self.maps if name != "x"]
        count = self.random.randint(1, min(3, len(made)))
        outputs = {name: self.maps[name] for name in self.random.sample(made, count)}
        self.model = small(self.nodes, {"x": self.maps["x"]}, outputs, self.constants)

    def add(self, op: str, inputs: list[str], *shapes: Shape, **attributes: int) -> None:
        names = [f"{op}_{len(self.nodes)}_{number}" for number in range(len(shapes))]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        pairs = zip(names, shapes, strict=True)
        self.maps.update((name, shape) for name, shape in pairs if 0 not in shape)

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def split(self, x: str) -> None:
        """Parts of any sizes, some of them without elements or ending where a block does."""
        shape, axis = self.maps[x], self.random.choice([0, 1, 1, 1, 2, 3])
        extent = shape[axis]
        ends = sorted(self.random.randint(0, extent) for _ in range(self.random.randint(1, 3)))
        if self.random.random() < 0.5:
            ends = [end // 16 * 16 for end in ends]
        sizes = np.diff([0, *ends, extent])
        parts = [(*shape[:axis], int(size), *shape[axis + 1 :]) for size in sizes]
        self.add("Split", [x, self.constant(sizes.astype(np.int64))], *parts, axis=axis)

    def conv(self, x: str) -> None:
        batch, channels, *size = self.maps[x]
        made = self.random.choice([4, 16, 32])
        w = weights(made, channels, 1, 1, seed=len(self.constants)) / channels**0.5
        self.add("Conv", [x, self.constant(w)], (batch, made, *size))

    def unary(self, x: str) -> None:
        self.add(self.random.choice(["Relu", "Sigmoid", "Neg"]), [x], self.maps[x])

    def joined(self, x: str) -> None:
        """A sum with an equal map, or a Concat with one that differs in its channels only."""
        shape = self.maps[x]
        around = shape[0], shape[2:]
        other = self.random.choice([n for n, s in self.maps.items() if (s[0], s[2:]) == around])
        if self.maps[other] == shape and self.random.random() < 0.5:
            self.add("Add", [x, other], shape)
        else:
            channels = shape[1] + self.maps[other][1]
            self.add("Concat", [x, other], (shape[0], channels, *shape[2:]), axis=1)


@pytest.mark.parametrize("seed", range(20))
def test_equal_to_onnxruntime(seed: int) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    network = SplitNetwork(seed, batch=1 + seed % 3)
    x = weights(*network.maps["x"], seed=seed)
    given = by_onnxruntime(network.model, {"x": x})
    net = lc.load(network.model, threads=2)
    lean = lc.load(network.model, threads=1, memory_limit=net.plan.memory_bytes)
    for found in (net.run({"x": x}), net.run({"x": x}), lean.run({"x": x})):
        assert list(found) == list(given)
        for name, array in found.items():
            assert relative_error(array, given[name]) < 1e-5, name


def test_splits_are_among_them() -> None:
    plans = [lc.load(SplitNetwork(seed, 1).model, threads=1).plan for seed in range(3)]
    assert any(node.op == "Split" for plan in plans for node in plan.graph.nodes)
