"""Attributes of pools, and numbers in which several are equal."""

from __future__ import annotations

from typing import Any

import numpy as np

from leanconv.types import DType


def window(
    kernel: tuple[int, ...],
    strides: tuple[int, ...] = (),
    pads: tuple[int, ...] = (),
    dilations: tuple[int, ...] = (),
    ceil: bool = False,
    include: bool = False,
) -> dict[str, Any]:
    """A pool's attributes in normal form; what is left out is 1, padding 0."""
    rank = len(kernel)
    return {
        "kernel_shape": kernel,
        "strides": strides or (1,) * rank,
        "pads": pads or (0,) * (2 * rank),
        "dilations": dilations or (1,) * rank,
        "ceil_mode": ceil,
        "count_include_pad": include,
    }


def with_ties(shape: tuple[int, ...], dtype: DType, seed: int, ends: int) -> np.ndarray:
    """A few different numbers, so that there are ties; one in `ends` is an end of the type."""
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 6, shape).astype(dtype)
    extremes = [np.inf, -np.inf] if dtype.is_float else [dtype.low, dtype.high]
    chosen = generator.integers(0, ends, shape) == 0
    return np.where(chosen, generator.choice(np.array(extremes, dtype), shape), x).astype(dtype)
