"""ONNX Runtime with one session for all shapes of a file."""

from __future__ import annotations

import numpy as np

from engines.kept import Run, kept
from leanconv.cli.engines.engine_onnxruntime import load as load_session


def load(model: str, inputs: dict[str, np.ndarray], threads: int) -> tuple[Run, str]:
    """Make the session, or feed the one that is there; see `leanconv.cli.engines.worker`."""
    (run, version), _ = kept(model, inputs, threads, lambda fed: load_session(model, fed, threads))
    return run, version
