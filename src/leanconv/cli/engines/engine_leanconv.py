"""leanconv itself, through the interface that its users have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from leanconv import __version__
from leanconv import load as load_network


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Load the network; see `worker`."""
    network = load_network(model, threads=threads)
    return lambda: list(network.run(inputs).values()), __version__
