"""Fourier transforms of one channel, or a few that meet no other: lanes are tiles."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms.fft.algorithm import FFT
from leanconv.algorithms.fft.layout import lanes_are_tiles
from leanconv.algorithms.fft.plane_kernel import FftPlanes
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.select import choice_named, choices, choose
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.records import replace
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec, Format
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64, DType
from support.forms import shared

pytestmark = pytest.mark.vectors


def problem_of(spec: ConvSpec, layout: str = "NCHW") -> Problem:
    shapes, form = (spec.input_shape, spec.output_shape), Format.of_layout(layout)
    return Problem.of(spec, *(Access.of_format(shape, form) for shape in shapes))


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("text", "dtype", "algorithm", "layout"),
    [
        ("ic1ih60iw40oc1oh60ow40kh9ph4", FLOAT32, "fft:tile=16", "NCHW"),
        ("mb2ic1ih50iw37oc1oh44ow37kh9kw5ph1pw2", FLOAT32, "fft:tile=16", "NCHW"),
        ("ic1ih50iw50oc1oh50ow50kh21ph10", FLOAT64, "fft:tile=32", "NCHW"),
        ("ic1ih99iw61oc1oh49ow31kh9sh2ph3pw4", FLOAT64, "fft:tile=16", "NCHW"),
        ("ic1ih45iw60oc1oh37ow52kh9dh1ph4pw4", FLOAT32, "fft:tile=16", "NCHW"),
        ("ic1ih40iw3oc1oh40ow3kh9ph4", FLOAT32, "fft:tile=16", "NCHW"),  # rows below a vector
        ("mb3ic1ih1iw1oc1oh1ow1kh9ph4", FLOAT64, "fft:tile=16", "NCHW"),
        ("g3ic3ih30iw41oc3oh30ow41kh11ph5", FLOAT64, "fft:tile=32", "NHWC"),
        ("mb2g3ic3ih30iw41oc3oh30ow41kh31ph15", FLOAT64, "fft:tile=32,parts=2x2", "NCHW"),
        ("ic1ih30iw9oc1oh90ow9kh3ph31pw1", FLOAT32, "fft:tile=16", "NCHW"),  # windows of padding
        ("ic1ih20iw99oc1oh4ow83kh17", FLOAT32, "fft", "NCHW"),
    ],
)
def test_bias_residual_and_activation(text: str, dtype: DType, algorithm: str, layout: str) -> None:
    spec = ConvSpec.parse(text, dtype=dtype, bias=True, residual=True)
    assert lanes_are_tiles(problem_of(spec, layout), host()) or host().lanes(dtype) < 4
    shapes = spec.input_shape, spec.weight_shape, (spec.out_channels,), spec.output_shape
    random = np.random.default_rng(1)
    x, w, bias, residual = (random.standard_normal(shape).astype(dtype) for shape in shapes)
    exact = [each.astype(np.longdouble) for each in (x, w, bias, residual)]
    wanted = np.maximum(convolve(spec, *exact), 0)
    if layout == "NHWC":
        x, residual, wanted = (each.transpose(0, 2, 3, 1).copy() for each in (x, residual, wanted))
    given = spec.stride, spec.pad_begin + spec.pad_end, spec.dilation, spec.groups
    found = []
    for threads in (1, 3):
        plan = lc.plan_conv2d(
            x.shape, w, bias, *given,
            activation="relu", residual=True, algorithm=algorithm, layout=layout, threads=threads,
        )  # fmt: skip
        out = np.full(wanted.shape, np.nan, dtype)
        plan(x, out=out, residual=residual)
        assert np.abs(out - wanted).max() / wanted.max() <= plan.predicted_error
        assert plan.used_bytes == plan.memory_bytes
        found.append(out)
    assert np.array_equal(*found)


def test_which_lanes_are_tiles() -> None:
    for text, expected in (
        ("ic1ih10iw90oc1oh10ow90kh9ph4", True),
        ("g3ic3ih40iw9oc3oh40ow9kh9ph4", True),
        ("g16ic16ih40iw9oc16oh40ow9kh9ph4", False),  # channels fill vectors
        ("ic2ih40iw9oc2oh40ow9kh9ph4", False),
        ("g3ic3ih40iw9oc6oh40ow9kh9ph4", False),
    ):
        assert lanes_are_tiles(problem_of(ConvSpec.parse(text)), preset("znver4")) == expected


def test_large_kernels_are_transformed_by_default() -> None:
    """Transforms become longer with the kernel, and no batch decides them."""
    target = preset("znver4")
    for text, tile in (
        ("ic1ih256iw256oc1oh256ow256kh31ph15", 64),
        ("ic1ih512iw512oc1oh512ow512kh51ph25", 128),
        ("ic1ih2160iw3840oc1oh2160ow3840kh101ph50", 256),
    ):
        chosen = choose(problem_of(ConvSpec.parse(text)), target).choice
        assert str(chosen).startswith(f"fft:tile={tile},"), str(chosen)
    problem = problem_of(ConvSpec.parse("ic1ih2160iw3840oc1oh2160ow3840kh31ph15", dtype=FLOAT64))
    fft = [str(choice) for choice, _ in choices(problem, target) if choice.algorithm == "fft"]
    assert len(fft) == 3
    twice = problem_of(ConvSpec.parse("mb2ic1ih2160iw3840oc1oh2160ow3840kh31ph15", dtype=FLOAT64))
    assert (
        FFT.candidate(twice, target).choice.parameters == choose(problem, target).choice.parameters
    )


def test_sizes_of_images_and_batches_are_no_form() -> None:
    kernels = []
    for batch, height, width in ((2, 40, 50), (5, 77, 31), (2, 300, 1000), (3, 64, 256)):
        text = f"mb{batch}ic1ih{height}iw{width}oc1oh{height}ow{width}kh9ph4"
        spec = ConvSpec.parse(text, dtype=FLOAT32 if host().lanes(FLOAT32) > 1 else FLOAT64)
        problem = replace(problem_of(spec), any_size=(1, 2))
        kernels.append(choose(problem, host(), choice_named("fft:tile=32")).kernels[0].kernel)
    assert all(isinstance(kernel, FftPlanes) for kernel in kernels)
    assert shared(kernels)
