"""Networks whose arrays are NHWC, as TensorFlow writes them: Transposes at the edges move nothing.

The same layers between arrays in NCHW give the same bits, since each is computed in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

import leanconv as lc
from leanconv.planner import formats
from support.errors import relative_error
from support.network_models import by_onnxruntime, small, weights

TO_SECOND, TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]
BESIDE = 128 * 2**10  # bytes of a copy that is left in a small network
TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def conv(x: str, y: str, w: str, **attributes: Any) -> NodeProto:
    return helper.make_node("Conv", [x, w], [y], y, **attributes)


def transpose(x: str, y: str, perm: Sequence[int]) -> NodeProto:
    return helper.make_node("Transpose", [x], [y], y, perm=perm)


def layers(
    channels: Sequence[int], size: int, dtype: str, batch: int | str = 1
) -> tuple[bytes, bytes]:
    """Three layers between arrays in NHWC, and the same between arrays in NCHW."""
    first, *_, last = channels
    constants = {
        f"w{number}": (weights(b, a, 3, 3, seed=number) / np.sqrt(9 * a)).astype(dtype)
        for number, (a, b) in enumerate(pairwise(channels))
    }
    strides = [[2, 2], *[[1, 1]] * (len(constants) - 1)]
    nodes, value = [], "x"
    for number, stride in enumerate(strides):
        made = f"c{number}"
        nodes.append(conv(value, made, f"w{number}", strides=stride, pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [made], [f"r{number}"]))
        value = f"r{number}"
    half = -(-size // 2)
    kind = TYPES[dtype]
    plain = [*nodes[:-1], helper.make_node("Relu", [nodes[-1].input[0]], ["y"])]
    plain_shapes = {"x": (batch, first, size, size)}, {"y": (batch, last, half, half)}
    nchw = small(plain, *plain_shapes, constants, kind)
    nodes[0].input[0] = "planes"
    around = [transpose("x", "planes", TO_SECOND), *nodes, transpose(value, "y", TO_LAST)]
    last_shapes = {"x": (batch, size, size, first)}, {"y": (batch, half, half, last)}
    return small(around, *last_shapes, constants, kind), nchw


def moved(net: lc.Network) -> list[str]:
    """The steps that only move elements."""
    return [step.op for step in net.plan.steps if step.op in ("Transpose", "Reorder")]


def check_bits(net: lc.Network, planes: lc.Network, x: np.ndarray) -> None:
    wanted = planes(np.ascontiguousarray(x.transpose(TO_SECOND)))
    np.testing.assert_array_equal(net(x), wanted.transpose(TO_LAST))


def image(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(dtype)


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are in NHWC even where another algorithm, or tile, is better then."""
    monkeypatch.setattr(formats, "_alike", lambda *given: {node.key for node, *_ in given[-1]})


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("channels", "size"), [((3, 32, 40, 5), 23), ((3, 32, 21), 40), ((64, 64, 64), 17)]
)
def test_bits_are_those_of_planes(channels: tuple[int, ...], size: int, dtype: str) -> None:
    last, planes = layers(channels, size, dtype)
    net, other = lc.load(last), lc.load(planes)
    check_bits(net, other, image(1, size, size, channels[0], dtype=dtype))
    assert net.plan.memory_bytes <= other.plan.memory_bytes + BESIDE * len(moved(net))


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", [1, 2])
def test_first_and_last_layers_work_on_nhwc_in_place(dtype: str, batch: int) -> None:
    last, planes = layers((3, 24, 21), 19, dtype, batch)
    named = {"c0": "direct", "c1": "direct"}
    net, other = lc.load(last, algorithms=named), lc.load(planes, algorithms=named)
    assert moved(net) == []
    check_bits(net, other, image(batch, 19, 19, 3, dtype=dtype))


def test_any_batch() -> None:
    last, planes = layers((3, 32, 8), 20, "float32", "N")
    net, other = lc.load(last), lc.load(planes)
    for batch in (1, 3, 4):
        check_bits(net, other, image(batch, 20, 20, 3))


@pytest.mark.usefixtures("alike")
def test_what_no_method_reads_so_is_reordered() -> None:
    shapes = {"x": (1, 7, 7, 32)}, {"y": (1, 7, 7, 32)}
    nodes = [transpose("x", "a", TO_SECOND), conv("a", "c", "w"), transpose("c", "y", TO_LAST)]
    built, x = small(nodes, *shapes, {"w": weights(32, 32, 1, 1)}), image(1, 7, 7, 32)
    for algorithm, expected in (("direct", []), ("planar", ["Reorder", "Reorder"])):
        net = lc.load(built, algorithms={"c": algorithm})
        assert moved(net) == expected
        (wanted,) = by_onnxruntime(built, {"x": x}).values()
        assert relative_error(net(x), wanted) < 1e-5


def test_plans_within_limits_and_files(tmp_path: Path) -> None:
    last, planes = layers((3, 64, 64, 5), 40, "float32")
    net, x = lc.load(last), image(1, 40, 40, 3)
    path = tmp_path / "network.plan"
    net.plan.save(path)
    again = lc.load(last, plan=path)
    assert moved(again) == moved(net)
    np.testing.assert_array_equal(again(x), net(x))
    limit = int(0.8 * lc.load(planes).plan.memory_bytes)
    within = lc.load(last, memory_limit=limit)
    assert within.plan.memory_bytes <= limit
    (wanted,) = by_onnxruntime(last, {"x": x}).values()
    assert relative_error(within(x), wanted) < 1e-5
    assert within.used_bytes <= limit


@pytest.mark.usefixtures("alike")
def test_layers_over_channels_between_convolutions() -> None:
    """As in ConvNeXt: a depthwise convolution writes rows of channels, which a product reads."""
    channels = 32
    constants = {
        "stem": weights(channels, 3, 3, 3, seed=0),
        "across": weights(channels, 1, 7, 7, seed=1) / 7,
        "product": weights(channels, channels, seed=2) / 6,
    }
    nodes = [
        conv("x", "a", "stem", pads=[1] * 4),
        conv("a", "b", "across", pads=[3] * 4, group=channels),
        transpose("b", "c", TO_LAST),
        helper.make_node("MatMul", ["c", "product"], ["d"]),
        transpose("d", "e", TO_SECOND),
        helper.make_node("Add", ["e", "a"], ["y"]),
    ]
    shapes = {"x": (1, 3, 30, 30)}, {"y": (1, channels, 30, 30)}
    built, x = small(nodes, *shapes, constants), image(1, 3, 30, 30)
    net = lc.load(built)
    # The sum is in blocks: what the product makes is brought there at once, not by two copies.
    assert "Transpose" not in moved(net)
    assert len(moved(net)) <= 2
    (wanted,) = by_onnxruntime(built, {"x": x}).values()
    assert relative_error(net(x), wanted) < 1e-5


def test_codes() -> None:
    rng = np.random.default_rng(3)
    w = rng.integers(-3, 4, (20, 3, 3, 3)).astype("i1")
    x = rng.integers(0, 16, (2, 19, 17, 3)).astype("u1")
    last = lc.conv2d(x, w, padding=1, layout="NHWC")
    plain = lc.conv2d(np.ascontiguousarray(x.transpose(TO_SECOND)), w, padding=1)
    np.testing.assert_array_equal(last, plain.transpose(TO_LAST))
    plan = lc.plan_conv2d(x.shape, w, padding=1, layout="NHWC")
    np.testing.assert_array_equal(plan(x), last)
    assert [step.op for step in plan.plan.steps] == ["QLinearConv"]
