"""Forms of the unfolding methods and of the naive kernel: how many there are; the bits stay."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.select import choice_named, choose
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.spec import Activation
from leanconv.target import Target, preset
from support.covering import dealt
from support.forms import same_bits, texts
from support.small_kernels import problem

EPILOGUE = {"bias": True, "residual": True, "activation": Activation.parse("prelu")}


def kernels_of(
    method: str, text: str, target: Target, blocked: bool, **changes: Any
) -> tuple[Kernel, ...]:
    """The kernels of a method, in order."""
    given = problem(text, target, blocked, **changes)
    return tuple(use.kernel for use in choose(given, target, choice_named(method)).kernels)


def sized(text: str, height: int, width: int, batch: int) -> str:
    return f"mb{batch}{text}ih{height}iw{width}oh{height}ow{width}"


@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize(
    ("method", "stage", "most"),
    [
        ("naive", 0, 1),
        ("im2col:rows=whole", 0, 1),
        ("im2col:rows=whole", 1, 20),  # remainders of a row by several tiles
        ("im2win:rows=whole", 0, 1),
        ("im2win:form=vector", 0, 1),
        ("im2win:form=vector", 1, 1),
    ],
)
def test_sizes_of_images_and_batches_are_no_form(
    method: str, stage: int, most: int, blocked: bool
) -> None:
    target = preset("znver4")
    texts_of = [sized("ic16oc32kh3ph1", 8 + n // 2, n, 2 + n % 3) for n in range(20, 60)]
    kernels = [kernels_of(method, text, target, blocked)[stage] for text in texts_of]
    assert texts(kernels, target) <= most


def test_tiles_of_windows_are_few_forms() -> None:
    """With whole tiles or none, and with a rest or none."""
    target = preset("znver4")
    texts_of = [sized("ic16oc32kh3ph1", 8 + n // 2, n, 2 + n % 3) for n in range(20, 60)]
    kernels = [kernels_of("im2win:form=printed", text, target, False)[1] for text in texts_of]
    assert texts(kernels, target) <= 4


@pytest.mark.parametrize("blocked", [True, False])
def test_mec_unfolds_all_widths_by_one_form(blocked: bool) -> None:
    """The height is in the distance of the unfolded columns."""
    target = preset("znver4")
    texts_of = [sized("ic16oc32kh3ph1", 20, n, 2 + n % 3) for n in range(20, 60)]
    kernels = [kernels_of("mec:solution=B", text, target, blocked)[0] for text in texts_of]
    assert texts(kernels, target) == 1


METHODS = (
    "naive",
    "im2col",
    "im2col:rows=7",
    "im2col:rows=whole",
    "mec:solution=B",
    "mec:rows=2",
    "im2win:rows=2",
    "im2win:form=base",
    "im2win:form=vector",
    "im2win:form=high",
)


OF_PLANES = "im2win:form=printed", "im2col:lanes=pixels", "im2col:lanes=pixels,rows=whole"
CASES = ("ic3oc9kh3ph1", "ic17oc20kh5ph2", "g2ic32oc32kh3ph2dh2")
SIZES = ((5, 7), (9, 16), (7, 37))
# Code and the words that it reads are those of a method, channels and layout, whatever the size.
FORMS = [
    *itertools.product(METHODS, CASES, (True, False)),
    *itertools.product(OF_PLANES, CASES, (False,)),
]


@pytest.mark.drawn
@pytest.mark.parametrize(("method", "text", "blocked", "size"), dealt(FORMS, SIZES))
def test_words_give_the_bits_of_constants(
    method: str, text: str, blocked: bool, size: tuple[int, int]
) -> None:
    generator = np.random.default_rng(size[1])
    for kernel in kernels_of(method, sized(text, *size, 2), host(), blocked, **EPILOGUE):
        most = 4 << 18  # bytes of an operand, more than any of them has
        arrays = [
            np.zeros(1, np.int64)
            if role == "image"
            else generator.standard_normal(most // 4, np.float32)
            for role in kernel.operands
        ]
        arrays[-1][:] = np.nan
        same_bits(kernel, *arrays)
