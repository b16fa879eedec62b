"""Engines: which there are, where each is installed, and this side of its process."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leanconv.cli.options import UsageError
from leanconv.errors import LeanConvError
from leanconv.records import dataclass

_HERE = Path(__file__).parent
_WORKER = Path(__file__).with_name("worker.py")
_CAN_PAUSE = hasattr(signal, "SIGSTOP")


@dataclass(frozen=True)
class Engine:
    """One engine, before it is known to be installed.

    Attributes:
        name: in tables and JSON.
        file: the engine file that `worker` loads.
        modules: the Python modules that it needs.
        paths: folders that go in front of `sys.path` in its process.
        package: by which pip knows it, where that is not its name.
    """

    name: str
    file: Path
    modules: tuple[str, ...]
    paths: tuple[Path, ...] = ()
    package: str = ""


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
    Engine(
        "litert",
        _HERE / "engine_litert.py",
        ("numpy", "ai_edge_litert"),
        (_HERE.parents[2],),
        "ai-edge-litert",
    ),
)
# Of gradients of one convolution, which a file of JSON names.
GRADIENT_ENGINES: tuple[Engine, ...] = (
    LEANCONV,
    Engine("torch", _HERE.parents[1] / "torch" / "gradient_engine.py", ("numpy", "torch")),
)


def find(
    engines: Iterable[Engine], pythons: Sequence[str]
) -> tuple[list[Installed], dict[str, str]]:
    """Look for each engine in the interpreters, in their order.

    Args:
        engines: the engines to look for.
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


class EngineError(LeanConvError):
    """An engine failed, answered nothing in time, or its process ended."""


class EngineProcess:
    """One engine in a process of its own, stopped (SIGSTOP) between requests.

    A stopped process cannot disturb the turn of another one: some engines' idle threads spin.
    """

    def __init__(self, installed: Installed, environment: Mapping[str, str] | None = None) -> None:
        """Start the process.

        Args:
            installed: the engine and its interpreter.
            environment: variables that its environment gets beside those of this process.
        """
        self.name = installed.engine.name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 closed by close()
        self._process = subprocess.Popen(
            [
                installed.python,
                str(_WORKER),
                str(installed.engine.file),
                *map(str, installed.engine.paths),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=_environment(environment),
        )
        self._received = b""

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the process has not ended."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], timeout_s: float = 600.0) -> dict[str, Any]:
        """Send one request (see `worker`) and wait for its reply.

        Raises:
            EngineError: the engine failed, its process ended, or the time ran out.
        """
        assert self._process.stdin is not None
        self._signal("SIGCONT")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            reply: dict[str, Any] = json.loads(self._line(timeout_s))
        except BrokenPipeError as error:
            raise self._ended() from error
        finally:
            self._signal("SIGSTOP")
        if "error" in reply:
            raise EngineError(f"{self.name}: {reply['error']}")
        return reply

    def close(self) -> None:
        """End the process: ask it to stop, and kill it when it does not."""
        if self._process.poll() is None:
            with contextlib.suppress(EngineError, ValueError):
                self.ask({"do": "stop"}, timeout_s=5)
            self._signal("SIGCONT")
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        end = time.monotonic() + timeout_s
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(max(0.0, end - time.monotonic())):
                    self._process.kill()
                    raise EngineError(
                        f"{self.name}: no answer in {timeout_s:g} s; expected one sooner: leave it "
                        "out with --engine"
                    )
                block = os.read(descriptor, 1 << 20)
                if not block:
                    raise self._ended()
                self._received += block
        line, self._received = self._received.split(b"\n", 1)
        return line

    def _ended(self) -> EngineError:
        code = self._process.wait()
        self._stderr.seek(0)
        last = self._stderr.read().decode(errors="replace").strip().splitlines()[-1:]
        return EngineError(f"{self.name}: its process ended with code {code}: {' '.join(last)}")

    def _signal(self, name: str) -> None:
        if _CAN_PAUSE and self._process.poll() is None:
            self._process.send_signal(getattr(signal, name))


class Crew:
    """The engines' processes: one each, ended after each piece of work, or kept for the next."""

    def __init__(self, keep: bool = False) -> None:
        """Begin with no process.

        Args:
            keep: whether processes take one piece of work after the other.
        """
        self._keep = keep
        self._processes: dict[str, EngineProcess] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def process(self, installed: Installed) -> EngineProcess:
        """Return the engine's process, started if there is none or the last one has ended."""
        name = installed.engine.name
        process = self._processes.get(name)
        if process is None or not process.alive:
            process = self._processes[name] = EngineProcess(installed)
        return process

    def rest(self) -> None:
        """End the processes of a finished piece of work, unless they are to be kept."""
        if not self._keep:
            self._end()

    def _end(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()


def _environment(added: Mapping[str, str] | None) -> dict[str, str] | None:
    return {**os.environ, **added} if added else None
