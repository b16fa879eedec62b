"""leanconv itself, through the interface that its users have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from leanconv import __version__
from leanconv import load as load_network
from leanconv.cli.network_inputs import specialised

_loaded: list[Any] = []  # the network that was loaded last


def load(
    model: str,
    inputs: dict[str, np.ndarray],
    threads: int,
    precision: str | None = None,
    stated: bool = False,
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Load the network, with values in a half precision if one is named; see `worker`.

    Where the shapes are stated, it is planned for these alone.
    """
    network = load_network(model, threads=threads, precision=precision)
    if stated:
        network = specialised(network, {name: x.shape for name, x in inputs.items()})
    _loaded[:] = [network]
    return lambda: list(network.run(inputs).values()), __version__


def facts() -> dict[str, int]:
    """Return the plan's predicted time of a run; empty where it predicts none."""
    predicted = getattr(_loaded[0].plan, "predicted_ns", None) if _loaded else None
    return {} if predicted is None else {"predicted_ns": predicted}
