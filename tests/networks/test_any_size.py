"""Layers of open sizes: one code for all widths, exact sums at every one of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.algorithms.common.conv import GroupedConv
from leanconv.algorithms.fft.kernel import FftConv
from leanconv.algorithms.fused.kernel import FusedChain
from leanconv.algorithms.winograd.kernel import WinogradConv
from leanconv.codegen import forms, known_forms
from leanconv.codegen.kernel import Kernel
from leanconv.kernels.copy import Copy
from leanconv.kernels.elementwise import Elementwise
from leanconv.kernels.reduce import Reduction
from leanconv.kernels.softmax import Softmax
from leanconv.symbolic import Trace
from leanconv.target import Target
from support.network_models import by_numpy

CHANNELS = 24
WIDTHS = (*range(3, 40, 3), 41, 56, 57, 75, 100, 127)

CASES = {
    "3x3": {"kernel": 3, "pads": 1},
    "3x3 without padding": {"kernel": 3, "pads": 0},
    "3x3/2": {"kernel": 3, "pads": 1, "strides": 2},
    "5x5 of three apart": {"kernel": 5, "pads": 6, "dilations": 3},
    "7x7/2": {"kernel": 7, "pads": 3, "strides": 2},
    "1x1": {"kernel": 1, "pads": 0},
    "1x1/2": {"kernel": 1, "pads": 0, "strides": 2},
    "1x1 and residual": {"kernel": 1, "pads": 0, "residual": True},
    "3x3 and residual": {"kernel": 3, "pads": 1, "residual": True},
    "depthwise 3x3": {"kernel": 3, "pads": 1, "group": CHANNELS},
    "depthwise 5x5/2": {"kernel": 5, "pads": 2, "strides": 2, "group": CHANNELS},
    "depthwise and residual": {"kernel": 3, "pads": 1, "group": CHANNELS, "residual": True},
}


def integers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype("f4")


def network(nodes: list[onnx.NodeProto], weights: list[np.ndarray]) -> bytes:
    """A network from x (1, 3, height, width) to y."""
    constants = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "height", "width"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "layers", [x], [y], constants)
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())


def layers(
    kernel: int,
    pads: int,
    strides: int = 1,
    dilations: int = 1,
    group: int = 1,
    residual: bool = False,
) -> bytes:
    """Two layers, the second of which is the case; a residual is the first one's output."""
    inputs = CHANNELS // group
    weights = [integers(1, CHANNELS, 3, 1, 1), integers(2, CHANNELS, inputs, kernel, kernel)]
    last = "z" if residual else "y"
    attributes = {"pads": [pads] * 4, "strides": [strides] * 2, "dilations": [dilations] * 2}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Conv", ["a", "w1"], [last], name="second", group=group, **attributes),
    ]
    if residual:
        nodes.append(helper.make_node("Add", ["z", "a"], ["y"]))
    return network(nodes, weights)


def block(stride: int, residual: bool) -> bytes:
    """An inverted residual block after a layer."""
    inner = 3 * CHANNELS
    weights = [
        integers(1, CHANNELS, 3, 1, 1),
        integers(2, inner, CHANNELS, 1, 1),
        integers(3, inner, 1, 3, 3),
        integers(4, CHANNELS, inner, 1, 1),
    ]
    depthwise = {"pads": [1] * 4, "strides": [stride] * 2, "group": inner}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Conv", ["a", "w1"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], **depthwise),
        helper.make_node("Conv", ["c", "w3"], ["z" if residual else "y"]),
    ]
    if residual:
        nodes.append(helper.make_node("Add", ["z", "a"], ["y"]))
    return network(nodes, weights)


def sizes(case: str) -> Iterator[tuple[int, int]]:
    least = 15 if "apart" in case else 7 if "7x7" in case else 3
    yield from ((max(least, 7), width) for width in WIDTHS if width >= least)
    yield from ((height, 29) for height in (8, 16, 30))


def check(net: lc.Network, built: bytes, height: int, width: int) -> None:
    x = integers(height * width, 1, 3, height, width)
    found = net(x)
    assert np.array_equal(found, by_numpy(built, {"x": x})["y"]), (height, width)
    assert np.array_equal(net(x), found)


@pytest.mark.parametrize("case", CASES)
def test_sums_of_integers_are_exact_at_every_width(case: str) -> None:
    built = layers(**CASES[case])  # type: ignore[arg-type]
    algorithm = "depthwise" if "depthwise" in case else "direct"
    net = lc.load(built, threads=2, algorithms={"second": algorithm})
    for height, width in sizes(case):
        check(net, built, height, width)


@pytest.mark.parametrize("case", ["3x3", "3x3 without padding", "3x3/2", "3x3 and residual"])
@pytest.mark.parametrize("algorithm", ["winograd", "fft"])
def test_transforms_are_near_at_every_width(algorithm: str, case: str) -> None:
    built = layers(**CASES[case])  # type: ignore[arg-type]
    net = lc.load(built, threads=2, algorithms={"second": algorithm})
    for height, width in sizes(case):
        x = integers(height * width, 1, 3, height, width)
        found, expected = net(x), by_numpy(built, {"x": x})["y"]
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), (height, width)


@pytest.mark.parametrize(("stride", "residual"), [(1, False), (1, True), (2, False)])
def test_blocks_are_exact_at_every_width(stride: int, residual: bool) -> None:
    built = block(stride, residual)
    net = lc.load(built, threads=2)
    for height, width in sizes("3x3"):
        check(net, built, height, width)
    assert any("inverted_residual" in step.algorithm for step in net.plan.steps)  # type: ignore[attr-defined]


@pytest.mark.parametrize("expanded", [False, True])
def test_blocks_of_few_rows_are_shared_and_exact(expanded: bool) -> None:
    """What was chosen for a larger map is one chunk otherwise, for one thread of several."""
    wide = 192
    weights = [
        integers(1, wide, 3, 1, 1),
        integers(2, wide, 1, 3, 3),
        integers(3, wide, wide, 1, 1),
    ]
    depthwise = {"pads": [1] * 4, "group": wide}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Conv", ["c", "w1"], ["d"], **depthwise),
        helper.make_node("Conv", ["d", "w2"], ["y"]),
    ]
    expand = [helper.make_node("Conv", ["a", "w3"], ["c"])]
    nodes[1:1] = expand if expanded else [helper.make_node("Relu", ["a"], ["c"])]
    built = network(nodes, [*weights, integers(4, wide, wide, 1, 1)])
    net = lc.load(built, threads=2)
    for height in (*range(1, 10), 20, 57):
        check(net, built, height, 150)
        steps = [step for step in net.plan.steps if step.op == "ConvChain"]  # type: ignore[attr-defined]
        fused = [
            kernel for step in steps for kernel in step.kernels if isinstance(kernel, FusedChain)
        ]
        assert all(kernel.chunks >= 4 for kernel in fused), height
    assert fused


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2)])
def test_pools_are_right_at_every_width(op: str, kernel: int, stride: int, pad: int) -> None:
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node(op, ["a"], ["y"], **attributes),
    ]
    built = network(nodes, [integers(1, CHANNELS, 3, 1, 1)])
    net = lc.load(built, threads=2)
    for height, width in sizes("3x3"):
        x = integers(height * width, 1, 3, height, width)
        found, expected = net(x), by_numpy(built, {"x": x})["y"]
        assert np.allclose(found, expected, rtol=1e-6, atol=1e-6), (height, width)


@pytest.fixture
def newly_emitted(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels whose code is emitted while the test runs: no form known before serves them."""
    emitted: list[Kernel] = []
    emit = forms.emitted

    def counted(kernel: Kernel, target: Target) -> tuple[str, Trace]:
        emitted.append(kernel)
        return emit(kernel, target)

    monkeypatch.setattr(forms, "emitted", counted)
    # Entries on disk would tell forms of the first shapes, and the others be emitted later.
    monkeypatch.setattr(known_forms, "description", lambda _: None)
    return emitted


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("3x3", "direct"),
        ("1x1", "direct"),
        ("1x1 and residual", "direct"),
        ("depthwise 3x3", "depthwise"),
        ("3x3", "winograd"),
        ("3x3/2", "winograd"),
        ("3x3", "fft"),
        ("7x7/2", "fft"),
    ],
)
def test_wide_images_share_their_code(case: str, named: str, newly_emitted: list[Kernel]) -> None:
    net = lc.load(layers(**CASES[case]), algorithms={"first": "direct", "second": named})  # type: ignore[arg-type]
    for first in (100, 16):  # small maps have smaller blocks of Winograd's tiles
        net.bind((1, 3, 40, first))
    newly_emitted.clear()
    for width in (101, 77, 130, 224, 333, 512):
        net.bind((1, 3, 40, width))
    kinds = GroupedConv | WinogradConv | FftConv
    assert [kernel for kernel in newly_emitted if isinstance(kernel, kinds)] == []


def small_operators() -> bytes:
    """Each pixel's channels scaled by the map's mean, soft along each row, then channels last."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["m"], axes=[2, 3], keepdims=1),
        helper.make_node("Mul", ["a", "m"], ["s"]),
        helper.make_node("Exp", ["s"], ["e"]),
        helper.make_node("Softmax", ["e"], ["p"], axis=3),
        helper.make_node("ReduceMax", ["p"], ["r"], axes=[3], keepdims=1),
        helper.make_node("Div", ["p", "r"], ["d"]),
        helper.make_node("Transpose", ["d"], ["y"], perm=[0, 2, 3, 1]),
    ]
    return network(nodes, [integers(1, CHANNELS, 3, 1, 1) / 64])


def test_small_operators_have_one_code_for_all_sizes(newly_emitted: list[Kernel]) -> None:
    built = small_operators()
    net = lc.load(built, threads=2)
    for width in (5, 20, 600):  # lines within one vector; copies in one chunk, and in many
        net.bind((1, 3, 40, width))
    newly_emitted.clear()
    for height, width in ((40, 9), (7, 21), (40, 33), (9, 100), (40, 333), (64, 640), (33, 1111)):
        x = integers(height * width, 1, 3, height, width)
        found, expected = net(x), by_numpy(built, {"x": x})["y"]
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-6), (height, width)
    kinds = Softmax | Reduction | Elementwise | Copy
    assert [kernel for kernel in newly_emitted if isinstance(kernel, kinds)] == []


def test_plans_of_every_size_can_be_explained() -> None:
    """A block's form is chosen for the usual one of many sizes, and is none of a small one's."""
    many = 384
    shapes = (many, 3, 1, 1), (many, 1, 5, 5), (many, many, 1, 1), (8, many, 3, 3)
    weights = [integers(seed, *shape) for seed, shape in enumerate(shapes)]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Exp", ["a"], ["e"]),
        helper.make_node("Conv", ["e", "w1"], ["b"], pads=[2] * 4, group=many),
        helper.make_node("Conv", ["b", "w2"], ["c"]),
        helper.make_node("Conv", ["c", "w3"], ["y"], pads=[1] * 4),
    ]
    net = lc.load(network(nodes, weights), threads=2)
    predicted = []
    for height, width in ((3, 40), (6, 120), (24, 120), (96, 96)):
        plan = net.bind((1, 3, height, width))
        predicted.append(plan.predicted_ns)
        assert "MFLOP" in net.explain()
        ops = [layer["op"] for layer in net.report(front=False)["layers"]]
        assert ops == ["Conv", "Exp", "ConvChain", "Conv"]
    assert predicted == sorted(predicted)
