"""Where the system starts no more threads: fewer run, one warning says so, bits are the same."""

from __future__ import annotations

import sys

import pytest

from support.programs import lines

# `messages` are leanconv's warnings; `refuse` makes threads beyond so many fail as the system does.
_HEAD = """
import logging
messages = []

class Note(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())

logging.getLogger("leanconv").addHandler(Note())
from leanconv.runtime.pool import pool
pool().stop()
real, attempts = threading.Thread.start, []

def refuse(after):
    def start(thread):
        attempts.append(thread)
        if len(attempts) > after:
            raise RuntimeError("can't start new thread")
        real(thread)
    threading.Thread.start = start

def workers():
    return [t.name for t in threading.enumerate() if t.name.startswith("leanconv")]
"""


@pytest.mark.parametrize("after", [0, 1])
def test_runs_go_on_with_the_threads_that_started(after: int) -> None:
    found = lines(
        _HEAD
        + f"""
refuse({after})
print(all(np.array_equal(net(x), expected) for _ in range(50)))
print(len(attempts), len(pool()._workers), len(workers()))
print(len(messages), *messages)
pool().stop()
print(np.array_equal(net(x), expected))
"""
    )
    assert found[0] == "True"
    assert found[1] == f"{after + 1} {after} {after}"  # asked once, and nothing is left of it
    assert found[2].startswith(f"1 runs take {after + 1} of 3 threads: the system starts no more")
    assert "can't start new thread" in found[2]
    assert "ulimit -u" in found[2]
    assert f"threads={after + 1}" in found[2]
    assert found[3] == "True"


def test_what_was_refused_is_asked_for_again_a_while_later() -> None:
    found = lines(
        _HEAD
        + """
refuse(1)
net(x)
threading.Thread.start = real
pool()._retry_at *= 2  # however long this takes, the second is not over
net(x)
print(len(workers()))
pool()._retry_at = 0  # it is
print(np.array_equal(net(x), expected), len(workers()), len(messages))
"""
    )
    assert found == ["1", "True 2 1"]


_NO_PROCESSES = """
import os, resource
import llvmlite.binding  # as this user: another one may not read where it is installed
if os.getuid() == 0:
    os.setuid(65534)  # root may start as many as it likes
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    threading.Thread(target=int).start()
    print("no limit")
except RuntimeError:
    print("limited")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets RLIMIT_NPROC")
def test_under_the_system_s_own_limit() -> None:
    found = lines(
        _HEAD
        + _NO_PROCESSES
        + """
print(all(np.array_equal(net(x), expected) for _ in range(20)), len(workers()))
os.environ["LEANCONV_CACHE_BYTES"] = "0"
from leanconv.codegen import compiler
compiler.object_cache.cache_clear()
plan = lc.plan_conv2d((1, 3, 20, 20), np.ones((5, 3, 3, 3), "f4"), threads=2, algorithm="winograd")
print(plan(np.ones((1, 3, 20, 20), "f4")).max())
print(*[message.split(":")[0] for message in messages], sep=" | ")
"""
    )
    if found[0] == "no limit":
        pytest.skip("this system does not keep RLIMIT_NPROC")
    assert found[1] == "True 0"
    assert found[2] == "27.0"
    assert found[3].startswith("runs take 1 of 3 threads")


def test_kernels_are_compiled_by_the_threads_there_are() -> None:
    """None, or one that starts while the next one does not; each text is compiled once."""
    found = lines(
        _HEAD
        + """
import _thread
from leanconv.codegen import compile_threads
from leanconv.codegen.host import host
compile_threads.usable_cores = lambda: 4
real = _thread.start_new_thread
texts = [(f"k{i}", f"define i64 @k{i}() {{ ret i64 {i} }}") for i in range(6)]
whole = dict(compile_threads.compiled(iter(texts), 6, host()))
for most in (0, 1):
    begun = []

    def start(*task):
        if len(begun) == most:
            raise RuntimeError("can't start new thread")
        begun.append(real(*task))

    _thread.start_new_thread = start
    some = list(compile_threads.compiled(iter(texts), 6, host()))
    print(len(some), dict(some) == whole)
print(len(messages), *messages)
"""
    )
    assert found[:2] == ["6 True", "6 True"]
    assert found[2].startswith("1 kernels are compiled on fewer threads")


def test_an_interrupted_start_leaves_no_worker_behind_that_never_began() -> None:
    """A signal handler raises out of `start`, before or after the thread is there."""
    found = lines(
        _HEAD
        + """
def before(thread):
    raise KeyboardInterrupt

def after(thread):
    real(thread)
    raise KeyboardInterrupt

for start in (before, after, before):
    pool().stop()
    threading.Thread.start = start
    try:
        net(x)
        print("no interrupt")
    except KeyboardInterrupt:
        pass
    threading.Thread.start = real
    print(np.array_equal(net(x), expected), sorted(workers()), len(pool()._workers))
"""
    )
    assert found == ["True ['leanconv-1', 'leanconv-2'] 2"] * 3


def test_the_machine_is_measured_with_the_threads_that_start() -> None:
    found = lines(
        _HEAD
        + """
from leanconv.runtime import calibration
refuse(0)
print(calibration.speedup(3))
"""
    )
    assert found == ["1.0"]
