"""leanconv itself, through the interface that its users have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import leanconv


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Load the network; see `worker`."""
    network = leanconv.load(model, threads=threads)
    return lambda: list(network.run(inputs).values()), leanconv.__version__
