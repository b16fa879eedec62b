"""Plans within budgets: against every plan there is, to the byte, and as they run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from examples.networks import FULL_NETWORKS, SMALL_NETWORKS
from leanconv.codegen.host import host
from leanconv.graph.ir import Graph
from leanconv.operators import Accuracy
from leanconv.planner.budget import Planner
from leanconv.planner.decisions import Decision
from leanconv.planner.error_growth import error_units
from leanconv.planner.graph_planner import GraphPlanner
from leanconv.planner.lowering import lower_graph
from leanconv.planner.solver import fastest, smallest
from leanconv.planner.storage import place
from leanconv.spec import PLAIN
from leanconv.target import preset
from leanconv.types import FLOAT32
from support.graph_builder import Builder

THREADS = 2


def chain() -> Graph:
    """Convolutions whose channels do not fill blocks, so that layouts are worth a thought."""
    b = Builder(FLOAT32)
    x = b.input(1, 3, 14, 14)
    x = b.conv(x, b.normal(20, 3, 3, 3), pads=(1, 1, 1, 1))
    x = b.conv(x, b.normal(24, 20, 1, 1))
    return b.graph(b.conv(x, b.normal(5, 24, 3, 3)))


def diamond() -> Graph:
    """A value that two nodes read, who may want it in two formats; a sum in place."""
    b = Builder(FLOAT32)
    x = b.input(1, 5, 9, 9)
    x = b.conv(x, b.normal(17, 5, 1, 1))
    y = b.pool(x, (3, 3), "MaxPool", pads=(1, 1, 1, 1))
    y = b.op("Add", x, y)
    return b.graph(b.op("Relu", y), x)


def views() -> Graph:
    """Results that are the bytes of others, and an output that is read again."""
    b = Builder(FLOAT32)
    x = b.input(2, 18, 6, 4)
    x = b.conv(x, b.normal(19, 18, 1, 1))
    flat = b.op("Reshape", x, shape=(2, 19 * 24))
    y = b.op("Softmax", flat, axis=1)
    return b.graph(y, x)


def parts() -> Graph:
    """Halves of a value, of which one is read twice, computed where their Concat has them."""
    b = Builder(FLOAT32)
    x = b.input(1, 3, 6, 5)
    x = b.conv(x, b.normal(20, 3, 3, 3), pads=(1, 1, 1, 1))
    x = b.conv(x, b.normal(32, 20, 1, 1))
    first = b.op("Slice", x, starts=(0, 0, 0, 0), steps=(1,) * 4, sizes=(1, 16, 6, 5))
    second = b.op("Slice", x, starts=(0, 16, 0, 0), steps=(1,) * 4, sizes=(1, 16, 6, 5))
    third = b.op("Relu", second)
    y = b.op("Concat", first, second, third, axis=1)
    return b.graph(b.conv(y, b.normal(5, 48, 1, 1)))


def nested_parts() -> Graph:
    """A Concat in a Concat, one part of which is an output, and one the user's."""
    b = Builder(FLOAT32)
    given = b.input(1, 16, 3, 4)
    x = b.conv(given, b.normal(20, 16, 3, 3), pads=(1, 1, 1, 1))
    x = b.conv(x, b.normal(16, 20, 1, 1))
    y = b.op("Sigmoid", x)
    inner = b.op("Concat", x, y, axis=1)
    z = b.op("Relu", inner)
    return b.graph(b.op("Concat", inner, given, z, axis=1), y)


GRAPHS = {
    "chain": chain,
    "diamond": diamond,
    "views": views,
    "parts": parts,
    "nested parts": nested_parts,
}


@dataclass(frozen=True)
class Plan:
    """A plan as it is laid out, without the solver's model."""

    time: int
    error: int
    bytes: int


def every_plan(planner: GraphPlanner) -> list[Plan]:
    """All combinations of the nodes' ways whose formats can be had, lowered and placed."""
    graph, plans = planner.graph, []
    for chosen in product(*planner.search_graph.node_costs):
        decisions = [node_cost.decision for node_cost in chosen]
        lowered = lower_graph(graph, planner.target, planner.accuracy, decisions)
        storage = place(lowered, planner.threads)
        moves = [step.calls[0].values[-1] for step in lowered.steps if step.op == "Reorder"]
        costs = planner.target.costs
        reorders = sum(costs.reorder_ns(lowered.bytes[result]) for result in moves)
        plans.append(
            Plan(
                sum(node_cost.time_ns for node_cost in chosen) + reorders,
                sum(error_units(node_cost.passed_error, FLOAT32) for node_cost in chosen),
                storage.peak_bytes + lowered.constants.places()[1],
            )
        )
    return plans


@pytest.mark.presets
@pytest.mark.parametrize("name", GRAPHS)
def test_it_finds_what_trying_every_plan_finds(name: str) -> None:
    planner = Planner(GRAPHS[name](), preset("skylake-avx512"), THREADS, Accuracy(1e-4)).unmerged
    plans = every_plan(planner)
    levels, base = planner.search_graph.levels, planner.search_graph.base_bytes
    assert len({plan.bytes for plan in plans}) > 1, "nothing to choose"
    least = min(plan.bytes for plan in plans)
    lean = smallest(levels)
    assert lean is not None
    assert lean.bytes + base == least
    errors = sorted({plan.error for plan in plans})
    for limit in sorted({plan.bytes + d for plan in plans for d in (-1, 0)}):
        for error in (None, errors[0], errors[len(errors) // 2]):
            inside = [
                plan
                for plan in plans
                if plan.bytes <= limit and (error is None or plan.error <= error)
            ]
            path = fastest(levels, limit - base, error)
            assert (path is None) == (not inside), (limit, error)
            if path is not None:
                assert path.time == min(plan.time for plan in inside), (limit, error)


NARROW = {
    "mobilenetv2": {"width": 0.25, "image": 96},
    "resnet50": {"width": 0.125, "image": 64},
    "vgg16": {"width": 0.0625, "image": 64},
}


def model(name: str) -> bytes:
    if name in NARROW:
        return FULL_NETWORKS[name](**NARROW[name]).SerializeToString()
    return SMALL_NETWORKS[name]().SerializeToString()


def image(net: lc.Network, seed: int = 0) -> np.ndarray:
    (port,) = net.inputs
    shape = [n if isinstance(n, int) else 1 for n in port.shape]
    return np.random.default_rng(seed).standard_normal(shape).astype(port.dtype)


# What is planned as if on other machines, too: a network of each kind of blocks.
AGAIN = (*NARROW, "densenet_like", "googlenet_like", "segmentation_like", "shufflenet_like")


def not_all_again(*names: str) -> list[Any]:
    """The networks, of which some are planned for this machine only."""
    return [name if name in AGAIN else pytest.param(name, marks=pytest.mark.once) for name in names]


@pytest.mark.drawn
@pytest.mark.usefixtures("nodes_evaluated_once")
@pytest.mark.parametrize("name", not_all_again(*NARROW, *SMALL_NETWORKS))
def test_budgets_are_kept_to_the_byte(name: str) -> None:
    """From the least to the plan without limits: bytes, times, results; one byte less fails."""
    built = model(name)
    free = lc.load(built, threads=THREADS)
    x = image(free)
    y = free(x)
    with pytest.raises(lc.BudgetError) as caught:
        lc.load(built, threads=THREADS, memory_limit=1)(x)
    least, most = caught.value.smallest_bytes, free.plan.memory_bytes
    with pytest.raises(lc.BudgetError, match=str(least)) as again:
        lc.load(built, threads=THREADS, memory_limit=least - 1)(x)
    assert again.value.smallest_bytes == least
    times = []
    for share in (0.0, 0.5, 1.0):
        limit = least + int(share * (most - least))
        net = lc.load(built, threads=THREADS, memory_limit=limit)
        found = net(x)
        assert net.used_bytes == net.plan.memory_bytes <= limit
        assert net.plan.arena_bytes == net.plan.peak_bytes
        times.append(net.plan.counted_ns)
        assert net.plan.predicted_ns <= net.plan.counted_ns
        np.testing.assert_allclose(found, y, rtol=0, atol=2e-5 * np.abs(y).max())
    assert times == sorted(times, reverse=True)
    assert times[-1] <= free.plan.counted_ns


@pytest.mark.usefixtures("nodes_evaluated_once")
@pytest.mark.parametrize("name", ["resnet50", "googlenet_like", "shufflenet_like"])
def test_the_error_is_kept(name: str) -> None:
    """Estimates of all layers together stay below `max_error`, and so does the result."""
    built = model(name)
    net = lc.load(built, threads=1)
    x = image(net)
    exact = lc.load(built, dtype="float64", threads=1)(x.astype(np.float64))
    with pytest.raises(lc.BudgetError, match="max_error") as caught:
        lc.load(built, threads=1, max_error=1e-12)(x)
    least = caught.value.smallest_error
    assert least is not None
    assert caught.value.smallest_bytes == 0
    times = []
    for factor in (1.01, 2.0, 10.0):
        net = lc.load(built, threads=1, max_error=least * factor)
        error = np.abs(net(x) - exact).max() / np.abs(exact).max()
        assert net.plan.predicted_error <= least * factor
        assert error <= net.plan.predicted_error
        times.append(net.plan.counted_ns)
    assert times == sorted(times, reverse=True)


def test_reproducible_plans_keep_their_bits_under_a_limit() -> None:
    """An image gives the same bits alone and in a batch, at the limit of the batch's plan."""
    built = model("resnet50")
    net = lc.load(built, threads=1, reproducible=True)
    batch = np.concatenate([image(net, seed) for seed in range(3)])
    y = net(batch)
    tight = lc.load(built, threads=1, reproducible=True, memory_limit=net.plan.memory_bytes)
    np.testing.assert_array_equal(tight(batch)[1:2], net(batch[1:2]))
    np.testing.assert_array_equal(y[1:2], net(batch[1:2]))
    least = net.plan.memory_bytes
    with pytest.raises(lc.BudgetError):
        lc.load(built, threads=1, reproducible=True, memory_limit=least // 2)(batch)


def test_a_decision_names_formats_that_can_be_had() -> None:
    planner = Planner(chain(), host(), 1, Accuracy(1e-4)).unmerged
    for node_costs in planner.search_graph.node_costs:
        for node_cost in node_costs:
            assert isinstance(node_cost.decision, Decision)
            assert node_cost.decision.writes in (PLAIN, planner.evaluator.rules.blocked)
            assert node_cost.time_ns >= node_costs[0].time_ns
