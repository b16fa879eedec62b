"""If: the branch is taken where the network is bound, and is all that is there then."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.template import Templates
from support.control_flow import branch, graph, node
from support.hostile import refused, varint
from support.onnx_models import agree, model

X = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
RELU = graph([node("Relu", "x", "r")], "r")
NEG = graph([node("Neg", "x", "n")], "n")
# Whether the height is 6.
SIZE = [
    node("Shape", "x", "s"),
    node("Gather", "s two", "h"),
    node("Equal", "h six", "c"),
]
SIZES = {"two": np.int64(2), "six": np.int64(6)}


def made(
    nodes: list[onnx.NodeProto],
    held: Mapping[str, Any] | None = None,
    shape: tuple[int | str, ...] = ("N", 3, "H", "W"),
    outputs: str = "y",
    opset: int = 17,
) -> onnx.ModelProto:
    return model(nodes, {"x": shape}, outputs.split(), {**SIZES, **(held or {})}, opset)


def sizes(*extents: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(extents).astype(np.float32)


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition(condition: bool) -> None:
    agree(made([branch("c", "y", RELU, NEG)], {"c": np.array(condition)}), {"x": X})
    agree(made([branch("c", "y", RELU, NEG)], {"c": np.array([condition])}), {"x": X})


@pytest.mark.parametrize("height", [6, 7])
def test_a_condition_on_a_shape(height: int) -> None:
    agree(made([*SIZE, branch("c", "y", RELU, NEG)]), {"x": sizes(1, 3, height, 5)})


@pytest.mark.parametrize("height", [6, 7, 8, 9])
def test_arithmetic_comparisons_and_logic(height: int) -> None:
    nodes = [
        *SIZE[:2],
        node("Div", "h two", "half"),
        node("Mul", "half two", "even"),
        node("Equal", "even h", "is_even"),
        node("Greater", "h six", "large"),
        node("Not", "large", "small"),
        node("And", "is_even large", "a"),
        node("Or", "a small", "c"),
        branch("c", "y", RELU, NEG),
    ]
    agree(made(nodes), {"x": sizes(1, 3, height, 4)})


def test_a_template_serves_the_sizes_that_take_one_branch() -> None:
    read = read_model(made([*SIZE, branch("c", "y", RELU, NEG)]).SerializeToString())
    count = 0

    def bound(shapes: Mapping[str, tuple[int, ...]]) -> Any:
        nonlocal count
        count += 1
        return run_passes(read.bind(shapes))

    templates = Templates(read, bound)
    found = [templates.graph([(2, 3, height, 5)]).nodes[0].op for height in (7, 8, 9, 6, 10, 6)]
    assert found == ["Neg", "Neg", "Neg", "Relu", "Neg", "Relu"]
    assert count == 2


def test_several_outputs_and_one_that_is_captured() -> None:
    then = graph([node("Relu", "x", "r"), node("Identity", "x", "same")], "r same")
    other = graph([node("Neg", "x", "n")], "n n2", held={"n2": np.float32([1, 2])})
    for condition in (True, False):
        proto = made([branch("c", "y z", then, other)], {"c": np.array(condition)}, outputs="y z")
        agree(proto, {"x": X})


def test_an_output_of_a_branch_that_is_captured() -> None:
    # ONNX Runtime wants an Identity for it.
    proto = made([branch("c", "y", graph([], "x"), NEG)], {"c": np.array(True)})
    np.testing.assert_array_equal(lc.load(proto.SerializeToString())(X), X)


def test_weights_inside_and_captured_weights() -> None:
    w = sizes(4, 3, 3, 3)
    inner = graph(
        [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("Conv", "a v", "b")],
        "b",
        held={"v": sizes(5, 4, 1, 1)},
    )
    other = graph([node("Conv", "x w", "b")], "b")
    nodes = [*SIZE, branch("c", "y", inner, other)]
    for height in (6, 9):
        agree(made(nodes, {"w": w}), {"x": sizes(1, 3, height, 7)})


def test_names_of_the_two_branches_and_of_the_graph_around_may_be_equal() -> None:
    # ONNX Runtime takes equal names of two branches; one that hides an outer name, it refuses.
    then = graph([node("Relu", "x", "a"), node("Neg", "a", "b")], "b")
    other = graph([node("Neg", "x", "a"), node("Exp", "a", "b")], "b")
    for condition in (True, False):
        nodes = [branch("c", "p", then, other), node("Add", "p x", "y")]
        agree(made(nodes, {"c": np.array(condition)}), {"x": X})
    hiding = graph([node("Neg", "x", "h"), node("Exp", "h", "x2")], "x2")
    proto = made([*SIZE, branch("c", "y", hiding, hiding)])
    found = lc.load(proto.SerializeToString())(X)
    np.testing.assert_allclose(found, np.exp(-X), rtol=1e-5)


def test_a_branch_reads_what_is_defined_behind_the_node_in_the_file() -> None:
    late = graph([node("Add", "x later", "a")], "a")
    nodes = [branch("c", "y", late, late), node("Relu", "x", "later")]
    proto = made(nodes, {"c": np.array(True)})
    found = lc.load(proto.SerializeToString())(X)
    np.testing.assert_array_equal(found, X + np.maximum(X, 0))


def test_nested() -> None:
    inner = branch(
        "c2",
        "i",
        graph([node("Add", "x outer", "p")], "p"),
        graph([node("Mul", "x twice", "q")], "q"),
    )
    then = graph(
        [node("Add", "x x", "twice"), node("Shape", "twice", "s2"), *_width_is_5(), inner], "i"
    )
    nodes = [node("Exp", "x", "outer"), *SIZE, branch("c", "y", then, NEG)]
    for shape in ((1, 3, 6, 5), (1, 3, 6, 4), (1, 3, 7, 5)):
        agree(made(nodes, {"three": np.int64(3), "five": np.int64(5)}), {"x": sizes(*shape)})


def _width_is_5() -> list[onnx.NodeProto]:
    return [node("Gather", "s2 three", "width"), node("Equal", "width five", "c2")]


def test_the_branches_of_a_squeeze_as_pytorch_writes_it() -> None:
    then = graph([node("Squeeze", "x axes", "q")], "q", held={"axes": np.array([1])})
    other = graph([node("Identity", "x", "i")], "i")
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "channels"),
        node("Equal", "channels one", "c"),
        branch("c", "y", then, other),
    ]
    for channels in (1, 2):
        proto = made(nodes, {"one": np.int64(1)}, ("N", "C", "H", "W"))
        agree(proto, {"x": sizes(2, channels, 4, 5)})


def test_a_shape_that_a_branch_computes() -> None:
    kinds = {"t": "int64", "u": "int64"}
    then = graph([node("Concat", "h minus", "t", axis=0)], "t", kinds=kinds)
    other = graph([node("Identity", "minus", "u")], "u", kinds=kinds)
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s twos", "h"),
        node("Gather", "s two", "scalar"),
        node("Equal", "scalar six", "c"),
        branch("c", "shape", then, other),
        node("Cast", "shape", "floats", to=TensorProto.FLOAT),
        node("Reshape", "x shape", "r"),
        node("ReduceSum", "floats", "sum", keepdims=0),
        node("Mul", "r sum", "y"),
    ]
    held = {"twos": np.array([2]), "minus": np.array([-1])}
    for height in (6, 5):
        agree(made(nodes, held), {"x": sizes(1, 3, height, 4)})


def test_what_a_branch_that_is_not_taken_needs_does_not_matter() -> None:
    odd = graph([node("Mystery", "x", "a"), node("Unknown", "a", "b")], "b")
    proto = made([*SIZE, branch("c", "y", RELU, odd)])
    net = lc.load(proto.SerializeToString())
    np.testing.assert_array_equal(net(X), np.maximum(X, 0))
    with pytest.raises(UnsupportedError, match="Mystery.*not supported, nor Unknown; expected"):
        net(sizes(1, 3, 7, 5))


def test_what_only_a_branch_that_is_not_taken_captures_is_not_computed() -> None:
    nodes = [
        node("Exp", "x", "e"),
        branch("c", "y", RELU, graph([node("Neg", "e", "n")], "n")),
    ]
    read = read_model(made(nodes, {"c": np.array(True)}).SerializeToString())
    assert [each.op for each in read.bind({"x": X.shape}).nodes] == ["Relu"]


def test_a_function_with_a_branch_and_one_that_a_branch_calls() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    call = node("Half", "x", "r", domain="own")
    inside = branch(
        "big",
        "out",
        graph([node("Mul", "v half", "a")], "a"),
        graph([node("Identity", "v", "i")], "i"),
    )
    half = helper.make_function(
        "own",
        "Half",
        ["v"],
        ["out"],
        [
            node("Constant", "", "half", value_float=0.5),
            node("Constant", "", "six", value_int=6),
            node("Constant", "", "two", value_int=2),
            node("Shape", "v", "s"),
            node("Gather", "s two", "h"),
            node("Equal", "h six", "big"),
            inside,
        ],
        opsets[:1],
    )
    nodes = [*SIZE, branch("c", "y", graph([call], "r"), graph([call], "r"))]
    proto = made(nodes)
    proto = helper.make_model(proto.graph, functions=[half], opset_imports=opsets, ir_version=8)
    for height in (6, 7):
        agree(proto, {"x": sizes(1, 3, height, 5)})


def test_a_network_with_branches_is_pickled() -> None:
    proto = made([*SIZE, branch("c", "y", RELU, NEG)])
    net = pickle.loads(pickle.dumps(lc.load(proto.SerializeToString())))
    np.testing.assert_array_equal(net(X), np.maximum(X, 0))
    np.testing.assert_array_equal(net(X[:, :, 1:]), -X[:, :, 1:])


# -- what is refused ---------------------------------------------------------------------------


def error(proto: onnx.ModelProto, shape: tuple[int, ...] = X.shape) -> str:
    with pytest.raises(LeanConvError) as caught:
        read_model(proto.SerializeToString()).bind({"x": shape})
    return str(caught.value)


def test_a_condition_on_data() -> None:
    nodes = [
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Greater", "sum zero", "c"),
        branch("c", "y", RELU, NEG),
    ]
    said = error(made(nodes, {"zero": np.float32(0)}))
    assert "not supported on data yet" in said
    assert "expected" in said


@pytest.mark.parametrize(
    "condition", [np.float32(1), np.int64(1), np.array([True, False]), np.zeros(0, bool)]
)
def test_conditions_that_are_none(condition: np.ndarray) -> None:
    assert "expected one bool" in error(made([branch("c", "y", RELU, NEG)], {"c": condition}))


def test_branches_that_do_not_fit() -> None:
    held = {"c": np.array(True)}
    with_input = graph([node("Relu", "x", "r")], "r", {"i": "float"})
    for then, other, what in (
        (with_input, NEG, "then_branch has 1 inputs; expected none"),
        (RELU, graph([], "x x2", held={"x2": np.float32(1)}), "else_branch has 2 outputs"),
        (graph([], ""), NEG, "no outputs"),
        (graph([node("Relu", "lost", "r")], "r"), NEG, "nothing defines"),
        (graph([], "lost"), NEG, "nothing"),
        (graph([node("Relu", "x", "r"), node("Neg", "x", "r")], "r"), NEG, "defined once"),
        (graph([node("Relu", "b", "a"), node("Relu", "a", "b")], "b"), NEG, "circle"),
        (graph([node("Relu", "y", "a")], "a"), NEG, "circle"),
        (graph([node("Relu", "x", "r")], "r", held={"r": np.float32(1)}), NEG, "defined"),
    ):
        assert what in error(made([branch("c", "y", then, other)], held)), what


def test_attributes_that_are_missing_or_no_graphs() -> None:
    held = {"c": np.array(True)}
    for broken, what in (
        (node("If", "c", "y"), "no attribute then_branch"),
        (node("If", "c", "y", then_branch=RELU), "no attribute else_branch"),
        (node("If", "c", "y", then_branch=1, else_branch=RELU), "is no graph"),
        (node("If", "c", "y", then_branch=RELU, else_branch=RELU, other=RELU), "not supported"),
        (node("If", "", "y", then_branch=RELU, else_branch=RELU), "0 inputs; expected 1"),
        (node("If", "-", "y", then_branch=RELU, else_branch=RELU), "absent"),
        (node("If", "c c", "y", then_branch=RELU, else_branch=RELU), "2 inputs; expected 1"),
    ):
        assert what in error(made([broken], held)), what
    twice = node("If", "c", "y", then_branch=RELU, else_branch=NEG)
    twice.attribute.append(twice.attribute[0])
    assert "given twice" in error(made([twice], held))


def test_damaged_graphs() -> None:
    proto = made([branch("c", "y", RELU, NEG)], {"c": np.array(True)})
    data = proto.SerializeToString()
    inner = RELU.SerializeToString()
    assert data.count(inner) == 1
    for place in range(len(inner)):
        for byte in (0, 7, 0x80, 0xFF):
            changed = inner[:place] + bytes([byte]) + inner[place + 1 :]
            try:
                read_model(data.replace(inner, changed)).bind({"x": X.shape})
            except LeanConvError:
                continue


def test_graphs_in_graphs_come_to_an_end() -> None:
    def field(number: int, data: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(data)) + data

    held = RELU.SerializeToString()
    for _ in range(3000):  # protobuf itself goes 33 deep
        parts = [field(1, b"c"), field(2, b"r"), field(4, b"If")]
        for name in (b"then_branch", b"else_branch")[:1]:
            parts.append(field(5, field(1, name) + field(6, held)))
        held = field(1, b"".join(parts)) + field(12, field(1, b"r"))
    refused(field(7, held) + field(8, varint(16) + varint(17)), "graphs, one within the other")


def test_a_function_that_calls_itself_from_a_branch() -> None:
    call = node("F", "v", "r", domain="own")
    body = [
        node("Constant", "", "c", value=helper.make_tensor("t", TensorProto.BOOL, (), [1])),
        branch("c", "out", graph([call], "r"), graph([], "v")),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "F", ["v"], ["out"], body, opsets)
    main = made([node("F", "x", "y", domain="own")])
    proto = helper.make_model(main.graph, functions=[function], opset_imports=opsets, ir_version=8)
    refused(proto.SerializeToString(), "graphs, one within the other|names")


def test_graphs_count_with_the_nodes() -> None:
    many = graph(
        [node("Relu", "x", "r0"), *(node("Relu", f"r{i}", f"r{i + 1}") for i in range(9))], "r9"
    )
    proto = made([branch("c", "y", many, many)], {"c": np.array(True)})
    from leanconv.graph.limits import Limits

    data = proto.SerializeToString()
    assert read_model(data, Limits(nodes=21)).nodes
    with pytest.raises(ModelError, match="over 20 nodes together"):
        read_model(data, Limits(nodes=20))
