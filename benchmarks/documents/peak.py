"""The peak of resident memory of one convolution, in a process of its own.

python peak.py PROBLEM BATCH METHOD THREADS       prints bytes, over those of bare imports

The code is compiled in a process before, so that the compiler's memory is not counted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"


def _command(problem: str, batch: int, method: str, threads: int) -> list[str]:
    return [sys.executable, __file__, problem, str(batch), method, str(threads)]


def compile_all(problem: str, batches: Mapping[str, int], threads: int) -> None:
    """Compile what methods need, by method the batch, so many of them at a time."""

    def compiled(method: str) -> None:
        command = [*_command(problem, batches[method], method, threads), "compile"]
        subprocess.run(command, capture_output=True, check=False)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(compiled, batches))


def measured(problem: str, batch: int, method: str, threads: int) -> int | None:
    """Bytes of input, filters, output and all that a compiled method needs; None if it failed."""
    command = _command(problem, batch, method, threads)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None


def _resident(key: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))


def main(problem: str, batch: str, method: str, threads: str, only: str = "") -> None:
    """Plan, run once and print the peak; or plan only, which compiles."""
    sys.path.insert(0, str(SRC))
    import numpy as np

    import leanconv as lc
    from leanconv.spec import ConvSpec

    spec = ConvSpec.parse(problem, batch=int(batch))
    w = np.ones(spec.weight_shape, np.float32)
    before = _resident("VmRSS")
    plan = lc.plan_conv2d(
        spec.input_shape, w, stride=spec.stride, algorithm=method, threads=int(threads)
    )
    if only:
        return
    x = np.ones(spec.input_shape, np.float32)
    y = np.empty(spec.output_shape, np.float32)
    plan(x, out=y)
    print(max(_resident("VmHWM") - before, 0) + w.nbytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
