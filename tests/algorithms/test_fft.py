"""Convolution by Fourier transforms: every shape it takes, its bytes, its error, its refusals."""

from __future__ import annotations

import dataclasses
from math import prod, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import leanconv as lc
from leanconv.algorithms.fft.algorithm import FFT
from leanconv.algorithms.fft.kernel import FftConv
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.select import choice_named, choose
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec, Format
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.packing import packed_constants

pytestmark = pytest.mark.vectors

KERNELS = st.sampled_from([1, 2, 3, 5, 7, 8, 11, 16, 17, 18, 31])
SIZES = st.sampled_from([1, 2, 5, 13, 15, 16, 17, 23, 31, 40])
FEW = st.sampled_from([1, 2, 3, 7, 8, 9, 15, 16, 17, 20, 33])


def draw(seed: int, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@st.composite
def specs(draw_one: st.DrawFn) -> ConvSpec:
    """A convolution that is not rejected."""
    kind = draw_one(st.sampled_from(["dense", "dense", "grouped", "depthwise"]))
    groups = {"dense": 1, "grouped": draw_one(st.integers(2, 3))}.get(kind) or draw_one(FEW) + 1
    inputs, outputs = (1, 1) if kind == "depthwise" else (draw_one(FEW), draw_one(FEW))
    axes = []
    for _ in range(2):
        size, kernel = draw_one(SIZES), draw_one(KERNELS)
        stride = draw_one(st.sampled_from([1, 1, 1, 2, 3]))
        dilation = draw_one(st.sampled_from([1, 1, 2, 3]))
        reach = (kernel - 1) * dilation
        begin, end = draw_one(st.integers(0, reach)), draw_one(st.integers(0, reach))
        axes.append((size, kernel, stride, dilation, begin, max(end, reach + 1 - size - begin)))
    size, kernel, stride, dilation, begin, end = zip(*axes, strict=True)
    spec = ConvSpec(
        draw_one(st.integers(1, 3)),
        groups * inputs,
        groups * outputs,
        size,
        kernel,
        stride,
        dilation,
        begin,
        end,
        groups,
        draw_one(st.sampled_from([FLOAT32, FLOAT64])),
        draw_one(st.sampled_from(["NCHW", "NHWC"])),
        draw_one(st.booleans()),
        draw_one(st.booleans()),
    )
    assume(spec.flops < 2e8)
    return spec


def plan_of(spec: ConvSpec, algorithm: str, **options: Any) -> tuple[lc.ConvPlan, list[Any]]:
    """The plan, and its x, w, bias and residual."""
    shapes = (spec.input_shape, spec.weight_shape, (spec.out_channels,), spec.output_shape)
    there = (True, True, spec.bias, spec.residual)
    arrays = [
        draw(i, shape, spec.dtype) if has else None
        for i, (shape, has) in enumerate(zip(shapes, there, strict=True))
    ]
    plan = lc.plan_conv2d(
        spec.input_shape,
        arrays[1],
        arrays[2],
        stride=spec.stride,
        padding=spec.pad_begin + spec.pad_end,
        dilation=spec.dilation,
        groups=spec.groups,
        layout=spec.layout,
        residual=spec.residual,
        algorithm=algorithm,
        **options,
    )
    return plan, arrays


def deviation(spec: ConvSpec) -> float:
    """Standard deviation of the outputs on normal data, where the most taps meet the image.

    Of one output or a few the largest may be anything, next to nothing too; what is stated is
    relative to the largest of many, some three of these.
    """
    one = dataclasses.replace(
        spec, batch=1, in_channels=1, out_channels=1, groups=1, bias=False, residual=False
    )
    products = convolve(one, np.ones(one.input_shape), np.ones(one.weight_shape)).max()
    return sqrt(spec.in_channels // spec.groups * float(products))


def check(spec: ConvSpec, algorithm: str, threads: int = 1) -> float:
    """Run and compare; the error as a part of the one that is stated."""
    plan, (x, w, bias, residual) = plan_of(spec, algorithm, threads=threads)
    out = np.full(spec.output_shape, np.nan, spec.dtype)
    plan(x, out=out, residual=residual)
    wider = np.float64 if spec.dtype == "float32" else np.longdouble  # whose own error is less
    exact = [None if a is None else a.astype(wider) for a in (x, w, bias, residual)]
    expected = convolve(spec, *exact)
    largest = max(float(np.abs(expected).max()), 2 * deviation(spec)) or 1.0
    error = float(np.abs(out - expected).max()) / largest
    assert error <= plan.predicted_error, (spec, plan.explain())
    assert plan.used_bytes == plan.memory_bytes
    assert plan.workspace_bytes % threads == 0
    return error / plan.predicted_error


@settings(max_examples=24, deadline=None, suppress_health_check=list(HealthCheck))
@given(spec=specs(), tile=st.sampled_from([None, 16, 32]), products=st.sampled_from([3, 4]))
def test_any_convolution(spec: ConvSpec, tile: int | None, products: int) -> None:
    depthwise = spec.in_channels == spec.groups > 1
    options = ([f"tile={tile}"] if tile else []) + ([] if depthwise else [f"products={products}"])
    check(spec, "fft:" + ",".join(options) if options else "fft", threads=1 + spec.batch % 2)


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("ic64ih28oc48oh28kh7ph3", "fft:tile=16,products=4"),
        ("mb2ic20ih30iw45oc33oh30ow45kh11ph5", "fft:tile=32,products=3"),
        ("ic5ih40oc17oh40kh31ph15", "fft:tile=16"),
        ("g40ic40ih33oc40oh33kh31ph15", "fft"),
    ],
)
def test_error_is_stated_within_a_factor_of_a_hundred(text: str, algorithm: str) -> None:
    assert check(ConvSpec.parse(text), algorithm) > 0.01


def direct_spec(**changes: Any) -> ConvSpec:
    values: dict[str, Any] = {
        "batch": 2,
        "in_channels": 20,
        "out_channels": 20,
        "size": (19, 22),
        "kernel": (5, 5),
        "stride": (1, 1),
        "dilation": (1, 1),
        "pad_begin": (2, 2),
        "pad_end": (2, 2),
        "groups": 1,
        "precision": FLOAT32,
    }
    return ConvSpec(**{**values, **changes})


def blocked(array: np.ndarray, lanes: int, filler: float) -> np.ndarray:
    """An array (N, C, H, W) as (N, blocks, H, W, lanes), the unused lanes filled."""
    n, c, h, w = array.shape
    blocks = -(-c // lanes)
    padded = np.full((n, blocks * lanes, h, w), filler, array.dtype)
    padded[:, :c] = array
    return np.ascontiguousarray(padded.reshape(n, blocks, lanes, h, w).transpose(0, 1, 3, 4, 2))


@pytest.mark.parametrize(("groups", "x_blocked"), [(1, True), (1, False), (20, True)])
@pytest.mark.parametrize("kernel", [5, 18])
def test_blocks_of_channels_and_garbage_in_their_unused_lanes(
    groups: int, x_blocked: bool, kernel: int
) -> None:
    spec = direct_spec(groups=groups, kernel=(kernel, kernel), pad_begin=(9, 9), pad_end=(8, 8))
    lanes = host().lanes(FLOAT32)
    in_shape = (2, 20, *spec.size)
    out_shape = (2, 20, *spec.output_size)
    x_format = Format(lanes if x_blocked else 0)
    problem = Problem.of(
        spec, Access.of_format(in_shape, x_format), Access.of_format(out_shape, Format(lanes))
    )
    candidate = FFT.candidate(problem, host())
    x, w = draw(1, in_shape), draw(2, spec.weight_shape)
    stored = blocked(x, lanes, np.nan) if x_blocked else x
    y = np.full(blocked(np.zeros(out_shape, np.float32), lanes, 0).shape, np.nan, np.float32)
    packed = packed_constants(candidate, w)["w"]
    got = run_kernel(candidate.kernels[0].kernel, stored, packed, y, parts=[1])
    back = got.transpose(0, 1, 4, 2, 3).reshape(2, -1, *spec.output_size)[:, :20]
    expected = convolve(spec, x.astype(np.float64), w.astype(np.float64))
    assert np.abs(back - expected).max() <= candidate.choice.error * np.abs(expected).max()


@pytest.mark.parametrize("activation", ["relu", "prelu", "gelu"])
def test_epilogue(activation: str) -> None:
    x, w, bias = draw(0, (1, 5, 20, 30)), draw(1, (18, 5, 7, 7)), draw(2, (18,))
    slope = draw(3, (18,)) if activation == "prelu" else None
    options: dict[str, Any] = {"padding": 3, "activation": activation, "slope": slope}
    got = lc.conv2d(x, w, bias, algorithm="fft", **options)
    expected = lc.conv2d(x, w, bias, algorithm="direct", **options)
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_a_residual_may_be_the_output() -> None:
    spec = direct_spec(residual=True)
    plan, (x, _, _, residual) = plan_of(spec, "fft")
    expected = plan(x, residual=residual)
    np.testing.assert_array_equal(plan(x, out=residual, residual=residual), expected)


@pytest.mark.parametrize("groups", [1, 20])
def test_threads_and_batch_do_not_change_bits(groups: int) -> None:
    kernel = {"kernel": (18, 18), "pad_begin": (9, 9), "pad_end": (8, 8)}
    spec = direct_spec(batch=3, groups=groups, **kernel)
    alone = direct_spec(batch=1, groups=groups, **kernel)
    plan, (x, w, _, _) = plan_of(spec, "fft", threads=2)
    y = plan(x)
    one, _ = plan_of(spec, "fft", threads=1)
    np.testing.assert_array_equal(one(x), y)
    arithmetic = str(FFT.candidate(_problem(alone), host()).choice)
    whole = lc.conv2d(x, w, padding=(9, 9, 8, 8), groups=groups, algorithm=arithmetic)
    for n in range(3):
        image = x[n : n + 1]
        single = lc.conv2d(image, w, padding=(9, 9, 8, 8), groups=groups, algorithm=arithmetic)
        np.testing.assert_array_equal(single, whole[n : n + 1])


def _problem(spec: ConvSpec) -> Problem:
    return Problem.of(spec, Access.planes(spec.input_shape), Access.planes(spec.output_shape))


def test_workspace_does_not_grow_with_the_image() -> None:
    """It is that of a block, which is 32 tiles at most."""

    def workspace(size: int, target: Target, text: str = "fft:tile=16") -> int:
        spec = ConvSpec.parse(f"ic32ih{size}oc32oh{size}kh7ph3")
        return choose(_problem(spec), target, choice_named(text)).workspace_bytes(threads=1)

    for target in (host(), preset("haswell"), preset("znver4"), preset("sapphirerapids")):
        one = max(workspace(8, target, f"fft:tile=16,products={n}") for n in (3, 4))
        assert all(workspace(size, target) <= 32 * one for size in (64, 256, 1024, 4096))
    for size in (64, 256, 1024):
        assert workspace(size, preset("skylake-avx512")) <= 1.5 * 2**20


@pytest.mark.parametrize("products", [3, 4])
@pytest.mark.parametrize(("kernel", "parts"), [(7, 1), (17, 4)])
def test_weights_are_counted(products: int, kernel: int, parts: int) -> None:
    """T*T independent numbers a filter and part, 3 or 4 for 2 of them kept (and 4 real bins)."""
    w = draw(0, (32, 16, kernel, kernel))
    text = f"fft:tile=16,products={products},parts={2 if parts > 1 else 1}x{parts // 2 or 1}"
    plan = lc.plan_conv2d((1, 16, 40, 40), w, algorithm=text)
    numbers = (16 * 16 + 4) // 2 * (3 if products == 3 else 2)
    assert plan.weight_bytes == 4 * 32 * 16 * parts * numbers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "fft:tile=8"}, r"tile is '8'; expected one of 16, 32, 64, 128, 256, image"),
        ({"algorithm": "fft:products=5"}, r"products is '5'; expected 4 or 3"),
        (
            {"algorithm": "fft:parts=2"},
            r"parts is '2'; expected two numbers of at least 1, such as 1x2",
        ),
        (
            {"algorithm": "fft:parts=9x9"},
            r"parts is \(9, 9\) for .*; expected so many",
        ),
        (
            {"algorithm": "fft:products=3", "groups": 4},
            r"products is 3 for a depth.* expected 4",
        ),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    w = draw(0, (4, 4 // options.get("groups", 1), 5, 5))
    with pytest.raises(SpecError, match=message):
        lc.plan_conv2d((1, 4, 20, 20), w, **options)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("ic2ih12oc3oh10kh3", 16),
        ("mb2ic17iw50oc19kh1kw5pw2", 64),
        ("g3ic3ih30iw56oc3kh7ph3", 64),
        ("ic3ih125oc2kh9sh2ph1", 64),
        ("ic1ih90iw20oc2kh3dh1dw1", 64),
    ],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_whole_images_are_one_tile(text: str, length: int, layout: str) -> None:
    spec = ConvSpec.parse(text, layout=layout)
    plan, _ = plan_of(spec, "fft:tile=image", threads=1)
    assert plan.parameters.startswith(f"tile {length}, ")
    assert check(spec, "fft:tile=image") > 0.01


def test_images_too_large_to_be_one_tile_are_refused() -> None:
    w = draw(0, (4, 4, 3, 3))
    with pytest.raises(SpecError, match=r"would transform 300 numbers along an axis; .* 256"):
        lc.plan_conv2d((1, 4, 300, 20), w, algorithm="fft:tile=image")


def test_three_axes_are_refused() -> None:
    with pytest.raises(SpecError, match="three spatial axes"):
        lc.plan_conv2d((1, 4, 9, 9, 9), draw(0, (4, 4, 3, 3, 3)), algorithm="fft")


def test_cost_falls_behind_for_small_kernels_and_leads_for_large_ones() -> None:
    def ratio(kernel: int) -> float:
        pad = (kernel // 2, kernel // 2)
        spec = direct_spec(
            in_channels=64,
            out_channels=64,
            size=(56, 56),
            kernel=(kernel, kernel),
            pad_begin=pad,
            pad_end=pad,
        )
        steps = spec.flops / 2 / host().lanes(FLOAT32) / host().fma_units
        return FFT.cost(_problem(spec), host()) / steps

    assert ratio(1) > 1 > ratio(7) > ratio(11)


@pytest.mark.parametrize("name", ["haswell", "neoverse-n1", "skylake-avx512"])
def test_every_target_is_served(name: str) -> None:
    target = preset(name)
    for groups in (1, 20):
        kernel = FFT.candidate(_problem(direct_spec(groups=groups)), target).kernels[0].kernel
        assert isinstance(kernel, FftConv)
        assert kernel.chunks == kernel.layout.outer * kernel.layout.splits * prod(
            kernel.layout.blocks
        )
        assert "call" not in assembly(kernel, target)


@pytest.mark.presets
def test_narrow_vectors_compute_the_same() -> None:
    target, spec = preset("haswell"), direct_spec()
    candidate = FFT.candidate(_problem(spec), target)
    x, w = draw(0, spec.input_shape), draw(1, spec.weight_shape)
    y = np.full(spec.output_shape, np.nan, np.float32)
    packed = packed_constants(candidate, w)["w"]
    got = run_kernel(candidate.kernels[0].kernel, x, packed, y, target=target)
    expected = convolve(spec, x.astype(np.float64), w.astype(np.float64))
    assert np.abs(got - expected).max() <= candidate.choice.error * np.abs(expected).max()
