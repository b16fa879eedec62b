"""`BudgetError.smallest_error` is the least `max_error` that works, to the last digit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import leanconv as lc
from leanconv.api.conv_choice import ConvChoice
from leanconv.planner.error_growth import error_units, units_error
from leanconv.types import FLOAT32, FLOAT64
from leanconv.units import error_text
from support.control_flow import node
from support.network_models import small_model
from support.onnx_models import model, reference

Plan = Callable[[float], Any]


def works(plan: Plan, max_error: float) -> bool:
    """Whether a plan is found; its error is the limit at most."""
    try:
        found = plan(max_error)
    except lc.BudgetError:
        return False
    assert found.predicted_error <= max_error * (1 + 1e-12)
    return True


def check_least(plan: Plan) -> float:
    """Ask for too little, and call with what the refusal names, with what it prints, and less."""
    with pytest.raises(lc.BudgetError, match="max_error") as caught:
        plan(1e-12)
    least = caught.value.smallest_error
    assert least is not None
    assert caught.value.smallest_bytes == 0
    assert works(plan, least)
    for factor in (0.8, 1 - 1e-15):
        assert not works(plan, least * factor), f"{least} was said to be the least"
    printed = re.search(r"give max_error=([0-9.e-]+) or more", str(caught.value))
    assert printed is not None
    assert least <= float(printed[1]) <= least * 1.01
    assert works(plan, float(printed[1]))
    return least


def planned(model: bytes, **options: Any) -> Plan:
    """What plans a network of any input size for a small one."""

    def plan(max_error: float) -> Any:
        net = lc.load(model, threads=1, max_error=max_error, **options)
        if any(not isinstance(extent, int) for port in net.inputs for extent in port.shape):
            net.bind(
                {p.name: [e if isinstance(e, int) else 1 for e in p.shape] for p in net.inputs}
            )
        return net.plan

    return plan


@pytest.mark.usefixtures("nodes_evaluated_once")
@pytest.mark.parametrize("name", ["resnext_like", "squeezenet_like"])
def test_a_network_works_with_what_its_refusal_names(name: str) -> None:
    check_least(planned(small_model(name)))


@pytest.mark.once  # of other machines by convolutions, below
@pytest.mark.usefixtures("nodes_evaluated_once")
def test_within_a_limit_of_bytes_the_least_error_is_another_one() -> None:
    """What is named keeps both limits; with fewer bytes it is no less."""
    model = small_model("shufflenet_like")
    free = check_least(planned(model))
    with pytest.raises(lc.BudgetError) as caught:
        planned(model, memory_limit=1)(1.0)
    tight = caught.value.smallest_bytes
    within = check_least(planned(model, memory_limit=tight))
    assert free <= within
    plan = planned(model, memory_limit=tight)(within)
    assert plan.memory_bytes <= tight


CONVS = [
    ((1, 128, 14, 14), (16, 128, 3, 3), {}),
    ((1, 3, 28, 28), (64, 3, 3, 3), {"stride": 2}),
    ((1, 1, 8, 8), (64, 1, 1, 1), {}),
    ((2, 16, 8, 8), (33, 16, 3, 3), {"reproducible": True}),
    ((1, 64, 14, 14), (33, 64, 3, 3), {"algorithm": "winograd"}),
    ((1, 64, 14, 14), (33, 64, 3, 3), {"algorithm": "winograd:m=2"}),
]


@pytest.fixture
def sought_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for what refusals of one problem name once: it does not depend on what was asked for."""
    seek, known = ConvChoice._least_error, dict[ConvChoice, float | None]()

    def found(chooser: ConvChoice) -> float | None:
        any_error = replace(chooser.problem, max_error=1.0)
        key = replace(chooser, problem=any_error, max_error=None)
        if key not in known:
            known[key] = seek(chooser)
        return known[key]

    monkeypatch.setattr(ConvChoice, "_least_error", found)


@pytest.mark.drawn
@pytest.mark.usefixtures("sought_once")
@pytest.mark.parametrize(("x", "w", "options"), CONVS)
def test_a_convolution_works_with_what_its_refusal_names(
    x: tuple[int, ...], w: tuple[int, ...], options: dict[str, Any]
) -> None:
    weights = np.ones(w, np.float32)

    def plan(max_error: float, **more: Any) -> lc.ConvPlan:
        found = lc.plan_conv2d(
            x, weights, padding=w[2] // 2, max_error=max_error, threads=1, **options, **more
        )
        assert isinstance(found, lc.ConvPlan)
        return found

    free = check_least(plan)
    if "algorithm" in options:
        return
    with pytest.raises(lc.BudgetError) as caught:
        plan(1.0, memory_limit=1)
    tight = caught.value.smallest_bytes
    assert free <= check_least(lambda error: plan(error, memory_limit=tight))


@given(st.integers(1, 2**50), st.sampled_from([FLOAT32, FLOAT64]))
@settings(max_examples=200)
def test_the_error_of_units_is_the_least_that_allows_them(units: int, dtype: str) -> None:
    error = units_error(units, dtype)
    assert error_units(error, dtype, up=False) >= units
    assert error_units(math.nextafter(error, 0.0), dtype, up=False) < units


@given(st.floats(1e-300, 1e30))
@settings(max_examples=200)
def test_an_error_is_written_rounded_up(error: float) -> None:
    assert error <= float(error_text(error)) <= error * 1.01


def test_float16_among_float64() -> None:
    """Errors are counted in roundings of float16, of which float64 has too many to count."""
    nodes = [
        node("Conv", "x w", "c", pads=[1] * 4),
        node("Round", "c", "r"),
        node("ReduceSum", "r", "y", keepdims=0),
        node("Neg", "r", "z"),
        node("Cast", "x", "h", to=TensorProto.FLOAT16),
        node("Cast", "h", "f", to=TensorProto.FLOAT),
    ]
    held = {"w": np.ones((16, 2, 3, 3), "f4")}
    proto = model(nodes, {"x": (1, 2, 5, 5)}, ["y", "z", "f"], held)
    net = lc.load(proto.SerializeToString(), threads=1, dtype="float64")
    x = np.random.default_rng(3).integers(-9, 9, (1, 2, 5, 5)).astype("f8")
    found = net.run({"x": x})
    for name, wanted in reference(proto, {"x": x.astype("f4")}).items():
        np.testing.assert_array_equal(found[name], wanted, name)
