"""PyTorch's own gradients of one convolution, for `leanconv bench --gradient`.

The file is loaded by name in whatever interpreter has torch: it imports nothing of leanconv.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

_TRIALS = 3  # runs of each memory format, after one that is not counted
_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
Run = Callable[[], list[np.ndarray]]


def load(model: str, inputs: dict[str, np.ndarray], threads: int) -> tuple[Run, str]:
    """Take the memory format in which the gradient that a file of JSON names is the faster one.

    Tensors are in that format before the first run; see `cli/engines/worker`.
    """
    torch.set_num_threads(threads)
    asked = json.loads(Path(model).read_text(encoding="utf-8"))
    rank = len(asked["stride"])
    forms = [torch.contiguous_format, *([_LAST[rank]] if rank in _LAST else [])]
    runs = [_run(asked, inputs, form) for form in forms]
    return min(runs, key=_least_seconds), torch.__version__


def _run(asked: dict[str, Any], inputs: dict[str, np.ndarray], form: Any) -> Run:
    rank, need = len(asked["stride"]), asked["need"]
    before, after = asked["padding"][:rank], asked["padding"][rank:]
    if before != after:
        raise ValueError("padding that is not the same on both sides")
    x, w, dy = (
        torch.from_numpy(inputs[name]).contiguous(memory_format=form) for name in ("x", "w", "dy")
    )
    wanted = [need == "x", need == "w", False]
    steps = asked["stride"], before, asked["dilation"], False, [0] * rank, asked["groups"]

    def run() -> list[np.ndarray]:
        found = torch.ops.aten.convolution_backward(dy, x, w, None, *steps, wanted)
        return [found[wanted.index(True)].numpy()]

    return run


def _least_seconds(run: Run) -> float:
    run()
    times = []
    for _ in range(_TRIALS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)
