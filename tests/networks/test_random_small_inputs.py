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
        self.made = 0  # nodes in branches
        self.numbers = ["a", self.node("Squeeze", "b", self.const([0]))]

    def const(self, value: object) -> str:
        """An int64 constant; floats stay floats."""
        array = np.asarray(value)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        self.held.append(numpy_helper.from_array(array, f"c{len(self.held)}"))
        return self.held[-1].name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """A node of one output."""
        name = f"v{len(self.nodes) + self.made}"
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
        name = f"{op}{len(self.nodes) + self.made}"
        end = helper.make_tensor_value_info(name, FLOAT, None)
        return helper.make_graph([helper.make_node(op, [x], [name])], op, [], [end])

    def step(self, x: str) -> str:
        """An operation on the image."""
        kind = self.random.integers(8)
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
        if kind == 5:
            return self.node("If", self.is_large(), **self.in_one_branch(x))
        made = self.node("Conv", x, self.const(self.random.standard_normal((2, 2, 1, 1))))
        if kind == 6:  # which weights take in, where it is known
            made = self.node("Mul", made, self.node("Cast", self.small(), to=FLOAT))
        return made

    def is_large(self) -> str:
        """Whether the image has more rows than some."""
        rows = self.node("Gather", self.node("Shape", "x"), self.const(2))
        return self.node("Greater", rows, self.const(self.random.integers(4, 9)))

    def in_one_branch(self, x: str) -> dict[str, onnx.GraphProto]:
        """Branches of which one has a step, and what that reads."""
        before = len(self.nodes)
        name = self.step(x)
        nodes, self.nodes = self.nodes[before:], self.nodes[:before]
        self.made += len(nodes)
        end = helper.make_tensor_value_info(name, FLOAT, None)
        branches = [helper.make_graph(nodes, name, [], [end]), self.branch("Abs", x)]
        if self.random.integers(2):
            branches.reverse()
        return dict(zip(("then_branch", "else_branch"), branches, strict=True))

    def model(self) -> onnx.ModelProto:
        """The network, its image's size open."""
        for _ in range(self.random.integers(3)):
            op = str(self.random.choice(["Add", "Mul", "Sub"]))
            self.numbers.append(self.node(op, self.number(), self.const(2)))
        x = "x"
        for _ in range(self.random.integers(2, 5)):
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


@pytest.mark.parametrize("seed", [*range(16), 62, 119])
def test_random_networks(seed: int) -> None:
    """A plan follows from the shapes and values at hand: whatever came before, it is the same."""
    made = _Network(seed)
    model = made.model()
    net = lc.load(model, threads=1)
    for size in (5, 5, 8, 6):
        a, b = made.random.integers(0, 6, 2)
        x = made.random.standard_normal((1, 2, size, 7), dtype=np.float32)
        feed = {"x": x, "a": np.array(a), "b": np.array([b])}
        found = net.run(feed)
        alone = lc.load(model, threads=1)
        for name, array in alone.run(feed).items():
            assert found[name].tobytes() == array.tobytes()
        assert net.explain() == alone.explain()
        for name, wanted in reference(model, feed).items():
            assert found[name].shape == wanted.shape
            np.testing.assert_allclose(found[name], wanted, 1e-5, 1e-5)
