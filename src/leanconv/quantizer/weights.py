"""The nearest codes of a layer's weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.onnx_names import shown
from leanconv.quantizer.codes import (
    Codes,
    WeightCodes,
    scales_for_bias,
    weight_codes,
    weight_scales,
)
from leanconv.quantizer.layers import Layer
from leanconv.quantizer.onnx_graph import Array


def layer_codes(
    layer: Layer, values: Mapping[str, Codes], least_error: bool, order: Array | None
) -> WeightCodes:
    """The codes of a layer's weights.

    Args:
        layer: with its weights.
        values: codes of what layers read, by the values' names.
        least_error, order: as of `weight_scales`.

    Raises:
        ModelError: a weight is not finite.
    """
    weights = layer.by_channel()
    bias = layer.bias
    if not np.isfinite(weights).all() or not (bias is None or np.isfinite(bias).all()):
        raise ModelError(
            f"node {shown(layer.name)!r} has weights that are NaN or infinite; expected finite ones"
        )
    read = values[layer.node.inputs[0]]
    scales = scales_for_bias(weight_scales(weights, least_error, order), bias, read.scale)
    return weight_codes(weights, scales, order)
