"""A search without limits: no more than it needs, and once for all processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leanconv.codegen.cache import DiskCache
from leanconv.graph.ir import Graph
from leanconv.operators import Accuracy
from leanconv.planner import compiled_network, found_plans, graph_planner
from leanconv.planner.budget import Planner
from leanconv.target import preset
from leanconv.types import FLOAT32
from support.graph_builder import Builder

pytestmark = pytest.mark.once  # any plan will do

ACCURACY = Accuracy(1e-5)


def reordering(channels: int = 32) -> Graph:
    """A value in blocks of channels for one reader, and in planes for the other."""
    b = Builder(FLOAT32)
    x = b.input(1, channels, 24, 24)
    shared = b.conv(x, b.normal(64, channels, 3, 3), pads=(1, 1, 1, 1))
    deeper = b.conv(shared, b.normal(64, 64, 3, 3), pads=(1, 1, 1, 1))
    turned = b.op("Transpose", shared, perm=(0, 1, 3, 2))
    return b.graph(b.conv(deeper, b.normal(64, 64, 3, 3), pads=(1, 1, 1, 1)), turned)


def planner(threads: int = 2, channels: int = 32) -> Planner:
    return Planner(reordering(channels), preset("znver4"), threads, ACCURACY)


@pytest.fixture
def searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether parameters were varied in each search, and a store of this test's own."""
    store, found = DiskCache(tmp_path / "plans", suffix=".json"), []
    make = graph_planner.make_search_graph

    def counted(*given: Any, vary_parameters: bool = True, **more: Any) -> Any:
        found.append(vary_parameters)
        return make(*given, vary_parameters=vary_parameters, **more)

    monkeypatch.setattr(found_plans, "_store", lambda: store)
    monkeypatch.setattr(graph_planner, "make_search_graph", counted)
    return found


def decided(budget: Planner) -> Any:
    return compiled_network._decided(budget, None, None, None)


def texts(found: Any) -> list[tuple[dict[str, str], str, str]]:
    return [
        ({name: str(form) for name, form in d.reads.items()}, str(d.writes), str(d.choice))
        for d in found[0]
    ]


def test_the_network_of_these_tests_is_searched() -> None:
    assert not planner().unmerged.needs_no_reorder


def test_one_search_of_what_is_fastest_is_enough(searches: list[bool]) -> None:
    decisions, _, exact = decided(planner())
    assert decisions is not None
    assert exact
    assert searches == [False]


def test_a_later_process_does_not_search(searches: list[bool]) -> None:
    first = decided(planner())
    again = decided(planner())
    assert searches == [False]
    assert texts(again) == texts(first)
    assert again[2] == first[2]
    decided(planner(threads=1))
    decided(planner(channels=48))
    assert searches == [False] * 3


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: {},
        lambda kept: [],
        lambda kept: {**kept, "decisions": kept["decisions"][1:]},
        lambda kept: {**kept, "decisions": [{}] * len(kept["decisions"])},
        lambda kept: {**kept, "decisions": [[{"9": 16}, 0, "auto"], *kept["decisions"][1:]]},
        lambda kept: {**kept, "decisions": [[{"0": 5}, 5, "auto"], *kept["decisions"][1:]]},
        lambda kept: {**kept, "decisions": [[{"0": -1}, 0, "auto"], *kept["decisions"][1:]]},
        lambda kept: {**kept, "decisions": [[{}, 0, "nobody:s=1"], *kept["decisions"][1:]]},
    ],
)
def test_what_is_no_plan_of_the_network_is_a_miss(searches: list[bool], change: Any) -> None:
    first = decided(planner())
    key = found_plans._key(planner().unmerged)
    kept = json.loads(found_plans._store().get(key) or b"")
    found_plans._store().put(key, json.dumps(change(kept)).encode())
    assert texts(decided(planner())) == texts(first)
    assert searches == [False, False]


def test_other_open_axes_are_another_network() -> None:
    given = planner().unmerged
    graph = replace(given.graph, open_axes={given.graph.inputs[0]: (2, 3)})
    assert found_plans._key(given) != found_plans._key(
        Planner(graph, given.target, given.threads, ACCURACY).unmerged
    )
