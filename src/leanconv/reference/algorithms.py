"""Every algorithm by name, for any spec: tests compare compiled code with them."""

from __future__ import annotations

from functools import partial

import numpy as np

from leanconv.reference import direct, fft, im2col, im2win, mec, winograd
from leanconv.reference.decompose import Core, convolve_by
from leanconv.spec import ConvSpec

# The end of a name, after a hyphen, is a variant of one algorithm.
CORES: dict[str, Core] = {
    "direct": direct.seven_loops,
    "im2col": im2col.convolve,
    "im2col-rows": partial(im2col.convolve, block=2),
    "mec": mec.convolve,
    "mec-b": partial(mec.convolve, threshold=0),
    "im2win": im2win.convolve,
    "im2win-base": im2win.base,
    "im2win-vector": im2win.reordered,
    "im2win-high": im2win.high_performance,
    "im2win-implicit": im2win.implicit_product,
    "winograd": winograd.convolve,
    "winograd-f2": partial(winograd.convolve, tile=(2, 2)),
    "winograd-f6x2": partial(winograd.convolve, tile=(6, 2)),
    "fft": fft.convolve,
    "fft-16": partial(fft.convolve, size=16),
    "fft-32-gauss": partial(fft.convolve, size=32, multiplications=3),
}


def convolve_as(
    name: str,
    spec: ConvSpec,
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    slope: np.ndarray | None = None,
) -> np.ndarray:
    """Compute a spec by one algorithm; the other arguments as in `direct.convolve`."""
    return convolve_by(CORES[name], spec, x, w, bias, residual, slope)
