"""Lists of tensors, which are resolved where a network is bound or where late nodes run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from leanconv.errors import LeanConvError
from support.control_flow import node
from support.onnx_models import model, reference

X = np.random.default_rng(0).standard_normal((6, 5)).astype("f4")


def agrees(nodes: list[onnx.NodeProto], outputs: str = "y", **held: Any) -> lc.Network:
    proto = model(nodes, {"x": (6, 5)}, outputs.split(), held)
    for each in proto.graph.output:
        each.ClearField("type")
    network = lc.load(proto, threads=1)
    found = network.run({"x": X})
    for name, wanted in reference(proto, {"x": X}).items():
        np.testing.assert_allclose(found[name], wanted, 1e-6, 1e-6)
        assert found[name].shape == wanted.shape
    return network


def test_lists_that_are_built_and_taken_apart() -> None:
    nodes = [
        node("Relu", "x", "r"),
        node("Neg", "x", "n"),
        node("SequenceConstruct", "x r", "a"),
        node("SequenceInsert", "a n", "b"),
        node("SequenceInsert", "b n zero", "c"),
        node("SequenceErase", "c one", "d"),
        node("SequenceErase", "d", "e"),
        node("SequenceAt", "d last", "z"),
        node("SequenceLength", "d", "length"),
        node("ConcatFromSequence", "e", "y", axis=-1),
        node("ConcatFromSequence", "e", "stacked", axis=1, new_axis=1),
        helper.make_node("SequenceEmpty", [], ["none"], dtype=TensorProto.FLOAT),
        node("SequenceInsert", "none z", "single"),
        node("SequenceAt", "single zero", "w"),
    ]
    held = {name: np.array(n) for name, n in (("zero", 0), ("one", 1), ("last", -1))}
    agrees(nodes, "y z length stacked w", **held)


@pytest.mark.parametrize(
    ("split", "given"), [(None, {"keepdims": 0}), (None, {"axis": 1}), (4, {}), ([1, 2, 3], {})]
)
def test_parts(split: Any, given: dict[str, int]) -> None:
    names = "x" if split is None else "x parts"
    nodes = [
        node("SplitToSequence", names, "s", **given),
        node("SequenceAt", "s one", "p"),
        node("Neg", "p", "y"),
        node("SequenceLength", "s", "n"),
    ]
    held = {} if split is None else {"parts": np.array(split)}
    agrees(nodes, "y n", one=np.array(1), **held)


def test_optional_values_that_are_there() -> None:
    nodes = [
        node("OptionalGetElement", "x", "a"),
        node("OptionalHasElement", "x", "y"),
        node("Neg", "a", "z"),
    ]
    proto = model(nodes, {"x": (6, 5)}, ["y", "z"], opset=18)
    proto.graph.output[0].ClearField("type")
    found, wanted = lc.load(proto, threads=1).run({"x": X}), reference(proto, {"x": X})
    assert found["y"] == wanted["y"] == np.True_
    np.testing.assert_array_equal(found["z"], wanted["z"])


def test_places_that_are_data() -> None:
    nodes = [
        node("SplitToSequence", "x", "s", keepdims=0),
        node("ReduceMax", "x", "m", keepdims=0),
        node("ArgMax", "x", "places", axis=0, keepdims=0),
        node("ReduceMax", "places", "last", keepdims=0),
        node("SequenceAt", "s last", "y"),
    ]
    network = agrees(nodes)
    assert "NumPy computes 2 nodes (SplitToSequence, SequenceAt)" in network.explain()


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        ([node("SequenceConstruct", "x x", "y")], "'y' is a sequence"),
        ([node("SequenceConstruct", "x", "s"), node("Relu", "s", "y")], "is a sequence; expected"),
        ([node("SequenceLength", "x", "y")], "is no sequence"),
        ([node("SplitToSequence", "x", "s"), node("SequenceAt", "s k", "y")], "position is 9"),
        ([node("SplitToSequence", "x k", "s"), node("ConcatFromSequence", "s", "y")], "axis"),
    ],
)
def test_what_is_refused(nodes: list[onnx.NodeProto], what: str) -> None:
    with pytest.raises(LeanConvError, match=what):
        lc.load(model(nodes, {"x": (6, 5)}, ["y"], {"k": np.array(9)}))
