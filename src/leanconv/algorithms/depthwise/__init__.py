"""Depthwise and narrow grouped convolution, lanes along the channels."""

from leanconv.algorithms.depthwise.algorithm import DEPTHWISE

__all__ = ["DEPTHWISE"]
