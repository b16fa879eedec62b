"""Resize compiled once for all sizes: what is shared, and that the bits stay."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.codegen.lowered import Lowered
from leanconv.kernels import resize
from leanconv.types import FLOAT32
from support.forms import same_bits, shared
from support.nodes import Case, distinct


def resized(shape: tuple[int, ...], mode: str, scale: float, blocked: bool) -> Lowered:
    scales = (1.0, 1.0) + (scale,) * (len(shape) - 2)
    attributes = {
        "mode": mode,
        "sizes": tuple(int(n * s) for n, s in zip(shape, scales, strict=True)),
        "scales": scales,
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "floor",
    }
    return Case(resize, "Resize", [distinct(shape, FLOAT32)], attributes).lower(host(), blocked)


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_all_sizes_and_scales_share_a_form(mode: str, blocked: bool) -> None:
    sizes = [(1, 96, n, n + 7) for n in range(2, 42)] + [(3, 64, 80, 200), (2, 48, 300, 3)]
    cases = [(shape, scale) for shape in sizes for scale in (2.0, 4.0, 1.5)]
    assert shared(resized(shape, mode, scale, blocked).calls[0].kernel for shape, scale in cases)


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("shape", [(2, 19, 5, 7), (1, 3, 1, 9), (1, 40, 33, 130)], ids=str)
def test_words_give_the_bits_of_constants(shape: tuple[int, ...], mode: str, blocked: bool) -> None:
    lowered = resized(shape, mode, 1.7, blocked)
    kernel = lowered.calls[0].kernel
    x = np.random.default_rng(1).standard_normal(shape[0] * 64 * shape[2] * shape[3], np.float32)
    result = shape[0] * 64 * int(shape[2] * 1.7) * int(shape[3] * 1.7)  # in blocks, and a few more
    y = np.full(result, np.nan, np.float32)
    same_bits(kernel, x, *lowered.constants.values(), y)
