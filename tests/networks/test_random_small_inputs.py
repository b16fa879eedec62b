"""Random networks in which small integer inputs decide branches and shapes, as ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from support.onnx_models import reference

INT, FLOAT = TensorProto.INT64, TensorProto.FLOAT


class _Network:
    """One while it is made: `a` is a scalar, `b` a list of one, `x` an image."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        self.numbers = ["a", self.node("Squeeze", "b", self.const([0]))]

    def const(self, value: object) -> str:
        """An int64 constant; floats stay floats."""
        array = np.asarray(value)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        self.held.append(numpy_helper.from_array(array, f"c{len(self.held)}"))
        return self.held[-1].name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """A node of one output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def number(self) -> str:
        """A scalar that follows from the inputs."""
        return str(self.random.choice(self.numbers))

    def small(self) -> str:
        """A scalar from 1 to 3."""
        return self.node("Add", self.node("Mod", self.number(), self.const(3)), self.const(1))

    def listed(self, *extents: int) -> str:
        """Extents, and a small one at the end."""
        last = self.node("Unsqueeze", self.small(), self.const([0]))
        return self.node("Concat", self.const(extents), last, axis=0) if extents else last

    def branch(self, op: str, x: str) -> onnx.GraphProto:
        """A branch of one node."""
        name = f"{op}{len(self.nodes)}"
        end = helper.make_tensor_value_info(name, FLOAT, None)
        return helper.make_graph([helper.make_node(op, [x], [name])], op, [], [end])

    def step(self, x: str) -> str:
        """An operation on the image."""
        kind = self.random.integers(6)
        if kind == 0:
            cut = self.node("Slice", x, self.const([0]), self.listed(), self.const([2]))
            return self.node("Pad", cut, self.const([0, 0, 1, 0, 0, 0, 1, 0]))
        if kind == 1:
            return self.node("Tile", x, self.listed(1, 1, 1))
        if kind == 2:
            how = str(self.random.choice(["Greater", "Less", "Equal"]))
            condition = self.node(how, self.number(), self.const(self.random.integers(6)))
            branches = {
                "then_branch": self.branch("Relu", x),
                "else_branch": self.branch("Neg", x),
            }
            return self.node("If", condition, **branches)
        if kind == 3:
            places = self.node("Range", self.const(0), self.small(), self.const(1))
            total = self.node("ReduceSum", self.node("Cast", places, to=FLOAT))
            return self.node("Add", x, total)
        if kind == 4:
            factor = self.node("Cast", self.number(), to=FLOAT)
            return self.node("Tanh", self.node("Mul", x, factor))
        return self.node("Conv", x, self.const(self.random.standard_normal((2, 2, 1, 1))))

    def model(self) -> onnx.ModelProto:
        """The network, its image's size open."""
        for _ in range(self.random.integers(3)):
            op = str(self.random.choice(["Add", "Mul", "Sub"]))
            self.numbers.append(self.node(op, self.number(), self.const(2)))
        x = "x"
        for _ in range(self.random.integers(1, 4)):
            x = self.step(x)
        given = (("x", FLOAT, [1, 2, "h", "w"]), ("a", INT, []), ("b", INT, [1]))
        graph = helper.make_graph(
            self.nodes,
            "small",
            [helper.make_tensor_value_info(*each) for each in given],
            [helper.make_tensor_value_info(x, FLOAT, None)],
            self.held,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("seed", range(16))
def test_random_networks(seed: int) -> None:
    made = _Network(seed)
    model = made.model()
    net = lc.load(model, threads=1)
    for size in (5, 5, 8, 6):
        a, b = made.random.integers(0, 6, 2)
        x = made.random.standard_normal((1, 2, size, 7), dtype=np.float32)
        feed = {"x": x, "a": np.array(a), "b": np.array([b])}
        found = net.run({port.name: feed[port.name] for port in net.inputs})
        for name, wanted in reference(model, feed).items():
            assert found[name].shape == wanted.shape
            np.testing.assert_allclose(found[name], wanted, 1e-5, 1e-5)
