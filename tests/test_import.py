"""`import leanconv` is quick, starts nothing and loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMIT_S = 0.3
ATTEMPTS = 5

_PROGRAM = """
import sys, threading, time
begin = time.perf_counter()
import leanconv
print(time.perf_counter() - begin)
print(threading.active_count())
print(*[m for m in ("onnx", "llvmlite", "rich", "PIL") if m in sys.modules])
"""
_TASKS = """
import os
import leanconv
print(len(os.listdir("/proc/self/task")))
"""


def fresh(program: str) -> list[str]:
    """Run a program in a process of its own and return its lines."""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout.splitlines()


def test_import_is_quick() -> None:
    seconds = min(float(fresh(_PROGRAM)[0]) for _ in range(ATTEMPTS))
    assert seconds < LIMIT_S, f"import leanconv took {seconds:.3f} s at best"


def test_import_starts_no_python_thread() -> None:
    assert fresh(_PROGRAM)[1] == "1"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_import_starts_no_native_thread() -> None:
    # NumPy's BLAS starts threads of its own when it is loaded; leanconv adds none.
    numpy_alone = fresh(_TASKS.replace("leanconv", "numpy"))
    assert int(fresh(_TASKS)[0]) <= int(numpy_alone[0])


def test_import_loads_no_heavy_module() -> None:
    assert fresh(_PROGRAM)[2] == ""


def test_command_line_help_is_quick_and_light() -> None:
    program = """
import sys, time
from leanconv.cli.main import build_parser
build_parser().format_help()
print(*[m for m in ("onnx", "llvmlite", "rich", "PIL") if m in sys.modules])
"""
    assert fresh(program) == [""]
