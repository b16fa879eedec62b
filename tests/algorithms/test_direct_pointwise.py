"""1x1 direct convolution of planes: exact on small integers, nothing touched outside, no spills."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.direct.pointwise import DirectPointwise, plan_direct_pointwise
from leanconv.algorithms.direct.shape import PackedConv
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.select import choose
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tiling import Tile
from leanconv.spec import Activation, ConvSpec, Format
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.packing import packed_channels, packed_weights

pytestmark = pytest.mark.vectors

# The form is for many registers; with fewer it is not chosen, but adds up the same.
HERE = replace(host(), registers=max(32, host().registers))
EPILOGUE = {"bias": True, "residual": True, "activation": Activation.parse("prelu")}
SHAPES = [
    "ic5ih2iw4oc3oh2ow4kh1",  # 8 pixels, one part of a vector
    "ic128ih1iw15oc16oh1ow15kh1",
    "ic129ih1iw17oc17oh1ow17kh1",  # a last part of one channel
    "ic300ih7oc40oh7kh1",  # a shorter last part; 49 pixels are a tile of 13 and three of 12
    "ic256ih17oc33oh17kh1",
    "mb2g2ic262ih4iw9oc38oh4ow9kh1",
    "mb3ic384ih5iw13oc16oh5ow13kh1",
]


def problem(spec: ConvSpec, form: Format | None = None) -> Problem:
    x, y = (
        Access.of_format(shape, form) if form else Access.planes(shape)
        for shape in (spec.input_shape, spec.output_shape)
    )
    return Problem.of(spec, x, y)


def pointwise(spec: ConvSpec, target: Target) -> DirectPointwise:
    """The kernel, whether or not the model likes it best."""
    given = problem(spec).conv
    kernel = DirectConv(
        conv=given, lanes=given.lanes(target), tile=Tile(1, 1), rows=1, panels_inside=True
    )
    planned = plan_direct_pointwise(kernel, target)
    assert planned
    return planned[0]


def check(kernel: DirectPointwise, spec: ConvSpec) -> None:
    """Hold a kernel with the whole epilogue to the definition, exactly."""
    generator = np.random.default_rng(5)

    def integers(*shape: int) -> np.ndarray:
        return generator.integers(-4, 5, shape).astype(spec.dtype)

    x, w = integers(*spec.input_shape), integers(*spec.weight_shape)
    bias, slope = integers(spec.out_channels), integers(spec.out_channels)
    residual = integers(*spec.output_shape)
    grouped = x.reshape(spec.batch, spec.groups, -1, spec.size[0] * spec.size[1])
    filters = w.reshape(spec.groups, -1, grouped.shape[2])
    sums = np.einsum("ngcp,gkc->ngkp", grouped, filters).reshape(spec.output_shape)
    sums = sums + bias.reshape(1, -1, 1, 1) + residual
    expected = np.where(sums > 0, sums, sums * slope.reshape(1, -1, 1, 1))
    found = run_kernel(
        kernel,
        x,
        packed_weights(kernel, w[:, :, np.newaxis]),
        packed_channels(kernel, bias),
        residual,
        packed_channels(kernel, slope),
        np.full(spec.output_shape, np.nan, spec.dtype),
        parts=[kernel.chunks // 2],
    )
    assert np.array_equal(found, expected)


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("text", SHAPES)
def test_sums_are_exact(text: str, dtype: str) -> None:
    spec = replace(ConvSpec.parse(text, dtype=dtype), **EPILOGUE)
    kernel = pointwise(spec, HERE)
    check(kernel, spec)
    other = 1 if kernel.chunk_tiles > 1 else kernel.tile_count
    check(replace(kernel, chunk_tiles=other), spec)


def test_tiles_are_even() -> None:
    kernel = pointwise(ConvSpec.parse("ic768ih17oc192oh17kh1"), preset("znver4"))
    assert (kernel.most_pixels, kernel.tile_count, kernel.largest) == (16, 19, 16)
    assert kernel.chunks >= 16
    assert kernel.scratch_bytes == 4 * 16 * 16 * kernel.chunk_tiles


def test_planes_take_it_and_blocks_do_not() -> None:
    target = preset("znver4")

    def chosen(text: str, form: Format | None = None) -> Kernel:
        return (
            choose(problem(ConvSpec.parse(text), form), target, Choice("direct")).kernels[0].kernel
        )

    assert isinstance(chosen("ic768ih17oc192oh17kh1"), DirectPointwise)
    others = (
        chosen("ic768ih17oc192oh17kh1", Format(16)),
        chosen("ic768ih17oc192oh9kh1sh2"),
        chosen("ic768ih17oc192oh17kh3ph1"),
        chosen("ic768ih1oc192oh1kh1"),
    )
    assert not any(isinstance(kernel, DirectPointwise) for kernel in others)


def test_sums_do_not_depend_on_the_form() -> None:
    """Bits of a batch of one map and of small maps must be those of the general kernel."""
    spec = ConvSpec.parse("ic300ih7oc32oh7kh1")
    generator = np.random.default_rng(2)
    x, w = (generator.standard_normal(s, np.float32) for s in (spec.input_shape, spec.weight_shape))
    special = pointwise(spec, HERE)
    given = {each.name: getattr(special, each.name) for each in fields(PackedConv)}
    general = DirectConv(**given, tile=Tile(16, 1), rows=1, panels_inside=False)

    def run(kernel: PackedConv) -> np.ndarray:
        y = np.full(spec.output_shape, np.nan, np.float32)
        return run_kernel(kernel, x, packed_weights(kernel, w[:, :, np.newaxis]), y)

    assert np.array_equal(run(special), run(general))


def test_asking_for_what_follows_changes_nothing() -> None:
    spec = ConvSpec.parse("ic300ih7oc32oh7kh1")
    generator = np.random.default_rng(3)
    x, w = (generator.standard_normal(s, np.float32) for s in (spec.input_shape, spec.weight_shape))
    kernel = pointwise(spec, HERE)
    packed, y = (
        packed_weights(kernel, w[:, :, np.newaxis]),
        np.full(spec.output_shape, np.nan, x.dtype),
    )
    asking = replace(kernel, prefetch_bytes=4 * 4096)
    found = run_kernel(asking, x, packed, np.zeros(4096, np.float32), y)
    assert np.array_equal(found, run_kernel(kernel, x, packed, y))


def test_whole_tiles_are_one_loop() -> None:
    target = preset("znver4")
    kernel = pointwise(ConvSpec.parse("ic512ih28oc256oh28kh1"), target)
    assert kernel.pixels % kernel.most_pixels == 0
    assert assembly(kernel, target).count("vfmadd231ps") == kernel.most_pixels
