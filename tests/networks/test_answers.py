"""Whole networks against ONNX Runtime and our own float64 run; the same bits in every way."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from support.errors import relative_error
from support.network_models import NAMES, by_numpy, by_onnxruntime, images, model
from support.waiting import HANG_S

BOUND = 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_equal_to_onnxruntime_and_to_float64(name: str) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    built = model(name)
    net = lc.load(built, threads=2)
    for batch in (1, 3):
        x = images(built, batch, seed=batch)
        found = net(x)
        assert found.dtype == np.float32
        assert (
            relative_error(found, next(iter(by_onnxruntime(built, {"input": x}).values()))) < BOUND
        )
        exact = next(iter(by_numpy(built, {"input": x}).values()))
        assert relative_error(found, exact) < BOUND


@pytest.mark.parametrize("name", ["resnet50", "shufflenet_like"])
def test_in_double_precision(name: str) -> None:
    built = model(name)
    net = lc.load(built, threads=2, dtype="float64")
    x = images(built, 1)
    found = net(x)
    assert found.dtype == np.float64
    assert relative_error(found, next(iter(by_numpy(built, {"input": x}).values()))) < 1e-12


def test_mobilenet_as_it_is() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    built = model("mobilenetv2-1.0")
    net = lc.load(built, threads=2)
    x = images(built, 1)
    found = net(x)
    assert relative_error(found, next(iter(by_onnxruntime(built, {"input": x}).values()))) < BOUND
    assert relative_error(found, next(iter(by_numpy(built, {"input": x}).values()))) < BOUND


@pytest.mark.drawn
@pytest.mark.parametrize("name", NAMES)
def test_same_bits_whatever_the_threads_and_run_after_run(name: str) -> None:
    built = model(name)
    x = images(built, 3, seed=9)
    results = set()
    for threads in (1, 2, 5):
        net = lc.load(built, threads=threads, reproducible=True)
        results |= {net(x).tobytes() for _ in range(3)}
    assert len(results) == 1


@pytest.mark.parametrize("name", NAMES)
def test_one_plan_gives_the_same_bits_whatever_the_threads(name: str, tmp_path: Path) -> None:
    """Also a plan that is not reproducible: its sums are cut in the same way for any threads."""
    built, file = model(name), tmp_path / "plan.json"
    x = images(built, 2, seed=9)
    planned = lc.load(built, threads=2)
    right = planned(x)
    planned.plan.save(file)
    for threads in (1, 5):
        assert np.array_equal(lc.load(built, plan=file, threads=threads)(x), right), threads


@pytest.mark.parametrize("name", ["mobilenetv2", "resnext_like", "shufflenet_like", "vgg16"])
def test_an_image_gives_the_same_answer_in_a_batch(name: str) -> None:
    built = model(name)
    net = lc.load(built, threads=2, reproducible=True)
    x = images(built, 3)
    batch = net(x)
    for i in range(3):
        assert np.array_equal(net(x[i : i + 1])[0], batch[i])


def test_the_input_is_left_alone_and_the_answer_is_new() -> None:
    built = model("mobilenetv2")
    net = lc.load(built, threads=2)
    x = images(built, 1)
    before = x.copy()
    first = net(x)
    kept = first.copy()
    second = net(images(built, 1, seed=5))
    assert np.array_equal(x, before)
    assert np.array_equal(first, kept)
    assert not np.array_equal(first, second)
    assert first.flags.owndata
    assert first.flags.writeable


def test_not_a_number_in_one_image_stays_there() -> None:
    built = model("resnet50")
    net = lc.load(built, threads=2)
    x = images(built, 3)
    clean = net(x)
    x[1, 0, 5, 5] = np.nan
    found = net(x)
    assert np.isnan(found[1]).all()
    assert np.array_equal(found[[0, 2]], clean[[0, 2]])
    x[1, 0, 5, 5] = 0
    assert np.isfinite(net(x)).all()  # and it leaves nothing in the arena


def test_several_threads_call_one_network_with_several_shapes() -> None:
    built = model("squeezenet_like")
    net = lc.load(built, threads=2)
    inputs = [images(built, batch, seed=batch) for batch in (1, 2, 3)]
    expected = [lc.load(built, threads=1)(x) for x in inputs]
    wrong: list[int] = []

    def caller(which: int) -> None:
        for i in range(25):
            at = (which + i) % 3
            if not np.array_equal(net(inputs[at]), expected[at]):
                wrong.append(at)

    callers = [threading.Thread(target=caller, args=(i,)) for i in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(timeout=HANG_S)
        assert not thread.is_alive()
    assert not wrong


def test_the_profile_names_every_step_and_sums_to_one() -> None:
    built = model("mobilenetv2")
    net = lc.load(built, threads=2)
    rows = net.profile(images(built, 1), repeats=3)
    assert [row.name for row in rows] == [step.name for step in net.plan.steps]
    assert abs(sum(row.share for row in rows) - 1) < 1e-9
    assert all(row.calls == 3 and 0 < row.least_ns <= row.average_ns <= row.most_ns for row in rows)
