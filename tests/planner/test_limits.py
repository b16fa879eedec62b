"""Limits drawn between the smallest that works and none: bytes kept, results right, time no longer.

In CI a few dozen convolutions; `pytest -m exhaustive tests/planner/test_limits.py` takes 1,000, the
twelve layers of the papers and the whole networks of `models/`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms import select
from leanconv.api.conv_choice import ConvChoice, conv_problem
from leanconv.codegen.host import host
from leanconv.reference import layers
from leanconv.reference.direct import convolve
from leanconv.spec.format import aligned

THREADS = 2
MODELS = Path(__file__).resolve().parents[2] / "models"


@dataclass(frozen=True)
class Case:
    """A convolution as `plan_conv2d` takes it."""

    x: np.ndarray
    w: np.ndarray
    options: dict[str, Any]

    def plan(self, limit: int | None) -> lc.ConvPlan:
        return lc.plan_conv2d(
            self.x.shape, self.w, threads=THREADS, memory_limit=limit, **self.options
        )


def layer(name: str) -> Case:
    spec = layers.layer(name)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(spec.input_shape, dtype=np.float32)
    w = rng.standard_normal(spec.weight_shape, dtype=np.float32)
    return Case(x, w, {"stride": spec.stride})


def drawn(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 1, 1, 2, 3]))
    inputs, outputs = (groups * int(n) for n in rng.integers(1, 20, 2))
    kernel = rng.integers(1, 6, 2)
    dilation = int(rng.integers(1, 3))
    size = dilation * (kernel - 1) + rng.integers(1, 15, 2)
    x = rng.standard_normal((int(rng.integers(1, 3)), inputs, *size)).astype(np.float32)
    w = rng.standard_normal((outputs, inputs // groups, *kernel)).astype(np.float32)
    options = {
        "stride": int(rng.integers(1, 4)),
        "padding": int(rng.integers(0, 3)),
        "dilation": dilation,
        "groups": groups,
    }
    return Case(x, w, options)


def check_conv(case: Case, shares: list[float]) -> None:
    """All that is promised about limits, for one convolution."""
    free = case.plan(None)
    with pytest.raises(lc.BudgetError) as caught:
        case.plan(1)
    least, most = caught.value.smallest_bytes, free.memory_bytes
    with pytest.raises(lc.BudgetError) as again:
        case.plan(least - 1)
    assert again.value.smallest_bytes == least
    problem = conv_problem(free.spec, None)
    found = select.choices(problem, host(), lean=True)
    needed = [
        candidate.workspace_bytes(THREADS) + sum(map(aligned, candidate.constant_bytes.values()))
        for _, candidate in found
    ]
    assert least == min(*needed, most), "of all algorithms and parameters"
    cycles = {(one.algorithm, c.details): one.cycles for one, c in reversed(found)}
    exact = convolve(free.spec, case.x.astype(np.float64), case.w.astype(np.float64))
    times = []
    for share in shares:
        plan = case.plan(limit := least + int(share * (most - least)))
        y = plan(case.x)
        assert plan.used_bytes == plan.memory_bytes <= limit
        error = np.abs(y - exact).max() / max(np.abs(exact).max(), 1e-30)
        assert error <= max(2e-5, plan.predicted_error)
        times.append(cycles.get((plan.algorithm, plan.parameters), 0.0))
    # What is chosen without a limit is the fastest, whatever its estimate is called.
    assert times[:-1] == sorted(times[:-1], reverse=True)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(20))
def test_limits_of_convolutions(seed: int) -> None:
    check_conv(drawn(seed), [0.0, 0.5, 1.0])


def test_limits_of_a_layer() -> None:
    check_conv(layer("cv12"), [0.0, 0.3, 1.0])


@pytest.mark.parametrize("seed", [1, 7, 9])
def test_the_least_error_of_a_convolution_is_found_by_few_looks(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, looks = drawn(seed), 0
    stated = ConvChoice._stated

    def counted(self: ConvChoice, max_error: float) -> list[float]:
        nonlocal looks
        looks += 1
        return stated(self, max_error)

    monkeypatch.setattr(ConvChoice, "_stated", counted)
    for limits in ({}, {"reproducible": True}, {"algorithm": "winograd"}, {"memory_limit": 9000}):
        looks, options = 0, {**case.options, **limits}
        try:
            lc.plan_conv2d(case.x.shape, case.w, max_error=1e-12, **options)
        except lc.BudgetError as error:
            least = error.smallest_error
        except lc.SpecError:  # no Winograd for these
            continue
        assert looks <= 16, (limits, looks, least, case.x.shape, case.w.shape, case.options)
        assert least is not None
        if "memory_limit" not in limits:
            lc.plan_conv2d(case.x.shape, case.w, max_error=least, **options)
        below = math.nextafter(least, 0)
        with pytest.raises(lc.BudgetError):
            lc.plan_conv2d(case.x.shape, case.w, max_error=below, **options)


def test_tiles_of_winograd_become_smaller_before_they_are_given_up() -> None:
    case = layer("cv10")
    options = {"threads": THREADS, "algorithm": "direct"}
    least = lc.plan_conv2d(case.x.shape, case.w, **options).memory_bytes
    most = case.plan(None).memory_bytes
    plans = [case.plan(least + int(share * (most - least))) for share in (0.1, 0.2, 0.4, 0.7)]
    assert {plan.algorithm for plan in plans} == {"winograd"}
    assert len({plan.weight_bytes for plan in plans}) == len(plans)


def test_an_algorithm_that_is_asked_for_varies_its_parameters() -> None:
    """`winograd` within a limit takes another tile; with a tile that is given there is none."""
    case = layer("cv12")
    free = lc.plan_conv2d(case.x.shape, case.w, algorithm="winograd", threads=THREADS)
    limit = free.memory_bytes - 1
    options = {"threads": THREADS, "memory_limit": limit}
    lean = lc.plan_conv2d(case.x.shape, case.w, algorithm="winograd", **options)
    assert lean.algorithm == "winograd"
    assert lean.used_bytes <= limit
    with pytest.raises(lc.BudgetError):
        lc.plan_conv2d(case.x.shape, case.w, algorithm="direct", threads=THREADS, memory_limit=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", range(40))
def test_limits_of_a_thousand_convolutions(block: int) -> None:
    for seed in range(1000 + 25 * block, 1025 + 25 * block):
        shares = sorted(np.random.default_rng(seed).random(2))
        check_conv(drawn(seed), [0.0, *shares, 1.0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", layers.NAMES)
def test_limits_of_the_layers(name: str) -> None:
    check_conv(layer(name), [0.0, 0.15, 0.4, 0.7, 1.0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mobilenetv2", "resnet50", "resnet101", "vgg16"])
def test_limits_of_whole_networks(name: str) -> None:
    file = MODELS / f"{name}.onnx"
    if not file.exists():
        pytest.skip(f"{file.name} is not built; run examples/networks/build.py")
    shape = (1, 3, 224, 224)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    with pytest.raises(lc.BudgetError) as caught:
        lc.load(file, memory_limit=1, threads=THREADS).bind(shape)
    least = caught.value.smallest_bytes
    with pytest.raises(lc.BudgetError) as again:
        lc.load(file, memory_limit=least - 1, threads=THREADS).bind(shape)
    assert again.value.smallest_bytes == least
    most = lc.load(file, threads=THREADS).bind(shape).memory_bytes
    exact = lc.load(file, dtype="float64", threads=THREADS)(x.astype(np.float64))
    times = []
    for share in (0.0, *sorted(np.random.default_rng(1).random(3)), 1.0):
        limit = least + int(share * (most - least))
        net = lc.load(file, memory_limit=limit, threads=THREADS)
        y = net(x)
        assert net.used_bytes == net.plan.memory_bytes <= limit
        assert np.abs(y - exact).max() <= net.plan.predicted_error * np.abs(exact).max()
        times.append(net.plan.predicted_ns)
    assert times == sorted(times, reverse=True)
