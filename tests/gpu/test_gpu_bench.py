"""The whole path of `benchmarks/gpu.py` without a GPU: a typo must not cost the first hour of one.

torch computes on the CPU, what it has for CUDA alone is replaced, and leanconv's launches go to a
driver that records. Numbers mean nothing here; that each row exists does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import queue
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leanconv.gpu import backend
from leanconv.gpu.backend import DeviceBackend
from leanconv.gpu.conv import DeviceConvPlan
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.fft import TorchFft
from leanconv.spec import ConvSpec
from support.gpu.fake_cuda import FakeCuda

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
    for part in (module, sys.modules["gpu_layers"], sys.modules["gpu_methods"]):
        monkeypatch.setattr(part, "layer", lambda name, batch: replace(small, batch=batch % 100))
    monkeypatch.setattr(module, "NAMES", ("cv1", "cv2"))
    monkeypatch.setattr(module, "DEPTHWISE", ("g16mb2ic16ih8oc16oh8kh3ph1",))
    monkeypatch.setattr(module, "BATCHES", (1, 2))
    monkeypatch.setattr(module, "REPORT_SIZE", (64, 64))
    monkeypatch.setattr(sys.modules["gpu_networks"], "REPORT_SIZE", (64, 64))
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
    monkeypatch.setattr(backend, "device_driver", lambda device: driver)
    compiled = {"compile_code": fake.compile}
    monkeypatch.setattr(backend, "TorchFft", lambda device: TorchFft("cpu"))
    monkeypatch.setattr(backend, "DeviceConvPlan", functools.partial(DeviceConvPlan, **compiled))
    monkeypatch.setattr(backend, "DeviceBackend", functools.partial(DeviceBackend, **compiled))

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
    monkeypatch.setattr(bench.Bench, "kernels", lambda self, run: ["a kernel"])

    def ours(tensor: Any) -> np.ndarray:
        return tensor.numpy()

    monkeypatch.setattr(bench, "driver", lambda number: driver)
    monkeypatch.setattr(bench, "compile_all", lambda codes, arch, seconds: {"kernels": len(codes)})
    found, begun = rows_of(bench, bench.Bench(torch, "cpu", ours))
    assert [row for rows in found.values() for row in rows if failed(row)] == []
    assert len(found["layers"]) == 12
    assert {(row["batch"], row["mode"]) for row in found["layers"]} == set(bench.LAYERS)
    assert len(found["ablation"]) == 2 * 6
    methods = sys.modules["gpu_methods"].METHODS
    assert len(found["methods"]) == 2 * (len(methods) + 1)
    timed = [row for row in found["methods"] if "product_ms" in row and "lowering_ms" in row]
    assert len(timed) >= 2 * (len(methods) - 3)  # strides have no form in Winograd's
    assert len(found["depthwise"]) == 3
    assert len(found["networks"]) == 7 + 12 + 2
    assert found["compile"][0]["kernels"] > 40
    page = bench.table({"date": "today", "device": "a rehearsal", **found})
    assert "MobileNetV2 batch 1 in at most 150 us" in page
    # A process that goes on behind the first jobs begins where it should.
    rest: list[Any] = []
    bench.perform(bench.Bench(torch, "cpu", ours).jobs(), lambda: 0.0, len(begun) - 1, rest.append)
    assert [line["label"] for line in rest if "label" in line] == [begun[-1]]
    assert rest[1]["row"]["skipped"] == "no time left"


def failed(row: dict[str, Any]) -> bool:
    return any("failure" in key or key == "skipped" for key in row)


def rows_of(bench: Any, made: Any) -> tuple[dict[str, list[Any]], list[str]]:
    """The rows of each part, and the labels of the jobs."""
    said: list[Any] = []
    bench.perform(made.jobs(), lambda: 100.0, 0, said.append)
    found: dict[str, list[Any]] = {part: [] for part in bench.PARTS}
    for line in said:
        if "row" in line:
            found[line["part"]].append(line["row"])
    return found, [line["label"] for line in said if "label" in line]


# -- jobs that fail, crash and hang -----------------------------------------------------------

WORKER = """
import argparse, json, os, sys, time
sys.path[:0] = {path!r}
from gpu_supervisor import perform
parser = argparse.ArgumentParser()
parser.add_argument("--skip", type=int)
parser.add_argument("--seconds", type=float)
given = parser.parse_args()
def good():
    yield {{"value": 1}}
def bad():
    yield {{"value": 2}}
    raise MemoryError("too large")
def crash():
    yield {{"value": 3}}
    os.abort()
def hang():
    time.sleep(100)
    yield {{}}
jobs = [("layers", f.__name__, f) for f in (good, bad, crash, hang, good)]
perform(jobs, lambda: given.seconds, given.skip, lambda row: print(json.dumps(row), flush=True))
"""


def test_a_job_that_fails_crashes_or_hangs_does_not_lose_the_others(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    supervisor = sys.modules["gpu_supervisor"]

    class Lines(queue.SimpleQueue[str]):
        """The silence of the job that hangs is over at once, that of a slow machine never."""

        heard = ""

        def get(self, block: bool = True, timeout: float | None = None) -> str:
            assert timeout in (supervisor.SILENCE, supervisor.FIRST_SILENCE)
            if '"label": "hang"' in self.heard:
                raise queue.Empty
            self.heard = super().get()
            return self.heard

    patched = SimpleNamespace(SimpleQueue=Lines, Empty=queue.Empty)
    monkeypatch.setattr(supervisor, "queue", patched)
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(path=[str(FOLDER), str(FOLDER.parent / "src")]))
    result: dict[str, Any] = {}
    saved: list[str] = []
    command = [sys.executable, str(script)]
    bench.supervised(result, lambda: saved.append(json.dumps(result)), command, 1000.0)
    assert [row.get("value", row.get("job")) for row in result["layers"]] == [
        *(1, 2, "bad", 3, "crash", "hang", 1)
    ]
    assert "MemoryError: too large" in result["layers"][2]["failure"]
    assert "the process ended with" in result["layers"][4]["failure"]
    assert "nothing was heard for 100 s" in result["layers"][5]["failure"]
    assert any('"value": 2' in text and '"value": 3' not in text for text in saved)


def test_limits_are_met_missed_or_not_measured(bench: Any) -> None:
    page = sys.modules["gpu_page"]
    assert {met for _, _, met in page.verdicts({})} == {None}
    row = {"mode": "fp32", "batch": 128, "error": 1e-6, "ratio": 2.5, "extra_bytes": 10}
    row |= {"cudnn_extra_bytes": 10, "im2col_extra_bytes": 100, "cudnn_error": 1e-6}
    layers = [{**row, "layer": f"cv{n}"} for n in range(1, 13)]
    layers += [{**each, "mode": "fp16", "ratio": 0.9} for each in layers]
    networks = [{"engine": "leanconv float32", "batch": 1, "ms": 0.2}]
    networks += [{"engine": "leanconv float64", "batch": 1, "ms": 5.0}]
    methods = [
        {"layer": row["layer"], "method": method, "ms": ms}
        for row in layers[:12]
        for method, ms in ((page.HIGH, 1.0), (page.CUBLAS, 4.0))
    ]
    depthwise = [{"of_copy": 0.8}]
    found = page.verdicts(
        {"layers": layers, "networks": networks, "depthwise": depthwise, "methods": methods}
    )
    met = [met for _, _, met in found]
    assert met == [True, True, False, True, True, True, True, False, True]
    layers[0] |= {"ratio": 0.9, "extra_bytes": 11}
    met = [met for _, _, met in page.verdicts({"layers": layers[:12]})]
    assert met == [True, False, None, False, False, None, None, None, None]
    wrong = [{**row, "error": 1e-4} if row["layer"] == "cv3" else row for row in layers]
    found = {asked: (shown, met) for asked, shown, met in page.verdicts({"layers": wrong})}
    fast = next(asked for asked in found if asked.startswith("fp32: at least"))
    assert "wrong results of cv3" in found[fast][0]
    assert found[fast][1] is False
    shown = page.table({"date": "today", "device": "x", "layers": layers, "networks": networks})
    assert "| not met |" in shown
    assert "| not yet measured |" in shown
