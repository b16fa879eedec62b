"""Networks that normalise by their own statistics and move depth to space, kernels and all."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from examples.networks import convnext_like
from leanconv.graph.onnx_import import read_model
from support.errors import relative_error
from support.network_models import by_numpy, by_onnxruntime, images, model, small, weights

node = helper.make_node


def segmenter(opset: int = 21, groups: int = 4) -> bytes:
    """Pixels to depth, norms per group, per instance and per pixel, depth to pixels, unit vectors.

    Input (N, 3, H, W) with even H and W, output (N, 5, 1.5 H, 1.5 W).
    """
    per_group = 20 if opset >= 21 else groups
    held = {
        "w0": weights(20, 12, 3, 3, seed=1) / 10,
        "w1": weights(20, 20, 3, 3, seed=2) / 12,
        "w2": weights(45, 20, 1, 1, seed=3) / 4,
        "gw": 1 + weights(per_group, seed=4) / 5,
        "gb": weights(per_group, seed=5),
        "iw": 1 + weights(20, seed=6) / 5,
        "ib": weights(20, seed=7),
        "lw": 1 + weights(20, seed=8) / 5,
        "lb": weights(20, seed=9),
        "channels": np.array([1]),
    }
    nodes = [
        node("SpaceToDepth", ["x"], ["deep"], blocksize=2),
        node("Conv", ["deep", "w0"], ["c0"], pads=[1] * 4),
        node("GroupNormalization", ["c0", "gw", "gb"], ["n0"], num_groups=groups),
        node("Selu", ["n0"], ["s0"]),
        node("Conv", ["s0", "w1"], ["c1"], pads=[1] * 4),
        node("InstanceNormalization", ["c1", "iw", "ib"], ["n1"]),
        node("Relu", ["n1"], ["r1"]),
        node("Transpose", ["r1"], ["t1"], perm=[0, 2, 3, 1]),
        node("LayerNormalization", ["t1", "lw", "lb"], ["n2"], epsilon=1e-6),
        node("Transpose", ["n2"], ["t2"], perm=[0, 3, 1, 2]),
        node("Conv", ["t2", "w2"], ["c2"]),
        node("DepthToSpace", ["c2"], ["wide"], blocksize=3, mode="CRD"),
        node("ReduceL2", ["wide", "channels"], ["length"], keepdims=1),
        node("Div", ["wide", "length"], ["y"]),
    ]
    shape = ("N", 3, "H", "W")
    return small(nodes, {"x": shape}, {"y": ("N", 5, "P", "Q")}, held, opset=opset)


SIZES = [(1, 3, 16, 16), (3, 3, 10, 14), (2, 3, 2, 4)]


@pytest.mark.parametrize(("opset", "groups"), [(18, 4), (21, 4), (21, 1), (22, 20)])
def test_equal_to_onnxruntime_and_to_float64(opset: int, groups: int) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    built = segmenter(opset, groups)
    net = lc.load(built, threads=2)
    for shape in SIZES:
        x = weights(*shape, seed=shape[0])
        found = net(x)
        assert found.shape == (shape[0], 5, 3 * shape[2] // 2, 3 * shape[3] // 2)
        assert relative_error(found, by_onnxruntime(built, {"x": x})["y"]) < 1e-5
        assert relative_error(found, by_numpy(built, {"x": x})["y"]) < 1e-5


def test_in_double_precision() -> None:
    built = segmenter()
    x = weights(*SIZES[1])
    found = lc.load(built, threads=2, dtype="float64")(x)
    assert relative_error(found, by_numpy(built, {"x": x})["y"]) < 1e-12


def test_same_bits_whatever_the_threads() -> None:
    built, x = segmenter(), weights(*SIZES[0])
    found = {lc.load(built, threads=n, reproducible=True)(x).tobytes() for n in (1, 2, 3)}
    assert len(found) == 1


def test_the_least_memory_gives_the_answer_too() -> None:
    built, x = segmenter(), weights(*SIZES[0])
    with pytest.raises(lc.BudgetError) as caught:
        lc.load(built, threads=2, memory_limit=1)(x)
    net = lc.load(built, threads=2, memory_limit=caught.value.smallest_bytes)
    assert relative_error(net(x), by_numpy(built, {"x": x})["y"]) < 1e-5
    assert net.used_bytes == net.plan.memory_bytes


def test_one_node_or_its_parts_are_one_network() -> None:
    """ConvNeXt as opset 17 writes it, and in the primitive operators of before."""
    now, before = model("convnext_like"), convnext_like(opset=13).SerializeToString()
    assert any(each.op == "LayerNormalization" for each in read_model(now).nodes)
    assert not any(each.op == "LayerNormalization" for each in read_model(before).nodes)
    x = images(now, 2)
    found = lc.load(now, threads=2)(x)
    assert relative_error(lc.load(before, threads=2)(x), found) < 1e-5
    (exact,) = by_numpy(before, {"input": x}).values()
    assert relative_error(found, exact) < 1e-5
