"""Runs that are ended amid their stages, by threads or handlers of signals; the next is right."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from onnx import TensorProto, helper

import leanconv as lc
import leanconv.onnxruntime as ours
from leanconv import interrupts
from leanconv.errors import InputError, TerminatedError
from leanconv.onnxruntime import exceptions
from leanconv.runtime import program, segmented_program
from support.control_flow import node
from support.late_outputs import late_outputs
from support.loops import X as LOOPED
from support.loops import body, hold, loop, made
from support.network_models import small, weights
from support.onnx_models import model as onnx_model
from support.waiting import alarm

DEPTH = 12
IMAGE = np.random.default_rng(0).standard_normal((1, 16, 32, 32)).astype(np.float32)


def chain() -> bytes:
    """Layers that cannot be joined, so that there are as many stages."""
    nodes = [
        helper.make_node("Conv", [f"c{k}", f"w{k}"], [f"c{k + 1}"], pads=[1, 1, 1, 1])
        for k in range(DEPTH)
    ]
    constants = {f"w{k}": weights(16, 16, 3, 3) / 16 for k in range(DEPTH)}
    return small(nodes, {"c0": IMAGE.shape}, {f"c{DEPTH}": IMAGE.shape}, constants)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage takes long, so that each is a native call."""
    for module in (program, segmented_program):
        monkeypatch.setattr(module, "LONG_NS", 0)
    monkeypatch.setattr(program, "PIECE_NS", 0)
    monkeypatch.setattr(segmented_program, "PIECE_NS", 1)


class Count:
    """Says after some questions that a run is to end."""

    def __init__(self, most: int) -> None:
        self.most, self.asked = most, 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked > self.most


@contextmanager
def alarms(handler: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_ends_after_any_stage(threads: int) -> None:
    net = lc.load(chain(), threads=threads)
    expected = net(IMAGE)
    for stages in range(DEPTH):
        asked = Count(stages)
        with pytest.raises(TerminatedError, match="another thread"), interrupts.ended_when(asked):
            net(IMAGE)
        assert asked.asked == stages + 1
        np.testing.assert_array_equal(net(IMAGE), expected)
    with interrupts.ended_when(Count(10**6)):
        np.testing.assert_array_equal(net(IMAGE), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_is_cut_by_the_times_of_its_stages(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run stage by stage; short ones in one call, long ones in calls of a few stages."""
    net = lc.load(chain(), threads=threads)
    ran = net.compiled.network._program
    clock = iter(range(0, 10**15, 4_000_000))
    monkeypatch.setattr(program.time, "perf_counter_ns", lambda: next(clock))
    expected = net(IMAGE)
    count = ran._entries[-1]
    assert not ran._in_one
    assert ran._pieces == [(n, min(n + 2, count)) for n in range(0, count, 2)]  # 8 ms each
    np.testing.assert_array_equal(net(IMAGE), expected)
    monkeypatch.setattr(program.time, "perf_counter_ns", iter(range(10**6)).__next__)
    np.testing.assert_array_equal(net(IMAGE), expected)
    assert ran._in_one
    asked = Count(0)
    with interrupts.ended_when(asked):
        np.testing.assert_array_equal(net(IMAGE), expected)
    assert not asked.asked  # a short run asks nobody


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("streamed", [False, True])
def test_loops_and_streams_end(
    threads: int, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if streamed:
        model, given = chain(), {"c0": IMAGE}
        least = lc.load(model, threads=threads).plan.memory_bytes
        net = lc.load(model, threads=threads, stream_weights=True, memory_limit=least - 10_000)
        assert net.plan.streamed_bytes
    else:
        hold(monkeypatch)
        inside = body([node("Tanh", "s", "t"), node("Neg", "t", "m")], "t m")
        nodes = [loop("n true x", "p q", inside), node("Neg", "q", "y"), node("Relu", "p", "z")]
        net = lc.load(made(nodes, 20, "y z", LOOPED.shape).SerializeToString(), threads=threads)
        given = {"x": LOOPED}
    expected = net.run(given)
    asked = Count(10**6)
    with interrupts.ended_when(asked):
        net.run(given)
    assert asked.asked >= DEPTH
    for most in range(0, asked.asked, 3):
        with pytest.raises(TerminatedError), interrupts.ended_when(Count(most)):
            net.run(given)
        for name, array in net.run(given).items():
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.usefixtures("cut")
def test_an_index_outside_is_forgotten_with_its_run() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["c0"], axis=0)]
    nodes += [helper.make_node("Conv", [f"c{k}", "w"], [f"c{k + 1}"], pads=[1] * 4) for k in (0, 1)]
    graph = onnx_model(nodes, {"x": (2, 4, 8, 8), "i": (1,)}, ["c2"], {"w": weights(4, 4, 3, 3)})
    graph.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    net = lc.load(graph.SerializeToString(), threads=1)
    x = np.ones((2, 4, 8, 8), np.float32)
    expected = net.run({"x": x, "i": np.array([1])})["c2"]
    with pytest.raises(TerminatedError), interrupts.ended_when(Count(2)):
        net.run({"x": x, "i": np.array([7])})
    np.testing.assert_array_equal(net.run({"x": x, "i": np.array([1])})["c2"], expected)
    with pytest.raises(InputError):
        net.run({"x": x, "i": np.array([7])})


def test_what_numpy_computes_ends() -> None:
    """Node by node, behind a network that is too short to be asked."""
    nodes = [helper.make_node("Unique", ["x"], ["u"], sorted=1)]
    nodes += [helper.make_node("NonZero", ["u"], ["z"]), helper.make_node("Neg", ["z"], ["n"])]
    net = lc.load(small(nodes, {"x": [9]}, {"n": [1, "k"]}), threads=1)
    x = np.arange(9, dtype=np.float32)
    expected = net(x)
    asked = Count(10**6)
    with interrupts.ended_when(asked):
        net(x)
    for most in range(asked.asked):
        with pytest.raises(TerminatedError), interrupts.ended_when(Count(most)):
            net(x)
        np.testing.assert_array_equal(net(x), expected)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no alarms")
@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("threads", [1, 2])
def test_interrupted_a_hundred_times(threads: int) -> None:
    net = lc.load(chain(), threads=threads)
    expected, seen = net(IMAGE), 0
    moment = random.Random(threads)
    with alarms(signal.default_int_handler):
        for _ in range(100):
            try:
                alarm(moment.uniform(1e-4, 3e-3))
                until = time.monotonic() + 10
                while time.monotonic() < until:
                    net(IMAGE)
            except KeyboardInterrupt:
                alarm(0)
                seen += 1
            np.testing.assert_array_equal(net(IMAGE), expected)
    assert seen == 100


@pytest.mark.skipif(sys.platform == "win32", reason="there are no alarms")
@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_is_called_amid_a_run(threads: int) -> None:
    """It does not wait for the last stage: the run that it interrupts gives nothing."""
    net = lc.load(chain(), threads=threads)
    ran = net.compiled.network._program
    usual, calls = ran._turn_to, 0

    def turn_to(first: int, after: int) -> None:
        nonlocal calls
        calls += 1
        if calls == DEPTH // 2:
            signal.raise_signal(signal.SIGALRM)
        usual(first, after)

    net(IMAGE)
    ran._turn_to = turn_to
    with alarms(signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        net(IMAGE)
    assert calls == DEPTH // 2


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("threads", [1, 2])
def test_sessions_end_by_their_options(threads: int) -> None:
    options, how = ours.SessionOptions(), ours.RunOptions()
    options.intra_op_num_threads = threads
    session = ours.InferenceSession(chain(), options)
    expected = session.run(None, {"c0": IMAGE}, how)[0]
    ended = 0
    for delay in (0.0, 1e-4, 3e-4, 1e-3, 3e-3):
        timer = threading.Timer(delay, lambda: setattr(how, "terminate", True))
        timer.start()
        with pytest.raises(exceptions.Fail, match="Exiting due to terminate flag"):
            _run_for_ever(session, how)
        ended += 1
        timer.join()
        with pytest.raises(exceptions.Fail):
            session.run_with_iobinding(_bound(session), how)
        how.terminate = False
        np.testing.assert_array_equal(session.run(None, {"c0": IMAGE}, how)[0], expected)
        np.testing.assert_array_equal(session.run(None, {"c0": IMAGE})[0], expected)
    assert ended == 5


def _run_for_ever(session: ours.InferenceSession, how: ours.RunOptions) -> None:
    while True:
        session.run(None, {"c0": IMAGE}, how)


def _bound(session: ours.InferenceSession) -> ours.IOBinding:
    binding = session.io_binding()
    binding.bind_cpu_input("c0", IMAGE)
    return binding


def test_late_outputs_end_by_their_options() -> None:
    how = ours.RunOptions()
    session = ours.InferenceSession(late_outputs("places", "p"))
    x = np.ones((1, 3, 8, 8), np.float32)
    expected = session.run(None, {"x": x}, how)
    how.terminate = True
    with pytest.raises(exceptions.Fail):
        session.run(None, {"x": x}, how)
    how.terminate = False
    for one, other in zip(session.run(None, {"x": x}, how), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sessions_in_two_parts_end_in_both() -> None:
    """One of leanconv's, one of the real onnxruntime's; options of the latter follow the former."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    nodes = [helper.make_node("Conv", ["c0", "w"], ["c"], pads=[1] * 4)]
    nodes += [helper.make_node("Cast", ["c"], ["t"], to=TensorProto.STRING)]
    nodes += [helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT)]
    model = small(nodes, {"c0": IMAGE.shape}, {"y": IMAGE.shape}, {"w": weights(16, 16, 3, 3)})
    session, how = ours.InferenceSession(model), ours.RunOptions()
    assert type(session._engine).__name__ == "Split"
    expected = session.run(None, {"c0": IMAGE}, how)[0]
    for delay in (0.0, 2e-3, 5e-3, 1e-2):
        timer = threading.Timer(delay, lambda: setattr(how, "terminate", True))
        timer.start()
        with pytest.raises(exceptions.Fail, match="Exiting due to terminate flag"):
            _run_for_ever(session, how)
        timer.join()
        how.terminate = False
        np.testing.assert_array_equal(session.run(None, {"c0": IMAGE}, how)[0], expected)


def test_what_onnxruntime_computes_ends_with_its_part() -> None:
    """Options of the real onnxruntime follow ours while it runs."""
    how = ours.RunOptions()

    class Theirs:
        terminate = False

    theirs = Theirs()
    how.terminate = True
    with how.followed_by(theirs):
        assert theirs.terminate
        how.terminate = False
        assert not theirs.terminate
    how.terminate = True
    assert not theirs.terminate
