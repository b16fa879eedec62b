"""Fork, exit and threads, each in a process of its own."""

from __future__ import annotations

import os
import sys

import pytest

from support.programs import lines, run_program

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

_WAIT = """
def wait(child, seconds=100):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"
"""


# -- fork ----------------------------------------------------------------------------------
@needs_fork
def test_parent_and_child_both_work_after_fork() -> None:
    found = lines(
        _WAIT
        + """
for pause in (0, 0.05):
    time.sleep(pause)  # workers spin, workers are parked
    child = os.fork()
    if child == 0:
        ok = all(np.array_equal(net(x), expected) for _ in range(20))
        other = lc.load(model, threads=2)
        ok = ok and np.array_equal(other(x), expected)
        workers = [t for t in threading.enumerate() if t.name.startswith("leanconv")]
        os._exit(0 if ok and len(workers) == 2 else 1)
    mine = all(np.array_equal(net(x), expected) for _ in range(20))
    print(mine, wait(child))
print(np.array_equal(net(x), expected))
"""
    )
    assert found == ["True 0", "True 0", "True"]


@needs_fork
def test_child_ends_by_itself() -> None:
    """With the interpreter's own way out, exit handlers included."""
    found = lines(
        _WAIT
        + """
sys.stdout.flush()
child = os.fork()
if child == 0:
    sys.exit(0 if np.array_equal(net(x), expected) else 1)
print(wait(child))
child = os.fork()
if child == 0:
    sys.exit(7)  # without a run
print(wait(child))
"""
    )
    assert found == ["0", "7"]


@needs_fork
def test_fork_while_other_threads_run() -> None:
    """The child has neither the lock nor the workers that a run of the parent's held."""
    found = lines(
        _WAIT
        + """
stop, wrong = threading.Event(), []
second = lc.load(model, threads=2)

def caller(network):
    while not stop.is_set():
        if not np.array_equal(network(x), expected):
            wrong.append(1)

threads = [threading.Thread(target=caller, args=(n,)) for n in (net, net, second)]
for t in threads:
    t.start()
codes = []
for i in range(25):
    child = os.fork()
    if child == 0:
        ok = all(np.array_equal(n(x), expected) for n in (net, second, net))
        os._exit(0 if ok else 1)
    codes.append(wait(child))
    time.sleep(0.001 * i)
stop.set()
for t in threads:
    t.join()
print(set(codes), len(wrong))
"""
    )
    assert found == ["{0} 0"]


@needs_fork
def test_fork_while_another_thread_loads() -> None:
    """The locks of the compiler and of planning are free in the child."""
    found = lines(
        _WAIT
        + """
stop = threading.Event()
symbolic = lc.load(squeezenet_like(image=32).SerializeToString(), threads=2)
big = symbolic.inputs[0].shape[2]

def loader():
    batch = 1
    while not stop.is_set():
        batch += 1
        symbolic(np.zeros((batch, 3, big, big), "f4"))

t = threading.Thread(target=loader)
t.start()
time.sleep(0.05)
codes = []
for i in range(5):
    child = os.fork()
    if child == 0:
        try:
            code = 0 if np.array_equal(lc.load(model, threads=2)(x), expected) else 1
            symbolic(np.zeros((1, 3, big, big), "f4"))
        except BaseException:
            code = 2
        os._exit(code)
    codes.append(wait(child))
    if codes[-1]:
        break
    time.sleep(0.013)
stop.set()
t.join()
print(set(codes))
"""
    )
    assert found == ["{0}"]


@needs_fork
def test_grandchildren_work() -> None:
    found = lines(
        _WAIT
        + """
child = os.fork()
if child == 0:
    good = np.array_equal(net(x), expected)
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(0 if np.array_equal(net(x), expected) else 1)
    os._exit(0 if good and wait(grandchild) == 0 and np.array_equal(net(x), expected) else 1)
print(wait(child))
"""
    )
    assert found == ["0"]


_POOL = """
import multiprocessing

def answer(seed):
    import numpy as np
    import leanconv as lc
    from examples.networks import squeezenet_like
    model = squeezenet_like(batch=1, image=32).SerializeToString()
    x = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype("f4")
    return lc.load(model, threads=2)(x)
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_multiprocessing(how: str, tmp_path: object) -> None:
    if how == "fork" and not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    from pathlib import Path

    Path(str(tmp_path), "pool_task.py").write_text(_POOL)
    found = lines(
        f"""
sys.path.insert(0, {str(tmp_path)!r})
import multiprocessing
from pool_task import answer
with multiprocessing.get_context({how!r}).Pool(2) as processes:
    answers = processes.map(answer, range(4))
print(all(np.array_equal(a, expected) for a in answers), np.array_equal(net(x), expected))
"""
    )
    assert found == ["True True"]


# -- the end of the interpreter ------------------------------------------------------------
ENDINGS = {
    "falls off the end": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise RuntimeError('mine')", 1),
    "sys.exit with workers parked": ("time.sleep(0.1); sys.exit(4)", 4),
    "a daemon thread runs on": (
        """
def caller():
    while True:
        net(x)
threading.Thread(target=caller, daemon=True).start()
time.sleep(0.05)
sys.exit(5)
""",
        5,
    ),
    "sys.exit in another thread": (
        """
def caller():
    net(x)
    sys.exit(1)
t = threading.Thread(target=caller)
t.start()
t.join()
sys.exit(6)
""",
        6,
    ),
    "the network is held by a cycle": ("cycle = [net]; cycle.append(cycle); del net", 0),
    "the network outlives the modules": ("np.kept = net; del net", 0),
    "stopped before the end": (
        "from leanconv.runtime.pool import pool\npool().stop()\nsys.exit(8)",
        8,
    ),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_workers_never_hold_up_the_end(how: str) -> None:
    body, code = ENDINGS[how]
    result = run_program("net(x)\n" + body)
    assert result.returncode == code
    if how == "an exception":
        assert result.stderr.rstrip().endswith("RuntimeError: mine")
    else:
        assert result.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent with os.kill")
def test_keyboard_interrupt_during_runs() -> None:
    """Ctrl-C while a network runs: the exception comes, the network works after it."""
    found = lines(
        """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
try:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    end = time.monotonic() + 100
    while time.monotonic() < end:
        net(x)
    print("no interrupt")
except KeyboardInterrupt:
    print("interrupted")
print(np.array_equal(net(x), expected))
"""
    )
    assert found == ["interrupted", "True"]
    result = run_program(
        """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
while True:
    net(x)
"""
    )
    assert result.returncode in (-2, 130, 1)
    assert "KeyboardInterrupt" in result.stderr


# -- threads and memory --------------------------------------------------------------------
def test_import_and_load_start_no_thread() -> None:
    found = lines(
        """
from leanconv.runtime.pool import pool
pool().stop()
print(threading.active_count())
fresh = lc.load(model, threads=2)
print(threading.active_count())
fresh(x)
print(threading.active_count())
"""
    )
    assert found == ["1", "1", "2"]


def test_two_networks_and_two_callers_for_a_while() -> None:
    found = lines(
        """
wrong, ready = [], threading.Barrier(3)
second = lc.load(model, threads=2)

def caller(network, seed):
    mine = np.random.default_rng(seed).normal(size=x.shape).astype("f4")
    wanted = lc.load(model, threads=1)(mine)
    ready.wait()
    for _ in range(1500):
        if not np.array_equal(network(mine), wanted):
            wrong.append(seed)

threads = [threading.Thread(target=caller, args=(n, i)) for i, n in enumerate((net, net, second))]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(wrong)
"""
    )
    assert found == ["[]"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
def test_networks_come_and_go_without_a_leak() -> None:
    """Freed while workers spin on the program of a moment ago; memory stays level."""
    found = lines(
        """
import gc

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def churn(count):
    for _ in range(count):
        other = lc.load(model, threads=3)
        assert np.array_equal(other(x), expected)
        del other

churn(15)
before = resident()
churn(40)
grown = resident() - before
print(grown if grown > 40 * 30_000 else "level")
print(len([t for t in threading.enumerate() if t.name.startswith("leanconv")]))
"""
    )
    assert found == ["level", "2"]
