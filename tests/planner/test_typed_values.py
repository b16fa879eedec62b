"""Values of every element type beside each other in one plan: each in its own size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.graph.edit import frozen
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import infer_node
from leanconv.graph.verify import check_flowing, verify
from leanconv.kernels import layout
from leanconv.operators import Accuracy
from leanconv.planner.budget import Planner
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.planner.lowered_graph import OwnedGraph
from leanconv.target import Target
from leanconv.types import BFLOAT16, DTYPES, FLOAT32, DType
from support.interpret import interpret
from support.nodes import TARGETS, Case

HELD = tuple(dtype for dtype in DTYPES if dtype != BFLOAT16)  # those that NumPy has
SHAPE = (2, 35, 9, 7)
POOL = {"kernel_shape": (2, 3), "pads": (0, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1)}
POOL |= {"ceil_mode": False, "count_include_pad": False, "storage_order": 0}
TOP = {"axis": 1, "k": 16, "largest": True, "sorted": True}


def numbers(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> np.ndarray:
    """Any bits, so that a number that went through another type shows."""
    bits = np.random.default_rng(seed).integers(0, 256, int(np.prod(shape)) * dtype.bytes, np.uint8)
    if dtype.kind == "bool":
        return (bits & 1).astype(bool).reshape(shape)
    found = bits.view(dtype.numpy).reshape(shape)
    return np.where(np.isnan(found), 1, found).astype(dtype) if dtype.is_float else found


class Moves:
    """A graph of moves of one input for each of some types, and of convolutions of another one."""

    def __init__(self, dtypes: tuple[DType, ...]) -> None:
        self.inputs: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.types: dict[str, TensorType] = {}
        self.nodes: list[Node] = []
        self.outputs: list[str] = []
        self.convolved()
        for dtype in dtypes:
            self.moved(dtype)
        self.graph = Graph(
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(self.nodes),
            frozen(self.types),
            frozen(self.constants),
        )

    def held(self, name: str, array: np.ndarray, dtype: DType, constant: bool = False) -> str:
        (self.constants if constant else self.inputs)[name] = array
        self.types[name] = TensorType(array.shape, dtype)
        return name

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        node = Node(op, inputs, (f"v{len(self.nodes)}",), frozen(attributes), f"n{len(self.nodes)}")
        (self.types[node.output],) = infer_node(node, self.types)
        self.nodes.append(node)
        return node.output

    def convolved(self) -> None:
        """Images in blocks of channels."""
        x = self.held("x", np.ones((1, 16, 6, 6), "f4"), FLOAT32)
        w = self.held("w", np.full((16, 16, 1, 1), 0.5, "f4"), FLOAT32, constant=True)
        window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1}
        y = self.op("Conv", x, w, **window, activation=None)
        self.outputs.append(self.op("Relu", self.op("Conv", y, w, **window, activation=None)))

    def moved(self, dtype: DType) -> None:
        x = self.held(f"x {dtype}", numbers(SHAPE, dtype), dtype)
        c = self.held(f"c {dtype}", numbers((2, 3, 9, 7), dtype, 1), dtype, constant=True)
        value = 1 if dtype.kind == "bool" else dtype.high if dtype.is_integer else 1.5
        wide = self.op("Concat", x, c, axis=1)
        padded = self.op("Pad", wide, pads=(0, 1, 0, 2, 0, 0, 1, 0), mode="constant", value=value)
        last = self.op("Transpose", padded, perm=(0, 2, 3, 1))
        starts, steps, sizes = (1, 0, 8, 3), (-1, 2, -3, 1), (2, 5, 3, 30)
        self.outputs.append(self.op("Slice", last, starts=starts, steps=steps, sizes=sizes))
        one = self.op("Slice", x, starts=(0, 4, 0, 0), steps=(1,) * 4, sizes=(2, 1, 9, 7))
        self.outputs.append(self.op("Expand", one, shape=(2, 5, 9, 7)))
        self.outputs.append(self.op("Reshape", x, shape=(70, 63)))
        self.outputs.append(c)


def run(graph: Graph, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    planner = Planner(graph, host(), 2, Accuracy())
    compiled = CompiledNetwork(OwnedGraph(graph), planner)
    assert {n: k.dtype for n, k in compiled.plan.inputs.items()} == {
        name: graph.types[name].dtype for name in inputs
    }
    results = {n: np.empty(k.shape, k.dtype) for n, k in compiled.plan.results.items()}
    given = [np.ascontiguousarray(array) for array in inputs.values()]
    compiled.run([array.ctypes.data for array in (*given, *results.values())])
    return results


@pytest.mark.parametrize("dtypes", [HELD, HELD[::-1]], ids=["up", "down"])
def test_moves_of_every_type_beside_a_network_of_floats(dtypes: tuple[DType, ...]) -> None:
    made = Moves(dtypes)
    graph = check_flowing(verify(made.graph))
    found, wanted = run(graph, made.inputs), interpret(graph, made.inputs)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_operations_between_types_beside_a_network_of_floats() -> None:
    """Images in blocks become planes for them, and what they give is convolved again."""
    made = Moves(())
    window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1}
    pool = Node("MaxPoolWithIndices", ("v1",), ("pooled", "from"), frozen(POOL))
    top = Node("TopK", ("pooled",), ("values", "places"), frozen(TOP))
    for node in (pool, top):
        made.types |= dict(zip(node.outputs, infer_node(node, made.types), strict=True))
        made.nodes.append(node)
    again = made.op("Conv", "values", "w", **window, activation=None)
    place = made.op("ArgMax", again, axis=1, keepdims=True, last=False)
    least = made.op("ArgMin", again, axis=3, keepdims=False, last=True)
    wide = made.op("Cast", place, to=FLOAT32)
    chosen = made.op("Where", made.op("Less", again, wide), again, wide)
    last = made.op("Conv", chosen, "w", **window, activation=None)
    outputs = (*made.outputs, "from", "places", place, least, last)
    graph = verify(replace(made.graph, outputs=outputs, nodes=tuple(made.nodes), types=made.types))
    inputs = {"x": np.random.default_rng(0).integers(-9, 9, (1, 16, 6, 6)).astype("f4")}
    found, wanted = run(graph, inputs), interpret(graph, inputs)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.pairs
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", HELD)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 33), (64, 65), (130, 31)])
def test_transposes_of_every_width(target: Target, dtype: DType, shape: tuple[int, int]) -> None:
    case = Case(layout, "Transpose", [numbers(shape, dtype)], {"perm": (1, 0)})
    assert np.array_equal(case.run(target, False), case.expected())
