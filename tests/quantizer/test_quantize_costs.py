"""Choices of layers by predicted times: the front, its edges, and limits of bytes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import leanconv as lc
from leanconv.errors import BudgetError
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.quantizer.choose import front
from leanconv.quantizer.costs import Clock, LayerCost, Planned, RungCost, total
from leanconv.quantizer.result import FLOAT16, FLOAT32, INT8, key
from leanconv.quantizer.samples import Arrays
from support.networks_to_quantise import model, normal

_RUNG = st.builds(RungCost, st.integers(-50, 200), st.integers(0, 120), st.integers(0, 9))
_LAYERS = st.lists(
    st.dictionaries(st.sampled_from((INT8, FLOAT16)), st.tuples(_RUNG, st.integers(1, 99))),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(_LAYERS, st.none() | st.integers(0, 30))
def test_no_choice_is_faster_and_as_accurate(
    layers: list[dict[str, tuple[RungCost, int]]], room: int | None
) -> None:
    costs = [
        LayerCost(f"l{n}", {rung: cost for rung, (cost, _) in each.items()})
        for n, each in enumerate(layers)
    ]
    errors = {
        f"l{n}": {rung: error / 7 for rung, (_, error) in each.items()}
        for n, each in enumerate(layers)
    }

    def squares(chosen: dict[str, str]) -> float:
        return sum(errors[name][rung] ** 2 for name, rung in chosen.items())

    def bytes_more(chosen: dict[str, str]) -> int:
        most = sum(max([0, *(c.saved_bytes for c in each.rungs.values())]) for each in costs)
        return most - sum(c.of(chosen.get(c.name, FLOAT32)).saved_bytes for c in costs)

    found = front(costs, errors, room)
    every = [
        {c.name: rung for c, rung in zip(costs, rungs, strict=True) if rung != FLOAT32}
        for rungs in product(*((FLOAT32, *c.rungs) for c in costs))
    ]
    fitting = [each for each in every if room is None or bytes_more(each) <= room]
    keys = {key(each) for each in found}
    assert len(keys) == len(found)
    assert keys <= {key(each) for each in fitting}
    for choice in found:
        better = [e for e in fitting if squares(e) <= squares(choice) * (1 - 1e-9)]
        assert all(total(costs, each) <= total(costs, choice) for each in better)
    assert total(costs, found[0]) == max(total(costs, each) for each in fitting)
    if room is None:
        most = max(squares(each) for each in every)
        assert not found[-1] or squares(found[-1]) < 1e-3 * most


def test_an_edge_between_precisions_is_paid_once() -> None:
    gains, edges = (100, 5, 100), (30, 20, 40)
    costs = [
        LayerCost(name, {INT8: RungCost(gain, edge, 0), FLOAT16: RungCost(gain // 2, 10, 0)})
        for name, gain, edge in zip("abc", gains, edges, strict=True)
    ]
    assert total(costs, dict.fromkeys("abc", INT8)) == 205
    assert total(costs, {"a": INT8, "c": INT8}) == 200 - 10 - 10
    assert total(costs, {"a": INT8, "b": FLOAT16, "c": FLOAT16}) == 100 + 2 + 50 - 10 - 5
    assert total(costs, {}) == 0


def _wide() -> bytes:
    """Three layers that are worth their codes; the middle one has most of the weights."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], name="middle", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "w2"], ["y"], name="last"),
    ]
    weights = {"w0": normal(64, 32, 1, 1), "w1": normal(64, 64, 3, 3), "w2": normal(32, 64, 1, 1)}
    return model(nodes, [1, 32, 24, 24], weights)


def _score(found: Arrays, exact: Arrays, _: Arrays) -> float:
    """The outputs' relative error, from 1."""
    return float(1 - np.linalg.norm(found["y"] - exact["y"]) / np.linalg.norm(exact["y"]))


def test_bytes_are_a_limit_of_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of layers that gain by int8, and half as much by float16, in times that are given."""
    usual = Clock.planned

    def planned_as(clock: Clock, graph: OnnxGraph, sample: Any) -> Planned:
        found = usual(clock, graph, sample)
        ops = [node.bare_op for node in graph.nodes]
        gained = 2 * ops.count("DequantizeLinear") + ops.count("Cast")
        return Planned(1_000_000 - gained, 0, found.weight_bytes)

    monkeypatch.setattr(Clock, "planned", planned_as)
    samples = [normal(1, 32, 24, 24, seed=seed) for seed in range(6)]
    options: dict[str, Any] = {"metric": _score, "threads": 1}
    whole = lc.quantize(_wide(), samples, **options)
    allowed = 100 * (1 - whole.score) / 2  # some layer has to have more than 8 bits
    free = lc.quantize(_wide(), samples, max_accuracy_drop=allowed, **options)
    assert {layer.precision for layer in free.layers} != {"int8"}
    assert free.drop <= allowed
    assert all(layer.gain_ns is not None for layer in free.layers)

    def planned(data: bytes) -> int:
        return lc.load(data, threads=1).bind((1, 32, 24, 24)).memory_bytes

    def least(data: bytes) -> int:
        with pytest.raises(BudgetError) as refused:
            lc.load(data, threads=1, memory_limit=1).bind((1, 32, 24, 24))
        return refused.value.smallest_bytes

    limit = planned(_wide()) * 3 // 4  # int8 takes less than half
    assert planned(whole.data) < limit
    halves = lc.quantize(
        _wide(),
        samples,
        max_accuracy_drop=0.2,
        memory_limit=limit,
        **options,
    )
    assert "float16" in {layer.precision for layer in halves.layers}
    assert halves.drop <= 0.2
    with_limit = lc.load(halves.data, threads=1, memory_limit=limit)
    assert with_limit.bind((1, 32, 24, 24)).memory_bytes <= limit
    with pytest.raises(BudgetError, match="max_accuracy_drop|give memory_limit") as caught:
        lc.quantize(
            _wide(),
            samples,
            max_accuracy_drop=1e-6,
            memory_limit=least(whole.data),  # floats have no plan within it
            **options,
        )
    assert caught.value.smallest_bytes > least(whole.data)
