"""How far one array is from another."""

from __future__ import annotations

import numpy as np


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference relative to the largest value; infinite for NaN or another shape."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300))
