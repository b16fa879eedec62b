"""Signals end a loop between two iterations; the next run is right."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import leanconv as lc
from support.control_flow import graph, node
from support.loops import (
    X,
    body,
    hold,
    loop,
    made,
)
from support.waiting import HANG_S, alarm


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loops of more than two iterations be held."""
    hold(monkeypatch)


def run_with_alarm(net: lc.Network, x: np.ndarray, delay: float) -> None:
    """The alarm is set where its exception is caught, however early it comes."""
    alarm(delay)
    net.run({"x": x})


@pytest.mark.skipif(sys.platform == "win32", reason="there are no alarms")
@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_ends_a_loop(threads: int) -> None:
    inside = body([node("Add", "s x", "a"), node("Tanh", "a", "t")], "t")
    proto = made([loop("n true x", "y", inside)], 2**31 - 1, shape=X.shape)
    net = lc.load(proto.SerializeToString(), threads=threads)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        start = time.process_time()
        with pytest.raises(KeyboardInterrupt):
            run_with_alarm(net, X, 0.2)
        assert time.process_time() - start < 20  # of minutes
    finally:
        alarm(0)
        signal.signal(signal.SIGALRM, before)


_ENDLESS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
import numpy as np
import leanconv as lc
net = lc.load(sys.argv[1], threads=2)
try:
    print("begun", flush=True)
    net.run({"x": np.ones((2, 3, 6, 6), "f4")})
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_signal_from_outside_ends_a_loop(tmp_path: Path) -> None:
    inside = body([node("Add", "s x", "a"), node("Tanh", "a", "t")], "t")
    path = tmp_path / "endless.onnx"
    onnx.save(made([loop("n true x", "y", inside)], 2**31 - 1, shape=X.shape), path)
    command = [sys.executable, "-c", _ENDLESS, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        said, _ = child.communicate(timeout=HANG_S)
    assert said == "interrupted\n"
    assert child.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there are no alarms")
@pytest.mark.usefixtures("few")
def test_a_run_after_an_interrupt_is_right() -> None:
    inside = body(
        [node("Tanh", "s", "t"), node("ReduceMean", "t", "m", axes=[2, 3], keepdims=0)], "t m"
    )
    nodes = [loop("n true x", "p q", inside), node("Neg", "q", "y"), node("Relu", "p", "z")]
    net = lc.load(made(nodes, 20_000, "y z", X.shape).SerializeToString(), threads=2)
    wanted = net.run({"x": X})
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted = 0
    try:
        for delay in (0.001, 0.003, 0.004, 0.007):
            try:
                alarm(delay)
                while True:
                    net.run({"x": X})
            except KeyboardInterrupt:
                alarm(0)
                interrupted += 1
            for name, array in net.run({"x": X}).items():
                np.testing.assert_array_equal(array, wanted[name])
    finally:
        alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 4


@pytest.mark.skipif(sys.platform == "win32", reason="there are no alarms")
@pytest.mark.parametrize("layer", ["Conv", "Tanh"])
def test_an_interrupt_ends_a_loop_that_data_does_not(layer: str) -> None:
    """NumPy computes it, and what is compiled in the run; the next run is right."""
    step = node("Conv", "s w", "c", pads=[1] * 4) if layer == "Conv" else node("Neg", "s", "c")
    nodes = [
        step,
        node("Tanh", "c", "t"),
        node("ReduceMax", "t", "m", keepdims=0),
        node("Less", "m two", "more"),
    ]
    inside = graph(
        nodes, "more t", {"i": "int64", "on": "bool", "s": "float"}, kinds={"more": "bool"}
    )
    begin = [node("ReduceMax", "x", "n", keepdims=0), node("Less", "n two", "begin")]
    proto = made([*begin, loop("- begin x", "y", inside)], None, shape=X.shape, two=np.float32(2))
    net = lc.load(proto.SerializeToString(), threads=1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for delay in (0.02, 0.08):  # long before it is ended for its many nodes
            with pytest.raises(KeyboardInterrupt):
                run_with_alarm(net, np.minimum(X, 1), delay)
            alarm(0)
            x = np.maximum(X, 3)
            np.testing.assert_array_equal(net.run({"x": x})["y"], x)
    finally:
        alarm(0)
        signal.signal(signal.SIGALRM, before)
