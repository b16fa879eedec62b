"""OpenVINO as it is by default: in bfloat16 where the CPU has matrix tiles for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Compile the network for exactly these input shapes; see `leanconv.cli.engines.worker`."""
    core = openvino.Core()
    network = core.read_model(model)
    network.reshape({name: openvino.PartialShape(list(x.shape)) for name, x in inputs.items()})
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    compiled = core.compile_model(network, "CPU", hints)
    request, count = compiled.create_infer_request(), len(compiled.outputs)

    def run() -> list[np.ndarray]:
        results = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [results[i] for i in range(count)]

    return run, openvino.__version__.split("-")[0]
