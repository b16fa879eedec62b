"""Transposed convolutions as a product whose results are added where they overlap."""

from leanconv.algorithms.col2im.algorithm import NAME, candidate, cost, refusal

__all__ = ["NAME", "candidate", "cost", "refusal"]
