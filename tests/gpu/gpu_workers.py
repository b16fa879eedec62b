"""Run a worker of these tests in a process of its own and read what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HAS_TRITON = find_spec("triton") is not None
REASON = "triton is not installed: pip install 'leanconv[gpu]'"


def start(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a worker; its lines of JSON are read by `rows`."""
    path = os.pathsep.join(str(p) for p in (ROOT / "src", ROOT, ROOT / "tests", HERE))
    # TRITON_INTERPRET is read where kernels are defined, so that every layer needs its process.
    held = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**held, **environment, "PYTHONPATH": path},
    )


def rows(worker: subprocess.Popen[str], seconds: int) -> list[dict[str, Any]]:
    """What a worker printed; it must end well within so many seconds."""
    try:
        out, err = worker.communicate(timeout=seconds)
    finally:
        worker.kill()
    assert worker.returncode == 0, err[-3000:]
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]
