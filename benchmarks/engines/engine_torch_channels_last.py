"""PyTorch as in `engine_torch`, with weights and activations in its channels-last layout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engines import engine_torch


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Load the network; see `leanconv.cli.engines.worker`."""
    return engine_torch.load(model, inputs, threads, channels_last=True)
