"""Plans in which the first blocks are one operation: what a limit makes of a network."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from examples.networks import FULL_NETWORKS
from leanconv.errors import SpecError
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.passes.fuse_blocks import mergeable
from leanconv.operators import Accuracy
from leanconv.planner import graph_planner
from leanconv.planner.budget import Planner
from leanconv.planner.error_growth import error_units
from leanconv.planner.solver import fastest, smallest
from leanconv.target import preset
from leanconv.types import FLOAT32
from support.onnx_models import model as onnx_model

SHAPE = (1, 3, 96, 96)


@cache
def model(width: float = 0.5, image: int = 96) -> bytes:
    return FULL_NETWORKS["mobilenetv2"](width=width, image=image).SerializeToString()


def planner(
    width: float = 0.5,
    image: int = 96,
    max_error: float | None = None,
    reproducible: bool = False,
    target: str = "skylake-avx512",
) -> Planner:
    shape = (1, 3, image, image)
    graph = run_passes(read_model(model(width, image)).bind({"input": shape}, dtype=FLOAT32))
    accuracy = Accuracy(1e-6, reproducible)
    return Planner(graph, preset(target), 2, accuracy, max_error)


def bound(limit: int | None) -> lc.Network:
    net = lc.load(model(), threads=2, memory_limit=limit)
    net.bind(SHAPE)
    return net


@pytest.mark.presets
def test_the_best_of_all_numbers_of_merged_blocks_is_taken() -> None:
    """At every limit, the least time and bytes of those that each number gives by itself."""
    plans = planner(width=1.0, image=224, target="znver4")
    most = mergeable(plans.unmerged.graph)
    assert most > 2
    assert [each.merged for each in plans.family] == [0, *range(2, most + 1)]
    spaces = [(each.search_graph.levels, each.search_graph.base_bytes) for each in plans.family]
    leans = [smallest(levels) for levels, _ in spaces]
    least = min(path.bytes + base for path, (_, base) in zip(leans, spaces, strict=True) if path)
    assert plans.smallest.memory_bytes == least
    assert plans.smallest.planner.merged
    assert plans.smallest.storage.arena_bytes < 0.4 * 2**20
    free = plans.within(None)
    assert plans.within(free.weight_bytes + 629_145).planner.merged
    taken, times = set(), []
    for limit in np.linspace(least, free.memory_bytes - 1, 16).astype(int).tolist():
        paths = [fastest(levels, limit - base) for levels, base in spaces]
        found = plans.within(limit)
        assert found.memory_bytes <= limit
        assert found.path is not None
        assert found.path.time == min(path.time for path in paths if path is not None)
        taken.add(found.planner.merged)
        times.append(found.path.time)
    assert times == sorted(times, reverse=True)
    assert times[-1] >= sum(each.time_ns for each in plans.unmerged.chosen(plans.unmerged.defaults))
    assert len(taken) > 2, "limits that never ask for other numbers of blocks show nothing"
    with pytest.raises(lc.BudgetError) as caught:
        plans.within(least - 1)
    assert caught.value.smallest_bytes == least


@pytest.mark.presets
def test_the_front_is_that_of_all_numbers_of_merged_blocks() -> None:
    plans = planner()
    front = plans.front(points=8)
    assert [(-point.time_ns, point.bytes) for point in front] == sorted(
        (-point.time_ns, point.bytes) for point in front
    )
    assert front[0].bytes == plans.smallest.memory_bytes
    assert front[0].merged == plans.smallest.planner.merged
    for point in front:
        found = plans.within(point.bytes)
        assert point.exact
        assert found.path is None or found.path.time == point.time_ns


@pytest.mark.presets
def test_on_a_named_machine_more_blocks_are_merged_the_tighter_the_limit_is() -> None:
    plans = planner(target="znver4")
    least = plans.smallest
    assert least.planner.merged > 2
    assert least.storage.arena_bytes < 0.6 * plans.within(None).storage.arena_bytes
    assert {point.merged for point in plans.front()} > {0, least.planner.merged}


@pytest.mark.presets
def test_limits_of_bytes_and_error_are_kept_together() -> None:
    least = planner(max_error=1.0).smallest
    error = planner().unmerged.place_plan(None, None)
    for max_error in (1.5e-5, 1e-4):
        plans = planner(max_error=max_error)
        found = plans.within((least.memory_bytes + error.memory_bytes) // 2)
        assert found.path is not None
        assert found.path.error <= error_units(max_error, FLOAT32)
        assert found.planner.merged


@pytest.mark.presets
def test_no_limit_changes_the_bits_of_reproducible_plans() -> None:
    plans = planner(reproducible=True)
    assert plans.family == [plans.unmerged]
    assert {len(node_costs) for node_costs in plans.unmerged.search_graph.node_costs} == {1}


def test_only_blocks_that_are_there_are_merged() -> None:
    plans = planner()
    for count in (-1, 1, mergeable(plans.unmerged.graph) + 1):
        with pytest.raises(SpecError, match="cannot be merged"):
            plans.merging(count)


def residual_blocks(channels: int, stem: int = 0) -> bytes:
    """Two blocks, each of which adds its own input: the network's, or what a stem makes of it."""
    random = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {}
    nodes = []

    def conv(x: str, *shape: int, relu: bool = False, **attributes: object) -> str:
        out = f"v{len(nodes)}"
        constants[f"w{out}"] = (random.standard_normal(shape) * 0.2).astype("f4")
        nodes.append(helper.make_node("Conv", [x, f"w{out}"], [out], **attributes))
        if relu:
            nodes.append(helper.make_node("Relu", [out], [f"r{out}"]))
        return f"r{out}" if relu else out

    x = conv("x", channels, stem, 3, 3, pads=[1] * 4) if stem else "x"
    for _ in range(2):
        y = conv(x, 24, channels, 1, 1, relu=True)
        y = conv(y, 24, 1, 3, 3, relu=True, group=24, pads=[1] * 4)
        y = conv(y, channels, 24, 1, 1)
        nodes.append(helper.make_node("Add", [y, x], [f"{y}+{x}"]))
        x = f"{y}+{x}"
    shape = [1, stem or channels, 24, 32]
    return onnx_model(nodes, {"x": shape}, [x], constants).SerializeToString()


@pytest.mark.drawn
@pytest.mark.parametrize("channels", [8, 16, 20])
@pytest.mark.parametrize("stem", [0, 2])
def test_merged_blocks_that_add_their_own_plain_input(channels: int, stem: int) -> None:
    """The residual is read by another kernel than the input: each in the format that it takes."""
    model = residual_blocks(channels, stem)
    free = lc.load(model)
    x = np.random.default_rng(1).standard_normal((1, stem or channels, 24, 32)).astype("f4")
    expected = free(x)
    with pytest.raises(lc.BudgetError) as caught:
        lc.load(model, memory_limit=1)
    least = caught.value.smallest_bytes
    for limit in np.linspace(least, free.plan.memory_bytes, 4).astype(int).tolist():
        found = lc.load(model, memory_limit=limit)(x)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.usefixtures("nodes_evaluated_once")
def test_a_merged_plan_runs_is_explained_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = bound(None)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    y = free(x)
    with pytest.raises(lc.BudgetError) as caught:
        bound(1)
    least = caught.value.smallest_bytes
    with pytest.raises(lc.BudgetError, match=str(least)):
        bound(least - 1)
    net = bound(least)
    assert net.plan.memory_bytes == net.used_bytes == least
    assert net.plan.merged
    assert net.plan.arena_bytes < free.plan.arena_bytes
    found = net(x)
    np.testing.assert_allclose(found, y, rtol=0, atol=2e-5 * np.abs(y).max())

    report = net.report()
    assert report["merged_blocks"] == net.plan.merged
    assert report["exact"]
    assert {point["merged_blocks"] for point in report["front"]} >= {net.plan.merged}
    (chain,) = [layer for layer in report["layers"] if layer["op"] == "BlockChain"]
    assert sum(candidate["chosen"] for candidate in chain["candidates"]) == 1
    assert report["front"][0]["bytes"] == least
    assert "BlockChain" in net.explain()

    first, second = tmp_path / "a.json", tmp_path / "b.json"
    net.plan.save(first)
    with monkeypatch.context() as patched:
        patched.setattr(graph_planner, "make_search_graph", None)
        again = lc.load(model(), plan=first)
        np.testing.assert_array_equal(again(x), found)
    assert again.plan.storage.buffers == net.plan.storage.buffers
    again.plan.save(second)
    assert first.read_text() == second.read_text()
    count = f'"merged_blocks": {net.plan.merged},'
    assert count in first.read_text()
    for other in (0, 77):
        first.write_text(second.read_text().replace(count, f'"merged_blocks": {other},'))
        replanned = lc.load(model(), plan=first)
        np.testing.assert_array_equal(replanned(x), found)
        assert replanned.plan.memory_bytes == least
