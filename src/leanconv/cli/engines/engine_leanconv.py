"""leanconv itself, through the interface that its users have: networks, and single gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from leanconv import Gradients, __version__, plan_conv2d_backward
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

    Where the shapes are stated, it is planned for these alone. A file of JSON names the gradient of
    a convolution instead.
    """
    if Path(model).suffix == ".json":
        return _gradient(model, inputs, threads)
    network = load_network(model, threads=threads, precision=precision)
    if stated:
        network = specialised(network, {name: x.shape for name, x in inputs.items()})
    _loaded[:] = [network]
    return lambda: list(network.run(inputs).values()), __version__


def _gradient(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Plan the gradient that a file of JSON names; weights are given in each run."""
    asked = json.loads(Path(model).read_text(encoding="utf-8"))
    need, x, w, dy = asked.pop("need"), inputs["x"], inputs["w"], inputs["dy"]
    plan = plan_conv2d_backward(
        x.shape, w.shape, **asked, needs=(need,), dtype=str(x.dtype), threads=threads
    )
    result = f"d{need}"
    made = np.empty(inputs[need].shape, x.dtype)
    out = Gradients(**{**dict.fromkeys(Gradients._fields), result: made})

    def run() -> list[np.ndarray]:
        plan(x, w, dy, out=out)
        return [made]

    return run, f"{__version__} {plan.algorithms[need]}"


def facts() -> dict[str, int]:
    """Return the plan's predicted time of a run; empty where it predicts none."""
    predicted = getattr(_loaded[0].plan, "predicted_ns", None) if _loaded else None
    return {} if predicted is None else {"predicted_ns": predicted}
