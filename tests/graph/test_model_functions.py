"""Functions that a model file brings along: written out where they are called."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import read_model
from support.hostile import bounded, node
from support.onnx_models import imported, model, reference

R = np.random.default_rng(4)
W = R.standard_normal((3, 3, 3, 3)).astype("f4")
X = R.standard_normal((1, 3, 8, 9)).astype("f4")
OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]


def function(
    name: str, inputs: str, outputs: str, nodes: Sequence[onnx.NodeProto], **more: Any
) -> onnx.FunctionProto:
    opsets = more.pop("opset_imports", OPSETS)
    return helper.make_function(
        "local", name, inputs.split(), outputs.split(), list(nodes), opsets, **more
    )


def call(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    names = ["" if each == "-" else each for each in inputs.split()]
    return helper.make_node(op, names, outputs.split(), domain="local", **attributes)


def with_functions(
    nodes: Sequence[onnx.NodeProto],
    functions: Sequence[onnx.FunctionProto],
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    proto = model(nodes, {"x": X.shape}, outputs, {"w": W}, opset=18)
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    return proto


def agrees(proto: onnx.ModelProto) -> None:
    wanted, found = reference(proto, {"x": X}), imported(proto, {"x": X})
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)


def referring(each: onnx.NodeProto, name: str, kind: int, to: str) -> onnx.NodeProto:
    each.attribute.append(onnx.AttributeProto(name=name, type=kind, ref_attr_name=to))
    return each


CONV_RELU = function(
    "ConvRelu", "a b", "c", [node("Conv", "a b", "t", pads=[1] * 4), node("Relu", "t", "c")]
)


def test_a_function_that_is_called_twice() -> None:
    """Its inner values are others in every call, and none is the graph's `t`."""
    nodes = [
        call("ConvRelu", "x w", "t"),
        call("ConvRelu", "t w", "u"),
        node("Add", "t u", "y"),
    ]
    agrees(with_functions(nodes, [CONV_RELU]))


def test_functions_within_functions() -> None:
    outer = function(
        "Twice", "a b", "c", [call("ConvRelu", "a b", "t"), call("ConvRelu", "t b", "c")]
    )
    agrees(with_functions([call("Twice", "x w", "t"), node("Neg", "t", "y")], [outer, CONV_RELU]))


def test_attributes_that_are_given_left_out_and_by_default() -> None:
    leaky = referring(node("LeakyRelu", "a", "b"), "alpha", onnx.AttributeProto.FLOAT, "slope")
    scaled = referring(node("HardSigmoid", "b", "c"), "alpha", onnx.AttributeProto.FLOAT, "alpha")
    each = function(
        "Leaky",
        "a",
        "c",
        [leaky, scaled],
        attributes=["slope"],
        attribute_protos=[helper.make_attribute("alpha", 0.3)],
    )
    nodes = [
        call("Leaky", "x", "p", slope=0.25),
        call("Leaky", "p", "q"),  # LeakyRelu's own 0.01
        call("Leaky", "q", "y", alpha=0.5, slope=0.125),
    ]
    agrees(with_functions(nodes, [each]))


def test_inputs_and_outputs_that_are_left_out() -> None:
    nodes = [node("Clip", "a low high", "b"), node("Neg", "a", "c")]
    each = function("Both", "a low high", "b c", nodes)
    found = imported(with_functions([call("Both", "x", "y")], [each]), {"x": X})
    np.testing.assert_array_equal(found["y"], X)
    two = with_functions(
        [node("ReduceMax", "w", "m", keepdims=0), call("Both", "x - m", "b y")], [each], "by"
    )
    np.testing.assert_array_equal(imported(two, {"x": X})["b"], np.minimum(X, W.max()))
    np.testing.assert_array_equal(imported(two, {"x": X})["y"], -X)


def test_an_output_that_is_an_input() -> None:
    each = function("Same", "a", "b a", [node("Relu", "a", "b")])
    found = imported(with_functions([call("Same", "x", "y z")], [each], ["y", "z"]), {"x": X})
    np.testing.assert_array_equal(found["y"], np.maximum(X, 0))
    np.testing.assert_array_equal(found["z"], X)


def test_a_function_has_an_opset_of_its_own() -> None:
    """Softmax of opset 12 flattens; so the function's rules hold within it."""
    each = function(
        "Soft", "a", "b", [node("Softmax", "a", "b")], opset_imports=[helper.make_opsetid("", 12)]
    )
    old = model([node("Softmax", "x", "y")], {"x": X.shape}, ["y"], opset=12)
    found = imported(with_functions([call("Soft", "x", "y")], [each]), {"x": X})
    np.testing.assert_allclose(found["y"], reference(old, {"x": X})["y"], atol=1e-6)


def test_a_dead_call_is_not_written_out() -> None:
    endless = function("Endless", "a", "b", [call("Endless", "a", "b")])
    proto = with_functions([node("Relu", "x", "y"), call("Endless", "x", "z")], [endless])
    assert len(read_model(proto.SerializeToString()).nodes) == 1


def chain(depth: int, width: int) -> list[onnx.FunctionProto]:
    """Functions of which each calls the next `width` times."""
    found = []
    for level in range(depth):
        names = ["a", *(f"t{i}" for i in range(width - 1)), "b"]
        nodes = [call(f"F{level + 1}", *pair) for pair in itertools.pairwise(names)]
        found.append(function(f"F{level}", "a", "b", nodes))
    return [*found, function(f"F{depth}", "a", "b", [node("Relu", "a", "b")])]


def test_functions_that_grow_without_end_are_refused() -> None:
    for functions, what in (
        (chain(40, 2), "become over 3000 nodes"),
        (chain(150, 1), "nested over 100 deep"),
        ([function("F0", "a", "b", [call("F0", "a", "b")])], "'F0' calls itself"),
        (
            [
                function("F0", "a", "b", [call("F1", "a", "b")]),
                function("F1", "a", "b", [call("F0", "a", "b")]),
            ],
            "'F0' calls itself",
        ),
    ):
        data = with_functions([call("F0", "x", "y")], functions).SerializeToString()
        with bounded(), pytest.raises(LeanConvError, match=what):
            read_model(data, Limits(nodes=3000))


def test_long_lists_of_names_are_counted() -> None:
    """Nodes are few, but each call would copy all of their names."""
    wide = function("F1", "a", "b", [node("Sum", " ".join(["a"] * 10_000), "b")])
    (outer,) = chain(1, 1000)[:1]
    data = with_functions([call("F0", "x", "y")], [outer, wide]).SerializeToString()
    with bounded(10, 64 << 20), pytest.raises(ModelError, match="over 1000000 names"):
        read_model(data)


def test_limits_say_how_many_nodes() -> None:
    proto = with_functions([call("F0", "x", "y")], chain(3, 2)).SerializeToString()
    assert len(read_model(proto).nodes) == 8
    with pytest.raises(ModelError, match="over 10 nodes"):
        read_model(proto, Limits(nodes=10))


@pytest.mark.parametrize(
    ("nodes", "functions", "what"),
    [
        ([call("F", "x x", "y")], [function("F", "a", "b", [node("Relu", "a", "b")])], "2 inputs"),
        ([call("F", "x", "y z")], [function("F", "a", "b", [node("Relu", "a", "b")])], "2 outputs"),
        (
            [call("F", "x", "y", k=1)],
            [function("F", "a", "b", [node("Relu", "a", "b")])],
            "the attribute 'k'",
        ),
        (
            [call("F", "x", "y")],
            [function("F", "a", "b", [node("Relu", "x", "b")])],
            "reads 'x', which nothing in it",
        ),
        ([call("F", "x", "y")], [function("F", "a", "b", [node("Relu", "a", "c")])], "'b' of the"),
        ([call("ConvRelu", "x w", "y")], [CONV_RELU, CONV_RELU], "defined twice"),
    ],
)
def test_wrong_functions_and_calls(
    nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto], what: str
) -> None:
    with pytest.raises(ModelError, match=what):
        read_model(with_functions(nodes, functions).SerializeToString())


def test_a_functions_operation_that_is_not_known_is_named_with_its_call() -> None:
    each = function("F", "a", "b", [node("Bernoulli", "a", "b")])
    proto = with_functions([call("F", "x", "y", name="top")], [each])
    with pytest.raises(UnsupportedError, match=r"'top/Bernoulli_0' \(Bernoulli, opset 18\)"):
        read_model(proto.SerializeToString())
