"""Run a worker of these tests in a process of its own and read what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

TESTS, ROOT = Path(__file__).resolve().parents[2:4]
HAS_TRITON = find_spec("triton") is not None
REASON = "triton is not installed: pip install 'leanconv[gpu]'"


@dataclass(frozen=True)
class Worker:
    """A process, and the file that it prints to: a pipe that nobody reads yet would stop it."""

    process: subprocess.Popen[str]
    printed: IO[str]


def start(worker: str, *arguments: str, **environment: str) -> Worker:
    """Start a worker, a module beside this one; its lines of JSON are read by `rows`."""
    path = os.pathsep.join(str(p) for p in (ROOT / "src", ROOT, TESTS))
    # TRITON_INTERPRET is read where kernels are defined, so that every layer needs its process.
    held = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    printed = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `rows`
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", f"support.gpu.{worker}", *arguments],
        stdout=printed,
        stderr=subprocess.PIPE,
        text=True,
        env={**held, **environment, "PYTHONPATH": path},
    )
    return Worker(process, printed)


def rows(worker: Worker, seconds: int) -> list[dict[str, Any]]:
    """What a worker printed; it must end well within so many seconds."""
    process = worker.process
    try:
        _, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:]
    with worker.printed as printed:
        printed.seek(0)
        return [json.loads(line) for line in printed if line.startswith("{")]
