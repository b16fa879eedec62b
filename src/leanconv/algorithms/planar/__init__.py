"""Convolution with lanes along the output columns, for plain NCHW and narrow groups."""

from leanconv.algorithms.planar.algorithm import PLANAR

__all__ = ["PLANAR"]
