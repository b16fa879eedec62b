"""What the sums of a layer read: its input as columns, one for each place of the output."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from leanconv.quantizer.layers import Layer
from leanconv.quantizer.onnx_graph import Array
from leanconv.records import dataclass


@dataclass(frozen=True)
class Windows:
    """How a layer reads its input.

    Attributes:
        groups: their number; channels of each are summed by themselves.
        channels: of the input.
        taps, strides, dilations, pads: of a convolution (pads: before and behind, for each axis);
            None for a product with a matrix.
    """

    groups: int
    channels: int
    taps: tuple[int, ...] | None = None
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, layer: Layer) -> Windows | None:
        """Those of a layer; None where its padding follows from sizes."""
        node, channels = layer.node, layer.input_channels
        if node.op != "Conv":
            return None if layer.transposed else cls(1, channels)
        taps = tuple(layer.weights.shape[2:])
        rank = len(taps)
        ones = (1,) * rank
        pads = node.integers("pads") or (0,) * (2 * rank)
        if node.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or len(pads) != 2 * rank:
            return None
        strides, dilations = node.integers("strides") or ones, node.integers("dilations") or ones
        if len(strides) != rank or len(dilations) != rank or min(pads) < 0:
            return None
        both = tuple((pads[axis], pads[axis + rank]) for axis in range(rank))
        return cls(layer.groups, channels, taps, strides, dilations, both)

    def patches(self, values: Array, most: int) -> Array:
        """What the sums read at some places, float32 `(groups, n, places)`.

        Args:
            values: the layer's input.
            most: how many places, spread evenly.
        """
        if self.taps is None:
            rows = values.reshape(-1, values.shape[-1])
            some = rows[:: max(1, len(rows) // most)][:most]
            return np.ascontiguousarray(some.T)[None]
        rank = len(self.taps)
        padded = np.pad(values, ((0, 0), (0, 0), *self.pads))
        reach = tuple((t - 1) * d + 1 for t, d in zip(self.taps, self.dilations, strict=True))
        windows = sliding_window_view(padded, reach, tuple(range(2, 2 + rank)))
        steps = tuple(slice(None, None, stride) for stride in self.strides)
        holes = tuple(slice(None, None, dilation) for dilation in self.dilations)
        strided: Any = (slice(None), slice(None), *steps, *holes)
        windows = windows[strided]
        shape = windows.shape[2 : 2 + rank]
        count = len(values) * int(np.prod(shape))
        places = np.arange(count)[:: max(1, count // most)][:most]
        image, *where = np.unravel_index(places, (len(values), *shape))
        chosen: Any = (image, slice(None), *where)
        found = windows[chosen]  # (places, channels, *taps)
        grouped = found.reshape(len(places), self.groups, -1)
        return np.ascontiguousarray(np.moveaxis(grouped, 0, 2), np.float32)
