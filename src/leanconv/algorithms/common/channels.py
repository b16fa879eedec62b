"""Numbers that a convolution has for each output channel: bias and slopes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value


def pack_channels(values: np.ndarray, groups: int, width: int) -> np.ndarray:
    """Pack one number for each output channel as `width` of each group, zero past its last."""
    packed = np.zeros((groups, width), values.dtype)
    packed[:, : values.size // groups] = values.reshape(groups, -1)
    return packed.reshape(-1)


def broadcast_channels(
    e: Function, pointers: Mapping[str, Pointer], name: str, first: Value, count: int, kind: str
) -> list[Value] | None:
    """An operand's numbers of `count` channels from `first` on, each in all lanes of a vector.

    Returns:
        None if there is no such operand.
    """
    if name not in pointers:
        return None
    at = pointers[name].at(first)
    return [e.broadcast(at.at(k), kind) for k in range(count)]
