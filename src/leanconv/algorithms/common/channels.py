"""Numbers that a convolution has for each output channel: bias and slopes."""

from __future__ import annotations

import numpy as np


def pack_channels(values: np.ndarray, groups: int, width: int) -> np.ndarray:
    """Pack one number for each output channel as `width` of each group, zero past its last."""
    packed = np.zeros((groups, width), values.dtype)
    packed[:, : values.size // groups] = values.reshape(groups, -1)
    return packed.reshape(-1)
