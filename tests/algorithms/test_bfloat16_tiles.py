"""Matrix tiles of bfloat16 against float64; their text is looked at on any machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms import select
from leanconv.algorithms.amx import AMX
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.half_arrays import as_float32, in_memory
from leanconv.reference.direct import convolve
from leanconv.spec import PLAIN, Activation, ConvSpec, Format
from leanconv.target import Target, preset
from leanconv.types import BFLOAT16, FLOAT32, SINGLE, DType, Precision
from support.integer_conv import SHAPES, plain
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.packing import packed_constants

BRAIN = Precision(BFLOAT16, BFLOAT16, FLOAT32, FLOAT32)
MORE = [
    "ic64ih14iw16oc32oh14ow16kh1",
    "mb2ic64ih7oc48oh7kh3ph1pw1",
    "ic256ih15iw19oc64oh8ow10kh1sh2sw2",
    "ic60ih9iw12oc16oh9ow10kh3ph2dh2pw1",  # the last block of channels is not full
    "ic3ih20iw21oc20oh10ow11kh7sh2sw2ph3pw3",
    "mb2g2ic160ih6iw5oc96oh4ow4kh3kw2",
    "ic7ih9iw30oc16oh9ow8kh1kw7sw4pw3",
]
BLOCKS = Format(16)
HAS_TILES = pytest.mark.skipif(
    "amx_bf16" not in host().extensions, reason="this machine has no such tiles, or gives none"
)


def problem(spec: ConvSpec, x: Format = BLOCKS) -> Problem:
    y = Access.of_format(spec.output_shape, Format(16))
    return Problem.of(spec, Access.of_format(spec.input_shape, x), y, max_error=0.02)


def blocked(tensor: np.ndarray) -> np.ndarray:
    """A tensor (N, C, …) in blocks of 16 channels; beyond the last channel there is NaN."""
    n, c, *spatial = tensor.shape
    padded = np.full((n, -(-c // 16) * 16, *spatial), np.nan, np.float32)
    padded[:, :c] = tensor
    return np.ascontiguousarray(np.moveaxis(padded.reshape(n, -1, 16, *spatial), 2, -1))


def check(
    spec: ConvSpec, target: Target, form: Format = BLOCKS, any_size: tuple[int, ...] = ()
) -> None:
    """Hold the sums to float64, within the error that is stated; `form` is that of the input."""
    rng = np.random.default_rng(3)
    types = spec.precision

    def draw(shape: tuple[int, ...], dtype: DType = FLOAT32) -> np.ndarray:
        numbers = rng.standard_normal(shape).astype(np.float32)
        return as_float32(in_memory(numbers, dtype), dtype)

    x, w = draw(spec.input_shape, types.x), draw(spec.weight_shape, types.w)
    bias, residual = draw((spec.out_channels,)), draw(spec.output_shape)
    given = replace(problem(spec, form), any_size=any_size)
    made = select.choose(given, target, select.choice_named("amx"))
    channels = {"bias": bias} if spec.bias else {}
    if spec.activation and spec.activation.kind == "prelu":
        channels["slope"] = bias
    roles = packed_constants(made, w, channels)
    assert {n: a.nbytes for n, a in roles.items()} == made.constant_bytes
    roles["x"] = in_memory(blocked(x) if form.block else x, types.x)
    roles["residual"] = blocked(residual)
    roles["y"] = np.full_like(blocked(residual), np.nan)
    (use,) = made.kernels
    cuts = sorted({use.kernel.chunks // 3, use.kernel.chunks // 2})
    found = run_kernel(use.kernel, *(roles[r] for r in use.roles), target=target, parts=cuts)
    wide = [a.astype(np.float64) for a in (x, w)]
    exact = convolve(
        spec,
        *wide,
        bias.astype(np.float64) if spec.bias else None,
        residual.astype(np.float64) if spec.residual else None,
        bias.astype(np.float64) if "slope" in channels else None,
    )
    error = np.abs(plain(found, spec.out_channels) - exact).max() / np.abs(exact).max()
    assert error <= made.choice.error, (error, made.choice.error)


@HAS_TILES
def test_one_code_for_images_of_any_size() -> None:
    for text in (MORE[0], MORE[2], MORE[5]):
        check(ConvSpec.parse(text, precision=SINGLE, bias=True), host(), any_size=(1, 2))


@HAS_TILES
@pytest.mark.parametrize("precision", [SINGLE, BRAIN], ids=str)
def test_sums_keep_the_error_that_is_stated(precision: Precision) -> None:
    for text in [*SHAPES, *MORE] if precision == SINGLE else MORE:
        check(ConvSpec.parse(text, precision=precision, bias=True), host())


@HAS_TILES
@pytest.mark.parametrize("precision", [SINGLE, BRAIN], ids=str)
def test_few_channels_are_read_in_planes(precision: Precision) -> None:
    for text in (
        "ic3ih20iw37oc20oh10ow19kh7sh2sw2ph3pw3",
        "mb2ic1ih9iw5oc5oh9ow5kh3ph1pw1",
        "ic2ih4iw50oc16oh4ow50kh1",
        "ic4ih6iw3oc33oh4ow9kh3kw3ph0pw4",
    ):
        check(ConvSpec.parse(text, precision=precision, bias=True), host(), PLAIN)


@HAS_TILES
@pytest.mark.parametrize("activation", ["relu", "prelu", "hard_swish"])
def test_sums_get_a_residual_and_an_activation(activation: str) -> None:
    for text in (SHAPES[3], MORE[3]):
        spec = ConvSpec.parse(text, residual=True, activation=Activation.parse(activation))
        check(spec, host())


def test_products_are_instructions_in_order() -> None:
    target = preset("sapphirerapids")
    spec = ConvSpec.parse("ic64ih14oc64oh14kh3ph1pw1", bias=True)
    (use,) = AMX.candidate(problem(spec), target).kernels
    text = assembly(use.kernel, target)
    assert "vcvtneps2bf16" in text
    words = ("ldtilecfg", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease")
    places = [text.index(each) for each in words]
    assert places == sorted(places)


def test_tiles_are_chosen_where_their_error_is_accepted() -> None:
    target = preset("sapphirerapids")
    given = problem(ConvSpec.parse("ic64ih28oc64oh28kh3ph1pw1", bias=True))
    found = select.choose(given, target).choice
    assert found.algorithm == "amx"
    assert 0.01 < found.error < 0.02
    assert select.choose(replace(given, max_error=1e-3), target).choice.algorithm != "amx"
    without = replace(target, extensions=("vnni",))
    assert select.choose(given, without).choice.algorithm != "amx"


@pytest.mark.drawn
@HAS_TILES
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "shape", [(2, 7, 9, 5, 21, 3), (1, 40, 6, 11, 33, 1), (1, 3, 12, 8, 16, 3)]
)
def test_arrays_of_any_channels_and_layout(
    layout: str, shape: tuple[int, int, int, int, int, int]
) -> None:
    n, c, h, w, k, kernel = shape
    rng = np.random.default_rng(4)
    x = rng.standard_normal((n, c, h, w)).astype("f4")
    weights = (rng.standard_normal((k, c, kernel, kernel)) / np.sqrt(c * kernel)).astype("f4")
    bias, added = rng.standard_normal(k).astype("f4"), rng.standard_normal((n, k, h, w))
    given = {"padding": kernel // 2, "activation": "relu", "algorithm": "amx", "layout": layout}

    def laid(array: np.ndarray, back: bool = False) -> np.ndarray:
        axes = (0, 1, 2, 3) if layout == "NCHW" else (0, 3, 1, 2) if back else (0, 2, 3, 1)
        return np.ascontiguousarray(array.transpose(axes))

    for residual in (None, added.astype("f4")):
        exact = lc.conv2d(
            x.astype("f8"),
            weights.astype("f8"),
            bias.astype("f8"),
            padding=kernel // 2,
            activation="relu",
            residual=None if residual is None else residual.astype("f8"),
        )
        own = None if residual is None else laid(residual)
        y = laid(lc.conv2d(laid(x), weights, bias, residual=own, **given), back=True)
        assert np.abs(y - exact).max() <= 0.012 * np.abs(exact).max()
