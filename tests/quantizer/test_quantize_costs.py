"""Choices of layers by predicted times: the front, its edges, and limits of bytes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import leanconv as lc
from leanconv.errors import BudgetError
from leanconv.quantizer.costs import LayerCost, total
from leanconv.quantizer.front import front
from support.networks_to_quantise import model, normal

_COSTS = st.lists(
    st.tuples(st.integers(-50, 200), st.integers(0, 120), st.integers(0, 9), st.integers(1, 99)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(_COSTS, st.none() | st.integers(0, 30))
def test_no_choice_is_faster_and_as_accurate(
    rows: list[tuple[int, int, int, int]], room: int | None
) -> None:
    costs = [LayerCost(f"l{n}", gain, edge, size) for n, (gain, edge, size, _) in enumerate(rows)]
    errors = {f"l{n}": row[3] / 7 for n, row in enumerate(rows)}

    def squares(chosen: frozenset[str]) -> float:
        return sum(errors[name] ** 2 for name in chosen)

    def bytes_more(chosen: frozenset[str]) -> int:
        return sum(cost.saved_bytes for cost in costs if cost.name not in chosen)

    found = front(costs, errors, room)
    every = [
        frozenset(cost.name for cost, on in zip(costs, ons, strict=True) if on)
        for ons in product((False, True), repeat=len(costs))
    ]
    fitting = [each for each in every if room is None or bytes_more(each) <= room]
    assert len(set(found)) == len(found)
    assert set(found) <= set(fitting)
    for choice in found:
        better = [e for e in fitting if squares(e) <= squares(choice) * (1 - 1e-9)]
        assert all(total(costs, each) <= total(costs, choice) for each in better)
    assert total(costs, found[0]) == max(total(costs, each) for each in fitting)
    if room is None:
        assert found[-1] == frozenset() or squares(found[-1]) < 1e-3 * squares(every[-1])


def test_an_edge_between_precisions_is_paid_once() -> None:
    costs = [LayerCost("a", 100, 30, 0), LayerCost("b", 5, 20, 0), LayerCost("c", 100, 40, 0)]
    assert total(costs, {"a", "b", "c"}) == 205
    assert total(costs, {"a", "c"}) == 200 - 10 - 10
    assert total(costs, ()) == 0


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


def _score(found: dict, exact: dict, _: dict) -> float:  # type: ignore[type-arg]
    """The outputs' relative error, from 1."""
    return float(1 - np.linalg.norm(found["y"] - exact["y"]) / np.linalg.norm(exact["y"]))


def test_bytes_are_a_limit_of_the_choice() -> None:
    samples = [normal(1, 32, 24, 24, seed=seed) for seed in range(6)]
    given_ = {"metric": _score, "threads": 1}
    whole = lc.quantize(_wide(), samples, **given_)  # type: ignore[arg-type]
    allowed = 100 * (1 - whole.score) / 2  # some layer has to stay in float32
    free = lc.quantize(_wide(), samples, max_accuracy_drop=allowed, **given_)  # type: ignore[arg-type]
    kept = [layer.name for layer in free.layers if layer.precision == "float32"]
    assert kept
    assert free.drop <= allowed
    assert all(layer.gain_ns is not None for layer in free.layers)

    def planned(data: bytes) -> int:
        return lc.load(data, threads=1).bind((1, 32, 24, 24)).memory_bytes

    limit = planned(free.data)
    same = lc.quantize(
        _wide(),
        samples,
        max_accuracy_drop=allowed,
        memory_limit=limit,
        **given_,  # type: ignore[arg-type]
    )
    assert planned(same.data) <= limit
    assert same.drop <= allowed
    with pytest.raises(BudgetError, match="max_accuracy_drop|give memory_limit") as caught:
        lc.quantize(
            _wide(),
            samples,
            max_accuracy_drop=1e-6,
            memory_limit=planned(whole.data),
            **given_,  # type: ignore[arg-type]
        )
    assert caught.value.smallest_bytes > planned(whole.data)
