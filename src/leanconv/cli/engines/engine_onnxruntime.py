"""ONNX Runtime with its own CPU kernels (extra `bench`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Load the network with every graph optimisation; see `worker`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs), onnxruntime.__version__
