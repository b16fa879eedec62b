"""The kernels of the report's ladder: exact on small integers, within their bounds, odd sizes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ladder.kernels import ItemAdd, ItemConv, ItemDense, ItemMean, Items, Plane, RowCopy
from leanconv.codegen.host import host
from leanconv.types import FLOAT32, FLOAT64
from support.kernel_runner import run_kernel

RNG = np.random.default_rng(0)


def integers(plane: Plane, dtype: str) -> np.ndarray:
    """Small integers inside a border of zeros."""
    array = RNG.integers(-4, 5, (plane.channels, plane.height, plane.width)).astype(dtype)
    b = plane.border
    return np.pad(array, ((0, 0), (b, b), (b, b)))


def inside(array: np.ndarray, plane: Plane) -> np.ndarray:
    """The pixels without the border."""
    b = plane.border
    return array[:, b : b + plane.height, b : b + plane.width]


def nothing(plane: Plane, dtype: str) -> np.ndarray:
    return np.full((plane.channels, plane.height + 2 * plane.border, plane.row), np.nan, dtype)


def only_inside(found: np.ndarray, plane: Plane, expected: np.ndarray) -> None:
    """The pixels are as expected, and nothing was written to the border."""
    assert (inside(found, plane) == expected).all()
    if plane.border:
        assert np.isnan(found).sum() == found.size - expected.size


def convolved(x: np.ndarray, w: np.ndarray, stride: int, groups: int) -> np.ndarray:
    """Convolve an image that has its padding already, tap by tap."""
    (k, c, kh, kw), (_, h, width) = w.shape, x.shape
    oh, ow = (h - kh) // stride + 1, (width - kw) // stride + 1
    y = np.zeros((k, oh, ow))
    for j, i, u, v in product(range(k), range(c), range(kh), range(kw)):
        channel = j // (k // groups) * c + i
        taps = x[channel, u : u + (oh - 1) * stride + 1 : stride]
        y[j] += w[j, i, u, v] * taps[:, v : v + (ow - 1) * stride + 1 : stride]
    return y


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("block", [8, 32])
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize(
    ("kernel", "stride", "groups", "size", "border"),
    [
        (3, 1, 1, (9, 7), 0),
        (3, 2, 1, (17, 33), 1),
        (3, 1, 6, (8, 8), 0),
        (3, 2, 6, (31, 15), 1),
        (1, 1, 1, (5, 41), 1),
        (1, 1, 1, (1, 1), 0),
    ],
)
def test_convolution_is_exact_on_integers(
    dtype: str,
    block: int,
    vectors: bool,
    kernel: int,
    stride: int,
    groups: int,
    size: tuple[int, int],
    border: int,
) -> None:
    reach, outputs = kernel // 2, 6 if groups > 1 else 5
    x_plane = Plane(6, *size, reach)
    out = [(extent - 1) // stride + 1 for extent in size]
    y_plane = Plane(outputs, *out, border)
    items = Items(host().lanes(dtype) if vectors else 1, block)
    x = integers(x_plane, dtype)
    w = RNG.integers(-3, 4, (outputs, 6 // groups, kernel, kernel)).astype(dtype)
    bias = RNG.integers(-9, 10, outputs).astype(dtype)
    expected = convolved(x, w, stride, groups) + bias[:, None, None]
    for per_channel, plain, clip in ((True, kernel == 1, False), (False, False, True)):
        conv = ItemConv(
            x_plane, y_plane, kernel, stride, groups, clip, dtype, items, per_channel, plain
        )
        cuts = sorted({conv.chunks // 3, conv.chunks // 2} - {0, conv.chunks})
        found = run_kernel(conv, x, w, bias, nothing(y_plane, dtype), parts=cuts)
        only_inside(found, y_plane, np.clip(expected, 0, 6) if clip else expected)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("width", [1, 7, 16, 35])
def test_copies_and_sums_keep_to_the_inside(dtype: str, width: int) -> None:
    lanes = host().lanes(dtype)
    plain, bordered = Plane(3, 5, width), Plane(3, 5, width, 1)
    a, b = integers(plain, dtype), integers(bordered, dtype)
    copied = run_kernel(RowCopy(plain, bordered, dtype, lanes), a, nothing(bordered, dtype))
    only_inside(copied, bordered, a)
    kernel = ItemAdd(plain, bordered, bordered, dtype, lanes)
    found = run_kernel(kernel, a, b, nothing(bordered, dtype), parts=[4])
    only_inside(found, bordered, a + inside(b, bordered))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("outputs", [1, 10, 16, 37])
def test_mean_and_product(dtype: str, outputs: int) -> None:
    plane = Plane(outputs, 2, 4, 1)
    x = integers(plane, dtype)
    mean = run_kernel(ItemMean(plane, dtype), x, np.full(outputs, np.nan, dtype))
    assert (mean == inside(x, plane).mean(axis=(1, 2))).all(), "an eighth is exact"
    v = RNG.integers(-4, 5, 11).astype(dtype)
    w = RNG.integers(-4, 5, (11, outputs)).astype(dtype)
    bias = RNG.integers(-4, 5, outputs).astype(dtype)
    kernel = ItemDense(11, outputs, dtype, host().lanes(dtype))
    found = run_kernel(kernel, v, w, bias, np.full(outputs, np.nan, dtype))
    assert (found == v @ w + bias).all()
