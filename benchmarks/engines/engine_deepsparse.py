"""DeepSparse, the last engine for pruned networks on x86 CPUs: `pip install deepsparse==1.8.0`.

It needs Python 3.11 or older; 1.9.0 is an empty package. Its licence allows to measure, not to
serve.
"""

from __future__ import annotations

from collections.abc import Callable

import deepsparse
import numpy as np


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Compile the network for these inputs; see `worker`."""
    arrays = list(inputs.values())
    engine = deepsparse.compile_model(model, batch_size=len(arrays[0]), num_cores=threads)
    return lambda: engine.run(arrays), deepsparse.__version__
