"""Convolutions of halves: loads that convert, float32 sums, stores that round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms import select
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.errors import InputError, SpecError
from leanconv.spec import ConvSpec, Format
from leanconv.target import Target, preset
from leanconv.types import Precision
from support.half_conv import BFLOAT16_STORED, FLOAT16_STORED, WEIGHTS_ONLY, check
from support.integer_conv import SHAPES, runnable
from support.listing import assembly

pytestmark = pytest.mark.vectors

DIRECT = select.choice_named("direct")


def problem(spec: ConvSpec, target: Target) -> Problem:
    form = Format(target.channel_block(spec.precision.x))
    x, y = (Access.of_format(shape, form) for shape in (spec.input_shape, spec.output_shape))
    return Problem.of(spec, x, y)


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("precision", [FLOAT16_STORED, BFLOAT16_STORED, WEIGHTS_ONLY], ids=str)
def test_halves_are_convolved_within_the_stated_error(precision: Precision, target: Target) -> None:
    every = target is host() or precision == FLOAT16_STORED
    for number, text in enumerate(SHAPES):
        if every or number % 2 == (precision == WEIGHTS_ONLY):
            spec = ConvSpec.parse(text, precision=precision, bias=True, residual=number % 3 == 1)
            check(spec, target, "direct", number % 2 == 0 or precision == BFLOAT16_STORED)


@pytest.mark.skipif("bf16" not in host().extensions, reason="no products of pairs of bfloat16")
def test_pairs_of_bfloat16_are_multiplied_where_that_is_fast() -> None:
    fast = replace(host(), costs=replace(host().costs, bf16_products=4 * 16 * host().fma_units))
    more = ["ic64ih14iw16oc32oh14ow16kh1", "ic144ih5iw9oc33oh5ow9kh3ph1pw1", "ic256ih5oc16oh5kh1"]
    for number, text in enumerate([*SHAPES, *more]):
        spec = ConvSpec.parse(text, precision=BFLOAT16_STORED, bias=True, residual=number % 3 == 1)
        check(spec, fast, "direct", True)


def test_the_record_decides_whether_pairs_are_multiplied() -> None:
    for name, text in (("znver4", "ic64"), ("sapphirerapids", "ic64"), ("znver4", "ic63")):
        spec = ConvSpec.parse(f"{text}oc64ih14oh14kh3ph1pw1", precision=BFLOAT16_STORED)
        target = preset(name)
        (use,) = select.choose(problem(spec, target), target, DIRECT).kernels
        pairs = (name, text) == ("znver4", "ic64")
        assert ("vdpbf16ps" in assembly(use.kernel, target)) == pairs


def test_arrays_of_halves_give_halves() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 40, 14, 15)), rng.standard_normal((33, 40, 3, 3))
    x16, w16 = x.astype(np.float16), w.astype(np.float16)
    plan = lc.plan_conv2d(x.shape, w16, padding=1, activation="relu")
    y = plan(x16)
    exact = lc.conv2d(x16.astype("f8"), w16.astype("f8"), padding=1, activation="relu")
    assert y.dtype == np.float16
    assert np.abs(y - exact).max() <= plan.predicted_error * np.abs(exact).max()
    wide = lc.plan_conv2d(x.shape, w.astype("f4"), padding=1, activation="relu")
    assert plan.weight_bytes < 0.55 * wide.weight_bytes or wide.algorithm != "direct"
    assert "stored: input, weights and output float16; products and sums float32" in plan.explain()
    assert np.array_equal(lc.conv2d(x16, w16, padding=1, activation="relu"), y)


@pytest.mark.parametrize(("name", "error"), [("float16", 1.1e-3), ("bfloat16", 9e-3)])
def test_weights_alone_are_kept_in_halves(name: str, error: float) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype("f4") for s in ((1, 40, 9, 9), (33, 40, 3, 3)))
    plan = lc.plan_conv2d(x.shape, w, precision=name)
    exact = lc.conv2d(x.astype("f8"), w.astype("f8"))
    assert np.abs(plan(x) - exact).max() <= plan.predicted_error * np.abs(exact).max()
    assert plan.predicted_error <= error
    assert f"weights {name}" in plan.explain()


def test_results_beyond_halves_are_infinite() -> None:
    x, w = np.full((1, 1, 2, 2), 400, np.float16), np.full((2, 1, 1, 1), 400, np.float16)
    w[1] = -400
    assert np.array_equal(lc.conv2d(x, w)[0, :, 0, 0], [np.inf, -np.inf])


def test_other_precisions_are_refused() -> None:
    x, w = np.zeros((1, 1, 3, 3), np.float16), np.zeros((1, 1, 3, 3), np.float16)
    with pytest.raises(SpecError, match="expected None, 'float16' or 'bfloat16'"):
        lc.conv2d(x, w, precision="float32")
    with pytest.raises(SpecError, match="precision is 'bfloat16' for arrays of float16"):
        lc.conv2d(x, w, precision="bfloat16")
    with pytest.raises(InputError, match="x is float32.* expected float16"):
        lc.conv2d(x.astype("f4"), w)
