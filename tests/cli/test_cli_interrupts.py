"""Ctrl-C at any moment of a command: code 130, one line, no traceback, little is begun after."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.networks import squeezenet_like

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are sent with os.kill")

# Runs the command line as `python -m leanconv` does; `interrupt()` is Ctrl-C.
_HEAD = """
import atexit, os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
sent = []

def interrupt():
    sent.append(len(begun))
    os.kill(os.getpid(), signal.SIGINT)

begun = []  # compilations
"""
_RUN = """
runpy.run_module("leanconv", run_name="__main__", alter_sys=True)
"""
_AT_IMPORT = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and not sent:
            interrupt()

sys.meta_path.insert(0, Finder())
"""
_COUNTED = """
from leanconv.codegen import machine_code
emit = machine_code._emit

def counted(*arguments):
    begun.append(1)
    if len(begun) == {at}:
        interrupt()
    return emit(*arguments)

machine_code._emit = counted
atexit.register(lambda: print("after", len(begun) - sent[0]))
"""
_TUNING = """
from leanconv.planner import tuner
race, races = tuner._race, []

def interrupted(*arguments):
    races.append(1)
    if len(races) == 2:
        interrupt()
    return race(*arguments)

tuner._race = interrupted
atexit.register(lambda: print("after", len(races) - 2))
"""
_LOST = """
from leanconv.planner import tuner
race, races = tuner._race, []

class Ends:
    def __del__(self):
        interrupt()
        for _ in range(10):  # Python raises it here, and drops it
            pass

def interrupted(*arguments):
    races.append(1)
    if len(races) == 2:
        Ends()
    return race(*arguments)

tuner._race = interrupted
"""


def command(body: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line with a cache of its own."""
    return subprocess.run(
        [sys.executable, "-c", _HEAD + body + _RUN, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            "LEANCONV_CACHE_DIR": str(folder / "cache"),
        },
    )


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "model.onnx"
    file.write_bytes(squeezenet_like(batch=1, image=32).SerializeToString())
    return str(file)


def interrupted(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 130 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "module", ["leanconv.cli.main", "numpy", "numpy.linalg", "leanconv.api.network", "llvmlite"]
)
def test_while_modules_are_imported(module: str, model: str, tmp_path: Path) -> None:
    done = command(_AT_IMPORT.format(module=module), ["explain", model], tmp_path)
    assert interrupted(done), done.stderr
    *before, last = done.stderr.splitlines()
    assert last == "leanconv: interrupted"
    assert all(line.startswith("leanconv: planning ") for line in before)  # where that takes long


@pytest.mark.parametrize("at", [12])
def test_while_kernels_are_compiled(at: int, model: str, tmp_path: Path) -> None:
    done = command(_COUNTED.format(at=at), ["explain", "--tune", model], tmp_path)
    assert interrupted(done), done.stderr
    assert int(done.stdout.split()[1]) <= 2 * (os.cpu_count() or 1), done.stdout


def test_while_choices_are_measured(model: str, tmp_path: Path) -> None:
    done = command(_TUNING, ["explain", "--tune", model], tmp_path)
    assert interrupted(done), done.stderr
    assert done.stdout == "after 0\n"


def test_where_python_drops_the_exception(model: str, tmp_path: Path) -> None:
    """In a `__del__`, such as llvmlite's, an exception is lost: the command is interrupted anew."""
    done = command(_LOST, ["explain", "--tune", model], tmp_path)
    assert interrupted(done), done.stderr
    assert done.stderr.endswith("leanconv: interrupted\n")


def test_an_ignored_ctrl_c_stays_ignored(tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + _AT_IMPORT.format(module="numpy")
    done = command(body, ["winograd", "2", "3"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout
