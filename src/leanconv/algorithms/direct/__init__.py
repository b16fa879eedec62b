"""Direct convolution: the plain sum, register-tiled."""

from leanconv.algorithms.direct.algorithm import DIRECT

__all__ = ["DIRECT"]
