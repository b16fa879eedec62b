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
        "fft": "leanconv.algorithms.fft.FFT",
        "naive": "leanconv.algorithms.naive.NAIVE",
        "im2col": "leanconv.algorithms.unfold.IM2COL",
        "mec": "leanconv.algorithms.unfold.MEC",
        "im2win": "leanconv.algorithms.unfold.IM2WIN",
    }
)
# Algorithms that need instructions of some processors, and blocks of channels.
MACHINE_ALGORITHMS = _table({"amx": "leanconv.algorithms.amx.AMX"})

__all__ = ["ALGORITHMS", "MACHINE_ALGORITHMS", "Algorithm", "Candidate", "Problem"]
