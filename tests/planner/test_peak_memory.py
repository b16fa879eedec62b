"""The peak of resident memory is what the plan says, over what a loaded network takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.network_models import FULL_NETWORKS

# Beside the plan: tables, stacks of the pool, a layer's packed weights on their way, the input.
# (What Winograd by stages packs is in memory five times, in float64: this network has none of it.)
CONSTANT_BYTES = 12 * 2**20
_SCRIPT = """
import sys
import numpy as np
import leanconv as lc
from leanconv.codegen.llvm_pages import release_llvm_pages

def read(key):
    with open("/proc/self/status") as status:
        return next(int(l.split()[1]) * 1024 for l in status if l.startswith(key))

lc.conv2d(np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32), threads=2)
net = lc.load(sys.argv[1], threads=2)
release_llvm_pages()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew
before = read("VmRSS")
net(np.ones((1, 3, 224, 224), np.float32))
print(read("VmHWM") - before, net.plan.memory_bytes, net.used_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_is_that_of_the_plan(tmp_path: Path) -> None:
    """Weights of the mapped file are given back as they are packed: they never count twice."""
    file = tmp_path / "vgg.onnx"
    file.write_bytes(FULL_NETWORKS["vgg16"](width=0.25, image=224).SerializeToString())
    for _ in range(2):  # once to compile: LLVM's own memory is not what this is about
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(file)], capture_output=True, text=True, check=True
        )
    grown, planned, used = (int(word) for word in done.stdout.split())
    assert used == planned
    assert planned > 3 * CONSTANT_BYTES, "the plan is not what makes the memory"
    assert planned * 0.95 <= grown <= planned + CONSTANT_BYTES
