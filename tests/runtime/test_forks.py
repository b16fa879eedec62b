"""A fork finds no lock taken, whatever the parent's other threads are in the middle of."""

from __future__ import annotations

import os

import pytest

from support.programs import lines

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

# `forked(task)`: 0 if a child did it; the parent kills one that does not end.
_FORKED = """
import signal
SECONDS = 100

def forked(task):
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if task() else 1)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(2)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"

def while_another(does, task):
    entered, leave = threading.Event(), threading.Event()
    other = threading.Thread(target=does, args=(entered, leave))
    other.start()
    entered.wait()
    threading.Timer(0.2, leave.set).start()
    code = forked(task)
    leave.set()
    other.join()
    return code
"""


def test_a_fork_waits_for_llvm() -> None:
    """The thread that frees code has LLVM's lock alone."""
    found = lines(
        _FORKED
        + """
from leanconv.codegen.backend import ffi

def inside(entered, leave):
    with ffi.lib._lock:
        entered.set()
        leave.wait()

w = np.ones((8, 8, 3, 3), "f4")
print(while_another(inside, lambda: lc.plan_conv2d((1, 8, 9, 9), w, padding=1, threads=2)))
"""
    )
    assert found == ["0"]


def test_a_fork_waits_for_a_compiler_that_logs() -> None:
    """logging holds its own lock over forks, which who compiles may want."""
    found = lines(
        _FORKED
        + """
import logging
from leanconv.codegen import linking

def inside(entered, leave):
    with linking.lock:
        entered.set()
        leave.wait()
        logging.getLogger("of no other")

print(while_another(inside, lambda: True))
"""
    )
    assert found == ["0"]


def test_a_fork_waits_for_an_import(tmp_path: object) -> None:
    """The child would find the module's lock taken."""
    found = lines(
        _FORKED
        + f"""
import builtins
from leanconv.forks import imported
folder = {str(tmp_path)!r}
sys.path.insert(0, folder)
open(folder + "/slow_module.py", "w").write(
    "import builtins\\nbuiltins.entered.set()\\nbuiltins.leave.wait()\\nwhole = True\\n"
)

def importing(entered, leave):
    builtins.entered, builtins.leave = entered, leave
    imported("slow_module")

print(while_another(importing, lambda: imported("slow_module").whole))
"""
    )
    assert found == ["0"]


def test_cached_properties_take_no_lock() -> None:
    found = lines(
        _FORKED
        + """
from leanconv.records import cached_property

class Slow:
    def __init__(self, wait):
        self.wait = wait

    @cached_property
    def value(self):
        self.wait()
        return 1

def computing(entered, leave):
    def wait():
        entered.set()
        leave.wait()
    assert Slow(wait).value

print(while_another(computing, lambda: Slow(int).value))
"""
    )
    assert found == ["0"]


def test_a_fork_while_this_machine_is_measured() -> None:
    """On a processor that nobody knows; a signal handler is refused, and does not wait."""
    found = lines(
        _FORKED
        + """
from dataclasses import replace
from leanconv.runtime import calibration
here = calibration.host()
calibration.host = lambda: replace(here, cpu="unheard-of")
calibration.recall, calibration.keep = lambda target: None, lambda *found: None
events = []

def measure(target):
    if events:
        entered, leave = events.pop()
        entered.set()
        leave.wait()
    return calibration.Rates()

calibration.measure = measure
calibration.this_machine.cache_clear()

def measuring(entered, leave):
    events.append((entered, leave))
    calibration.this_machine()

print(while_another(measuring, lambda: calibration.this_machine() is not None))

def within(target):
    try:
        calibration.this_machine()
    except lc.ReentrantCallError:
        print("refused")
    return calibration.Rates()

calibration.measure = within
calibration.this_machine.cache_clear()
calibration.this_machine()
"""
    )
    assert found == ["0", "refused"]


def test_forks_under_load() -> None:
    """Another thread plans, links and frees all the while."""
    found = lines(
        _FORKED
        + """
stop, w = threading.Event(), np.random.default_rng(0).normal(size=(16, 8, 3, 3)).astype("f4")

def planning():
    k = 0
    while not stop.is_set():
        k += 1
        lc.plan_conv2d((1, 8, 20, 20), w[:, :, : 1 + k % 3], threads=2)  # few forms: forks wait

def task():
    lc.conv2d(np.ones((1, 8, 9, 9), "f4"), w, threads=2, algorithm="im2col")
    return np.array_equal(net(x), expected)

thread = threading.Thread(target=planning)
thread.start()
codes = []
for i in range(20):
    codes.append(forked(task))
    if codes[-1]:
        break
    time.sleep(0.003 * (i % 5))
stop.set()
thread.join()
print(set(codes))
"""
    )
    assert found == ["{0}"]


def test_a_handler_forks_while_its_thread_has_a_later_lock() -> None:
    """The owner of the earlier lock waits for the later one: nobody waits for ever."""
    found = lines(
        _FORKED
        + """
from leanconv.codegen.backend import ffi
from leanconv.codegen.linking import lock
waiting = threading.Event()

def compiling():
    with lock:
        waiting.set()
        with ffi.lib._lock:
            pass

with ffi.lib._lock:
    other = threading.Thread(target=compiling)
    other.start()
    waiting.wait()
    print(forked(lambda: True))
other.join()
print(np.array_equal(lc.load(model, threads=2)(x), expected))
"""
    )
    assert found == ["0", "True"]
