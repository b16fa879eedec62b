"""What makes a quantised network err less: alike channels, rounding, biases; against NumPy."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.quantizer.codes import (
    BINS,
    METHODS,
    Codes,
    Histogram,
    codes_of_range,
    value_codes,
    weight_codes,
    weight_scales,
)
from leanconv.quantizer.equalise import equalised
from leanconv.quantizer.float_network import folded, network_of, read_graph
from leanconv.quantizer.layers import layer_of, scheme
from leanconv.quantizer.rounding import Moments, Windows, corrected_bias, rounded_codes
from leanconv.quantizer.samples import checked_samples
from leanconv.quantizer.scores import relative_difference
from support.networks_to_quantise import model, normal


def graph_of(nodes: list, weights: dict[str, np.ndarray]) -> OnnxGraph:  # type: ignore[type-arg]
    return folded(read_graph(model(nodes, ["n", 4, 8, 8], weights)))


def test_a_histogram_grows_and_loses_nothing() -> None:
    seen = Histogram()
    parts = [normal(1000, seed=1) * np.float32(scale) for scale in (0.01, 3.0, 0.5, 100.0)]
    for part in parts:
        seen.add(part)
    whole = np.concatenate(parts)
    assert seen.counts.sum() == whole.size
    assert (seen.low, seen.high) == (whole.min(), whole.max())
    mean = (seen.counts * seen.middles).sum() / seen.counts.sum()
    assert mean == pytest.approx(whole.mean(), abs=256 / BINS * 2)
    both = Histogram()
    both.add(np.zeros(5, np.float32))
    assert both.merged(seen).counts.sum() == whole.size + 5
    seen.add(np.array([1.0, np.inf], np.float32))
    assert seen.unsound


@pytest.mark.parametrize("method", METHODS)
def test_ranges_of_normal_numbers(method: str) -> None:
    seen, values = Histogram(), normal(200_000)
    values[:3] = 40.0  # a few numbers that are far away
    seen.add(values)
    codes = value_codes(seen, method)
    low, high = codes.bounds
    error = np.sqrt(np.mean(np.square(codes.rounded(values) - values)[3:]))
    assert low < 0 < high
    assert 0 <= codes.zero <= 255
    assert codes.rounded(np.zeros(1))[0] == 0.0
    assert error < (0.08 if method == "min-max" else 0.06)


def test_codes_of_ranges_without_numbers() -> None:
    for low, high in ((0.0, 0.0), (1.0, 2.0), (-3.0, -1.0), (0.0, 1e-45), (-1e30, 1e38)):
        codes = codes_of_range(low, high)
        assert codes.scale > 0
        assert np.isfinite(np.float32(codes.scale))
        assert 0 <= codes.zero <= 255


def test_weights_of_zeros_and_large_ones() -> None:
    weights = np.array([[0.0, 0.0], [1e-30, -3e-30], [5.0, -7.0]], np.float32)
    for least in (False, True):
        made = weight_codes(weights, weight_scales(weights, least))
        assert np.abs(made.codes.astype(int)).max() <= 127
        np.testing.assert_allclose(made.values[2], weights[2], atol=0.06)
        assert not made.values[0].any()


_TAPS = [
    (1, 4, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1))),
    (4, 4, (3, 5), (2, 1), (1, 2), ((1, 0), (2, 3))),
    (2, 4, (1, 1), (1, 2), (1, 1), ((0, 0), (0, 0))),
    (2, 6, (2, 1), (1, 1), (3, 1), ((2, 1), (0, 2))),
]


@pytest.mark.parametrize("taken", _TAPS)
def test_patches_are_what_convolutions_read(taken: tuple) -> None:  # type: ignore[type-arg]
    groups, channels, taps, strides, dilations, pads = taken
    x, w = normal(2, channels, 9, 11), normal(8, channels // groups, *taps, seed=1)
    padding = (pads[0][0], pads[1][0], pads[0][1], pads[1][1])
    y = lc.conv2d(x, w, stride=strides, dilation=dilations, padding=padding, groups=groups)
    read = Windows(groups, channels, taps, strides, dilations, pads).patches(x, 10**6)
    found = np.einsum("gkn,gnp->gkp", w.reshape(groups, 8 // groups, -1), read)
    found = np.moveaxis(found.reshape(8, 2, *y.shape[2:]), 0, 1)
    np.testing.assert_allclose(found, y, atol=1e-4)


def test_rounding_errs_less_and_the_mean_is_kept() -> None:
    x = (normal(1, 24, 2000) + 1.5 * normal(1, 1, 2000, seed=1) + 2).astype(np.float32)[0]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="y")
    weights = normal(24, 10, seed=2)
    graph = read_graph(model([node], ["n", 4, 8, 24], {"w": weights}))
    layer = layer_of(graph.nodes[0], graph)
    assert layer is not None
    scales = weight_scales(layer.by_channel(), least_error=True)
    seen = Moments.zeros(1, 24)
    codes = Codes(0.05, 60)
    seen.add(x[None], codes.rounded(x)[None], 1.0)
    nearest = weight_codes(layer.by_channel(), scales)
    better = rounded_codes(layer, scales, seen.products)
    exact = weights.T @ x
    errors = [np.linalg.norm(each.values @ x - exact) for each in (nearest, better)]
    assert errors[1] < 0.7 * errors[0]
    assert np.abs(better.values - layer.by_channel()).max() < 4 * scales.max()
    bias = corrected_bias(layer, better, seen)
    mean = better.values @ codes.rounded(x).mean(axis=1) + bias
    np.testing.assert_allclose(mean, exact.mean(axis=1), atol=1e-4)


def test_nothing_seen_rounds_to_the_nearest() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="y", group=2)
    graph = read_graph(model([node], ["n", 4, 8, 8], {"w": normal(6, 2, 1, 1)}))
    layer = layer_of(graph.nodes[0], graph)
    assert layer is not None
    scales = weight_scales(layer.by_channel(), least_error=False)
    found = rounded_codes(layer, scales, np.zeros((2, 2, 2)))
    np.testing.assert_array_equal(found.codes, weight_codes(layer.by_channel(), scales).codes)


def uneven(channels: int, *axes: int) -> np.ndarray:
    """Factors from 0.05 to 20, one for each channel."""
    return np.geomspace(0.05, 20.0, channels).astype(np.float32).reshape(-1, *axes)


_CHAINS = {
    "relu": [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2]),
        helper.make_node("Conv", ["p", "d"], ["y"], group=6),
    ],
    "affine": [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("HardSigmoid", ["c"], ["h"]),
        helper.make_node("Mul", ["s", "h"], ["m"]),
        helper.make_node("Add", ["m", "s"], ["a"]),
        helper.make_node("Conv", ["a", "k"], ["y"]),
    ],
    "inserted": [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["h"]),
        helper.make_node("Mul", ["c", "h"], ["m"]),
        helper.make_node("Conv", ["m", "d"], ["y"], group=6),
    ],
    "two readers": [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Conv", ["c", "d"], ["e"], group=6),
        helper.make_node("ConvTranspose", ["c", "t"], ["f"], group=2),
        helper.make_node("Add", ["e", "f"], ["y"]),
    ],
    "products": [
        helper.make_node("Transpose", ["x"], ["z"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["z", "v"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MatMul", ["r", "u"], ["y"]),
    ],
    "bounded": [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Clip", ["c", "", "six"], ["r"]),
        helper.make_node("Conv", ["r", "d"], ["y"], group=6),
    ],
}


@pytest.mark.parametrize("name", _CHAINS)
def test_alike_channels_compute_the_same_and_err_less(name: str) -> None:
    spread = uneven(6, 1, 1)
    held = {
        "w": normal(6, 4, 1, 1) * spread[..., None],
        "d": normal(6, 1, 1, 1, seed=1) / spread[..., None],
        "s": np.float32(3) * np.ones(1, np.float32),
        "k": normal(2, 6, 1, 1, seed=2) / spread[None],
        "t": normal(6, 3, 1, 1, seed=3) / spread[..., None],
        "v": normal(4, 6, seed=4) * spread.reshape(1, -1),
        "u": normal(6, 5, seed=5) / spread.reshape(-1, 1),
        "six": np.array(6, np.float32),
    }
    nodes = _CHAINS[name]
    read = {each for node in nodes for each in node.input}
    data = model(nodes, ["n", 4, 8, 8], {k: v for k, v in held.items() if k in read})
    graph = folded(read_graph(data))
    x = normal(4, 4, 8, 8, seed=9)
    samples = checked_samples([x], network_of(graph).inputs)
    made = equalised(graph, samples, 1)
    exact, found = network_of(graph).run({"x": x})["y"], network_of(made).run({"x": x})["y"]
    assert relative_difference(found, exact) < 1e-5
    if name == "bounded":
        assert [node.op for node in made.nodes] == ["Conv", "Clip", "Conv"]
        return
    plain = lc.quantize(data, [x], equalize=False, rounding=False, threads=1)
    alike = lc.quantize(data, [x], rounding=False, threads=1)
    assert alike.error < (1.0 if name in ("affine", "two readers") else 0.5) * plain.error


def test_networks_of_all_methods_are_valid() -> None:
    path = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
    x = normal(16, 1, 32, 32)
    errors = {
        chosen: lc.quantize(path, x, threads=1, **dict.fromkeys(chosen, False)).error
        for chosen in ((), ("equalize",), ("rounding", "correct_bias"))
    }
    assert max(errors.values()) < 0.1


def test_which_values_become_codes() -> None:
    nodes = [*_CHAINS["inserted"][:3], helper.make_node("Mul", ["m", "f"], ["n"])]
    nodes += [
        helper.make_node("Conv", ["n", "d"], ["e"], name="e", group=6),
        helper.make_node("Add", ["e", "n"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Conv", ["g", "d"], ["y"], name="y", group=6),
    ]
    held = {"w": normal(6, 4, 1, 1), "d": normal(6, 1, 1, 1), "f": normal(6, 1, 1)}
    graph = read_graph(model(nodes, ["n", 4, 8, 8], held))
    assert scheme(graph, {"e", "y"}).values == ("n", "e", "r", "g")
    assert scheme(graph, {"y"}).values == ("g",)
    assert scheme(graph, {"e"}).values == ("n",)


@pytest.mark.parametrize("large", [1.0, 1e37])
def test_large_numbers_warn_of_nothing(large: float) -> None:
    """Sums of squares and outputs that overflow: such layers are rounded to the nearest codes."""
    weights = normal(4, 4, 3, 3)
    weights[0, 0, 0, 0] *= np.float32(3e38 / large / 100)
    data = model([helper.make_node("Conv", ["x", "w"], ["y"])], ["n", 4, 8, 8], {"w": weights})
    samples = [normal(1, 4, 8, 8, seed=seed) * np.float32(large) for seed in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lc.quantize(data, samples, threads=1).data
