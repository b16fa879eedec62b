"""Exceptions of signal handlers at any moment: nothing hangs after them, results stay right."""

from __future__ import annotations

import sys

import pytest

from support.programs import run_program

# Alarms after random times up to `most` seconds, each of which raises an `Interrupt`. Python itself
# drops what is raised in a `__del__`; those are counted apart.
_ALARMS = """
import random, signal
rng = np.random.default_rng(0)
inputs = [rng.integers(-3, 4, (1, 8, n, n)).astype("f4") for n in (9, 16, 30)]
w = rng.integers(-3, 4, (16, 8, 3, 3)).astype("f4")
called = [lc.conv2d(v, w, threads=3) for v in inputs]  # from the second on by other kernels
plans = [lc.plan_conv2d(v.shape, w, threads=3) for v in inputs]
planned = [p(v) for p, v in zip(plans, inputs)]
plan = plans[2]
sent, raised, dropped, wrong, runs = 0, 0, [], 0, 0

def interrupt(*_):
    global sent
    sent += 1
    raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
sys.unraisablehook = lambda u: dropped.append(u.exc_type is Interrupt)

def until_one_comes(before):
    # A function of its own: Python 3.13's `try` does not cover the end of a `while` loop in it.
    global runs, wrong
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, most))
    while sent == before:
        i = runs % 3
        runs += 1
        {call}
        wrong += y.tobytes() != {answers}[i].tobytes()  # array_equal drops exceptions
    # One that was held back comes before the next alarm.
    wait_until(lambda: sent - raised <= sum(dropped))

random.seed(1)
end = time.monotonic() + 2.0
while time.monotonic() < end or sent <= 20:
    before = sent
    try:
        until_one_comes(before)
    except Interrupt:
        raised += 1
signal.setitimer(signal.ITIMER_REAL, 0)
for v, answer in zip(inputs, called):
    wrong += not np.array_equal(lc.conv2d(v, w, threads=3), answer)
wrong += not np.array_equal(net(x), expected)
from leanconv.runtime import native
from leanconv.runtime.pool import pool
wait_until(lambda: not pool()._words[native.INSIDE // 8])
print(sent - raised - sum(dropped), wrong, pool()._words[native.INSIDE // 8])
"""

# Of Ctrl-C, of a limit of time, and of one's own.
CALLS = {
    "conv2d": ("KeyboardInterrupt", 0.0015, "y = lc.conv2d(inputs[i], w, threads=3)"),
    "a plan": ("TimeoutError", 0.0015, "i = 2; y = plan(inputs[2])"),
    "plans that come and go": (
        "type('Mine', (BaseException,), {})",
        0.01,
        "p = lc.plan_conv2d(inputs[i].shape, w, threads=3); y = p(inputs[i]); del p",
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no alarms")
@pytest.mark.parametrize("what", CALLS)
def test_interrupted_at_any_moment(what: str) -> None:
    kind, most, call = CALLS[what]
    answers = "called" if what == "conv2d" else "planned"
    body = _ALARMS.replace("{call}", call).replace("{answers}", answers)
    body = f"Interrupt, most = {kind}, {most}\n{body}"
    result = run_program(body)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["0 0 0"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no alarms")
def test_no_exception_frees_what_a_worker_may_read() -> None:
    """A handler's exception, of whatever class, that comes while a program ends."""
    result = run_program(
        """
import signal, weakref
from leanconv.runtime import native
from leanconv.runtime.pool import pool

def late(*_):
    raise TimeoutError("mine")

signal.signal(signal.SIGALRM, late)
words = pool()._words
while words[native.INSIDE // 8]:
    time.sleep(0.001)
words[native.INSIDE // 8] = 1  # as if a worker were still reading
tables = weakref.ref(net._current.network._program._table)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    del net
    time.sleep(100)
    print("no alarm")
except TimeoutError:
    print(tables() is not None)
words[native.INSIDE // 8] = 0
again = lc.load(model, threads=3)
print(np.array_equal(again(x), expected))
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.splitlines() == ["True", "True"]
