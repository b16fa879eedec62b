"""The ladder of the MobileNetV2 report on a GPU: each of its steps in Triton, and its future one.

    python benchmarks/gpu_ladder.py              writes docs/results/gpu_ladder.json
    python benchmarks/gpu_ladder.py --quick      a small network

As `report_ladder.py`, with a thread for each item: float64, images of 244 x 244 one by one, copies
of rows and launches by calls of the driver as the report's host code has them; before v3.1 memory
is asked of the driver in every pass. Needs torch for CUDA and triton. Answers are compared with
NumPy's before a version is timed. Minutes at most for all of it: `--seconds`, 120.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness import RESULTS, ROOT, Document, script
from leanconv.cli.engines import machine
from leanconv.errors import InputError
from leanconv.types import FLOAT64

sys.path.insert(0, str(ROOT))

from examples.report.formats import REPORT, SMALL, weights
from examples.report.reference import forward
from ladder.gpu_forward import GpuForward
from ladder.network import FUTURE, VERSIONS

_CLOSE = 1e-12


class TorchDevice:
    """A device by torch and Triton."""

    def __init__(self, torch: Any) -> None:
        from ladder import gpu_kernels

        self._torch, self._kernels = torch, gpu_kernels

    def zeros(self, elements: int) -> Any:
        """A buffer of zeros."""
        return self._torch.zeros(elements, dtype=self._torch.float64, device="cuda")

    def put(self, array: np.ndarray) -> Any:
        """A buffer with an array's elements."""
        return self._torch.from_numpy(np.ascontiguousarray(array).reshape(-1)).to("cuda")

    def copy(self, to: Any, to_first: int, x: Any, x_first: int, elements: int) -> None:
        """One cudaMemcpyAsync, from this host where x lies here."""
        to[to_first : to_first + elements].copy_(x[x_first : x_first + elements])

    def launch(
        self, kernel: str, grid: tuple[int, ...], arguments: tuple[Any, ...],
        constants: Mapping[str, Any], warps: int,
    ) -> None:  # fmt: skip
        """Run a kernel."""
        getattr(self._kernels, kernel)[grid](*arguments, **constants, num_warps=warps)

    def get(self, x: Any) -> np.ndarray:
        """A buffer's elements."""
        found: np.ndarray = x.cpu().numpy()
        return found


def measure(torch: Any, quick: bool, seconds: float) -> list[Document]:
    """A row for each version: the time of an image and what differs from NumPy."""
    topology = SMALL if quick else REPORT
    params = weights(topology.model())
    image = np.random.default_rng(0).standard_normal(topology.input_shape)
    exact = forward(params, topology, image)
    device, rows = TorchDevice(torch), list[Document]()
    begin = time.monotonic()
    for version in (*VERSIONS, FUTURE):
        if time.monotonic() - begin > seconds:
            rows.append({"version": version.name, "skipped": "no time left"})
            continue
        run = GpuForward(topology, params, version, FLOAT64, device)
        held = torch.from_numpy(image.reshape(-1))  # on this host: its rows go over one by one
        error = float(np.abs(device.get(run(held)) - exact).max() / np.abs(exact).max())
        row: Document = {
            "version": version.name,
            "change": version.change,
            "row_copies": run.row_copies,
            "launches": run.kernels,
            "error": error,
        }
        if error <= _CLOSE:
            row["ms"] = _milliseconds(torch, run, held, seconds / 10)
        else:
            row["failure"] = f"answers differ by {error:.1e}"
        rows.append(row)
        del run
    return rows


def _milliseconds(torch: Any, run: GpuForward, image: Any, seconds: float) -> float:
    """The median of passes, of which each ends before the next begins."""
    taken: list[float] = []
    end = time.monotonic() + seconds
    while len(taken) < 3 or (len(taken) < 20 and time.monotonic() < end):
        if not run.version.up_front:
            torch.cuda.empty_cache()  # the next pass asks the driver again, as cudaMalloc does
        start = time.perf_counter_ns()
        run(image)
        torch.cuda.synchronize()
        taken.append((time.perf_counter_ns() - start) / 1e6)
    return statistics.median(taken)


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small network")
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="for all of it")
    parser.add_argument("--out", type=Path, metavar="FILE", help="in place of docs/results")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        raise InputError("torch is not installed; install it for CUDA, and triton") from None
    if not torch.cuda.is_available():
        raise InputError("torch finds no CUDA device; run this where there is one")
    document = {
        "machine": machine.describe().to_json(),
        "device": torch.cuda.get_device_name(),
        "versions": f"torch {torch.__version__}",
        "effort": {"threads": 1, "seconds": options.seconds},
        "rows": measure(torch, options.quick, options.seconds),
    }
    out = options.out or (None if options.quick else RESULTS / "gpu_ladder.json")
    if out is not None:
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for row in document["rows"]:
        print(row)
    return 0


if __name__ == "__main__":
    script(main)
