"""Winograd"s minimal filtering F(m, r), fused or in stages."""

from leanconv.algorithms.winograd.algorithm import WINOGRAD

__all__ = ["WINOGRAD"]
