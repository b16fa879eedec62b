"""A search without limits: no more than it needs, and once for all processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import helper

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.options import NetworkOptions
from leanconv.codegen.cache import DiskCache
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import read_model
from leanconv.operators import Accuracy
from leanconv.planner import found_plans, graph_planner
from leanconv.planner.budget import Planner
from leanconv.planner.graph_planner import GraphPlanner
from leanconv.target import preset
from leanconv.types import FLOAT32
from support.graph_builder import Builder
from support.onnx_models import model

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


def decided(budget: Planner, memory_limit: int | None = None) -> Any:
    """The decisions, the planner that they are of, and whether they are proved."""
    found = found_plans.decide(budget.unmerged.graph, budget, memory_limit)
    return found.decisions, found.planner, found.exact


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


def test_damaged_plans_of_a_network_are_misses_or_plans(searches: list[bool]) -> None:
    """Whatever the disk gives, the network is computed within its limits."""
    random, store = Random(1), found_plans._store()
    decided(planner())
    key = found_plans._key(planner().unmerged)
    whole = store.get(key) or b""
    words = ("direct", "winograd:m=6x6", "fft:tile=256", "col2im", "direct:tile=1000x1000", None, 5)
    forms: tuple[Any, ...] = ({}, {"0": 16}, {"9": 0}, {"-1": 16}, {"0": True}, [], {"x": 1}, None)
    for turn in range(60):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[random.randrange(len(whole))] = random.choice(b'[]{}",:0123456789truenfl ')
        if turn % 2:
            kept = json.loads(whole)
            one = random.choice(kept["decisions"])
            place = random.randrange(3)
            one[place] = random.choice(
                (forms, (0, 16, 63, True, None, -1, 2.0, "16"), words)[place]
            )
            damaged = bytearray(json.dumps(kept).encode())
        store.put(key, bytes(damaged))
        decisions, _, _ = decided(planner())
        assert len(decisions) == len(planner().unmerged.graph.nodes)


def test_other_open_axes_are_another_network() -> None:
    given = planner().unmerged
    graph = replace(given.graph, open_axes={given.graph.inputs[0]: (2, 3)})
    assert found_plans._key(given) != found_plans._key(
        Planner(graph, given.target, given.threads, ACCURACY).unmerged
    )


def opened(*, fifths: bool = False, mean: bool = False) -> CpuBackend:
    """The same of open sizes, which is searched, too: of widths that 5 divides, or averaged."""
    w = np.random.default_rng(0).standard_normal((64, 32, 3, 3), np.float32)
    held = {"w": w, "v": np.concatenate([w, w], axis=1), "rows": np.array([1, 64, -1, 5])}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["shared"], pads=[1] * 4),
        helper.make_node("Conv", ["shared", "v"], ["deeper"], pads=[1] * 4),
        helper.make_node("Conv", ["deeper", "v"], ["y"], pads=[1] * 4),
        helper.make_node("Transpose", ["shared"], ["turned"], perm=[0, 1, 3, 2]),
    ]
    outputs = ["y", "turned"]
    if fifths:
        nodes.append(helper.make_node("Reshape", ["shared", "rows"], ["fifths"]))
        outputs.append("fifths")
    if mean:
        nodes.append(helper.make_node("ReduceMean", ["turned"], ["mean"], axes=[2, 3]))
        outputs.append("mean")
    proto = model(nodes, {"x": (1, 32, "H", "W")}, outputs, held, 17)
    options = NetworkOptions(2, max_error=1e-4 if mean else None)
    return CpuBackend(read_model(proto.SerializeToString()), options, target=preset("znver4"))


def decided_at(backend: CpuBackend, *sides: int) -> tuple[Any, GraphPlanner]:
    budget = backend.planner(backend.graph(((1, 32, *sides),)))
    return decided(budget), budget.unmerged


def test_one_search_serves_a_range_of_sizes(searches: list[bool]) -> None:
    backend = opened()
    first, _ = decided_at(backend, 66, 70)
    others = [decided_at(backend, *sides)[0] for sides in ((80, 70), (500, 65))]
    again, _ = decided_at(opened(), 90, 90)  # a later process, at a size that it did not have
    assert searches == [False]
    assert all(texts(each) == texts(first) for each in (*others, again))
    decided_at(backend, 660, 300)
    assert searches == [False] * 2


def test_a_memory_limit_that_the_plan_of_a_range_keeps_asks_no_search(searches: list[bool]) -> None:
    backend = opened()
    for sides in ((66, 70), (80, 70), (90, 90)):
        budget = backend.planner(backend.graph(((1, 32, *sides),)))
        free, planner, _ = decided(budget)
        needed = planner.place_plan(free, None).memory_bytes
        assert decided(budget, needed)[0] == free
        assert searches == [False]
    found, smaller, _ = decided(budget, needed - 1)
    assert smaller.place_plan(found, None).memory_bytes < needed
    assert len(searches) > 1


def test_sizes_of_which_none_stands_for_all_are_searched_each(searches: list[bool]) -> None:
    backend = opened(fifths=True)
    for width in (70, 75):
        decided_at(backend, 70, width)
    assert searches == [False] * 2


def test_what_serves_a_range_keeps_the_error_at_each_size(searches: list[bool]) -> None:
    backend = opened(mean=True)
    for sides in ((66, 70), (150, 200), (70, 66)):
        found, planner = decided_at(backend, *sides)
        units = planner.error_units(found[0], lambda _: True)
        assert units <= planner.error_limit
    assert len(searches) == 1


def test_what_does_not_keep_the_error_at_a_size_is_searched(
    searches: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(mean=True)
    decided_at(backend, 66, 70)
    monkeypatch.setattr(found_plans, "_serves", lambda *_: False)
    decided_at(backend, 66, 80)
    assert len(searches) == 2


def test_a_plan_on_disk_that_errs_too_much_is_a_miss(searches: list[bool]) -> None:
    def at(error: float) -> Planner:
        return Planner(reordering(), preset("znver4"), 2, Accuracy(error), max_error=error)

    exact, coarse = at(5e-6), at(1e-3)
    first = decided(exact)
    kept = decided(coarse)
    assert exact.unmerged.error_units(kept[0], lambda _: True) > exact.unmerged.error_limit
    store = found_plans._store()
    store.put(found_plans._key(exact.unmerged), store.get(found_plans._key(coarse.unmerged)) or b"")
    assert texts(decided(at(5e-6))) == texts(first)
    assert len(searches) == 3
