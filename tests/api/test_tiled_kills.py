"""Runs in tiles that are killed with -9 at random moments, and go on: the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from support.local_networks import local_network

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_killed_runs_give_the_same_bytes(tmp_path: Path) -> None:
    packages = {".zarr": "zarr", ".tif": "tifffile"}
    ends = [".npy", *(end for end, package in packages.items() if find_spec(package))]
    (tmp_path / "net.onnx").write_bytes(local_network(4).SerializeToString())
    x = np.random.default_rng(0).standard_normal((1, 3, 320, 640)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    script = [sys.executable, str(ROOT / "benchmarks" / "kill_tiles.py"), "net.onnx", "x.npy"]
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])
    found = subprocess.run(
        [*script, "--kills", "3", "--ends", *ends, "--memory-limit", "600KiB"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "LEANCONV_CACHE_DIR": str(tmp_path / "c")},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert all(f"{end}: 3 kills" in found.stdout for end in ends)
