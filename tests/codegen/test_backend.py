"""llvmlite: what is said where it does not load, and its lock."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType

from leanconv.codegen.backend import ffi

_BROKEN = """
import ctypes, sys
import leanconv as lc

def tried():
    try:
        from leanconv.codegen import backend
        backend.llvm
        print("works")
    except ImportError as error:
        assert isinstance(error, lc.LeanConvError), error
        print(type(error).__name__, error)

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "llvmlite":
            raise ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite")

sys.meta_path.insert(0, Absent())
tried()
del sys.meta_path[0]
real = ctypes.CDLL

class Foreign(real):
    def __init__(self, name, *arguments, **named):
        if "llvmlite" in str(name):
            raise OSError(f"{name}: wrong ELF class: ELFCLASS32")
        super().__init__(name, *arguments, **named)

ctypes.CDLL = Foreign
tried()
ctypes.CDLL = real
import llvmlite
version, llvmlite.__version__ = llvmlite.__version__, "0.43.0"
tried()
llvmlite.__version__ = version
tried()
"""

_PAGES = """
import sys
from leanconv.codegen import backend
given_back = []
backend.release_llvm_pages = lambda: given_back.append(1)
from leanconv.codegen import compiler, host
print(len(given_back), "llvmlite.binding" in sys.modules)
host.asked()
print(len(given_back), "llvmlite.binding" in sys.modules)
"""


def test_pages_are_given_back_by_what_uses_llvm_not_by_an_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PAGES],
        env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["0 False", "2 True"]


def test_a_backend_that_does_not_load_is_named_with_the_mend() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BROKEN],
        env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    absent, foreign, old, whole = done.stdout.splitlines()
    assert absent.startswith("BackendError llvmlite cannot be imported (No module named 'llvmlite'")
    assert foreign.startswith("BackendError llvmlite does not load (")
    assert "made for this system and processor" in foreign
    assert old.startswith("BackendError llvmlite is 0.43.0; expected 0.50 or later")
    assert all("pip install --force-reinstall" in line for line in (absent, foreign, old))
    assert whole == "works"


def test_an_exception_at_any_moment_leaves_llvm_s_lock_free() -> None:
    """One left taken keeps the threads that compile, and those who wait for them, for ever."""
    raised = 0

    def raising(after: int) -> Callable[[FrameType, str, object], None]:
        left = [after]

        def event(frame: FrameType, event: str, argument: object) -> None:
            # Where the interpreter looks for signals: as a function begins, and after a call.
            if frame.f_code.co_filename == ffi.__file__ and event in ("call", "c_return"):
                left[0] -= 1
                if left[0] < 0:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        return event

    def is_free() -> bool:
        answers: list[bool] = []

        def ask() -> None:
            lock = getattr(ffi.lib._lock, "_lock", ffi.lib._lock)
            answers.append(lock.acquire(timeout=60))
            if answers[0]:
                lock.release()

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return answers[0]

    before = sys.getprofile()
    for after in range(200):
        try:
            sys.setprofile(raising(after))
            ffi.lib.LLVMPY_GetVersionInfo()
            break
        except KeyboardInterrupt:
            raised += 1
        finally:
            sys.setprofile(before)
        assert is_free(), f"the lock is left taken by an exception at event {after}"
    assert 1 < raised < 200
