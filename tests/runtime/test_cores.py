"""Woken workers leave their caller's core, and have all their cores back afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from leanconv.runtime.pool import Cores
from support.waiting import HANG_S

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="the system has one core, or does not let threads choose",
)


class Sleeper:
    """A thread that waits, then takes all its cores."""

    def __init__(self) -> None:
        self.gate, self.cores = threading.Semaphore(0), Cores()
        self.thread = threading.Thread(target=self._live)
        self.done = threading.Event()
        self.thread.start()

    def _live(self) -> None:
        self.gate.acquire()
        self.cores.take_all()
        self.done.set()
        self.gate.acquire()

    def wake(self) -> None:
        self.gate.release()
        self.done.wait()

    @property
    def allowed(self) -> set[int]:
        return os.sched_getaffinity(self.thread.native_id or -1)


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    one = Sleeper()
    yield one
    for _ in range(2):
        one.gate.release()
    one.thread.join()


@pytest.fixture(autouse=True)
def own_cores() -> Iterator[set[int]]:
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


def test_off_the_callers_core_until_it_runs(sleeper: Sleeper, own_cores: set[int]) -> None:
    here = min(own_cores)
    os.sched_setaffinity(0, {here})
    sleeper.cores.leave_this_one(sleeper.thread.native_id or -1)
    assert sleeper.allowed == own_cores - {here}
    sleeper.wake()
    assert sleeper.allowed == own_cores


def test_a_wake_that_was_interrupted_is_made_good(sleeper: Sleeper, own_cores: set[int]) -> None:
    """Ctrl-C after the core was forbidden and before the thread was released, again and again."""
    for here in sorted(own_cores)[:2] * 2:
        os.sched_setaffinity(0, {here})
        sleeper.cores.leave_this_one(sleeper.thread.native_id or -1)
        assert sleeper.allowed == own_cores - {here}
    sleeper.wake()
    assert sleeper.allowed == own_cores


def test_a_thread_with_one_core_keeps_it(sleeper: Sleeper, own_cores: set[int]) -> None:
    """The user's own choice of cores is kept."""
    here = min(own_cores)
    os.sched_setaffinity(sleeper.thread.native_id or -1, {here})
    os.sched_setaffinity(0, {here})
    sleeper.cores.leave_this_one(sleeper.thread.native_id or -1)
    assert sleeper.allowed == {here}
    sleeper.wake()
    assert sleeper.allowed == {here}


def test_a_thread_that_is_gone_is_no_error() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ProcessLookupError):
        os.sched_getaffinity(2**31 - 1)
    Cores().leave_this_one(2**31 - 1)
    assert os.sched_getaffinity(0) == before


def test_workers_keep_their_cores() -> None:
    """Through many rests, in a process of its own whose workers nobody else has."""
    body = """
import os, threading, time
import numpy as np, leanconv
x, w = np.ones((1, 16, 32, 32), np.float32), np.ones((32, 16, 3, 3), np.float32)
plan = leanconv.plan_conv2d(x.shape, w, threads=2)
plan(x)
workers = [t for t in threading.enumerate() if t.name.startswith("leanconv")]
for _ in range(200):
    time.sleep(0.001)
    plan(x)
time.sleep(0.05)
plan(x)
late = time.monotonic() + 100
while time.monotonic() < late and (
    here := [os.sched_getaffinity(t.native_id) == os.sched_getaffinity(0) for t in workers]
) != [True]:
    time.sleep(0.001)
print(len(workers), here)
"""
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, timeout=HANG_S
    )
    assert done.stdout.split("\n")[0] == "1 [True]", done.stderr
