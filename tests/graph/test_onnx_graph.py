"""A file that is read as a graph, changed and written again, judged by the package onnx."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from leanconv.errors import ModelError
from leanconv.graph.file_graph import FileNode
from leanconv.graph.onnx_graph import OnnxGraph, named_value
from leanconv.graph.onnx_nodes import attribute


def model() -> onnx.ModelProto:
    """Nodes with attributes of all kinds, one of another domain, and one that holds graphs."""
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["c"], ["inner"])],
            name,
            [],
            [helper.make_empty_tensor_value_info("inner")],
        )
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    nodes = [
        helper.make_node(
            "Conv", ["x", "w", ""], ["c"], "first", pads=[1, 1, 1, 1], auto_pad="NOTSET"
        ),
        helper.make_node("If", ["flag"], ["i"], **branches),
        helper.make_node("Gelu", ["i"], ["g"], domain="com.microsoft"),
        helper.make_node("LeakyRelu", ["g"], ["y"], "last", alpha=0.5),
        helper.make_node("Neg", ["g"], ["unread"]),
    ]
    graph = helper.make_graph(
        nodes,
        "named",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 5, 5]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((3, 2, 3, 3), "f4"), "w")],
        doc_string="said",
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, producer_name="a test", ir_version=8)
    helper.set_model_props(made, {"key": "value"})
    return made


def read() -> OnnxGraph:
    return OnnxGraph.read(memoryview(model().SerializeToString()))


def test_nothing_is_lost_but_what_no_output_needs() -> None:
    written = onnx.load_from_string(read().data())
    wanted = model()
    del wanted.graph.node[-1]
    wanted.graph.node[1].name, wanted.graph.node[2].name = "If_1", "Gelu_2"
    assert written == wanted


def test_names_that_graphs_capture_are_read() -> None:
    graph = read()
    assert set(graph.nodes[1].reads) - {"inner"} == {"flag", "c"}
    assert [node.name for node in graph.consumers()["c"]] == ["If_1"]
    assert [node.op for node in graph.nodes] == [
        "Conv",
        "If",
        "com.microsoft.Gelu",
        "LeakyRelu",
        "Neg",
    ]


def test_attributes_are_decoded_when_they_are_asked_for() -> None:
    first, _, _, last, _ = read().nodes
    assert attribute(first, "pads", ()) == (1, 1, 1, 1)
    assert attribute(first, "auto_pad", "") == "NOTSET"
    assert attribute(first, "group", 1) == 1
    assert attribute(last, "alpha", 0.01) == 0.5


def test_what_is_changed_is_written() -> None:
    graph = read()
    weights = graph.constant("w", np.zeros((3, 2, 1, 1), np.float32))
    first = graph.nodes[0]
    attributes = {**first.attributes, "pads": (0, 0, 0, 0), "group": 1}
    changed = graph.change(first, inputs=("x", weights), attributes=attributes)
    assert graph.nodes[0] is changed
    assert attribute(changed, "pads", ()) == (0, 0, 0, 0)
    written = onnx.load_from_string(graph.data({"c": named_value("c")}))
    wanted = helper.make_node(
        "Conv", ["x", "w_1"], ["c"], "first", auto_pad="NOTSET", group=1, pads=[0, 0, 0, 0]
    )
    (found,) = written.graph.node
    assert sorted(found.attribute, key=lambda a: a.name) == list(wanted.attribute)
    assert [each.name for each in written.graph.initializer] == ["w_1"]
    assert [each.name for each in written.graph.output] == ["c"]


def test_a_node_that_is_made_is_written_as_onnx_does() -> None:
    node = FileNode(
        "ai.test.Op", ("a", ""), ("b",), {"n": 3, "several": (1, 300)}, "made", domain="ai.test"
    )
    wanted = helper.make_node(
        "Op", ["a", ""], ["b"], "made", domain="ai.test", n=3, several=[1, 300]
    )
    assert onnx.NodeProto.FromString(node.data()) == wanted


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ModelError, match="no graph"):
        OnnxGraph.read(memoryview(b""))
