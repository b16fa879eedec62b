"""LiteRT, once TensorFlow Lite, whose CPU kernels are XNNPACK's (extra `bench`)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from leanconv.cli.engines.tflite import convert


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Write the network as LiteRT's file and load it; see `worker`.

    Inputs are in its own layout, with the channels of maps last, before a run begins, and outputs
    are views of what it gives: it copies neither.
    """
    file = convert(model, {name: x.shape for name, x in inputs.items()})
    interpreter = Interpreter(model_content=file.data, num_threads=threads)
    interpreter.allocate_tensors()
    for port, details in zip(file.inputs, interpreter.get_input_details(), strict=True):
        interpreter.tensor(details["index"])()[...] = inputs[port.name].transpose(port.order)
    results = [
        (interpreter.tensor(details["index"]), port.back)
        for port, details in zip(file.outputs, interpreter.get_output_details(), strict=True)
    ]

    def run() -> list[np.ndarray]:
        interpreter.invoke()
        return [tensor().transpose(back) for tensor, back in results]

    return run, version("ai-edge-litert")
