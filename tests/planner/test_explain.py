"""What is said of plans: times are estimates of what runs, and each choice has its reason."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.planner.network_plan import NetworkPlan
from leanconv.units import format_bytes, format_ns
from support import onnx_models

SHAPES = ((1, 24, 12, 16), (1, 24, 40, 40), (1, 24, 96, 128))


def _network(sizes: tuple[Any, ...]) -> lc.Network:
    """Convolutions of open or fixed sizes, a view, a copy and an output in another layout."""
    generator = np.random.default_rng(0)
    weights = {
        name: generator.standard_normal(shape).astype(np.float32)
        for name, shape in (("w0", (24, 24, 3, 3)), ("w1", (32, 24, 3, 3)), ("w2", (8, 32, 1, 1)))
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="far", dilations=[4, 4], pads=[4] * 4),
        helper.make_node("Sigmoid", ["a"], ["s"], name="curve"),
        helper.make_node("Conv", ["s", "w1"], ["b"], name="near", pads=[1] * 4),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="point"),
        helper.make_node("Flatten", ["c"], ["y"], name="flat"),
    ]
    made = onnx_models.model(nodes, {"x": (1, 24, *sizes)}, ["y"], weights)
    return lc.load(made.SerializeToString(), threads=2)


def _plan(network: lc.Network, shape: tuple[int, ...]) -> NetworkPlan:
    plan = network.bind(shape)
    assert isinstance(plan, NetworkPlan)
    return plan


def test_a_pool_of_large_windows_costs_what_its_rows_and_halves_do() -> None:
    def predicted(taps: int) -> int:
        window: dict[str, Any] = {"kernel_shape": [taps, taps], "pads": [taps // 2] * 4}
        x = np.zeros((1, 8, 256, 256), np.float32)
        made, _ = onnx_models.single("MaxPool", [x], 17, **window)
        return _plan(lc.load(made.SerializeToString(), threads=1), (1, 8, 256, 256)).predicted_ns

    # Measured: 0.27 ms and 0.98 ms on one core of a Sapphire Rapids server.
    assert 2 < predicted(31) / predicted(3) < 6


@pytest.mark.parametrize("shape", SHAPES)
def test_times_are_the_estimates_of_what_runs(shape: tuple[int, ...]) -> None:
    network = _network(("H", "W"))
    plan, report = _plan(network, shape), network.report(front=False)
    costs = plan.target.costs
    assert sum(layer["time_ns"] for layer in report["layers"]) == pytest.approx(
        report["predicted_ns"] - plan.call_ns, abs=len(report["layers"])
    )
    for node, chosen in zip(plan.graph.nodes, plan.node_costs, strict=True):
        (layer,) = [each for each in report["layers"] if each["output"] == node.outputs[0]]
        cycles = chosen.decision.choice.cycles
        if layer["algorithm"] == "view":
            assert layer["time_ns"] == 0
        elif cycles:
            assert layer["time_ns"] == plan.shared_ns(costs.ns(cycles))
    compiled: Any = network.compiled
    for found in compiled.network.decided.planner.search_graph.node_costs:
        for node_cost in found:
            assert node_cost.estimated_ns <= node_cost.time_ns
            if node_cost.decision.choice.cycles and node_cost.calls:
                assert node_cost.estimated_ns == costs.ns(node_cost.decision.choice.cycles)


@pytest.mark.parametrize("sizes", [("H", "W"), (40, 40)], ids=["open", "fixed"])
def test_every_candidate_that_lost_has_a_reason_that_its_time_bears_out(
    sizes: tuple[Any, ...],
) -> None:
    network = _network(sizes)
    for shape in SHAPES if sizes == ("H", "W") else SHAPES[1:2]:
        network.bind(shape)
        for layer in network.report(front=False)["layers"]:
            (chosen,) = [c for c in layer["candidates"] if c["chosen"]]
            assert chosen["time_ns"] == layer["time_ns"]
            texts = set()
            for candidate in layer["candidates"]:
                if candidate["chosen"]:
                    continue
                reason = candidate["reason"]
                texts.add(reason)
                assert reason
                if reason.startswith("slower"):
                    assert candidate["time_ns"] >= layer["time_ns"]
                elif reason != "no faster":
                    assert candidate["time_ns"] <= layer["time_ns"], reason
            if layer["op"] == "Conv" and len(layer["candidates"]) > 3:
                assert texts != {"no faster"}


def test_a_choice_for_all_sizes_says_for_which_it_was_made() -> None:
    """At 12x16, FFT is chosen as for 56x56, however slow it is here."""
    network = _network(("H", "W"))
    network.bind(SHAPES[0])
    reasons = [
        (c["time_ns"] < layer["time_ns"], c["reason"])
        for layer in network.report(front=False)["layers"]
        for c in layer["candidates"]
        if layer["name"] == "far"
    ]
    for faster, reason in reasons:
        if "one choice holds" in reason:
            assert faster
            assert "all sizes like 1x24x56x56, and at 1x24x56x56 it is " in reason
            assert "it is slower, " in reason or "it is no faster" in reason


def test_changes_of_layout_are_layers_with_the_names_of_the_steps() -> None:
    network = _network((40, 40))
    plan = _plan(network, SHAPES[1])
    layers = network.report(front=False)["layers"]
    assert {step.name for step in plan.steps} <= {layer["name"] for layer in layers}
    moves = [step.name for step in plan.steps if step.op == "Reorder"]
    assert [layer["name"] for layer in layers if layer["op"] == "Reorder"] == moves


def test_the_method_says_of_each_layer_what_the_command_says() -> None:
    """Time, error and the fastest choice that lost, with its reason."""
    network = _network((40, 40))
    plan = _plan(network, SHAPES[1])
    lines, layers = network.explain().splitlines(), network.report(front=False)["layers"]
    beside = 0
    for step, line in zip(plan.steps, lines, strict=False):
        assert line.startswith(f"{step.name}: {step.op} by ")
        (layer,) = [each for each in layers if each["name"] == step.name]
        assert f", {format_ns(layer['time_ns'])}, " in line
        assert f"weights {format_bytes(layer['weight_bytes'])}" in line
        if layer["error"]:
            assert f"error {layer['error']:.1e}" in line
        if layer["next_best"]:
            beside += 1
            assert line.endswith(f"; next best {layer['next_best']}")
            assert any(layer["next_best"].endswith(c["reason"]) for c in layer["candidates"][1:])
    assert beside >= 2


def test_maps_smaller_than_a_tile_of_the_usual_sizes_are_explained() -> None:
    """Kernels for any size are those for maps of usual sizes; others are no candidates."""
    generator = np.random.default_rng(0)
    weights = {
        name: generator.standard_normal(shape).astype(np.float32)
        for name, shape in (("w0", (4, 3, 3, 3)), ("w1", (4, 4, 3, 3)))
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        helper.make_node("Conv", ["a", "w1"], ["y"], pads=[1] * 4),
    ]
    made = onnx_models.model(nodes, {"x": ("N", 3, "H", "W")}, ["y"], weights)
    network = lc.load(made.SerializeToString(), threads=2)
    for shape in ((1, 3, 3, 2), (1, 3, 2, 3), (1, 3, 1, 4), (2, 3, 4, 3)):
        network.bind(shape)
        assert "next best" in network.explain()
        least = network.plan.memory_bytes - 100
        with contextlib.suppress(lc.BudgetError):
            lc.load(made.SerializeToString(), threads=2, memory_limit=least).bind(shape)


def test_a_plan_of_a_range_says_for_which_size_it_was_found() -> None:
    """The estimates are those of the size at hand, and the reasons those of the range's."""
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Conv", ["a", "w"], ["y"], pads=[1] * 4),
        helper.make_node("Transpose", ["a"], ["turned"], perm=[0, 1, 3, 2]),
    ]
    read = onnx_models.model(nodes, {"x": (1, 64, "H", "W")}, ["y", "turned"], {"w": w})
    net = lc.load(read, threads=1)
    net.bind((1, 64, 66, 66))
    text, alone = net.explain(), net.specialise((1, 64, 66, 66)).explain()
    assert "found for x 1x64x96x96, and for all sizes like it" in text
    assert "found for" not in alone
    for layer in net.report(front=False)["layers"]:
        for candidate in layer.get("candidates", ()):
            if candidate["time_ns"] < layer["time_ns"]:
                assert "1x64x96x96" in candidate["reason"]
