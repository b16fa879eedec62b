"""leanconv itself, through the interface that its users have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from leanconv import __version__
from leanconv import load as load_network


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int, precision: str | None = None
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Load the network, with values in a half precision if one is named; see `worker`."""
    network = load_network(model, threads=threads, precision=precision)
    return lambda: list(network.run(inputs).values()), __version__
