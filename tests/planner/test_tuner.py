"""Tuning: the choice is one of the promising, right, remembered, and never takes a run down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms.select import choices
from leanconv.api.conv_choice import conv_problem
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.host import host
from leanconv.planner import tuner
from leanconv.reference.direct import convolve
from leanconv.settings import current_settings
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT32, FLOAT64

SMALL = "ic32ih14oc32oh12kh3"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskCache]:
    cache = DiskCache(tmp_path, suffix=".json")
    monkeypatch.setattr(tuner, "_store", lambda: cache)
    monkeypatch.setattr(tuner, "_RUN_NS", 100_000)
    monkeypatch.setattr(tuner, "ROUNDS", 2)
    return cache


def problem_of(text: str, dtype: str = FLOAT32, max_error: float | None = None):
    return conv_problem(ConvSpec.parse(text, dtype=dtype), max_error)


def test_choice_is_the_fastest_of_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of times that are given: the later a choice is raced, the faster it is."""
    problem, taken = problem_of(SMALL), dict[object, float]()
    names = [choice for choice, _ in choices(problem, host())]
    usual = tuner._Rig.time

    def time(rig: tuner._Rig) -> float:
        assert usual(rig) > 0
        return taken.setdefault(rig, 1000 * 0.9 ** len(taken))

    monkeypatch.setattr(tuner._Rig, "time", time)
    tuned = tuner.tune(problem, host(), 1)
    assert len(names) > 3
    assert 2 <= len(tuned.seconds) <= len(taken) <= len(names)
    assert tuned.seconds.keys() <= set(names)
    assert tuned.choice == list(tuned.seconds)[-1]
    assert tuned.seconds[tuned.choice] == min(taken.values()) * 1e-9


def test_alternatives_keep_the_error() -> None:
    strict = problem_of(SMALL, max_error=2e-6)
    errors = [candidate.choice.error for _, candidate in choices(strict, host())]
    loose = [candidate.choice.error for _, candidate in choices(problem_of(SMALL), host())]
    assert max(errors) <= 2e-6 < max(loose)


def test_remembered_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    first = tuner.tune(problem_of(SMALL), host(), 1)

    def never(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(tuner, "_race", never)
    assert tuner.tune(problem_of(SMALL), host(), 1) == first
    with pytest.raises(AssertionError, match="measured again"):
        tuner.tune(problem_of(SMALL), host(), 2)
    with pytest.raises(AssertionError, match="measured again"):
        tuner.tune(problem_of(SMALL, max_error=1e-6), host(), 1)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"name": 3}', b'{"name": "direct", "seconds": 1}',
                                  b"[" * 100_000])  # fmt: skip
def test_damaged_memory_is_measured_again(store: DiskCache, tmp_path: Path, body: bytes) -> None:
    tuner.tune(problem_of(SMALL), host(), 1)
    (entry,) = tmp_path.glob("*.json")
    store.put(entry.stem, body)
    assert tuner.tune(problem_of(SMALL), host(), 1).seconds
    assert json.loads(store.get(entry.stem) or b"")["seconds"]


def test_memory_limit_is_kept() -> None:
    problem = problem_of(SMALL)
    given = problem.conv.weight_bytes
    found = choices(problem, host())
    least = min(c.workspace_bytes(1) + max(c.weight_bytes, given) for _, c in found)
    tuned = tuner.tune(problem, host(), 1, memory_limit=least)
    chosen = dict(found)[tuned.choice]
    assert chosen.workspace_bytes(1) + max(chosen.weight_bytes, given) <= least


@pytest.mark.parametrize(
    ("dtype", "activation", "residual"),
    [(FLOAT32, None, False), (FLOAT64, "relu", True), (FLOAT32, "prelu", True)],
)
def test_tuned_plan_is_right(dtype: str, activation: str | None, residual: bool) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 16, 11, 13)).astype(dtype)
    w = random.standard_normal((24, 16, 3, 3)).astype(dtype)
    slope = np.full(24, 0.5, dtype) if activation == "prelu" else None
    options = {"stride": 1, "padding": 1, "activation": activation, "slope": slope}
    plan = lc.plan_conv2d(x.shape, w, tune=True, residual=residual, threads=2, **options)
    added = random.standard_normal(plan.spec.output_shape).astype(dtype) if residual else None
    y = plan(x, residual=added)
    doubles = [None if a is None else a.astype("f8") for a in (x, w, added, slope)]
    exact = convolve(plan.spec, *doubles[:2], residual=doubles[2], slope=doubles[3])
    assert np.abs(y - exact).max() <= 2e-5 * np.abs(exact).max()


def test_reproducible_plans_take_the_choice_of_one_image_and_one_thread(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    x = random.standard_normal((3, 32, 14, 14)).astype("float32")
    w = random.standard_normal((32, 32, 3, 3)).astype("float32")
    one = lc.plan_conv2d((1, 32, 14, 14), w, tune=True, reproducible=True, threads=1)
    all_three = lc.plan_conv2d(x.shape, w, tune=True, reproducible=True, threads=2)
    assert np.array_equal(all_three(x)[1:2], one(x[1:2]))
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_reproducible_plans_are_not_tuned_where_nothing_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second measurement may find another choice the fastest."""
    none = replace(current_settings(), cache_bytes=0)
    monkeypatch.setattr(tuner, "current_settings", lambda: none)
    w = np.ones((4, 3, 3, 3), np.float32)
    with pytest.raises(lc.SpecError, match="LEANCONV_CACHE_BYTES=0; expected a cache"):
        lc.plan_conv2d((1, 3, 8, 8), w, tune=True, reproducible=True)


def test_cold_weights_walk_through_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(SMALL)
    (_, candidate), *_ = choices(problem, host())
    warm = tuner._Rig(problem, candidate, host(), 1, 0)
    cold = tuner._Rig(problem, candidate, host(), 1, 1 << 20)
    assert len(warm._addresses) == 1
    assert len(cold._addresses) > 1
    constants = {tuple(row[2:]) for row in cold._addresses}
    assert len(constants) == len(cold._addresses)
    assert cold.run() > 0
