"""Builders of networks as ONNX models with seeded random weights, batch norm unfolded."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from examples.networks.classic import alexnet_like, googlenet_like, squeezenet_like, vgg16
from examples.networks.mobilenet import efficientnet_like, mobilenet_v2, mobilenet_v3_like
from examples.networks.modern import (
    convnext_like,
    densenet_like,
    segmentation_like,
    shufflenet_like,
)
from examples.networks.resnet import resnet50, resnet101, resnext_like

Builder = Callable[..., onnx.ModelProto]

FULL_NETWORKS: dict[str, Builder] = {
    "mobilenetv2": mobilenet_v2,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "vgg16": vgg16,
}
SMALL_NETWORKS: dict[str, Builder] = {
    "alexnet_like": alexnet_like,
    "convnext_like": convnext_like,
    "densenet_like": densenet_like,
    "efficientnet_like": efficientnet_like,
    "googlenet_like": googlenet_like,
    "mobilenet_v3_like": mobilenet_v3_like,
    "resnext_like": resnext_like,
    "segmentation_like": segmentation_like,
    "shufflenet_like": shufflenet_like,
    "squeezenet_like": squeezenet_like,
}
NETWORKS: dict[str, Builder] = {**FULL_NETWORKS, **SMALL_NETWORKS}

__all__ = [
    "FULL_NETWORKS",
    "NETWORKS",
    "SMALL_NETWORKS",
    "Builder",
    "alexnet_like",
    "convnext_like",
    "densenet_like",
    "efficientnet_like",
    "googlenet_like",
    "mobilenet_v2",
    "mobilenet_v3_like",
    "resnet50",
    "resnet101",
    "resnext_like",
    "segmentation_like",
    "shufflenet_like",
    "squeezenet_like",
    "vgg16",
]
