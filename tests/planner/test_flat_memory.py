"""Shapes without end: the plans that are kept are bounded in bytes, and memory stays flat."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.once  # any plan will do

_SCRIPT = """
import gc, sys
import numpy as np
import leanconv as lc

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

rng = np.random.default_rng(0)
w = rng.standard_normal((8, 4, 3, 3)).astype(np.float32)
marks = []
for number in range(int(sys.argv[1])):
    h, v = (int(n) for n in rng.integers(4, 40, 2))
    x = np.ones((1, 4, h, v), np.float32)
    lc.conv2d(x, w, padding=1, stride=1 + number % 2, threads=1, algorithm="naive")
    if number % (int(sys.argv[1]) // 4) == 0:
        gc.collect()
        marks.append(resident())
gc.collect()
marks.append(resident())
print(*marks)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_many_shapes_leave_the_memory_flat() -> None:
    """The last three quarters of the shapes add next to nothing to what the first one took."""
    environment = {"LEANCONV_PLAN_CACHE_BYTES": "2 MiB", "PATH": ""}
    import os

    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, "400"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    marks = [int(mark) for mark in done.stdout.split()]
    assert marks[-1] - marks[1] < 8 * 2**20, marks
