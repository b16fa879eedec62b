"""Networks whose weights outgrow the caches count with weights that come from memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leanconv.graph.ir import Graph
from leanconv.operators import Accuracy, NodeContext, operator_of
from leanconv.spec import PLAIN
from leanconv.target import Target, preset
from leanconv.types import FLOAT32
from support.graph_builder import Builder

TARGET = preset("znver4")


def deep() -> Graph:
    """512 channels on 7x7 pixels: 9.4 MB of weights for 49 outputs each."""
    b = Builder(FLOAT32)
    x = b.input(1, 512, 7, 7)
    return b.graph(b.conv(x, b.normal(512, 512, 3, 3), pads=(1, 1, 1, 1)))


def with_cache(l3_bytes: int) -> Target:
    return replace(TARGET, l2_bytes=1 << 20, l3_bytes=l3_bytes)


@pytest.mark.parametrize(("megabytes", "cold"), [(1, True), (16, True), (20, False), (64, False)])
def test_weights_are_cold_when_they_exceed_half_of_the_last_cache(
    megabytes: int, cold: bool
) -> None:
    accuracy = Accuracy(1e-6).of_network(deep(), with_cache(megabytes << 20))
    assert accuracy == replace(Accuracy(1e-6), weights_from_dram=cold)


def test_cold_weights_cost_their_way_from_memory() -> None:
    graph = deep()
    (node,) = graph.nodes
    formats = {name: PLAIN for name in (*node.inputs, *node.outputs) if name}
    warm, cold = (
        {
            choice: choice.cycles
            for choice in operator_of(node).choices(
                NodeContext(node, graph, formats, TARGET, Accuracy(2e-5, weights_from_dram=cold))
            )
        }
        for cold in (False, True)
    )
    common = warm.keys() & cold.keys()
    assert common
    assert all(cold[name] >= warm[name] for name in common)
    dearer = [cold[name] / warm[name] for name in common]
    assert max(dearer) > 1.05 > min(dearer)  # what has few weights for its products loses nothing
