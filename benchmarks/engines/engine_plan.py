"""leanconv's single convolutions: `plan_conv2d` as a Python program calls it, NumPy in and out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

import leanconv
from leanconv.graph.onnx_import import read_model

MAX_ERROR = "PLAN_MAX_ERROR"  # in the environment: what a plan may state; plan_conv2d's default


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Plan the file's one convolution; see `leanconv.cli.engines.worker`."""
    ((name, x),) = inputs.items()
    graph = read_model(Path(model)).bind({name: x.shape})
    (node,) = graph.nodes
    attributes = node.attributes
    max_error = float(os.environ[MAX_ERROR]) if MAX_ERROR in os.environ else None
    plan = leanconv.plan_conv2d(
        x.shape,
        graph.constants[node.inputs[1]],
        stride=attributes["strides"],
        padding=attributes["pads"],
        dilation=attributes["dilations"],
        groups=attributes["group"],
        max_error=max_error,
        threads=threads,
    )
    y = np.empty(plan.spec.output_shape, x.dtype)
    version = f"{leanconv.__version__} {plan.algorithm}"
    version += "" if max_error is None else f", max_error {max_error:g}"
    return lambda: [plan(x, out=y)], version
