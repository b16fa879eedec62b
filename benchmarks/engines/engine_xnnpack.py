"""XNNPACK through ExecuTorch: the whole network lowered to one delegate."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings import portable_lib

from engines.onnx_to_torch import OnnxModule


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Export, lower to XNNPACK and load the network; see `leanconv.cli.engines.worker`."""
    portable_lib._unsafe_reset_threadpool(threads)
    module = OnnxModule.from_file(model).eval()
    arguments = tuple(torch.from_numpy(inputs[name]) for name in module.input_names)
    exported = torch.export.export(module, arguments, strict=False)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    left = [
        str(node.target)
        for node in edge.exported_program().graph.nodes
        if node.op == "call_function"
        and "delegate" not in str(node.target)
        and "getitem" not in str(node.target)
    ]
    if left:
        print(f"xnnpack: outside the delegate: {', '.join(left)}", file=sys.stderr)
    # The program does not copy the buffer; as a default it lives as long as `run`.
    buffer = edge.to_executorch().buffer
    program = portable_lib._load_for_executorch_from_buffer(buffer)

    def run(_keep_alive: bytes = buffer) -> list[np.ndarray]:
        return [output.numpy() for output in program.forward(arguments, clone_outputs=False)]

    return run, f"executorch {version('executorch')}"
