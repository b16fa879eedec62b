"""Run every step of the ladder in Triton's interpreter, and print how far each is from NumPy.

Run by `test_gpu_ladder.py` in a process of its own, with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support.gpu.interpreter import Address

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from examples.report.formats import Topology, weights
from examples.report.reference import forward
from ladder import gpu_kernels
from ladder.gpu_forward import GpuForward
from ladder.network import FUTURE, VERSIONS
from leanconv.types import FLOAT64


class Host:
    """A device whose memory is this host's."""

    def zeros(self, elements: int) -> Any:
        return np.zeros(elements)

    def put(self, array: np.ndarray) -> Any:
        return np.ascontiguousarray(array, np.float64).reshape(-1)

    def copy(self, to: Any, to_first: int, x: Any, x_first: int, elements: int) -> None:
        to[to_first : to_first + elements] = x[x_first : x_first + elements]

    def launch(
        self, kernel: str, grid: tuple[int, ...], arguments: tuple[Any, ...],
        constants: Mapping[str, Any], warps: int,
    ) -> None:  # fmt: skip
        assert warps in (2, 8, 32)
        held = [
            Address(a.ctypes.data, "float64") if isinstance(a, np.ndarray) else a for a in arguments
        ]
        getattr(gpu_kernels, kernel)[grid](*held, **constants)

    def get(self, x: Any) -> np.ndarray:
        return np.array(x)


def main() -> None:
    # Two blocks, one of them with an addition; 6 x 6 pixels are no whole blocks of 8 or 32.
    topology = Topology(image=6, stem=8, stages=((1, 8, 1, 1), (1, 16, 1, 2)), head=8, classes=3)
    params = weights(topology.model())
    image = np.random.default_rng(0).standard_normal(topology.input_shape)
    exact = forward(params, topology, image)
    device = Host()
    for version in (*VERSIONS, FUTURE):
        run = GpuForward(topology, params, version, FLOAT64, device)
        found = device.get(run(image.reshape(-1)))
        error = float(np.abs(found - exact).max() / np.abs(exact).max())
        row = {"version": version.name, "error": error, "copies": run.row_copies}
        sys.stdout.write(json.dumps({**row, "kernels": run.kernels}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
