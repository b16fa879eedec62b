"""Forms of the Winograd kernels: how many there are over sizes, and that the bits stay."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.select import choice_named, choose
from leanconv.algorithms.winograd.kernel import WinogradConv
from leanconv.algorithms.winograd.stages import PointProducts, Scatter
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.spec import Activation, ConvSpec
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, DType
from support.covering import dealt
from support.forms import same_bits, shared, texts
from support.packing import packed_constants
from support.small_kernels import problem

EPILOGUE = {"bias": True, "residual": True, "activation": Activation.parse("prelu")}
FUSED = "winograd:m=4x4,tiles=4,rows=2,vectors=1,edges=whole"
STAGES = "winograd:form=stages,m=4x4"
CASES = ("g2ic6oc38kh3ph1", "ic20oc37kh3ph1sh2", "ic4oc20kh5ph2", "ic17oc33kh3ph1")


def winograd(text: str, target: Target, blocked: bool, choice: str, **changes: Any) -> Candidate:
    return choose(problem(text, target, blocked, **changes), target, choice_named(choice))


def sized(text: str, height: int, width: int, batch: int) -> str:
    step = 2 if "sh2" in text else 1
    out = f"oh{-(-height // step)}ow{-(-width // step)}"
    return f"mb{batch}{text}ih{height}iw{width}{out}"


@pytest.mark.parametrize("name", ["znver4", "haswell"])
@pytest.mark.parametrize("blocked", [True, False])
def test_sizes_of_images_and_batches_are_no_form(name: str, blocked: bool) -> None:
    """Whether columns of tiles end with the output is, and whether planes exceed L2."""
    target = preset(name)
    kernels = [
        winograd(sized("ic16oc16kh3ph1", n, 2 * n + 1, 2 + n % 3), target, blocked, FUSED)
        .kernels[0]
        .kernel
        for n in range(20, 60)
    ] + [
        winograd(sized("ic16oc16kh3ph1", 30, n, 2), target, blocked, FUSED).kernels[0].kernel
        for n in range(40, 80, 4)
    ]
    assert texts(kernels, target) <= (2 if blocked else 4)


@pytest.mark.parametrize("blocked", [True, False])
def test_tile_counts_of_stages_are_no_form(blocked: bool) -> None:
    """The register tile of the products is, and the rows that it leaves over."""
    target = preset("znver4")
    given = [sized("ic16oc16kh3ph1", n, 2 * n + 1, 2 + n % 3) for n in range(20, 60)]
    uses = [winograd(text, target, blocked, STAGES).kernels for text in given]
    counts = [texts((use[i].kernel for use in uses), target) for i in range(3)]
    assert counts[0] == counts[2] == 1
    products = [use[1].kernel for use in uses]
    kinds = {(p.whole.tile, p.last.conv.window.out[2] % p.whole.tile.rows) for p in products}
    assert counts[1] <= 2 * len(kinds)


def test_two_sizes_share_one_form() -> None:
    kernels = [
        winograd(sized("ic16oc16kh3ph1", *size), host(), True, FUSED).kernels[0].kernel
        for size in ((24, 23, 2), (41, 37, 5), (90, 14, 3))
    ]
    assert shared(kernels)


CHOICES = (FUSED, "winograd:m=2x4,edges=whole", "winograd:m=4x4,edges=narrow", STAGES)
SIZES = (((6, 9), FLOAT32), ((13, 17), FLOAT64), ((14, 3), FLOAT32))
# Code and the words that it reads are those of a choice, channels and layout, whatever the size.
FORMS = [
    case
    for case in itertools.product(CASES, CHOICES, (True, False))
    if not (case[0][0] == "g" and case[2])  # groups that do not fill blocks of channels
]


@pytest.mark.drawn
@pytest.mark.parametrize(("text", "choice", "blocked", "sized_as"), dealt(FORMS, SIZES))
def test_winograd_words_give_the_bits_of_constants(
    text: str, choice: str, blocked: bool, sized_as: tuple[tuple[int, int], DType]
) -> None:
    size, dtype = sized_as
    for batch in (1, 3):
        given = sized(text, *size, batch)
        candidate = winograd(given, host(), blocked, choice, dtype=dtype, **EPILOGUE)
        for use in candidate.kernels:
            values = operands(given, candidate, use.kernel, dtype)
            same_bits(use.kernel, *(values[role] for role in use.roles[:-1]), values["y"])


def operands(given: str, candidate: Candidate, kernel: Kernel, dtype: str) -> dict[str, np.ndarray]:
    """Random operands by role, y full of NaN and as large as what the kernel writes."""
    spec, generator = ConvSpec.parse(given, **EPILOGUE), np.random.default_rng(1)
    shape = kernel.shape if isinstance(kernel, WinogradConv) else candidate.kernels[0].kernel.shape
    sizes = {role: size // np.dtype(dtype).itemsize for role, size in candidate.temporaries.items()}
    sizes |= {"x": shape.conv.x.image * spec.batch, "residual": shape.conv.y.image * spec.batch}
    values = {role: generator.standard_normal(size).astype(dtype) for role, size in sizes.items()}
    written = {Scatter: "V", PointProducts: "M"}.get(type(kernel), "residual")
    w = generator.standard_normal(spec.weight_shape).astype(dtype)
    channels = dict.fromkeys(("bias", "slope"), w[:, 0, 0, 0] * 2)
    values |= packed_constants(candidate, w, channels)
    return values | {"y": np.full_like(values[written], np.nan)}
