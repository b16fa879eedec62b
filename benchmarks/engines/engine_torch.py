"""PyTorch (oneDNN kernels), traced, frozen and optimised for inference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from engines.onnx_to_torch import OnnxModule


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int, channels_last: bool = False
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Load the network, in torch's usual layout or channels last; see `worker`."""
    torch.set_num_threads(threads)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    module = OnnxModule.from_file(model).eval().to(memory_format=layout)
    arguments = tuple(
        torch.from_numpy(inputs[name]).contiguous(memory_format=layout)
        for name in module.input_names
    )
    with torch.inference_mode():
        traced = torch.jit.optimize_for_inference(torch.jit.trace(module, arguments))

    def run() -> list[np.ndarray]:
        with torch.inference_mode():
            return [output.numpy() for output in traced(*arguments)]

    run()  # the profiling executor needs two runs before it is at its best
    return run, torch.__version__
