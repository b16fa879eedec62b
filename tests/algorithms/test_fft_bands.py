"""Fourier transforms of one channel: bands of rows side by side in the lanes of a vector."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms.fft.algorithm import FFT
from leanconv.algorithms.fft.bands import bands_of
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.select import choices, choose
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT32, FLOAT64, DType

pytestmark = pytest.mark.vectors


def problem_of(spec: ConvSpec, max_error: float | None = None) -> Problem:
    places = (Access.planes(shape) for shape in (spec.input_shape, spec.output_shape))
    return Problem.of(spec, *places, max_error)


def check(text: str, dtype: DType, algorithm: str) -> None:
    """A convolution, which has bands, with bias, residual and activation."""
    spec = ConvSpec.parse(text, dtype=dtype, bias=True, residual=True)
    assert bands_of(problem_of(spec), host())
    shapes = spec.input_shape, spec.weight_shape, (1,), spec.output_shape
    random = np.random.default_rng(1)
    x, w, bias, residual = (random.standard_normal(shape).astype(dtype) for shape in shapes)
    padding = spec.pad_begin + spec.pad_end
    plan = lc.plan_conv2d(
        x.shape,
        w,
        bias,
        spec.stride,
        padding,
        spec.dilation,
        activation="relu",
        residual=True,
        algorithm=algorithm,
    )
    out = np.full(spec.output_shape, np.nan, dtype)
    plan(x, out=out, residual=residual)
    exact = [each.astype(np.longdouble) for each in (x, w, bias, residual)]
    wanted = np.maximum(convolve(spec, *exact), 0)
    assert np.abs(out - wanted).max() / wanted.max() <= plan.predicted_error
    assert plan.used_bytes == plan.memory_bytes
    again = lc.plan_conv2d(
        x.shape,
        w,
        bias,
        spec.stride,
        padding,
        spec.dilation,
        activation="relu",
        residual=True,
        algorithm=plan.selector,
        threads=1,
    )
    assert np.array_equal(again(x, residual=residual), out)


@pytest.mark.parametrize(
    ("text", "dtype", "algorithm"),
    [
        ("ic1ih300iw40oc1oh300ow40kh9ph4", FLOAT32, "fft:tile=16"),
        ("mb2ic1ih290iw37oc1oh284ow37kh9kw5ph1pw2", FLOAT32, "fft:tile=16"),
        ("ic1ih150iw50oc1oh150ow50kh21ph10", FLOAT64, "fft:tile=32"),
        ("ic1ih330iw61oc1oh164ow31kh9sh2ph3pw4", FLOAT64, "fft:tile=16"),
        ("ic1ih310iw60oc1oh302ow52kh9dh1ph4pw4", FLOAT32, "fft:tile=16"),
        ("ic1ih150iw30oc1oh142ow22kh9", FLOAT64, "fft"),
    ],
)
def test_bands_and_their_edges(text: str, dtype: DType, algorithm: str) -> None:
    check(text, dtype, algorithm)


def test_what_has_no_bands() -> None:
    for text in (
        "ic1ih100iw90oc1oh100ow90kh9ph4",  # too few rows
        "ic2ih400iw9oc2oh400ow9kh9ph4",
        "g2ic2ih400iw9oc2oh400ow9kh9ph4",
        "ic1ih300iw9oc1oh900ow9kh3ph301pw1",  # windows that meet no image
    ):
        assert not bands_of(problem_of(ConvSpec.parse(text)), host())


def test_large_kernels_are_transformed_by_default() -> None:
    """31x31 of an image in float64: bands, no slower method; and tuning sees several lengths."""
    problem = problem_of(ConvSpec.parse("ic1ih2160iw3840oc1oh2160ow3840kh31ph15", dtype=FLOAT64))
    chosen = choose(problem, host()).choice
    assert chosen.algorithm == "fft"
    fft = [str(choice) for choice, _ in choices(problem, host()) if choice.algorithm == "fft"]
    assert len(fft) == 4
    twice = problem_of(ConvSpec.parse("mb2ic1ih2160iw3840oc1oh2160ow3840kh31ph15", dtype=FLOAT64))
    assert FFT.candidate(twice, host()).choice.parameters == chosen.parameters
