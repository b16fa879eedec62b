"""`import leanconv` loads next to nothing and starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leanconv import forks, lazy_imports
from leanconv.errors import BackendError

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.onnx"
MODULES = 40  # a fifth of what NumPy loads: all else comes when it is first used

_PROGRAM = """
import sys, threading
before = set(sys.modules)
import leanconv
print(len(set(sys.modules) - before))
print(threading.active_count())
print(*[m for m in ("numpy", "onnx", "llvmlite", "rich", "PIL") if m in sys.modules])
"""
_TASKS = """
import os
import leanconv
print(len(os.listdir("/proc/self/task")))
"""


def fresh(program: str) -> list[str]:
    """Run a program in a process of its own and return its lines."""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return result.stdout.splitlines()


def test_import_loads_few_modules() -> None:
    assert 0 < int(fresh(_PROGRAM)[0]) <= MODULES


def test_import_starts_no_python_thread() -> None:
    assert fresh(_PROGRAM)[1] == "1"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_import_starts_no_native_thread() -> None:
    # NumPy's BLAS starts threads of its own when it is loaded; leanconv adds none.
    numpy_alone = fresh(_TASKS.replace("leanconv", "numpy"))
    assert int(fresh(_TASKS)[0]) <= int(numpy_alone[0])


def test_import_loads_no_heavy_module() -> None:
    assert fresh(_PROGRAM)[2] == ""


def test_command_line_help_is_light() -> None:
    program = """
import sys
from leanconv.cli.main import build_parser
build_parser().format_help()
print(*[m for m in ("onnx", "llvmlite", "rich", "PIL") if m in sys.modules])
"""
    assert fresh(program) == [""]


def test_one_convolution_needs_no_reader_of_networks() -> None:
    program = """
import sys
import numpy as np
import leanconv
leanconv.conv2d(np.ones((1, 4, 6, 6), "f"), np.ones((4, 4, 3, 3), "f"), threads=1)
networks = ("graph.onnx_", "graph.convert", "graph.ops", "operators", "api.network", "quantizer")
print(*[m for m in sys.modules if m.startswith(tuple(f"leanconv.{name}" for name in networks))])
"""
    assert fresh(program) == [""]


def test_a_network_needs_no_gradients() -> None:
    program = f"""
import sys
import leanconv
leanconv.load({str(DIGITS)!r}, threads=1, shapes=(1, 1, 32, 32))
print(*[m for m in sys.modules if "gradient" in m and m.startswith("leanconv.algorithms.")])
"""
    assert fresh(program) == [""]


_ENDED = [AttributeError, ImportError, OSError, SystemError, SyntaxError, ValueError]


@pytest.mark.parametrize("error", _ENDED)
def test_an_import_that_memory_ends_is_said(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's parser says that what it could not read on is wrong."""

    def ended(name: str) -> None:
        raise error(f"{name} ends")

    monkeypatch.setattr(forks, "imported", ended)
    with pytest.raises(BackendError, match="cannot be loaded.*memory"):
        lazy_imports.module("leanconv.api.load")
