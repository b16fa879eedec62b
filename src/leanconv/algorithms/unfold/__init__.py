"""Unfolding windows into a matrix: im2col, MEC and im2win."""

from leanconv.algorithms.unfold.im2col import IM2COL
from leanconv.algorithms.unfold.im2win import IM2WIN
from leanconv.algorithms.unfold.mec import MEC

__all__ = ["IM2COL", "IM2WIN", "MEC"]
