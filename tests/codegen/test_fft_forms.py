"""Forms of the FFT kernel: how many there are over sizes, and that the bits stay."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.fft.kernel import FftConv
from leanconv.algorithms.fft.packing import weight_calls
from leanconv.algorithms.select import choice_named, choose
from leanconv.codegen.host import host
from leanconv.spec import Activation, ConvSpec
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, DType
from support.covering import dealt
from support.forms import same_bits, texts
from support.packing import made_by
from support.small_kernels import problem

EPILOGUE = {"bias": True, "residual": True, "activation": Activation.parse("prelu")}


def fft(text: str, target: Target, blocked: bool, **changes: Any) -> FftConv:
    """The kernel of tiles of 16, one group of tiles a chunk."""
    given = problem(text, target, blocked, **changes)
    kernel = choose(given, target, choice_named("fft:tile=16")).kernels[0].kernel
    assert isinstance(kernel, FftConv)
    return kernel


def sized(text: str, height: int, width: int, batch: int) -> str:
    return f"mb{batch}{text}ih{height}iw{width}oh{height}ow{width}"


@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("text", ["ic16oc16kh3ph1", "ic16oc16kh5ph2"])
def test_sizes_of_images_and_batches_are_no_form(text: str, blocked: bool) -> None:
    """Tiles of a chunk and of registers, and the outputs computed of a tile, are."""
    target = preset("znver4")
    kernels = [fft(sized(text, 8 + n // 2, n, 2 + n % 3), target, blocked) for n in range(20, 60)]
    kinds = {
        (k.tile, k.block_width, k.splits, k.products, k.height.kept, k.width.kept)
        for k in (kernel.layout for kernel in kernels)
    }
    assert texts(kernels, target) <= len(kinds) + 2  # one row of tiles
    assert len(kinds) < len(kernels) * 2 // 3


IN_PLANES = "g2ic6oc38kh3ph1"  # groups that do not fill blocks of channels
CASES = (
    IN_PLANES,
    "ic5oc9kh3ph1",
    "g20ic20oc20kh5ph2",
    "ic3oc7kh3ph2dh2",
    "ic2oc3kh17ph8",
    "ic4oc20kh5ph2sh2",
)


SIZES = ((5, 7), (13, 17), (9, 33), (40, 29))
# Tiles follow from the size and the kernel; the type only makes lanes of other widths of them.
FORMS = [
    case
    for case in itertools.product(CASES, (True, False), SIZES)
    if not (case[0] == IN_PLANES and case[1])
]


@pytest.mark.drawn
@pytest.mark.parametrize(("text", "blocked", "size", "dtype"), dealt(FORMS, [FLOAT32, FLOAT64]))
def test_fft_words_give_the_bits_of_constants(
    text: str, blocked: bool, size: tuple[int, int], dtype: DType
) -> None:
    height, width = size
    step = 2 if "sh2" in text else 1
    given = f"mb2{text}ih{height}iw{width}oh{-(-height // step)}ow{-(-width // step)}"
    changes = {"dtype": dtype, **EPILOGUE}
    kernel, spec = fft(given, host(), blocked, **changes), ConvSpec.parse(given, **changes)
    generator = np.random.default_rng(height)
    w = generator.standard_normal(spec.weight_shape).astype(dtype)
    channels = kernel.constant_bytes["bias"] // np.dtype(dtype).itemsize
    x, residual = (
        generator.standard_normal(access.image * spec.batch).astype(dtype)
        for access in (kernel.layout.conv.x, kernel.layout.conv.y)
    )
    bias, slope = (generator.standard_normal(channels).astype(dtype) for _ in range(2))
    packed = made_by({"w": weight_calls(kernel.layout, w)})["w"]
    same_bits(kernel, x, packed, bias, residual, slope, np.full_like(residual, np.nan))
