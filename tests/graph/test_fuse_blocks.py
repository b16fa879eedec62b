"""Which convolutions become one ConvChain, and which stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.errors import ModelError
from leanconv.graph.ops import infer
from leanconv.graph.passes import GPU_PASSES, PASSES, run_passes
from leanconv.graph.passes.fuse_blocks import fuse_blocks
from leanconv.spec.activation import Activation
from leanconv.types import FLOAT32
from support.graph_builder import Builder, assert_equal, ops

RELU6 = Activation("clip", (0.0, 6.0))


def expand(b: Builder, x: str, channels: int, **given: Any) -> str:
    width = b.types[x].shape[1]
    return b.conv(x, b.normal(channels, width, 1, 1), b.normal(channels), **given)


def depthwise(b: Builder, x: str, **given: Any) -> str:
    c = b.types[x].shape[1]
    settings = {"pads": (1, 1, 1, 1), "group": c, "activation": RELU6, **given}
    return b.conv(x, b.normal(c, 1, 3, 3), b.normal(c), **settings)


def test_an_inverted_residual_is_one_node() -> None:
    b = Builder()
    x = b.input(2, 4, 6, 5)
    y = depthwise(b, expand(b, x, 12, activation=RELU6))
    y = b.conv(y, b.normal(4, 12, 1, 1), b.normal(4), x)
    graph = b.graph(y)
    fused = fuse_blocks(graph)
    (node,) = fused.nodes
    assert node.inputs[:2] == (x, x)
    assert node.name == graph.nodes[-1].name
    assert_equal(graph, fused)


def test_blocks_of_zeros_stay_apart_where_kernels_leave_them_out() -> None:
    b = Builder(FLOAT32)
    x = b.input(1, 4, 6, 5)
    w = [b.random.normal(size=shape) for shape in ((12, 4, 1, 1), (4, 12, 1, 1))]
    for each in w:  # no channel is without weights
        each[np.add.outer(*map(np.arange, each.shape[:2])) % 4 > 0] = 0
    y = depthwise(b, b.conv(x, b.const(w[0]), activation=RELU6))
    graph = b.graph(b.conv(y, b.const(w[1])))
    assert ops(run_passes(graph, PASSES)) == ["Conv"] * 3
    assert ops(run_passes(graph, GPU_PASSES)) == ["ConvChain"]


def test_separable_convolutions_and_their_stem() -> None:
    b = Builder()
    x = b.input(1, 3, 9, 9)
    y = b.conv(x, b.normal(8, 3, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    for channels in (12, 16):
        y = expand(b, depthwise(b, y, strides=(2, 2)), channels, activation=RELU6)
    graph = b.graph(y)
    fused = fuse_blocks(graph)
    assert ops(fused) == ["ConvChain", "ConvChain"]
    assert [len(node.attributes["stages"]) for node in fused.nodes] == [3, 2]
    assert_equal(graph, fused)


def test_what_others_read_stays() -> None:
    for reader in ("expanded", "depthwise", "both"):
        b = Builder()
        x = b.input(1, 4, 6, 6)
        e = expand(b, x, 12)
        d = depthwise(b, e)
        y = expand(b, d, 4)
        outputs = {"expanded": (e,), "depthwise": (d,), "both": (e, d)}[reader]
        fused = fuse_blocks(b.graph(y, *outputs))
        assert_equal(b.graph(y, *outputs), fused)
        expected = ["Conv", "ConvChain"] if reader == "expanded" else ["Conv"] * 3
        assert ops(fused) == expected


def change_pads(b: Builder, d: str) -> str:
    return b.conv(d, b.normal(4, 12, 1, 1), pads=(1, 0, 0, 1))


def change_stride(b: Builder, d: str) -> str:
    return b.conv(d, b.normal(4, 12, 1, 1), strides=(2, 1))


def change_kernel(b: Builder, d: str) -> str:
    return b.conv(d, b.normal(4, 12, 3, 3))


def change_groups(b: Builder, d: str) -> str:
    return b.conv(d, b.normal(4, 6, 1, 1), group=2)


def change_weights(b: Builder, d: str) -> str:
    return b.conv(d, b.input(4, 12, 1, 1))


def change_slope(b: Builder, d: str) -> str:
    slope = Activation("prelu", ())
    return b.conv(d, b.normal(4, 12, 1, 1), "", "", b.normal(4), activation=slope)


@pytest.mark.parametrize(
    "project",
    [change_pads, change_stride, change_kernel, change_groups, change_weights, change_slope],
)
def test_other_convolutions_are_left_alone(project: Any) -> None:
    b = Builder()
    d = depthwise(b, expand(b, b.input(1, 4, 6, 6), 12))
    graph = b.graph(project(b, d))
    assert ops(fuse_blocks(graph)) == ["Conv"] * 3


def test_a_depthwise_multiplier_is_left_alone() -> None:
    b = Builder()
    x = b.input(1, 4, 6, 6)
    d = b.conv(x, b.normal(8, 1, 3, 3), group=4)
    assert ops(fuse_blocks(b.graph(expand(b, d, 4)))) == ["Conv", "Conv"]


def test_an_inner_residual_is_not_moved() -> None:
    b = Builder()
    x = b.input(1, 4, 6, 6)
    d = b.conv(x, b.normal(4, 1, 3, 3), b.normal(4), x, group=4, pads=(1, 1, 1, 1))
    assert ops(fuse_blocks(b.graph(expand(b, d, 4)))) == ["Conv", "Conv"]


def test_one_and_three_axes_are_left_alone() -> None:
    for rank in (1, 3):
        b = Builder()
        x = b.input(1, 4, *(6,) * rank)
        d = b.conv(x, b.normal(4, 1, *(3,) * rank), group=4)
        y = b.conv(d, b.normal(4, 4, *(1,) * rank))
        assert ops(fuse_blocks(b.graph(y))) == ["Conv", "Conv"]


def test_a_chain_is_not_fused_again() -> None:
    b = Builder()
    y = expand(b, depthwise(b, b.input(1, 4, 6, 6)), 4)
    graph = fuse_blocks(b.graph(y))
    again = fuse_blocks(graph)
    assert ops(again) == ["ConvChain"]
    assert_equal(graph, again)


def test_shapes_of_a_chain_are_checked() -> None:
    b = Builder()
    y = expand(b, depthwise(b, expand(b, b.input(1, 4, 6, 6), 12)), 4)
    graph = fuse_blocks(b.graph(y))
    (node,) = graph.nodes
    types = [graph.types[name] if name else None for name in node.inputs]
    assert infer("ConvChain", types, node.attributes) == (graph.types[y],)
    wrong = [*types[:4], types[2], *types[5:]]
    with pytest.raises(ModelError, match="channels"):
        infer("ConvChain", wrong, node.attributes)
    with pytest.raises(ModelError, match="at least one stage"):
        infer("ConvChain", types, {"stages": ()})


def test_numbers_are_those_of_the_convolutions() -> None:
    b = Builder()
    y = expand(b, depthwise(b, expand(b, b.input(1, 3, 4, 4), 5), strides=(2, 1)), 2)
    graph = b.graph(y)
    fused = fuse_blocks(graph)
    assert np.prod(fused.types[y].shape) == np.prod(graph.types[y].shape)
    assert_equal(graph, fused)
