"""Networks, plans and errors that are copied, or sent to another process."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.algorithms.select import choice_named
from leanconv.api import cpu_backend
from leanconv.api.options import NetworkOptions
from leanconv.graph.onnx_import import read_model
from leanconv.planner import tuner
from leanconv.runtime.calibration import planning_target
from leanconv.settings import Settings
from leanconv.spec import ConvSpec
from support.onnx_models import model, small_cnn

IMAGE = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype("f4")
W = np.random.default_rng(1).standard_normal((16, 8, 3, 3)).astype("f4")
X = np.random.default_rng(2).standard_normal((1, 8, 10, 12)).astype("f4")


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


# -- networks ----------------------------------------------------------------------------------
@pytest.mark.parametrize("made", [sent, copy.copy, copy.deepcopy])
def test_a_copy_of_a_network_gives_the_same_bits(made: Callable[[Any], Any]) -> None:
    net = lc.load(small_cnn(), threads=1, max_error=1e-3)
    expected = net(IMAGE)
    other = made(net)
    assert np.array_equal(other(IMAGE), expected)
    assert (other.inputs, other.outputs, repr(other)) == (net.inputs, net.outputs, repr(net))
    assert other.plan.predicted_error == net.plan.predicted_error
    assert other.plan.threads == 1


def test_a_sent_network_needs_no_file(tmp_path: Path) -> None:
    proto = small_cnn()
    helper.set_model_props(proto, {"labels": "a b"})
    file = tmp_path / "m.onnx"
    onnx.save(proto, file, save_as_external_data=True, location="w.bin", size_threshold=0)
    net = lc.load(file, threads=1)
    data, expected = pickle.dumps(net), net(IMAGE)
    del net
    for each in tmp_path.iterdir():
        each.unlink()
    other = pickle.loads(data)
    assert np.array_equal(other(IMAGE), expected)
    assert other.metadata == {"labels": "a b"}
    assert np.array_equal(sent(other)(IMAGE), expected)


def test_a_copy_that_shares_plans_does_not_take_the_weights_of_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an open batch, the graph of one image is made at load, and used up by the first plan."""
    settings = Settings.from_environment({"HOME": "/", "LEANCONV_PLAN_CACHE_BYTES": "1"})
    monkeypatch.setattr(cpu_backend, "current_settings", lambda: settings)
    held = {"w": W}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    net = lc.load(model(nodes, {"x": ("N", 8, 10, 12)}, ["y"], held), threads=1)
    other = copy.copy(net)
    expected = net(X)
    net.bind((2, 8, 10, 12))  # of the plans that both share, only the newest is kept
    assert np.array_equal(other(X), expected)


def test_a_deep_copy_of_a_network_has_memory_of_its_own() -> None:
    net = lc.load(small_cnn(), threads=1)
    plan = net.bind(IMAGE.shape)
    shared, own = copy.copy(net), copy.deepcopy([net, net])
    assert shared.plan is plan
    assert own[0] is own[1]
    assert own[0].bind(IMAGE.shape) is not plan


def test_a_tuned_network_is_sent_with_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*arguments: Any, **options: Any) -> tuner.Tuned:
        del arguments, options
        chosen = choice_named("im2col")
        return tuner.Tuned(chosen, {chosen: 1.0}, chosen)

    monkeypatch.setattr(tuner, "tune", measured)
    net = lc.load(small_cnn(), threads=1, tune=True)
    net(IMAGE)
    algorithms = [step.algorithm for step in net.plan.steps if step.op == "Conv"]
    assert set(algorithms) == {"im2col"}
    data = pickle.dumps(net)
    monkeypatch.setattr(tuner, "tune", None)  # nothing is measured again
    for other in (pickle.loads(data), copy.deepcopy(net)):
        assert np.array_equal(other(IMAGE), net(IMAGE))
        assert [s.algorithm for s in other.plan.steps if s.op == "Conv"] == algorithms


def test_a_network_with_a_pinned_plan_is_sent_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = lc.load(small_cnn(), threads=1)
    net.bind(IMAGE.shape)
    net.plan.save(tmp_path / "plan.json")
    pinned = lc.load(small_cnn(), plan=tmp_path / "plan.json")
    (tmp_path / "plan.json").unlink()
    other = sent(pinned)
    assert np.array_equal(other(IMAGE), net(IMAGE))
    assert other.plan.threads == 1
    assert caplog.text == ""


def answer(net: lc.Network) -> np.ndarray:
    return net(IMAGE)


def test_a_network_is_sent_to_a_process_that_is_spawned() -> None:
    net = lc.load(small_cnn(), threads=1)
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        assert np.array_equal(processes.apply(answer, (net,)), net(IMAGE))


def test_a_network_that_is_not_pickled_holds_no_copy_of_its_file(tmp_path: Path) -> None:
    """Neither the bytes nor the weights: what it keeps of a file is views of the mapped file."""
    file = tmp_path / "m.onnx"
    onnx.save(small_cnn(), file)
    net = lc.load(file)
    owners = [net._backend.model.constants[name] for name in net._backend.model.constants]
    assert owners
    assert all(not array.flags.owndata for array in owners if array.nbytes > 64)


# -- plans -------------------------------------------------------------------------------------
def test_copies_of_a_plan_of_one_convolution() -> None:
    plan = lc.plan_conv2d(X.shape, W, threads=1)
    expected = plan(X)
    shared, own = copy.copy(plan), copy.deepcopy(plan)
    assert own.used_bytes == plan.used_bytes == own.memory_bytes
    assert own.predicted_error == plan.predicted_error
    plan.repack(2 * W, None)
    assert np.array_equal(own(X), expected)
    assert np.array_equal(shared(X), plan(X))
    assert np.array_equal(plan(X), 2 * expected)
    del plan, shared
    assert np.array_equal(own(X), expected)


def test_plans_that_cannot_be_sent_say_what_to_send() -> None:
    net = lc.load(small_cnn(), threads=1)
    given: list[tuple[Any, str]] = [
        (lc.plan_conv2d(X.shape, W), "LayerPlan cannot be pickled.*send the weights, and call"),
        (net.bind(IMAGE.shape), r"NetworkPlan cannot be pickled.*plan.save\(path\).*plan=path"),
    ]
    for plan, what in given:
        with pytest.raises(lc.UnsupportedError, match=what):
            pickle.dumps(plan)
    plan = net.plan
    assert copy.copy(plan) is plan
    assert copy.deepcopy(plan) is plan


def test_what_plans_tell_can_be_sent() -> None:
    net = lc.load(small_cnn(), threads=1)
    net(IMAGE)
    spec = lc.plan_conv2d(X.shape, W).spec
    for told in (net.inputs, net.outputs, net.profile(IMAGE, 1), net.report(False), spec):
        assert sent(told) == told
        assert copy.deepcopy(told) == told
    assert isinstance(sent(spec), ConvSpec)


# -- errors ------------------------------------------------------------------------------------
def raised(call: Callable[[], object]) -> lc.LeanConvError:
    with pytest.raises(lc.LeanConvError) as found:
        call()
    return found.value


ERRORS: list[Callable[[], object]] = [
    lambda: lc.plan_conv2d(X.shape, W, memory_limit=1),
    lambda: lc.plan_conv2d(X.shape, W, max_error=1e-12),
    lambda: lc.load(small_cnn(), memory_limit=1).bind(IMAGE.shape),
    lambda: lc.load(b"none"),
    lambda: lc.plan_conv2d(X.shape, W, groups=7),
    lambda: lc.load(small_cnn())(X),
]


@pytest.mark.parametrize("call", ERRORS)
def test_an_error_arrives_whole_from_another_process(call: Callable[[], object]) -> None:
    error = raised(call)
    for other in (sent(error), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_every_error_can_be_sent() -> None:
    """Also by those that make it without its `__init__`, as tblib does for Dask's workers."""
    kinds = [kind for kind in vars(lc).values() if isinstance(kind, type)]
    errors = [kind for kind in kinds if issubclass(kind, lc.LeanConvError)]
    assert len(errors) >= 9
    for kind in errors:
        error = kind("what", 7) if kind is lc.BudgetError else kind("what")
        for other in (sent(error), kind.__new__(kind, *error.args)):
            assert (type(other), str(other)) == (kind, "what")


def test_parts_of_a_network_are_planned_for_the_processor_of_the_whole() -> None:
    """Else a part that was sent to another process would have rates, and bits, of its own."""
    read = read_model(small_cnn().SerializeToString())
    target = replace(planning_target(), l3_bytes=12345)
    options = NetworkOptions(memory_limit=2**21, stream_weights=True)
    whole = cpu_backend.CpuBackend(read, options, target=target)
    smaller = whole._in_least_parts
    part = whole._network_of(read, None, lambda _bytes: None).backend
    assert smaller is not None
    assert isinstance(part, cpu_backend.CpuBackend)
    assert smaller.target == part.target == target
