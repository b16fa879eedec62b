"""leanconv with one network for all shapes of a file."""

from __future__ import annotations

import numpy as np

from engines.kept import Run, kept, networks
from leanconv import __version__
from leanconv import load as load_network


def load(model: str, inputs: dict[str, np.ndarray], threads: int) -> tuple[Run, str]:
    """Load the network, or feed the one that is there; see `leanconv.cli.engines.worker`."""
    network, fed = kept(model, inputs, threads, lambda _: load_network(model, threads=threads))
    return lambda: list(network.run(fed).values()), __version__


def facts() -> dict[str, int]:
    """Bytes of all plans that are kept, packed weights, arenas and code included."""
    return {"plan_bytes": sum(network._plans.held_bytes for network in networks())}
