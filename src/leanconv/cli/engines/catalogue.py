"""Which engines there are, and in which interpreter each of them is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from leanconv.cli.common import UsageError
from leanconv.records import dataclass

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Engine:
    """One engine, before it is known to be installed.

    Attributes:
        name: what tables and JSON call it.
        file: the engine file that `worker` loads.
        modules: the Python modules that it needs.
        paths: folders that go in front of `sys.path` in its process.
    """

    name: str
    file: Path
    modules: tuple[str, ...]
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Installed:
    """An engine with the interpreter that has its modules."""

    engine: Engine
    python: str


LEANCONV = Engine(
    "leanconv",
    _HERE / "engine_leanconv.py",
    ("numpy", "llvmlite"),
    (_HERE.parents[2],),
)
ENGINES: tuple[Engine, ...] = (
    LEANCONV,
    Engine("onnxruntime", _HERE / "engine_onnxruntime.py", ("numpy", "onnxruntime")),
    Engine("openvino", _HERE / "engine_openvino.py", ("numpy", "openvino")),
)


def find(
    engines: Iterable[Engine], pythons: Sequence[str]
) -> tuple[list[Installed], dict[str, str]]:
    """Look for each engine in the interpreters, in their order.

    Args:
        engines: what to look for.
        pythons: interpreters; leanconv itself is only looked for in the first.

    Returns:
        The engines found, and for each of the others why it is left out.
    """
    found: list[Installed] = []
    missing: dict[str, str] = {}
    for engine in engines:
        candidates = pythons[:1] if engine == LEANCONV else pythons
        for python in candidates:
            absent = absent_modules(python, engine.modules)
            if not absent:
                found.append(Installed(engine, python))
                break
            needed = [module for module in absent if module != engine.name]
            why = f" (it needs {', '.join(needed)})" if needed else ""
            missing[engine.name] = f"not installed{why}"
    for installed in found:
        missing.pop(installed.engine.name, None)
    return found, missing


def interpreters(other: str | None) -> list[str]:
    """Return this interpreter, then the other one if it is given and differs.

    Raises:
        UsageError: there is no such interpreter.
    """
    if other and shutil.which(other) is None:
        raise UsageError(
            f"there is no Python interpreter {other!r}; expected the path of one in which torch, "
            "executorch and onnx are installed, such as torch-venv/bin/python, or leave --python "
            "(and LEANCONV_BENCH_PYTHON) out to compare without those engines"
        )
    return [sys.executable] + ([other] if other and other != sys.executable else [])


def absent_modules(python: str, modules: Sequence[str]) -> list[str]:
    """Return those of the modules that the interpreter cannot find, without importing them."""
    program = (
        "import sys; from importlib.util import find_spec; "
        "print(*[m for m in sys.argv[1:] if find_spec(m) is None])"
    )
    try:
        result = subprocess.run(
            [python, "-c", program, *modules], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return [python]
    return result.stdout.split() if result.returncode == 0 else [python]
