"""OpenVINO's CPU plugin (extra `bench`), for the least latency, in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int, precision: str | None = "f32"
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Compile the network for exactly these input shapes; see `worker`.

    With the precision None a CPU that has bfloat16 computes in it.
    """
    core = openvino.Core()
    network = core.read_model(model)
    network.reshape({name: openvino.PartialShape(list(x.shape)) for name, x in inputs.items()})
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    if precision is not None:
        hints["INFERENCE_PRECISION_HINT"] = precision
    compiled = core.compile_model(network, "CPU", hints)
    request = compiled.create_infer_request()
    count = len(compiled.outputs)

    def run() -> list[np.ndarray]:
        results = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [results[i] for i in range(count)]

    return run, openvino.__version__.split("-")[0]
