"""The verifier refuses every kind of broken graph, and says which node or value breaks it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.edit import frozen
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.passes import run_passes
from leanconv.graph.verify import verify
from leanconv.types import BOOL, FLOAT32, FLOAT64, INT64, DType
from support.graph_builder import Builder


@pytest.fixture
def sound() -> Graph:
    b = Builder()
    x = b.input(1, 2, 4, 4)
    y = b.conv(x, b.normal(3, 2, 3, 3), b.normal(3))
    return b.graph(b.op("Relu", y))


def refused(graph: Graph, what: str) -> None:
    with pytest.raises(ModelError, match=what):
        verify(graph)


def test_a_sound_graph_comes_back(sound: Graph) -> None:
    assert verify(sound) is sound


def test_order(sound: Graph) -> None:
    refused(replace(sound, nodes=sound.nodes[::-1]), "relu_1.*reads 'v0'")


def test_a_cycle() -> None:
    nodes = (Node("Relu", ("b",), ("a",)), Node("Relu", ("a",), ("b",)))
    types = frozen({n: TensorType((1,), FLOAT32) for n in "ab"})
    refused(Graph((), ("b",), nodes, types, frozen({})), "reads 'b'")


def test_defined_twice(sound: Graph) -> None:
    refused(replace(sound, nodes=(*sound.nodes, sound.nodes[0])), "'v0' is defined twice")
    again = replace(sound, constants={**sound.constants, "x0": np.zeros((1, 2, 4, 4))})
    refused(again, "'x0' is defined twice")


def test_an_output_that_nothing_defines(sound: Graph) -> None:
    refused(replace(sound, outputs=("elsewhere",)), "elsewhere")


def test_a_value_without_a_type(sound: Graph) -> None:
    types = {name: kind for name, kind in sound.types.items() if name != "v1"}
    refused(replace(sound, types=types), "'v1' has no type")


def test_a_wrong_type(sound: Graph) -> None:
    types = {**sound.types, "v1": TensorType((1, 3, 4, 4), FLOAT64)}
    refused(replace(sound, types=types), r"relu_1.*gives float64\[1x3x2x2\]")


def test_a_constant_of_another_type(sound: Graph) -> None:
    refused(replace(sound, constants={**sound.constants, "c1": np.zeros(4)}), "constant 'c1'")


def test_an_unknown_operation(sound: Graph) -> None:
    node = replace(sound.nodes[1], op="Frobnicate")
    refused(replace(sound, nodes=(sound.nodes[0], node)), "Frobnicate")


@pytest.mark.parametrize("inputs", [(), ("v0", "v0")])
def test_arity(sound: Graph, inputs: tuple[str, ...]) -> None:
    node = replace(sound.nodes[1], inputs=inputs)
    refused(replace(sound, nodes=(sound.nodes[0], node)), "relu_1")


def test_a_missing_attribute(sound: Graph) -> None:
    node = replace(sound.nodes[0], attributes=frozen({}))
    refused(replace(sound, nodes=(node, sound.nodes[1])), "strides")


def test_two_outputs(sound: Graph) -> None:
    node = replace(sound.nodes[1], outputs=("v1", "v2"))
    refused(replace(sound, nodes=(sound.nodes[0], node)), "2 outputs")


def test_values_of_several_dtypes_beside_each_other(sound: Graph) -> None:
    types = {**sound.types, "x1": TensorType((2,), FLOAT32), "x2": TensorType((), BOOL)}
    mixed = replace(sound, inputs=("x0", "x1", "x2"), types=types)
    assert verify(mixed) is mixed
    assert mixed.dtype == FLOAT64


@pytest.mark.parametrize("dtype", [INT64, BOOL])
def test_an_operation_that_does_not_take_a_dtype(dtype: DType) -> None:
    types = frozen({n: TensorType((3,), dtype) for n in "xy"})
    graph = Graph(("x",), ("y",), (Node("Sigmoid", ("x",), ("y",), name="act"),), types, frozen({}))
    with pytest.raises(
        UnsupportedError, match=rf"'act' \(Sigmoid\): Sigmoid reads {dtype}\[3\].*float"
    ):
        verify(graph)
    moved = Node("Reshape", ("x",), ("y",), frozen({"shape": (3,)}))
    assert verify(replace(graph, nodes=(moved,)))


def test_a_pass_that_breaks_a_graph_is_named(sound: Graph) -> None:
    def clumsy(graph: Graph) -> Graph:
        return replace(graph, nodes=graph.nodes[:1])

    with pytest.raises(AssertionError, match="after the pass clumsy"):
        run_passes(sound, [clumsy], check=True)
    with pytest.raises(AssertionError, match="before the first pass"):
        run_passes(clumsy(sound), [], check=True)
    with pytest.raises(AssertionError, match="after the passes"):
        run_passes(sound, [clumsy])


@pytest.mark.parametrize(("first", "second"), [(FLOAT32, FLOAT64), (FLOAT64, FLOAT32)])
def test_the_dtype_of_a_graph_is_its_first_inputs(first: str, second: str) -> None:
    """Whatever order a set of both would have, where no node gives a float."""
    types = frozen({"x": TensorType((1,), first), "y": TensorType((1,), second)})
    mixed = Graph(("x", "y"), ("x",), (), types, frozen({}))
    assert mixed.dtype == first
    whole = replace(mixed, types={**types, "x": TensorType((1,), INT64)})
    assert whole.dtype == second
    assert replace(whole, inputs=("x",)).dtype == FLOAT32


def test_the_dtype_of_a_graph_is_that_of_its_first_node() -> None:
    types = {"x": FLOAT32, "y": FLOAT64, "z": FLOAT64}
    nodes = (Node("Relu", ("y",), ("z",)),)
    kinds = frozen({name: TensorType((1,), dtype) for name, dtype in types.items()})
    assert Graph(("x", "y"), ("z",), nodes, kinds, frozen({})).dtype == FLOAT64


def test_the_dtype_of_a_graph_of_constants() -> None:
    assert Graph((), (), (), frozen({}), frozen({})).dtype == FLOAT32
