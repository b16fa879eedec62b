"""Batches of images that give one pixel each, as the pixels of one image."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TypeVar

from leanconv.algorithms.common.grouped_conv import GroupedConv
from leanconv.codegen.geometry import Window

K = TypeVar("K", bound=GroupedConv)


def gives_pixels(window: Window) -> bool:
    """Whether every image gives one pixel, and its window lies inside it."""
    return prod(window.out) == 1 and window.pad == (0, 0, 0)


def batch_as_columns(kernel: K) -> K:
    """A batch of such images as one row, whose columns are the images.

    The window then covers depth and height; the width becomes a part of the height, where it is one
    tap or there is no depth; the kernel is as it was where it cannot.
    """
    window = kernel.window
    if window.kernel[2] != 1 and window.kernel[0] != 1:
        return kernel
    a, b = (1, 2) if window.kernel[2] != 1 else (0, 1)  # (kh, kw) -> (kd, kh)
    size = window.size[a], window.size[b], kernel.batch
    taps = window.kernel[a], window.kernel[b], 1
    dilation = window.dilation[a], window.dilation[b], 1
    spatial = kernel.x.spatial[a], kernel.x.spatial[b], kernel.x.image
    out = 1, 1, kernel.batch
    return replace(
        kernel,
        batch=1,
        window=Window(size, out, taps, (1, 1, 1), dilation, (0, 0, 0)),
        x=replace(kernel.x, spatial=spatial, image=0),
        y=replace(kernel.y, spatial=(0, 0, kernel.y.image), image=0),
    )
