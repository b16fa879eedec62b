"""The one convolution of an ONNX file, for engines that are told of it by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


@dataclass(frozen=True)
class OneConv:
    """A two-dimensional convolution without bias.

    Attributes:
        weight: (K, C / groups, kh, kw).
        strides, dilations: (h, w); dilation 1 is dense.
        pads: (top, left, bottom, right).
        groups: channel groups.
    """

    weight: np.ndarray
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int

    @staticmethod
    def from_file(file: str) -> OneConv:
        """Read an ONNX file.

        Raises:
            ValueError: the network is anything else.
        """
        graph = onnx.load(file).graph
        if [node.op_type for node in graph.node] != ["Conv"] or len(graph.initializer) != 1:
            raise ValueError("only networks of one convolution without bias")
        attributes: dict[str, Any] = {
            a.name: onnx.helper.get_attribute_value(a) for a in graph.node[0].attribute
        }
        weight = np.array(numpy_helper.to_array(graph.initializer[0]))
        if weight.ndim != 4 or weight.dtype != np.float32:
            raise ValueError("only two spatial axes and float32")
        return OneConv(
            weight,
            tuple(attributes["strides"]),
            tuple(attributes["dilations"]),
            tuple(attributes["pads"]),
            int(attributes["group"]),
        )
