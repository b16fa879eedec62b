"""Long work says how far it is: to the log, and to a function that may end it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv import progress
from leanconv.api import kept_plans
from leanconv.api.plan_cache import PlanCache
from leanconv.codegen import compiler, linking
from leanconv.codegen.cache import DiskCache
from leanconv.planner import decisions, tuner
from support.onnx_models import model, small_cnn

Step = tuple[str, int, int]
X, W = np.ones((1, 8, 10, 12), "f4"), np.ones((16, 8, 3, 3), "f4")
IMAGE = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype("f4")


class Clock:
    """A clock that goes on by so much at every look."""

    def __init__(self, step_ns: int) -> None:
        self.now, self.step_ns = 0, step_ns

    def __call__(self) -> int:
        self.now += self.step_ns
        return self.now


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines logged at level INFO by what says how far work is."""
    caplog.set_level(logging.INFO, "leanconv")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "leanconv.progress"]


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches of this test's own: code is compiled, choices and plans are made, and measured."""
    plans = PlanCache[Any](2**30, keep_newest=False)
    monkeypatch.setattr(linking, "_loaded", {})
    monkeypatch.setattr(kept_plans, "kept_plans", lambda: plans)
    decisions._known.cache_clear()
    for module, attribute, suffix in (
        (compiler, "object_cache", ".o"),
        (decisions, "_store", ".json"),
        (tuner, "_store", ".json"),
    ):
        cache = DiskCache(tmp_path / module.__name__, suffix=suffix)
        monkeypatch.setattr(module, attribute, lambda cache=cache: cache)
    monkeypatch.setattr(tuner, "_RUN_NS", 10_000)
    monkeypatch.setattr(tuner, "ROUNDS", 1)
    monkeypatch.setattr(tuner, "_MOST", 2)
    return tmp_path


# -- the log -----------------------------------------------------------------------------------
def test_quick_work_is_not_logged(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_clock", Clock(100_000_000))
    with progress.working("net"):
        for _ in progress.steps("compiling kernels", range(5), 5):
            pass
    assert lines() == []


def test_long_work_is_logged_once_a_second_and_summed_up(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_clock", Clock(400_000_000))
    with progress.working("net"):
        for _ in progress.steps("choosing algorithms", range(2), 2):
            pass
        for _ in progress.steps("compiling kernels", range(5), 5):
            pass
    assert lines() == [
        "net: choosing algorithms, 2 of 2 after 1.2 s",
        "net: compiling kernels, 2 of 5 after 2.4 s",
        "net: compiling kernels, 5 of 5 after 3.6 s",
        "net: ready after 4.0 s (compiling kernels 2.0 s, choosing algorithms 0.8 s)",
    ]


@pytest.mark.parametrize("step_ns", [0, 10**9])
def test_loading_planning_and_convolving_are_logged_where_they_take_long(
    lines: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caches: Path,
    step_ns: int,
) -> None:
    monkeypatch.setattr(progress, "_clock", Clock(step_ns))
    (tmp_path / "small.onnx").write_bytes(small_cnn().SerializeToString())
    lc.load(tmp_path / "small.onnx")(IMAGE)
    spec = lc.plan_conv2d(X.shape, W).spec
    lc.conv2d(X, W[:8].copy())
    found = lines()
    if not step_ns:
        assert found == []
        return
    assert found[0] == "small.onnx: reading, 0 of 1 after 1.0 s"
    assert any("small.onnx: compiling kernels, 1 of" in line for line in found)
    assert any(line.startswith(f"{spec}: compiling kernels, 1 of 1 after") for line in found)
    assert sum(" ready after " in line for line in found) == 4  # load, the first call, two more


def test_a_warm_call_looks_at_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    net, plan = lc.load(small_cnn(), threads=1), lc.plan_conv2d(X.shape, W)
    net(IMAGE)
    lc.conv2d(X, W)
    monkeypatch.setattr(progress, "_clock", None)
    net(IMAGE)
    net.run({"x": IMAGE})
    net.run(None, {"x": IMAGE})
    plan(X)
    lc.conv2d(X, W)


# -- the user's function -----------------------------------------------------------------------
def runs(seen: list[Step]) -> Iterator[tuple[str, list[Step]]]:
    """Steps in a row of one stage."""
    for stage, group in groupby(seen, lambda step: step[0]):
        yield stage, list(group)


def test_the_function_is_told_every_step_by_the_thread_that_called(caches: Path) -> None:
    seen: list[Step] = []
    threads = set()

    def note(*step: Any) -> None:
        seen.append(step)
        threads.add(threading.get_ident())

    net = lc.load(small_cnn(), progress=note)
    assert seen == [("reading", 0, 1), ("reading", 1, 1)]
    net.bind(IMAGE.shape, progress=note)
    assert threads == {threading.get_ident()}
    stages = [stage for stage, _ in runs(seen)]
    assert stages == [
        "reading",
        "choosing algorithms",
        "compiling kernels",
        "packing weights",
    ]
    for stage, steps in runs(seen):
        done, totals = [step[1] for step in steps], {step[2] for step in steps}
        assert done == sorted(done)
        assert totals == {done[-1]}, stage
    count = len(seen)
    net(IMAGE)
    net.bind((1, 3, 20, 20))
    assert len(seen) == count  # the function is of one call


def test_what_is_compiled_already_is_no_stage(caches: Path) -> None:
    lc.plan_conv2d(X.shape, W)
    seen: list[Step] = []
    lc.plan_conv2d(X.shape, W, progress=lambda *step: seen.append(step))
    assert [stage for stage, *_ in seen] == ["packing weights"] * 2


def test_limits_and_tuning_are_told_of(caches: Path) -> None:
    seen: list[Step] = []

    def note(*step: Any) -> None:
        seen.append(step)

    lc.load(small_cnn(), tune=True, threads=1).bind(IMAGE.shape, progress=note)
    layers = [step for step in seen if step[0] == "tuning layers"]
    assert layers[0][1] == 0
    assert layers[-1][1] == layers[-1][2] > 0
    assert any(step[0] == "measuring choices" for step in seen)
    seen.clear()
    plan = lc.load(small_cnn(), memory_limit="1 MiB").bind(IMAGE.shape, progress=note)
    assert plan.memory_bytes <= 2**20
    seen.clear()
    lc.plan_conv2d(X.shape, W, tune=True, progress=note)
    assert any(step[0] == "measuring choices" for step in seen)


class Cancelled(Exception):  # noqa: N818
    """What a user's function raises."""


@pytest.mark.parametrize(
    "stage",
    ["choosing algorithms", "compiling kernels", "packing weights"],
)
@pytest.mark.parametrize("at_end", [False, True])
def test_what_the_function_raises_ends_the_work_and_leaves_nothing_half_done(
    caches: Path, stage: str, at_end: bool
) -> None:
    def cancel(name: str, done: int, total: int) -> None:
        if name == stage and done == total * at_end:
            raise Cancelled

    net = lc.load(small_cnn(), threads=1)
    before = threading.active_count()
    with pytest.raises(Cancelled):
        net.bind(IMAGE.shape, progress=cancel)
    assert threading.active_count() == before
    with pytest.raises(lc.InputError, match="net.bind"):
        _ = net.plan
    assert not list(caches.rglob("*.part"))
    assert np.array_equal(net(IMAGE), lc.load(small_cnn(), threads=1)(IMAGE))


def test_tuning_can_be_ended(caches: Path) -> None:
    def cancel(name: str, done: int, total: int) -> None:
        if name == "measuring choices":
            raise Cancelled

    with pytest.raises(Cancelled):
        lc.plan_conv2d(X.shape, W, tune=True, progress=cancel)
    assert not list((caches / tuner.__name__).rglob("*"))
    net = lc.load(small_cnn(), tune=True, threads=1)
    with pytest.raises(Cancelled):
        net.bind(IMAGE.shape, progress=cancel)
    assert np.isfinite(net(IMAGE)).all()


def test_a_function_may_run_what_is_planned_and_plan_nothing(caches: Path) -> None:
    net, other = (lc.load(small_cnn(), threads=1) for _ in range(2))
    expected = other(IMAGE)
    plan, x = lc.plan_conv2d(X.shape, W), X.copy()
    answers: list[np.ndarray] = []

    def run(stage: str, done: int, total: int) -> None:
        answers.append(other(IMAGE))
        plan(x)

    net.bind(IMAGE.shape, progress=run)
    assert all(np.array_equal(answer, expected) for answer in answers)
    wrong: list[Callable[..., object]] = [
        lambda *step: net(IMAGE[:1]),
        lambda *step: other(IMAGE[:1]),
        lambda *step: lc.load(small_cnn()),
        lambda *step: lc.plan_conv2d(X.shape, W),
        lambda *step: lc.conv2d(X, W, activation="elu"),
    ]
    for function in wrong:
        with pytest.raises(lc.LeanConvError, match="a `progress` function asked leanconv to plan"):
            net.bind((1, 3, 20, 20), progress=function)
    assert net.bind((1, 3, 20, 20)).threads == 1


@pytest.mark.parametrize("wrong", [5, "tqdm", True, []])
def test_what_is_no_function_is_refused(wrong: Any) -> None:
    net = lc.load(small_cnn())
    calls: list[Callable[[], object]] = [
        lambda: lc.load(small_cnn(), progress=wrong),
        lambda: net.bind(IMAGE.shape, progress=wrong),
        lambda: lc.plan_conv2d(X.shape, W, progress=wrong),
    ]
    for call in calls:
        with pytest.raises(lc.SpecError, match=r"progress is .*; expected a function of \(stage"):
            call()


def test_networks_of_fixed_shapes_are_planned_by_load_and_say_so(caches: Path) -> None:
    seen: set[str] = set()
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": X.shape}, ["y"], {"w": W})
    lc.load(proto, progress=lambda *step: seen.add(step[0]))
    assert {"reading", "choosing algorithms", "compiling kernels", "packing weights"} <= seen
