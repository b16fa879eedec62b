"""Convolution algorithms, a sub-package for each method, all on the same micro-kernel."""

from collections.abc import Mapping
from typing import Any

from leanconv.algorithms.interface import Algorithm, Candidate
from leanconv.algorithms.problem import Problem
from leanconv.lazy_imports import Late, named


def _table(places: Mapping[str, str]) -> Late[Algorithm[Any]]:
    return Late(places, lambda name: named(places[name]))


# Each by its name, imported when it is first considered.
ALGORITHMS = _table(
    {
        "depthwise": "leanconv.algorithms.depthwise.DEPTHWISE",
        "planar": "leanconv.algorithms.planar.PLANAR",
        "direct": "leanconv.algorithms.direct.DIRECT",
        "winograd": "leanconv.algorithms.winograd.WINOGRAD",
        "sparse": "leanconv.algorithms.sparse.SPARSE",
        "separable": "leanconv.algorithms.separable.SEPARABLE",
        "fft": "leanconv.algorithms.fft.FFT",
        "naive": "leanconv.algorithms.naive.NAIVE",
        "im2col": "leanconv.algorithms.unfold.IM2COL",
        "mec": "leanconv.algorithms.unfold.MEC",
        "im2win": "leanconv.algorithms.unfold.IM2WIN",
    }
)
# What a problem must say of its weights for an algorithm to take fewer products than taps.
BY_WEIGHTS = {"sparse": "zeros", "separable": "factors"}
# Algorithms that need instructions of some processors, and blocks of channels.
MACHINE_ALGORITHMS = _table({"amx": "leanconv.algorithms.amx.AMX"})
# Methods of the gradient of the weights: see `spec.conv.Propagation`.
WEIGHT_GRADIENTS = _table(
    {
        "depthwise": "leanconv.algorithms.weight_gradient.DEPTHWISE",
        "direct": "leanconv.algorithms.weight_gradient.DIRECT",
        "winograd": "leanconv.algorithms.weight_gradient.WINOGRAD",
        "naive": "leanconv.algorithms.weight_gradient.NAIVE",
        "im2col": "leanconv.algorithms.weight_gradient.IM2COL",
        "mec": "leanconv.algorithms.weight_gradient.MEC",
    }
)

__all__ = [
    "ALGORITHMS",
    "BY_WEIGHTS",
    "MACHINE_ALGORITHMS",
    "WEIGHT_GRADIENTS",
    "Algorithm",
    "Candidate",
    "Problem",
]
