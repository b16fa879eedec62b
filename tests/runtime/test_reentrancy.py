"""A signal handler that calls what it interrupts is refused; what it interrupts goes on."""

from __future__ import annotations

import sys

import pytest

from support.programs import lines

# `within(owner, name)` sends a signal from within that method, once; the handler makes a call.
_HEAD = """
import signal
calls, answers = [], []

def handler(*_):
    try:
        calls[-1]()
        answers.append("answered")
    except lc.ReentrantCallError as error:
        answers.append(str(error))

signal.signal(signal.SIGUSR1, handler)

def within(owner, name, call, action):
    calls.append(call)
    real = getattr(owner, name)
    def noisy(*arguments, **named):
        setattr(owner, name, real)
        signal.raise_signal(signal.SIGUSR1)
        return real(*arguments, **named)
    setattr(owner, name, noisy)
    result = action()
    assert getattr(owner, name) is real, name
    return result
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGUSR1")
def test_a_handler_that_calls_the_network_it_interrupts_is_refused() -> None:
    found = lines(
        _HEAD
        + """
program = net._current.network._program
other = lc.load(model, threads=2)
w = np.ones((4, 3, 3, 3), "f4")
plan = lc.plan_conv2d(x.shape, w, threads=2)
mine = plan(x)
for call, action, own in (
    (lambda: net(x), lambda: net(x), expected),
    (lambda: net.run({net.inputs[0].name: x}), lambda: net(x), expected),
    (lambda: net.profile(x, 1), lambda: net(x), expected),
    (lambda: other(x), lambda: net(x), expected),
):
    print(np.array_equal(within(program._pool, "wake", call, action), own), answers[-1])
pool = plan.layer.program._pool
print(np.array_equal(within(pool, "wake", lambda: plan(x), lambda: plan(x)), mine))
print(answers[-1])
rows = within(program, "_each_stage", lambda: net(x), lambda: net.profile(x, 1))
print(len(rows) > 0, answers[-1])
print(np.array_equal(net(x), expected))
"""
    )
    refused = [line for line in found if "a run of the same network" in line]
    assert all(line.startswith("True ") for line in found[:4]), found
    assert len(refused) == 4, found
    assert "set a flag in the handler" in refused[0]
    assert found[3] == "True answered"  # another network
    assert found[4] == "True"
    assert "a run of the same network" in found[5]
    assert found[6:] == ["True answered", "True"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGUSR1")
def test_a_handler_that_plans_while_its_thread_plans_is_refused_or_served() -> None:
    found = lines(
        _HEAD
        + """
from leanconv.codegen import compiler
from leanconv.api import kept_plans
symbolic = lc.load(squeezenet_like(image=32).SerializeToString(), threads=1)
size = symbolic.inputs[0].shape[2]
images = np.ones((2, 3, size, size), "f4")
more = np.ones((3, 3, size, size), "f4")
w = np.ones((4, 3, 3, 3), "f4")
wanted = lc.conv2d(x, w, threads=1)
other = lambda: lc.plan_conv2d((1, 3, 11, 11), w, threads=1)
print(within(compiler, "_library", other, lambda: symbolic(images)).shape[0], answers[-1])
most = np.ones((4, 3, size, size), "f4")
planning = symbolic._backend
print(within(planning, "_compiled", lambda: symbolic(most), lambda: symbolic(more)).shape[0])
print(answers[-1])
# What interrupts the cache of plans finds it empty.
same = lambda: answers.append(np.array_equal(lc.conv2d(x, w, threads=1), wanted))
cache = kept_plans.kept_plans()
class Noisy(type(cache._plans)):
    def get(self, *arguments):
        if calls:
            signal.raise_signal(signal.SIGUSR1)
        return super().get(*arguments)
cache._plans = Noisy(cache._plans)
calls[:] = [lambda: (calls.clear(), same())]
print(np.array_equal(lc.conv2d(x, w, threads=1), wanted), answers[-2:])
print(len(cache), cache.held_bytes == sum(held.bytes for _, held in cache._plans.values()))
"""
    )
    assert found[0].startswith("2 got a call from a signal handler"), found
    assert "the compilation of kernels" in found[0]
    assert found[1] == "3"
    assert "the planning of the same network" in found[2]
    assert found[3] == "True [True, 'answered']"
    assert found[4] == "1 True"


def test_a_call_from_an_object_that_is_collected_within_a_run_is_refused() -> None:
    found = lines(
        """
seen = []

class Ends:
    def __del__(self):
        try:
            net(x)
            seen.append("answered")
        except lc.LeanConvError as error:
            seen.append(type(error).__name__)

program = net._current.network._program
real = program._pool.wake

def wake(workers):
    program._pool.wake = real
    Ends()
    real(workers)

program._pool.wake = wake
print(np.array_equal(net(x), expected), *seen)
"""
    )
    assert found == ["True ReentrantCallError"]
