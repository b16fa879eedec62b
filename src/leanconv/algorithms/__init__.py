"""Convolution algorithms, a sub-package for each method, all on the same micro-kernel."""

from typing import Any

from leanconv.algorithms.depthwise import DEPTHWISE
from leanconv.algorithms.direct import DIRECT
from leanconv.algorithms.fft import FFT
from leanconv.algorithms.interface import Algorithm, Candidate
from leanconv.algorithms.naive import NAIVE
from leanconv.algorithms.planar import PLANAR
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.tiles import AMX
from leanconv.algorithms.unfold import IM2COL, IM2WIN, MEC
from leanconv.algorithms.winograd import WINOGRAD

ALGORITHMS: tuple[Algorithm[Any], ...] = (
    DEPTHWISE,
    PLANAR,
    DIRECT,
    WINOGRAD,
    FFT,
    NAIVE,
    IM2COL,
    MEC,
    IM2WIN,
)
# Those that need instructions of some processors, and blocks of channels.
MACHINE_ALGORITHMS: tuple[Algorithm[Any], ...] = (AMX,)

__all__ = ["ALGORITHMS", "MACHINE_ALGORITHMS", "Algorithm", "Candidate", "Problem"]
