"""Tables of resized axes: which cells of its operand each element reads, with which weights."""

from __future__ import annotations

import numpy as np

from leanconv.graph.ir import Node
from leanconv.graph.ops.resample import window as resample_window
from leanconv.graph.ops.resize import linear_cells, nearest_cells
from leanconv.types import DType


def axis_table(
    node: Node, axis: int, extent: int, dtype: DType
) -> tuple[np.ndarray, np.ndarray] | None:
    """The cells that each element along an axis of a Resize or Resample reads, and their weights.

    Args:
        node: the operation.
        axis: of its operand and result.
        extent: of the operand along that axis.
        dtype: of its elements, which decides how places are rounded.

    Returns:
        (cells, weights): int64 and floats, both of shape (size, taps); of `nearest` one tap of the
        weight 1. None for an axis that is left as it is.
    """
    attributes = node.attributes
    if node.op == "Resample":
        if axis not in attributes["axes"]:
            return None
        begin, weights = resample_window(attributes, axis, extent, dtype)
        return begin[:, None] + np.arange(weights.shape[1]), weights
    size, scale = attributes["sizes"][axis], attributes["scales"][axis]
    if size == extent and scale == 1:
        return None
    mode = attributes["coordinate_transformation_mode"]
    if attributes["mode"] == "nearest":
        cells = nearest_cells(extent, size, scale, mode, attributes["nearest_mode"])[:, None]
        return cells, np.ones(cells.shape)
    return linear_cells(extent, size, scale, mode, dtype.numpy)
