"""Numbers that a convolution has for each output channel: bias, slopes, scales."""

from __future__ import annotations

import numpy as np


def pack_channels(values: np.ndarray, groups: int, width: int) -> np.ndarray:
    """Pack one number for each output channel as `width` of each group, zero past its last.

    Args:
        values: (K,), or several arrays of such numbers, (n, K), which are packed end to end.
        groups: of channels.
        width: of a group.
    """
    if values.ndim > 1:
        return np.concatenate([pack_channels(each, groups, width) for each in values])
    packed = np.zeros((groups, width), values.dtype)
    packed[:, : values.size // groups] = values.reshape(groups, -1)
    return packed.reshape(-1)
