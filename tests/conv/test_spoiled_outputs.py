"""How far NaN, an infinity or a huge number in the input reaches, by algorithm.

The table of docs/algorithms.md, "NaN, infinities and huge numbers", as code.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms import ALGORITHMS
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec
from support.problems import Problem

# Algorithms that multiply transformed numbers: a number spoils the outputs of its tile.
TILES = ("winograd", "fft")
IN_PLACE = tuple(name for name in ALGORITHMS if name not in TILES)
LINES = {
    None: "mb2ic5ih20iw23oc18kh3ph1",
    "stride": "mb2ic5ih20iw23oc18kh3sh2ph1",
    "groups": "mb2g16ic16ih20iw23oc16kh3ph1",
}
PLACES = ((0, 1, 0, 0), (0, 3, 9, 11), (0, 4, 19, 22))


def run(algorithm: str, spec: ConvSpec, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What an algorithm gives, channels first."""
    last = spec.layout == "NHWC"
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x
    options = Problem(spec, 0).options
    y = lc.plan_conv2d(given.shape, w, algorithm=algorithm, threads=1, **options)(given)
    return np.moveaxis(y, -1, 1) if last else y


def problem_of(algorithm: str, form: str | None) -> tuple[ConvSpec, np.ndarray, np.ndarray]:
    line = LINES["groups" if algorithm in ("depthwise", "separable") else form]
    layout = "NHWC" if algorithm == "depthwise" else "NCHW"
    spec = ConvSpec.parse(line, layout=layout)
    random = np.random.default_rng(7)
    shape = (spec.batch, spec.in_channels, *spec.size)
    x, w = (random.standard_normal(s).astype("f4") for s in (shape, spec.weight_shape))
    return spec, x, w


def reached(spec: ConvSpec, place: tuple[int, ...]) -> np.ndarray:
    """The outputs whose windows hold an element of x."""
    plain = replace(spec, layout="NCHW", bias=False)
    one = np.zeros((spec.batch, spec.in_channels, *spec.size))
    one[place] = 1
    return convolve(plain, one, np.ones(spec.weight_shape)) != 0


@pytest.mark.drawn
@pytest.mark.pairs
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
@pytest.mark.parametrize("form", LINES)
@pytest.mark.parametrize("algorithm", IN_PLACE)
def test_a_plain_sum_reaches_the_windows_that_hold_it_and_nothing_else(
    algorithm: str, form: str | None, value: float
) -> None:
    spec, x, w = problem_of(algorithm, form)
    clean = run(algorithm, spec, x, w)
    for place in PLACES:
        spoiled = x.copy()
        spoiled[place] = value
        inside = reached(spec, place)
        found = run(algorithm, spec, spoiled, w)
        np.testing.assert_array_equal(found[~inside], clean[~inside])
        if algorithm == "separable":  # terms of both signs may be infinite, or overflow
            assert np.isfinite(value) or not np.isfinite(found[inside]).any()
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            exact = convolve(replace(spec, layout="NCHW"), spoiled.astype("f8"), w.astype("f8"))
            exact = exact.astype("f4")
        np.testing.assert_allclose(found[inside], exact[inside], rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
@pytest.mark.parametrize("form", [None, "stride"])
@pytest.mark.parametrize("algorithm", ["winograd:m=4", "winograd:form=stages,m=2", "fft:tile=16"])
def test_a_transform_spoils_the_tile_but_hides_nothing(
    algorithm: str, form: str | None, value: float
) -> None:
    """Outputs beyond the tile keep their bits; none that should not be finite looks as if it were.

    A huge number leaves errors in its tile that are relative to itself.
    """
    spec, x, w = problem_of(algorithm, form)
    clean = run(algorithm, spec, x, w)
    extent = 16 if "fft" in algorithm else 4  # outputs of a tile along an axis, at most
    for place in PLACES:
        spoiled = x.copy()
        spoiled[place] = value
        inside = reached(spec, place)
        found = run(algorithm, spec, spoiled, w)
        near = np.zeros_like(inside)
        for i, j in np.argwhere(inside[0].any(axis=0)):
            rows, columns = (slice(max(0, n - extent + 1), n + extent) for n in (i, j))
            near[0, :, rows, columns] = True
        np.testing.assert_array_equal(found[~near], clean[~near])
        if np.isfinite(value):
            large = np.abs(found[inside]) > 1e-6 * value
            assert (large | ~np.isfinite(found[inside])).all()
        else:
            assert not np.isfinite(found[inside]).any()
