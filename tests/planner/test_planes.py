"""Convolutions of few outputs are computed in planes, where lanes are columns and none is empty."""

from __future__ import annotations

import pytest

from leanconv.graph.ir import Graph
from leanconv.graph.passes import run_passes
from leanconv.operators import Accuracy
from leanconv.planner.decisions import resolved_choices
from leanconv.planner.formats import default_decisions, format_rules
from leanconv.spec import PLAIN
from leanconv.target import preset
from leanconv.types import FLOAT32
from support.graph_builder import Builder

ACCURACY = Accuracy(1e-5)


def of_widths(*channels: int, size: int, kernel: int = 3, batch: int = 1) -> Graph:
    """Convolutions in a row, each with a ReLU, of 3 channels to those."""
    b = Builder(FLOAT32)
    x, before = b.input(batch, 3, size, size), 3
    for count in channels:
        w = b.normal(count, before, kernel, kernel)
        x = b.op("Relu", b.conv(x, w, pads=(kernel // 2,) * 4))
        before = count
    return run_passes(b.graph(x))


@pytest.mark.presets
@pytest.mark.parametrize("name", ["haswell", "sapphirerapids", "znver4"])
def test_few_outputs_are_computed_in_planes(name: str) -> None:
    target = preset(name)
    few = of_widths(16, 1, size=64)
    rules = format_rules(few, target)
    assert rules.planes == {few.nodes[-1].key}
    first, last = resolved_choices(few, target, ACCURACY, default_decisions(rules))
    assert (first.writes, *last.reads.values(), last.writes) == (PLAIN, PLAIN, PLAIN)
    assert last.choice.algorithm == "planar"
    block = target.channel_block(FLOAT32)
    for others in (of_widths(16, block, size=64), of_widths(64, 64, 1, size=12)):
        assert not format_rules(others, target).planes
    narrow = of_widths(2, 2, 2, size=64)
    assert format_rules(narrow, target).planes == {node.key for node in narrow.nodes}


@pytest.mark.presets
def test_no_batch_decides_where_it_is_to_change_no_bits() -> None:
    target, seen = preset("sapphirerapids"), set[int]()
    for size, channels, kernel in ((16, (16, 4), 3), (40, (64, 1), 5), (64, (64, 4), 3)):
        one, more = (of_widths(*channels, size=size, kernel=kernel, batch=n) for n in (1, 7))
        each = Accuracy(1e-5, reproducible=True)
        found = [format_rules(graph, target, each).planes for graph in (one, more)]
        assert len(found[0]) == len(found[1])
        seen |= {len(format_rules(graph, target).planes) for graph in (one, more)}
    assert len(seen) > 1, "a batch decides elsewhere"
