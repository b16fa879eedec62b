"""The whole path of `benchmarks/gpu.py` without a GPU: a typo must not cost the first hour of one.

torch computes on the CPU, what it has for CUDA alone is replaced, and leanconv's launches go to a
driver that records. Numbers mean nothing here; that each row exists does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda

from leanconv.gpu import entry, loaded
from leanconv.gpu.conv import DeviceConvPlan
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.loaded import DeviceNetwork
from leanconv.spec import ConvSpec

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, under a name of its own, with small problems."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("gpu_bench", FOLDER / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_bench", module)
    spec.loader.exec_module(module)
    small = ConvSpec.parse("mb2ic8ih9oc16kh3sh2")
    monkeypatch.setattr(module, "layer", lambda name, batch: small)
    monkeypatch.setattr(module, "NAMES", ("cv1", "cv2"))
    monkeypatch.setattr(module, "DEPTHWISE", ("g16mb2ic16ih8oc16oh8kh3ph1",))
    monkeypatch.setattr(module, "BATCHES", (1, 2))
    monkeypatch.setattr(module, "REPORT_SIZE", (64, 64))
    monkeypatch.setattr(module, "COPIED", 1 << 10)
    return module


def test_without_a_device_every_figure_is_not_yet_measured(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    assert bench.main() == 0
    written = json.loads((tmp_path / "gpu.json").read_text())
    page = (tmp_path / "gpu.md").read_text()
    for figure in bench.FIGURES:
        assert written[figure] == "not yet measured"
        assert f"{figure}: not yet measured" in page


def test_a_rehearsal_reaches_every_row(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx")
    if not (FOLDER.parent / "models" / "mobilenetv2.onnx").exists():
        pytest.skip("models/mobilenetv2.onnx is not built")
    fake = FakeCuda(memory_bytes=8 << 30)
    driver = Driver(fake)
    for module in (entry, loaded):
        monkeypatch.setattr(module, "device_driver", lambda device: driver)
    compiled = {"compile_code": fake.compile}
    monkeypatch.setattr(entry, "DeviceConvPlan", functools.partial(DeviceConvPlan, **compiled))
    monkeypatch.setattr(loaded, "DeviceNetwork", functools.partial(DeviceNetwork, **compiled))

    class Graph:
        def replay(self) -> None:
            pass

    for name, made in {
        "synchronize": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "memory_allocated": lambda: 0,
        "max_memory_allocated": lambda: 1 << 30,
        "empty_cache": lambda: None,
        "CUDAGraph": Graph,
        "graph": lambda graph: contextlib.nullcontext(),
        "get_device_name": lambda: "a rehearsal",
    }.items():
        monkeypatch.setattr(torch.cuda, name, made)
    monkeypatch.setattr(torch, "compile", lambda model, mode: model)
    monkeypatch.setattr(bench.Bench, "milliseconds", lambda self, run: (run(), 1.0)[1])

    def ours(tensor: Any) -> np.ndarray:
        return tensor.numpy()

    result = bench.measured(bench.Bench(torch, "cpu", ours), torch)
    for part in ("networks", "depthwise", "ablation", "layers"):
        assert [row for row in result[part] if "failure" in row or "skipped" in row] == []
    assert len(result["layers"]) == 8
    assert {row["mode"] for row in result["layers"]} == {"fp32", "tf32", "fp16"}
    assert len(result["ablation"]) == 10
    assert len(result["networks"]) == 13
    assert result["networks"][-1]["engine"] == "leanconv float64"
    page = bench.table({"date": "today", **result})
    assert "of cuDNN's speed" in page
