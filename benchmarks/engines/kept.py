"""Networks that a process keeps: the same file with other inputs is a run, not another load.

The engine files that use this are started by `leanconv.cli.engines.worker`, which executes them at
each load; this module is imported once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Run = Callable[[], list[np.ndarray]]

_kept: dict[tuple[str, int], tuple[Any, Arrays]] = {}


def kept(
    model: str, inputs: Arrays, threads: int, load: Callable[[Arrays], Any]
) -> tuple[Any, Arrays]:
    """What was loaded for a file, and the arrays that it reads: now those that are given.

    Args:
        model: the file.
        inputs: the arrays that the next run reads.
        threads: of the engine.
        load: called the first time, with the arrays that every run is to read.
    """
    found = _kept.get((model, threads))
    if found is None:
        fed = dict(inputs)
        found = _kept[model, threads] = load(fed), fed
    loaded, fed = found
    fed.clear()
    fed.update(inputs)
    return loaded, fed


def networks() -> list[Any]:
    """All that was loaded."""
    return [loaded for loaded, _ in _kept.values()]
