"""What is done to an output after the network: dtypes that it is converted to, places of extremes.

Kernels give floats. A network may end in a Cast, or in ArgMax, as segmenters do; that is done on
the arrays that the kernels wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leanconv.graph.ops.base import Array
from leanconv.records import dataclass
from leanconv.types import INT64, DType


@dataclass(frozen=True)
class Extreme:
    """ArgMax or ArgMin: where along an axis the largest or the smallest number is, int64.

    Attributes:
        axis: may be negative, as in the file.
        keepdims: whether the axis stays, with extent 1.
        last: whether the last of equal numbers counts; otherwise the first.
        least: the smallest number instead of the largest.
    """

    axis: int
    keepdims: bool
    last: bool
    least: bool

    def of(self, x: Array) -> Array:
        """The places in an array."""
        find = np.argmin if self.least else np.argmax
        if not self.last:
            return np.asarray(find(x, self.axis, keepdims=self.keepdims), np.int64)
        found = find(np.flip(x, self.axis), self.axis, keepdims=self.keepdims)
        return np.asarray(x.shape[self.axis] - 1 - found, np.int64)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the result for an array of a shape."""
        axis = self.axis % len(shape)
        return (*shape[:axis], *((1,) if self.keepdims else ()), *shape[axis + 1 :])


Conversion = DType | Extreme


def converted(x: Array, steps: Sequence[Conversion]) -> Array:
    """An array after some steps, by ONNX's rules: to integers by truncation.

    What a dtype does not hold becomes infinite, or any integer, without a warning, as in ONNX.
    """
    with np.errstate(all="ignore"):
        for step in steps:
            x = step.of(x) if isinstance(step, Extreme) else x.astype(step, order="C", copy=False)
    return x


def result_dtype(steps: Sequence[Conversion], dtype: DType) -> DType:
    """The dtype of an array of `dtype` after some steps."""
    if not steps:
        return dtype
    return INT64 if isinstance(steps[-1], Extreme) else steps[-1]


def result_shape(steps: Sequence[Conversion], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an array after some steps."""
    for step in steps:
        shape = step.shape(shape) if isinstance(step, Extreme) else shape
    return shape
