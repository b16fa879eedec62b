"""The codes of all layers' weights."""

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


def all_weight_codes(
    layers: Mapping[str, Layer], values: Mapping[str, Codes], least_error: bool
) -> dict[str, WeightCodes]:
    """Codes of weights by the layers' names.

    Args:
        layers: by name.
        values: codes of what they read, by the values' names.
        least_error: as of `weight_scales`.

    Raises:
        ModelError: a weight is not finite.
    """
    return {name: layer_codes(each, values, least_error) for name, each in layers.items()}


def layer_codes(layer: Layer, values: Mapping[str, Codes], least_error: bool) -> WeightCodes:
    """The codes of a layer's weights."""
    weights = layer.by_channel()
    bias = layer.bias
    if not np.isfinite(weights).all() or not (bias is None or np.isfinite(bias).all()):
        raise ModelError(
            f"node {shown(layer.name)!r} has weights that are NaN or infinite; expected finite ones"
        )
    read = values[layer.node.inputs[0]]
    scales = scales_for_bias(weight_scales(weights, least_error), bias, read.scale)
    return weight_codes(weights, scales)
