"""leanconv with weights, and values between layers, in bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from leanconv import __version__
from leanconv import load as load_network


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int, precision: str = "bfloat16"
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Load the network in a precision; see `leanconv.cli.engines.worker`."""
    network = load_network(model, threads=threads, precision=precision)
    return lambda: list(network.run(inputs).values()), __version__
