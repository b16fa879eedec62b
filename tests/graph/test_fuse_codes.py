"""A QLinearAdd behind a QLinearConv becomes its residual, with the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leanconv.graph.edit import frozen
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import infer_node
from leanconv.graph.passes.fuse_epilogues import fuse_codes
from leanconv.graph.verify import verify
from leanconv.types import INT8, UINT8, DType
from support.interpret import interpret
from support.quantised_convs import numbers, quantised_conv


def added(dtype: DType, first: bool, **changes: Any) -> tuple[Graph, dict[str, np.ndarray]]:
    """A convolution and an addition behind it; halves are frequent."""
    conv = quantised_conv(1, dtype, dtype, seed=1)
    rng, low = np.random.default_rng(2), int(dtype.low)
    types = dict(conv.graph.types)
    types["r"] = TensorType(types["y"].shape, dtype)
    inputs = {**conv.inputs, "r": numbers(rng, types["y"].shape, dtype)}
    zeros = [conv.node.attributes["y_zero"], low + 31]
    scales = [0.25, 0.125]
    if not first:
        zeros, scales = zeros[::-1], scales[::-1]
    attributes = {"scales": (*scales, 0.5), "zeros": (*zeros, low + 60), "dtype": dtype}
    attributes |= {"low": low + 7, "high": low + 249, **changes}
    names = ("y", "r") if first else ("r", "y")
    node = Node("QLinearAdd", names, ("s",), frozen(attributes), "add")
    (types["s"],) = infer_node(node, types)
    graph = replace(conv.graph, inputs=("x", "r"), outputs=("s",), types=frozen(types))
    return verify(replace(graph, nodes=(conv.node, node))), inputs


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_the_addition_goes_into_the_convolution(dtype: DType, first: bool) -> None:
    graph, inputs = added(dtype, first)
    fused = verify(fuse_codes(graph))
    (node,) = fused.nodes
    assert node.op == "QLinearConv"
    assert node.input(4) == "r"
    np.testing.assert_array_equal(interpret(fused, inputs)["s"], interpret(graph, inputs)["s"])


def test_what_is_no_residual_stays() -> None:
    graph, _ = added(UINT8, True)
    conv, add = graph.nodes
    for other in (
        replace(graph, outputs=("s", "y")),
        added(UINT8, True, zeros=(3, 31, 60))[0],
        replace(graph, nodes=(conv, replace(add, inputs=("y", "y")))),
    ):
        assert [node.op for node in fuse_codes(verify(other)).nodes] == [
            "QLinearConv",
            "QLinearAdd",
        ]


@pytest.mark.parametrize("first", [True, False])
def test_the_order_of_the_operands_is_kept(first: bool) -> None:
    """Of scales whose quotients are rounded, the order of the sum decides some codes."""
    rng, differ = np.random.default_rng(3), 0
    for _ in range(40):
        scales = tuple(float(np.float32(n / 20)) for n in rng.integers(1, 20, 3))
        graph, inputs = added(UINT8, first, scales=scales)
        found = interpret(fuse_codes(graph), inputs)["s"]
        np.testing.assert_array_equal(found, interpret(graph, inputs)["s"])
        conv, add = graph.nodes
        given = add.attributes
        turned = {
            "scales": (scales[1], scales[0], scales[2]),
            "zeros": (given["zeros"][1], given["zeros"][0], given["zeros"][2]),
        }
        turned_add = replace(add, inputs=add.inputs[::-1], attributes=frozen({**given, **turned}))
        other = interpret(replace(graph, nodes=(conv, turned_add)), inputs)["s"]
        differ += int(not np.array_equal(found, other))
    assert differ, "no scales tell the order"
