"""Nodes of several outputs: what the verifier and the passes make of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.errors import ModelError
from leanconv.graph.edit import frozen
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.onnx_import import read_model
from leanconv.graph.ops import infer
from leanconv.graph.passes import run_passes
from leanconv.graph.passes.simplify import drop_dead, merge_common
from leanconv.graph.verify import verify
from leanconv.types import FLOAT32, FLOAT64
from support.control_flow import node
from support.graph_builder import Builder, applied, feed, ops
from support.interpret import interpret
from support.onnx_models import model, reference


def split(b: Builder, x: str, axis: int, *sizes: int) -> list[str]:
    """A Split; the names of its parts."""
    types = infer("Split", [b.types[x]], {"axis": axis, "sizes": sizes})
    names = tuple(f"p{len(b.nodes)}.{number}" for number in range(len(sizes)))
    b.types.update(zip(names, types, strict=True))
    attributes = frozen({"axis": axis, "sizes": sizes})
    b.nodes.append(Node("Split", (x,), names, attributes, f"split_{len(b.nodes)}"))
    return list(names)


@pytest.fixture
def sound() -> Graph:
    b = Builder()
    left, right = split(b, b.input(2, 5, 3), 1, 2, 3)
    return b.graph(b.op("Relu", left), b.op("Neg", right))


def test_parts_are_those_of_numpy(sound: Graph) -> None:
    inputs = feed(sound)
    left, right = interpret(sound, inputs).values()
    (x,) = inputs.values()
    np.testing.assert_array_equal(left, np.maximum(x[:, :2], 0))
    np.testing.assert_array_equal(right, -x[:, 2:])


@pytest.mark.parametrize("outputs", [("a",), ("a", "b", "c")])
def test_the_number_of_outputs_is_checked(sound: Graph, outputs: tuple[str, ...]) -> None:
    node = replace(sound.nodes[0], outputs=outputs)
    with pytest.raises(ModelError, match=rf"split_0.* has {len(outputs)} outputs?; expected 2"):
        verify(replace(sound, nodes=(node, *sound.nodes[1:])))


def test_the_type_of_each_output_is_checked(sound: Graph) -> None:
    types = {**sound.types, "p0.1": TensorType((2, 2, 3), FLOAT64)}
    with pytest.raises(ModelError, match=r"split_0.*gives float64\[2x3x3\].*output 'p0.1'"):
        verify(replace(sound, types=types))


def test_an_output_is_defined_once(sound: Graph) -> None:
    node = replace(sound.nodes[0], outputs=("p0.0", "p0.0"))
    with pytest.raises(ModelError, match=r"'p0\.0' is defined twice"):
        verify(replace(sound, nodes=(node, *sound.nodes[1:])))


@pytest.mark.parametrize(
    "attributes",
    [
        {"axis": 3, "sizes": (5,)},
        {"axis": 1, "sizes": ()},
        {"axis": 1, "sizes": (2, 2)},
        {"axis": 1, "sizes": (-1, 6)},
    ],
)
def test_parts_that_do_not_fit(attributes: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="expected (an axis|parts of axis)"):
        infer("Split", [TensorType((2, 5, 3), FLOAT32)], attributes)


def test_equal_splits_become_one() -> None:
    b = Builder()
    x = b.input(2, 5, 3)
    (a, _), (c, d) = split(b, x, 1, 2, 3), split(b, x, 1, 2, 3)
    graph = b.graph(b.op("Add", a, c), b.op("Neg", d))
    assert ops(applied(merge_common, graph)) == ["Split", "Add", "Neg"]


def test_equal_splits_whose_parts_are_outputs_keep_their_names() -> None:
    b = Builder()
    x = b.input(2, 5, 3)
    (a, e), (c, d) = split(b, x, 1, 2, 3), split(b, x, 1, 2, 3)
    other = b.op("Neg", e)
    assert ops(applied(merge_common, b.graph(a, c, d, other))).count("Split") == 2
    graph = applied(merge_common, b.graph(c, other))
    assert ops(graph) == ["Split", "Neg"]
    assert graph.nodes[0].outputs == ("p1.0", "p0.1")


def test_a_split_of_which_a_part_is_read_becomes_a_slice(sound: Graph) -> None:
    graph = applied(drop_dead, replace(sound, outputs=sound.outputs[1:]))
    assert ops(graph) == ["Slice", "Neg"]
    assert ops(applied(drop_dead, sound)) == ["Split", "Relu", "Neg"]


def test_only_one_output_is_the_output(sound: Graph) -> None:
    assert sound.nodes[1].output == sound.nodes[1].key
    assert sound.nodes[0].key == "p0.0"
    with pytest.raises(AssertionError, match="split_0"):
        _ = sound.nodes[0].output


# What passes look for, made of the parts of a split.
READERS = {
    "sum": [node("Add", "a b", "y")],
    "residual": [node("Conv", "a w", "c", pads=[1] * 4), node("Add", "b c", "y")],
    "activated residual": [
        node("Conv", "a w", "c", pads=[1] * 4),
        node("Relu", "c", "r"),
        node("Add", "r b", "y"),
    ],
    "product": [node("Mul", "a b", "y")],
    "scaled": [
        node("Mul", "a half", "s"),
        node("Div", "s two", "t"),
        node("Pow", "b two", "p"),
        node("Mul", "t p", "y"),
    ],
    "silu": [node("Sigmoid", "a", "s"), node("Mul", "s b", "y")],
    "hard swish": [
        node("Add", "a three", "s"),
        node("Clip", "s zero six", "c"),
        node("Mul", "c b", "m"),
        node("Div", "m six", "y"),
    ],
    "hard sigmoid": [
        node("Clip", "a zero six", "c"),
        node("Div", "c six", "d"),
        node("Add", "d b", "y"),
    ],
    "gelu": [
        node("Mul", "a half", "s"),
        node("Erf", "s", "e"),
        node("Add", "e one", "g"),
        node("Mul", "b g", "y"),
    ],
    "norm": [node("BatchNormalization", "a k k k k", "n"), node("Add", "n b", "y")],
    "affine": [node("Mul", "a f", "m"), node("Add", "m f", "n"), node("Sub", "n b", "y")],
    "clips": [
        node("Clip", "a zero six", "c"),
        node("Clip", "b zero one", "d"),
        node("Max", "c d", "y"),
    ],
    "means": [node("ReduceMean", "a", "m", axes=[2, 3]), node("Mul", "m b", "y")],
    "pads": [node("Pad", "a pads", "p"), node("Conv", "p w", "c"), node("Add", "b c", "y")],
    "shapes": [
        node("Reshape", "a flat", "r"),
        node("Transpose", "b", "t", perm=[0, 1, 3, 2]),
        node("Reshape", "t flat", "u"),
        node("MatMul", "r u", "y"),
    ],
    "joined": [node("Concat", "b a", "j", axis=0), node("Relu", "j", "y")],
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("both", [False, True])
def test_passes_read_parts_of_splits(reader: str, both: bool) -> None:
    nodes = [node("Split", "x", "a b", axis=1), *READERS[reader]]
    if both:  # other users of the parts: they are not the reader's alone
        nodes += [node("Add", "y a", "z"), node("Mul", "z b", "last")]
    random = np.random.default_rng(0)
    numbers = {"zero": 0, "half": 0.5, "one": 1, "two": 2, "three": 3, "six": 6}
    held = {name: np.float32(number) for name, number in numbers.items()}
    held["w"] = random.standard_normal((5, 5, 3, 3)).astype(np.float32)
    held["k"] = random.uniform(1, 2, 5).astype(np.float32)
    held["f"] = random.standard_normal((5, 1, 1)).astype(np.float32)
    held["pads"], held["flat"] = np.array([0, 0, 1, 1] * 2), np.array([1, 1, 5, 5, 5])
    proto = model(nodes, {"x": (1, 10, 5, 5)}, ["last" if both else "y"], held)
    x = random.standard_normal((1, 10, 5, 5)).astype(np.float32)
    graph = run_passes(read_model(proto.SerializeToString()).bind({}), check=True)
    (found,) = interpret(graph, {"x": x}).values()
    (wanted,) = reference(proto, {"x": x}).values()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
