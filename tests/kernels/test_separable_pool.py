"""Pools of plain tensors against NumPy: exact for maxima and sums of whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanconv.codegen.host import host
from leanconv.errors import ModelError
from leanconv.kernels import pool
from leanconv.kernels.separable_pool import SeparablePool
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, INT8, UINT8
from support.forms import shared
from support.nodes import Case, integers
from support.pools import window

RUN = [host()] if host().isa == "neon" else [host(), preset("haswell")]
OPS = [("MaxPool", False), ("AveragePool", False), ("AveragePool", True)]
CASES = [
    ((2, 3, 9, 9), window((3, 3), (2, 2), (1, 1, 1, 1))),
    ((1, 2, 8, 70), window((2, 2), (2, 2))),
    ((1, 3, 7, 7), window((7, 7))),
    ((1, 3, 12, 11), window((3, 2), (1, 3), (1, 0, 2, 1), ceil=True)),
    ((1, 2, 13, 14), window((3, 3), (2, 2), (2, 1, 1, 2), (2, 3))),
    ((1, 2, 13, 13), window((13, 13), (1, 1), (6, 6, 6, 6))),
    ((1, 2, 40, 70), window((31, 31), (1, 1), (15, 15, 15, 15))),
    ((1, 2, 5, 70), window((2, 40), (1, 1), (1, 39, 1, 39))),
    ((1, 1, 3, 300), window((1, 20), (1, 11), (0, 19, 0, 19))),
    ((1, 2, 3, 99), window((1, 23), (1, 2), (0, 9, 0, 22), (1, 2))),
    ((1, 2, 3, 131), window((1, 4), (1, 4))),
    ((1, 3, 7, 10), window((4, 1), (3, 1), (1, 0, 2, 0), ceil=True)),
    ((2, 7, 336), window((25,), (1,), (12, 12))),
    ((1, 3, 200), window((100,), (3,), (99, 0))),
    ((2, 3, 4, 5, 6), window((2, 3, 3), (2, 1, 2), (1, 0, 1, 0, 2, 1))),
    ((1, 2, 6, 7, 38), window((3, 3, 3), (2, 2, 2), (1, 1, 1, 1, 1, 1), ceil=True)),
    ((1, 1, 1, 1), window((1, 1))),
    ((1, 2, 4, 4), window((2, 2), (5, 5), (0, 0, 1, 1), ceil=True)),
    ((1, 2, 1, 1), window((2, 2), (1, 1), (2, 2, 2, 2), (2, 2))),  # windows that touch nothing
]


def check(op: str, x: np.ndarray, attributes: dict[str, Any], target: Target) -> None:
    """A maximum is exact; a mean is one division away from an exact sum."""
    case = Case(pool, op, [x], attributes)
    assert isinstance(case.lower(target, False).calls[0].kernel, SeparablePool)
    got, wanted = case.run(target, False), case.expected(FLOAT64 if x.dtype.kind == "f" else None)
    if op == "MaxPool":
        np.testing.assert_array_equal(got, wanted)
    else:
        assert np.abs(got - wanted).max() <= 2 * np.finfo(got.dtype).eps * np.abs(x).max()


@pytest.mark.drawn
@pytest.mark.parametrize(("op", "include"), OPS)
@pytest.mark.parametrize(("shape", "attributes"), CASES, ids=str)
def test_pool(shape: tuple[int, ...], attributes: dict[str, Any], op: str, include: bool) -> None:
    check(op, integers(shape, FLOAT32), {**attributes, "count_include_pad": include}, host())


@pytest.mark.parametrize("number", [0, 5, 8, 15], ids=lambda n: str(CASES[n][0]))
def test_other_types_and_targets(number: int) -> None:
    shape, attributes = CASES[number]
    for dtype in (FLOAT64, INT8, UINT8):
        check("MaxPool", integers(shape, dtype), attributes, host())
    check("AveragePool", integers(shape, FLOAT64), attributes, host())
    for target in (*RUN[1:], preset("neoverse-n1")):
        for op, include in OPS:
            given = {**attributes, "count_include_pad": include}
            check(op, integers(shape, FLOAT32), given, target)


@pytest.mark.parametrize("target", RUN, ids=lambda t: t.name)
def test_widths(target: Target) -> None:
    """Rows of less than a vector, of some; columns of a stride shuffled, or picked one by one."""
    for width in (1, 2, 7, 15, 16, 17, 33, 64, 65, 129):
        for stride, taps in ((1, 3), (2, 9), (3, 2), (9, 12)):
            attributes = window((2, taps), (1, stride), (0, taps - 1, 1, taps - 1))
            x = integers((2, 3, 4, width), FLOAT32)
            for op in ("MaxPool", "AveragePool"):
                check(op, x, attributes, target)


@pytest.mark.parametrize("number", [0, 5, 6, 12, 13, 15], ids=lambda n: str(CASES[n][0]))
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_nan_and_infinities_stay_in_their_windows(op: str, number: int) -> None:
    shape, attributes = CASES[number]
    x = integers(shape, FLOAT32, most=99)
    places = np.random.default_rng(number).permutation(x.size)[: max(3, x.size // 90)]
    x.reshape(-1)[places] = [(np.nan, -np.nan, np.inf)[i % 3] for i in range(len(places))]
    case = Case(pool, op, [x], attributes)
    with np.errstate(invalid="ignore"):
        wanted = case.expected()
    got = case.run(host(), False)
    assert np.isnan(wanted).any()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)
    x[...] = 1e30
    x.reshape(-1)[: x.size // 2] = 1
    got = Case(pool, op, [x], attributes).run(host(), False)
    np.testing.assert_allclose(got, Case(pool, op, [x], attributes).expected(FLOAT64), rtol=1e-6)


def test_any_pool() -> None:
    taken = []

    @st.composite
    def drawn(draw: st.DrawFn) -> tuple[str, tuple[int, ...], dict[str, Any]]:
        axes = []
        for _ in range(draw(st.integers(1, 3))):
            kernel, dilation = draw(st.integers(1, 19)), draw(st.integers(1, 3))
            most = (kernel - 1) * dilation
            pads = draw(st.integers(0, most)), draw(st.integers(0, most))
            axes.append(
                (kernel, draw(st.integers(1, 10)), dilation, *pads, draw(st.integers(1, 39)))
            )
        kernel, strides, dilations, before, after, extents = zip(*axes, strict=True)
        shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *extents)
        ceil, include = draw(st.booleans()), draw(st.booleans())
        attributes = window(kernel, strides, before + after, dilations, ceil, include)
        return draw(st.sampled_from(["MaxPool", "AveragePool"])), shape, attributes

    @settings(max_examples=60, deadline=None)
    @given(drawn())
    def each(case: tuple[str, tuple[int, ...], dict[str, Any]]) -> None:
        op, shape, attributes = case
        try:
            check(op, integers(shape, FLOAT32), attributes, host())
        except ModelError as error:
            if "does not fit an input of extent" not in str(error):
                raise
            return
        taken.append(case)

    each()
    assert len(taken) >= 20


def test_maps_of_all_sizes_share_a_form() -> None:
    def kernel(op: str, planes: int, height: int, width: int) -> SeparablePool:
        x = np.zeros((1, planes, height, width), np.float32)
        attributes = window((3, 9), (1, 2), (1, 4, 1, 4))
        found = Case(pool, op, [x], attributes).lower(host(), False).calls[0].kernel
        assert isinstance(found, SeparablePool)
        return found

    for op in ("MaxPool", "AveragePool"):
        assert shared(kernel(op, *size) for size in ((3, 40, 250), (5, 37, 265), (2, 200, 361)))
