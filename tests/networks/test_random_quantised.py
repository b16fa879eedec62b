"""Random networks of convolutions of codes, of any shapes, have onnxruntime's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from support.quantised_models import microsoft, model, peer

F = np.float32


class Network:
    """A network of operators on codes, grown node by node from an input of codes.

    Attributes:
        nodes, constants: of the file.
        values: the shape, scale and zero of every value of codes.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = np.dtype([np.uint8, np.int8][seed % 2])
        self.ends = int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {}
        self.values: dict[str, tuple[int, ...]] = {}
        rank = int(self.rng.choice([1, 2, 2, 2, 2, 3]))
        largest = {1: 40, 2: 20, 3: 9}[rank]
        size = tuple(int(n) for n in self.rng.integers(5, largest, rank))
        self.shape = (int(self.rng.integers(1, 3)), int(self.rng.choice([1, 3, 16, 20])), *size)
        self.declare("x", self.shape)

    def declare(self, name: str, shape: tuple[int, ...]) -> str:
        """A value with a quantisation of its own; zeros at the least code are frequent."""
        self.values[name] = shape
        zero = int(self.rng.integers(self.ends[0], self.ends[1] + 1))
        zero = self.ends[0] if self.rng.random() < 0.4 else zero
        self.constants[f"{name}.s"] = F(self.rng.choice([0.25, 0.125, self.rng.uniform(0.02, 0.3)]))
        self.constants[f"{name}.z"] = self.dtype.type(zero)
        return name

    def pick(self) -> str:
        """A value, a late one rather than an early one."""
        names = list(self.values)[-4:]
        return str(self.rng.choice(names))

    def conv(self, x: str) -> str:
        """A convolution of any kernel, stride, dilation, groups and padding that fits."""
        rng, (batch, channels, *size) = self.rng, self.values[x]
        name = f"y{len(self.nodes)}"
        divisors = [g for g in (1, 1, 1, 2, 4, channels) if channels % g == 0]
        group = int(rng.choice(divisors))
        outputs = group * int(rng.integers(1, 3 if group > 4 else 40))
        kernel, strides, pads = [], [], []
        for extent in size:
            kernel.append(int(rng.integers(1, min(4, extent) + 1)))
            strides.append(int(rng.choice([1, 1, 2])))
            pads.append([int(n) for n in rng.integers(0, kernel[-1], 2)])
        dilations = [int(rng.choice([1, 2])) if n >= 2 * k else 1 for n, k in zip(size, kernel)]  # noqa: B905
        out = [
            (n + sum(p) - (k - 1) * d - 1) // s + 1
            for n, p, k, d, s in zip(size, pads, kernel, dilations, strides, strict=True)
        ]
        shape = (outputs, channels // group, *kernel)
        w = rng.integers(-127, 128, shape).astype(np.int8)
        if self.dtype == np.uint8 and rng.random() < 0.2:
            w = rng.integers(0, 256, shape).astype(np.uint8)
        several = (outputs,) if rng.random() < 0.7 and w.dtype == np.int8 else ()
        size_of_sums = float(np.prod(shape[1:])) ** 0.5
        self.declare(name, (batch, outputs, *out))
        zero = np.zeros(several, w.dtype) + w.dtype.type(0 if w.dtype == np.int8 else 128)
        scale = rng.uniform(0.3, 1.0, several) / (70 * size_of_sums)
        self.constants |= {f"{name}.w": w, f"{name}.ws": scale.astype(F), f"{name}.wz": zero}
        of = [x, f"{x}.s", f"{x}.z", f"{name}.w", f"{name}.ws", f"{name}.wz"]
        inputs = [*of, f"{name}.s", f"{name}.z"]
        if rng.random() < 0.8:
            self.constants[f"{name}.b"] = rng.integers(-3000, 3000, outputs).astype(np.int32)
            inputs.append(f"{name}.b")
        padding = [p[0] for p in pads] + [p[1] for p in pads]
        attributes = {"strides": strides, "pads": padding, "dilations": dilations, "group": group}
        self.nodes.append(helper.make_node("QLinearConv", inputs, [name], **attributes))
        return name

    def add(self, a: str) -> None:
        """A sum of two values of one shape, where there are such."""
        others = [n for n, shape in self.values.items() if shape == self.values[a] and n != a]
        if not others:
            return
        pair = [a, str(self.rng.choice(others))]
        first, second = pair if self.rng.random() < 0.5 else pair[::-1]
        name = f"y{len(self.nodes)}"
        self.declare(name, self.values[a])
        of = [first, f"{first}.s", f"{first}.z", second, f"{second}.s", f"{second}.z"]
        self.nodes.append(microsoft("QLinearAdd", [*of, f"{name}.s", f"{name}.z"], [name]))

    def pool(self, x: str) -> None:
        """The largest of neighbours, of the same quantisation."""
        (batch, channels, *size), name = self.values[x], f"y{len(self.nodes)}"
        if min(size) < 2:
            return
        attributes = {"kernel_shape": [2] * len(size), "strides": [2] * len(size)}
        self.nodes.append(helper.make_node("MaxPool", [x], [name], **attributes))
        self.values[name] = (batch, channels, *(n // 2 for n in size))
        for part in ("s", "z"):
            self.constants[f"{name}.{part}"] = self.constants[f"{x}.{part}"]

    def grown(self, steps: int) -> Network:
        """This network with so many more nodes, some of which add what they are given."""
        for _ in range(steps):
            kind = self.rng.random()
            if kind < 0.6:
                self.conv(self.pick())
            elif kind < 0.9:
                self.add(self.twin(self.pick()))
            else:
                self.pool(self.pick())
        return self

    def twin(self, x: str) -> str:
        """A pointwise convolution that keeps the shape, so that there is something to add."""
        _, channels, *size = self.values[x]
        name = f"y{len(self.nodes)}"
        self.declare(name, self.values[x])
        w = self.rng.integers(-127, 128, (channels, channels, *(1,) * len(size))).astype(np.int8)
        scale = F(1 / (70 * channels**0.5))
        self.constants |= {f"{name}.w": w, f"{name}.ws": scale, f"{name}.wz": np.int8(0)}
        inputs = [x, f"{x}.s", f"{x}.z", f"{name}.w", f"{name}.ws", f"{name}.wz"]
        made = helper.make_node("QLinearConv", [*inputs, f"{name}.s", f"{name}.z"], [name])
        self.nodes.append(made)
        return name

    def checked(self) -> None:
        """Compare all results that nothing reads, and one that something does."""
        used = {name for node in self.nodes for name in node.input}
        outputs = [node.output[0] for node in self.nodes if node.output[0] not in used]
        outputs.append(self.nodes[len(self.nodes) // 2].output[0])
        outputs = list(dict.fromkeys(outputs))
        x = self.rng.integers(self.ends[0], self.ends[1] + 1, self.shape).astype(self.dtype)
        held = {name: array for name, array in self.constants.items() if name in used}
        made = model(self.nodes, {"x": x}, held, outputs, {"x": ("N", *self.shape[1:])})
        expected = peer(made, {"x": x})
        found = lc.load(made.SerializeToString(), threads=1).run({"x": x})
        for name, array in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(found[name], array, name)


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_have_the_bits_of_onnxruntime(seed: int) -> None:
    Network(seed).grown(6).checked()
