"""`leanconv.filter_bank`: filters as a network for images of any size, whole and in tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import leanconv as lc

EXTENTS = {1: (300,), 2: (90, 70), 3: (30, 28, 26)}


def integers(seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@pytest.mark.drawn
@pytest.mark.parametrize("rank", EXTENTS)
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_filters_over_images_of_any_size(rank: int, mode: str, dtype: str) -> None:
    """Exact sums, which do not depend on the algorithm: the bits of `conv2d`."""
    w, bias = integers(0, (4, 2, *(5, 4, 3)[:rank]), dtype), integers(1, (4,), dtype)
    x = integers(2, (2, 2, *EXTENTS[rank]), dtype)
    net = lc.filter_bank(w, bias, padding_mode=mode, algorithm="direct", threads=1)
    expected = lc.conv2d(x, w, bias, padding="same", padding_mode=mode)
    np.testing.assert_array_equal(net(x), expected)
    tiled = lc.tiled(net, tile=24)
    np.testing.assert_array_equal(tiled(x), expected)
    assert tiled.plan.tiles > 10


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 1},
        {"stride": (1, 2), "padding": (0, 1, 2, 3)},
        {"dilation": 2},
        {"padding": "valid"},
        {"groups": 2},
        {"padding": (2, 0), "padding_mode": "reflect"},
    ],
)
def test_options_are_those_of_a_convolution(options: dict[str, Any]) -> None:
    w = integers(0, (4, 4 // options.get("groups", 1), 3, 3), "float32")
    x = integers(1, (1, 4, 50, 61), "float32")
    expected = lc.conv2d(x, w, **{"padding": "same", **options}, algorithm="naive")
    net = lc.filter_bank(w, **options, algorithm="naive", threads=1)
    np.testing.assert_array_equal(net(x), expected)
    np.testing.assert_array_equal(lc.tiled(net, tile=24)(x), expected)


def test_images_of_other_layouts() -> None:
    w, photo = integers(0, (8, 1, 5, 5), "float32"), integers(1, (60, 70), "float32")
    found = lc.tiled(lc.filter_bank(w), tile=32)(photo, layout="YX", out_layout="CYX")
    np.testing.assert_allclose(
        found, lc.conv2d(photo[None, None], w, padding="same")[0], rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"w": 3}, "w is int"),
        ({"w": np.ones((2, 3, 3))[0]}, r"give w\[:, None\]"),
        ({"w": np.ones((2, 2, 3, 3), int)}, "w is int64"),
        ({"bias": np.ones(3)}, "bias is"),
        ({"stride": 2}, "'same' with a stride of 2x2"),
        ({"padding_mode": "circular"}, "padding_mode is 'circular'"),
        ({"padding_mode": ["zeros"]}, "padding_mode is"),
        ({"groups": "a"}, "groups is 'a'"),
        ({"threads": 0}, "threads"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"w": np.ones((2, 2, 3, 3)), **given}
    with pytest.raises(lc.LeanConvError, match=said):
        lc.filter_bank(**arguments)


def test_a_plan_of_one_size_names_what_is_for_any() -> None:
    plan = lc.plan_conv2d((1, 2, 9, 9), np.ones((2, 2, 3, 3)))
    with pytest.raises(lc.SpecError, match=r"leanconv.filter_bank\(w\)"):
        lc.tiled(plan)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "channels"), [("sparse", 16), ("separable", 1)])
def test_filters_of_which_products_are_left_out(kind: str, channels: int) -> None:
    random = np.random.default_rng(0)
    w = random.standard_normal((16, channels, 3, 3))
    w[random.random(w.shape) < 0.95] = 0
    if kind == "separable":
        line = np.exp(-(np.linspace(-2, 2, 15) ** 2))
        w = (np.outer(line, line) / line.sum() ** 2)[np.newaxis, np.newaxis]
    x = random.standard_normal((1, channels, 90, 70)).astype("f4")
    net = lc.filter_bank(w.astype("f4"), threads=2)
    expected = lc.conv2d(x.astype("f8"), w, padding="same", algorithm="naive")
    np.testing.assert_allclose(net(x), expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    (step,) = (step for step in net.plan.steps if step.op == "Conv")
    assert step.algorithm.partition(" ")[0] == kind
    np.testing.assert_array_equal(lc.tiled(net, tile=40)(x), net(x))
