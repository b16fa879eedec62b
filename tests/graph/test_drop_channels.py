"""Dead channels leave: numbers and what nothing reads, where nothing else needs their places."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import leanconv as lc
from leanconv.graph.channel_rules import find_channels
from leanconv.graph.ir import Graph, Node, TensorType, spread_zeros
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import GPU_PASSES, UNFUSED_PASSES, run_passes
from leanconv.graph.passes.drop_channels import drop_channels
from leanconv.graph.zeros import has_empty
from leanconv.spec.activation import Activation
from leanconv.types import FLOAT32
from support.graph_builder import Builder, applied, assert_equal
from support.hostile import MIB, bounded, node
from support.onnx_models import interpreted, model

RELU = Activation("relu")


def weights(b: Builder, *shape: int, dead: Any = (), unread: Any = ()) -> str:
    """Filters, those of some outputs and those for some inputs 0."""
    name = b.normal(*shape)
    b.constants[name][list(dead)] = 0
    b.constants[name][:, list(unread)] = 0
    return name


def conv(
    b: Builder, x: str, out: int, side: int = 1, dead: Any = (), unread: Any = (), **given: Any
) -> str:
    """A convolution with a bias that does not pad, unless it is said."""
    spatial, group = len(b.types[x].shape) - 2, given.get("group", 1)
    w = weights(b, out, b.types[x].shape[1] // group, *[side] * spatial, dead=dead, unread=unread)
    bias = b.const(np.abs(b.constants[b.normal(out)]) + 0.1)
    return b.conv(x, w, bias, *given.pop("more", ()), **given)


def padded(b: Builder, x: str, out: int, **given: Any) -> str:
    return conv(b, x, out, 3, pads=(1,) * 2 * (len(b.types[x].shape) - 2), **given)


def dropped(b: Builder, *outputs: str) -> tuple[Graph, list[int]]:
    """What the pass makes of the graph, and the channels that each node gives."""
    found = applied(drop_channels, b.graph(*outputs))
    assert applied(drop_channels, found).nodes == found.nodes
    return found, [found.types[each.key].shape[1] for each in found.nodes]


def bias_of(graph: Graph, conv: Node) -> np.ndarray:
    return graph.constants[conv.inputs[2]]


# -- what leaves ----------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 5, 6), (1, 3, 4, 3, 2)])
@pytest.mark.parametrize("activation", [None, RELU, Activation("hard_swish"), Activation("tanh")])
def test_filters_of_zeros(activation: Activation | None, shape: tuple[int, ...]) -> None:
    b = Builder()
    y = conv(b, b.input(*shape), 5, dead=[1, 4], activation=activation)
    y = conv(b, b.op("Sigmoid", y), 7, 2)
    assert dropped(b, y)[1] == [3, 3, 7]


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 5, 6), (1, 3, 4, 3, 2)])
def test_what_nothing_reads(shape: tuple[int, ...]) -> None:
    b = Builder()
    y = conv(b, b.op("Relu", conv(b, b.input(*shape), 6)), 5, dead=[0])
    y = padded(b, b.op("Tanh", y), 3, unread=[2, 3])
    found, counts = dropped(b, y)
    assert counts[:1] == [6]
    assert counts[2:4] == [3, 3]  # one stands for what is a number behind padding
    assert found.nodes[0].inputs[1] == b.nodes[0].inputs[1]


def test_dead_in_one_layer_and_so_in_those_before() -> None:
    b = Builder()
    y = b.input(1, 3, 5, 5)
    for dead in (), (), range(1, 7):
        y = b.op("Relu", conv(b, y, 7, dead=dead))
    first, second, last = (n for n in b.nodes if n.op == "Conv")
    for each in (first, second):  # what reads the first is read by the dead ones alone
        b.constants[each.inputs[1]][:] = np.eye(7)[
            :, : b.types[each.inputs[0]].shape[1], None, None
        ]
    b.constants[last.inputs[1]][0] = np.eye(7)[0, :, None, None]
    y = conv(b, y, 4)
    assert dropped(b, y)[1] == [1, 1, 1, 1, 1, 1, 4]


def test_a_number_for_each_output_goes_into_the_bias_rounded_once() -> None:
    b = Builder(FLOAT32)
    y = conv(b, b.input(1, 3, 4, 4), 5, dead=[1, 3], activation=RELU)
    z = conv(b, y, 6, 3)
    graph = b.graph(z)
    found = applied(drop_channels, graph, 1e-6)
    one, two = graph.nodes
    numbers = bias_of(graph, one)[[1, 3]].astype("f8")
    w = graph.constants[two.inputs[1]][:, [1, 3]].astype("f8").sum(axis=(2, 3))
    expected = (bias_of(graph, two) + w @ numbers).astype("f4")
    np.testing.assert_array_equal(bias_of(found, found.nodes[1]), expected)


@pytest.mark.parametrize("number", [0.0, 0.3])
@pytest.mark.parametrize("readers", [1, 2])
def test_behind_padding(number: float, readers: int) -> None:
    """Zeros leave; of other numbers one stays for all."""
    b = Builder()
    y = conv(b, b.input(1, 3, 5, 5), 7, dead=[0, 2, 3, 6])
    b.constants[b.nodes[0].inputs[2]][[0, 2, 3, 6]] = -1.0
    b.constants[b.nodes[0].inputs[2]][[2, 3, 6]] += number and number + 1.0
    y = b.op("Relu", y)
    ends = [padded(b, y, 4) for _ in range(readers)]
    assert dropped(b, *ends)[1][:2] == [4 if number else 3] * 2


def test_behind_padding_what_stays_in_any_case_stands_for_all() -> None:
    b = Builder()
    x = b.input(1, 5, 5, 5)
    y = conv(b, x, 5, dead=[0, 1, 2])
    b.constants[b.nodes[0].inputs[2]][:3] = [0.5, 1.0, 0.25]
    ends = [padded(b, y, 4), b.op("Relu", b.op("Slice", y, starts=(0, 0, 0, 0), steps=(1,) * 4,
                                               sizes=(1, 1, 5, 5)))]  # fmt: skip
    assert dropped(b, *ends)[1] == [3, 4, 1, 1]


@pytest.mark.parametrize("dead", [[[1, 2], []], [[1, 2], [2, 3]], [[1, 2], [1, 2]]])
@pytest.mark.parametrize("fused", [False, True])
def test_residuals(dead: list[list[int]], fused: bool) -> None:
    """A place leaves if it is dead in both branches."""
    b = Builder()
    x = conv(b, b.input(1, 3, 5, 5), 5, dead=dead[0])
    b.constants[b.nodes[0].inputs[2]][dead[0]] = -1.0
    x = b.op("Relu", x)
    more = {"more": (x,), "activation": RELU} if fused else {}
    y = padded(b, x, 5, dead=dead[1], **more)
    y = y if fused else b.op("Add", y, x)
    counts = dropped(b, conv(b, y, 3))[1]
    assert counts[-2] == 5 - len({*dead[0]} & {*dead[1]})


@pytest.mark.parametrize("before", [False, True])
def test_residuals_beside_activations(before: bool) -> None:
    b = Builder()
    x = conv(b, b.input(1, 3, 5, 5), 5, dead=[0, 3])
    kind = Activation("relu", before_residual=True) if before else RELU
    y = conv(b, x, 5, dead=[0, 3], more=(x,), activation=kind)
    assert dropped(b, conv(b, y, 3))[1] == [3, 3, 3]


@pytest.mark.parametrize(
    "activation", [None, RELU, Activation("hard_swish"), Activation("clip", (0.0, 6.0))]
)
@pytest.mark.parametrize("own", [False, True])
def test_depthwise(activation: Activation | None, own: bool) -> None:
    """Of dead channels, or dead itself: a number where none of its zeros is read beside others."""
    b = Builder()
    dead = [0, 4, 5]
    y = conv(b, b.input(1, 3, 6, 6), 7, dead=[] if own else dead)
    if not own:
        b.constants[b.nodes[0].inputs[2]][dead] = -2.0
    y = padded(b, b.op("Relu", y), 7, group=7, dead=dead if own else [], activation=activation)
    found, counts = dropped(b, conv(b, y, 3))
    assert counts == [4, 4, 4, 3]
    assert found.nodes[2].attributes["group"] == 4


def test_depthwise_that_pads_a_number() -> None:
    b = Builder()
    y = conv(b, b.input(1, 3, 6, 6), 5, dead=[0, 4])
    y = padded(b, y, 5, group=5)
    assert dropped(b, conv(b, y, 3))[1] == [5, 5, 3]


@pytest.mark.parametrize("dead", [[0, 1], [0, 2], [4, 5]])
def test_groups(dead: list[int]) -> None:
    """One leaves as a whole; the last convolution reads all of its numbers."""
    b = Builder()
    y = conv(b, b.input(1, 3, 6, 6), 9, activation=RELU)
    y = b.op("Relu", conv(b, y, 6, 3, group=3, dead=dead))
    found, counts = dropped(b, conv(b, y, 5))
    groups = 3 if dead == [0, 2] else 2
    assert counts == [3 * groups, 2 * groups, 2 * groups, 5]
    assert found.nodes[1].attributes["group"] == groups


def test_slopes() -> None:
    b = Builder()
    y = conv(b, b.input(1, 3, 6, 6), 5, dead=[1])
    y = b.op("PRelu", y, b.normal(5, 1, 1))
    w = weights(b, 5, 5, 1, 1, dead=[0, 3])
    y = b.conv(y, w, b.normal(5), "", b.normal(5), activation=Activation("prelu"))
    assert dropped(b, conv(b, y, 4))[1] == [4, 4, 3, 4]


def test_joined_ones_and_parts_of_them() -> None:
    b = Builder()
    x = b.input(1, 3, 6, 6)
    one, two = conv(b, x, 5, dead=[0, 1]), conv(b, x, 3, dead=[2])
    y = b.op("Relu", b.op("Concat", one, two, one, axis=1))
    whole = conv(b, y, 3)
    part = b.op("Slice", y, starts=(0, 3, 1, 0), steps=(1, 1, 2, 1), sizes=(1, 7, 2, 6))
    assert dropped(b, whole, conv(b, part, 4))[1] == [3, 2, 8, 8, 3, 4, 4]


def test_split() -> None:
    b = Builder()
    y = conv(b, b.input(1, 3, 6, 6), 9, dead=[0, 3, 5])
    parts = Node("Split", (y,), ("p", "q"), {"axis": 1, "sizes": (3, 6)})
    b.nodes.append(parts)
    for name, count in ("p", 3), ("q", 6):
        b.types[name] = type(b.types[y])((1, count, 6, 6), b.dtype)
    found, _ = dropped(b, conv(b, "p", 3), conv(b, b.op("Relu", "q"), 2))
    assert found.nodes[1].attributes["sizes"] == (2, 4)


def test_products_with_zeros() -> None:
    """As a norm that is pruned, behind a Concat where it does not fold."""
    b = Builder()
    x = b.input(1, 3, 6, 6)
    y = b.op("Concat", conv(b, x, 3, dead=[2]), conv(b, x, 3), axis=1)
    scale, shift = b.normal(6, 1, 1), b.normal(1, 6, 1, 1)
    b.constants[scale][[0, 3]] = 0
    y = b.op("Relu", b.op("Add", b.op("Mul", y, scale), shift))
    assert dropped(b, conv(b, y, 3))[1] == [1, 2, 3, 3, 3, 3, 3]


def test_squeeze_and_excite() -> None:
    b = Builder()
    x = conv(b, b.input(2, 3, 6, 6), 5, dead=[0, 2], activation=RELU)
    y = b.op("ReduceMean", x, axes=(2, 3), keepdims=True)
    y = b.op("Sigmoid", conv(b, conv(b, y, 3, activation=RELU), 5, dead=[0, 2]))
    y = b.op("Mul", x, y)
    assert dropped(b, conv(b, y, 4))[1] == [3, 3, 3, 3, 3, 3, 4]


@pytest.mark.parametrize("numbers", [False, True])
def test_windows_and_sizes(numbers: bool) -> None:
    """What moves windows keeps channels apart, and numbers unless it pads them."""
    b = Builder()
    y = conv(b, b.input(1, 3, 6, 6), 5, dead=[0, 2] if numbers else [])
    y = b.pool(y, (2, 2), "MaxPool", pads=(1, 0, 0, 1))
    y = b.pool(y, (3, 3), pads=(1,) * 4)
    y = b.op("Pad", y, pads=(0, 0, 1, 1, 0, 0, 1, 0), mode="edge", value=0.0)
    sizes, scales = (1, 5, 16, 14), (1.0, 1.0, 2.0, 2.0)
    y = b.op("Resize", y, mode="linear", sizes=sizes, scales=scales, nearest_mode="floor",
             coordinate_transformation_mode="half_pixel")  # fmt: skip
    y = b.op("ReduceMax", y, axes=(2, 3), keepdims=True)
    y = conv(b, y, 4, unread=[] if numbers else [0, 2])
    assert dropped(b, y)[1] == [3] * 6 + [4]


@pytest.mark.parametrize("given", [{"pads": (1,) * 4}, {"ceil_mode": True, "strides": (2, 2)}])
def test_pools_that_count_padding(given: dict[str, Any]) -> None:
    b = Builder()
    y = conv(b, b.input(1, 3, 6, 6), 5, dead=[0, 2, 3])
    b.constants[b.nodes[0].inputs[2]][3] = 0
    y = b.pool(y, (3, 3), count_include_pad=True, **given)
    assert dropped(b, conv(b, y, 4))[1] == [4, 4, 4]


def test_transposed_ones() -> None:
    b = Builder()
    y = conv(b, b.input(1, 3, 4, 4), 6, dead=[0, 1, 2], activation=RELU)
    b.constants[b.nodes[0].inputs[2]][:2] = -1  # the third is a number that borders see
    w = weights(b, 6, 5, 2, 2, unread=[1, 4])
    y = b.conv(y, w, b.normal(5), op="ConvTranspose", strides=(2, 2))
    assert dropped(b, conv(b, y, 3))[1] == [4, 3, 3]


@pytest.mark.parametrize("middle", ["Flatten", "GlobalAveragePool"])
@pytest.mark.parametrize("channels", [3, 7])
def test_dense_layers(channels: int, middle: str) -> None:
    """Behind a map of few channels the rows of its pixels are read."""
    b = Builder()
    y = b.op("Relu", conv(b, b.input(2, 3, 4, 5), channels, dead=[1]))
    if middle == "Flatten":
        y = b.op("Reshape", y, shape=(2, channels * 20))
    else:
        y = b.op("Reshape", b.pool(y, (4, 5)), shape=(2, channels))
    plain = {"transA": 0, "transB": 0, "alpha": 0.5, "beta": 1.0}
    w = b.normal(b.types[y].shape[1], 5)
    b.constants[w][:, [2, 3]] = 0
    y = b.op("Relu", b.op("Gemm", y, w, b.normal(5), **plain))
    graph = b.graph(b.op("MatMul", y, b.normal(5, 4)))
    result = run_passes(graph, UNFUSED_PASSES, check=True)
    assert_equal(graph, result)
    counts = [result.types[n.key].shape[1] for n in result.nodes if n.op == "Conv"]
    assert counts == [channels - 1, 3, 4]


def test_constants_that_several_read() -> None:
    """They stay one constant where the same of them is left."""
    b = Builder()
    x = b.input(1, 5, 6, 6)
    w, bias, scale = weights(b, 5, 5, 1, 1, dead=[0, 3]), b.normal(5), b.normal(5, 1, 1)
    y = b.op("Mul", b.conv(x, w, bias), scale)
    y = b.op("Mul", b.conv(y, w, bias), scale)
    y = b.op("Mul", b.conv(y, w, bias), scale)
    found, counts = dropped(b, b.conv(y, w, bias))
    assert counts == [3] * 6 + [5]
    convs = [each for each in found.nodes if each.op == "Conv"]
    assert len({each.inputs[1] for each in convs}) == 3  # of all inputs, of some, to all outputs
    assert len({each.inputs[1] for each in found.nodes if each.op == "Mul"}) == 1


def test_operands_that_broadcast() -> None:
    b = Builder()
    x = b.input(1, 1, 6, 6)
    y = conv(b, x, 5, dead=[0, 3])
    y = b.op("Mul", b.op("Add", y, x), b.normal(6, 6))
    y = b.op("Max", b.op("Sub", y, 0.5), b.normal(5, 1, 6))
    found, counts = dropped(b, conv(b, y, 4, unread=[3]))
    assert counts == [4] * 5 + [4]
    assert found.types[found.nodes[4].inputs[1]].shape == (4, 1, 6)


# -- what stays -----------------------------------------------------------------------------------
def test_graphs_without_dead_channels_are_the_same() -> None:
    b = Builder()
    y = b.op("Relu", conv(b, b.input(1, 3, 6, 6), 5))
    w = b.normal(4, 5, 3, 3)
    b.constants[w][1, :4] = 0
    b.constants[w][:3, 4] = 0
    graph = b.graph(b.conv(y, w))
    assert drop_channels(graph) is graph


def test_outputs_and_inputs() -> None:
    b = Builder()
    y = conv(b, b.input(1, 5, 6, 6), 5, dead=[1], unread=[0, 2])
    graph = b.graph(y, conv(b, y, 3))
    assert drop_channels(graph) is graph


@pytest.mark.parametrize("op", ["Softmax", "Transpose"])
def test_what_reads_all_channels(op: str) -> None:
    b = Builder()
    y = conv(b, b.input(1, 3, 6, 6), 5, dead=[1])
    given: dict[str, Any] = {"axis": 1} if op == "Softmax" else {"perm": (0, 2, 1, 3)}
    graph = b.graph(b.op("Relu", b.op(op, y, **given)))
    assert drop_channels(graph) is graph


@pytest.mark.parametrize(("channels", "dead", "left"), [
    (32, 3, 32), (32, 16, 16), (32, 17, 16), (24, 9, 16), (24, 7, 24), (12, 5, 8), (13, 1, 12),
    (16, 16, 16), (5, 5, 1),
])  # fmt: skip
def test_whole_blocks(channels: int, dead: int, left: int) -> None:
    b = Builder()
    y = b.op("Relu", conv(b, b.input(1, 3, 4, 4), channels, dead=range(dead)))
    assert dropped(b, conv(b, y, 3))[1] == [left, left, 3]


def test_everything_is_dead() -> None:
    b = Builder()
    y = b.input(1, 3, 5, 5)
    for n in range(3):
        y = b.op("Relu", padded(b, y, 5 + n, dead=range(5 + n)))
    assert dropped(b, padded(b, y, 3))[1] == [1, 1, 1, 1, 1, 1, 3]
    b = Builder()
    y = padded(b, padded(b, b.input(1, 3, 5, 5), 5, dead=range(5)), 3, dead=range(3))
    assert dropped(b, y)[1] == [1, 3]


def test_filters_that_are_data_and_codes() -> None:
    b = Builder()
    x, w = b.input(1, 3, 5, 5), b.input(4, 6, 1, 1)
    y = conv(b, x, 6, dead=[0, 1])
    graph = b.graph(b.conv(y, w))
    assert drop_channels(graph) is graph


def test_what_would_not_be_finite() -> None:
    b = Builder(FLOAT32)
    y = conv(b, b.input(1, 3, 5, 5), 6, dead=[0, 1])
    b.constants[b.nodes[0].inputs[2]][:2] = 3e38
    w = b.const(np.full((4, 6, 1, 1), 3e38))
    graph = b.graph(b.conv(y, w))
    assert drop_channels(graph) is graph
    b.constants[b.nodes[0].inputs[2]][:2] = np.nan
    graph = b.graph(b.conv(y, b.normal(4, 6, 1, 1)))
    assert drop_channels(graph) is graph


# -- bounds ---------------------------------------------------------------------------------------
def test_one_large_weight_for_all_is_not_copied_for_each() -> None:
    random = np.random.default_rng(0)
    w = random.normal(size=(511, 511, 1, 1)).astype("f4")
    w[random.permutation(511)[:200]] = 0
    nodes, source, held = [], "x", {}
    for i in range(100):  # of other channels each
        nodes += [node("Conv", f"{source} w", f"a{i}"), node("Mul", f"a{i} k{i}", f"b{i}")]
        held[f"k{i}"] = (random.uniform(size=(511, 1, 1)) < 0.9).astype("f4")
        source = f"b{i}"
    proto = model(nodes, {"x": (1, 511, 1, 1)}, [source], held)
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    graph = read_model(proto.SerializeToString()).bind()
    with bounded(60, 64 * MIB):
        drop_channels(graph)


@pytest.mark.parametrize("way", ["down", "up", "flat"])
def test_long_chains_take_linear_time(way: str) -> None:
    b = Builder(FLOAT32)
    x = y = conv(b, b.input(1, 3, 1, 1), 5, dead=[0, 2])
    for n in range(1500):
        one = weights(b, 5, 5, 1, 1, dead=[n % 5], unread=[(2 * n) % 5] if way == "down" else [])
        y = b.op("Add", b.conv(y, one), x) if way == "up" else b.conv(y, one, activation=RELU)
    graph = b.graph(y)
    with bounded(30, 200 * MIB):
        drop_channels(graph)


def test_huge_extents_take_no_memory() -> None:
    b = Builder(FLOAT32)
    y = conv(b, b.input(1, 3, 1 << 10, 1 << 14), 4, dead=[0])
    graph = b.graph(b.op("Reshape", y, shape=(1, 1 << 26)))
    with bounded(10, 16 * MIB):
        find_channels(graph)


def test_huge_weights_of_zeros_take_no_memory() -> None:
    b = Builder(FLOAT32)
    x = b.input(1, 1 << 13, 1, 1)
    w = b.normal(1, 1)
    b.constants[w] = spread_zeros((1 << 13, 1 << 13, 1, 1), np.dtype("f4"))
    b.types[w] = TensorType(b.constants[w].shape, FLOAT32)
    graph = b.graph(b.op("Relu", b.conv(b.conv(x, w), w)))
    with bounded(20, 32 * MIB):
        assert has_empty(graph.constants[w], {0})
        assert drop_channels(graph) is graph
    filled = np.broadcast_to(np.float32(0), (1 << 13, 1 << 13, 3, 3))
    with bounded(5, MIB):
        assert has_empty(filled, {0})
        assert not has_empty(np.broadcast_to(np.float32(2), filled.shape), {1})


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("axes", [{0}, {1}, {0, 1}, set()])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (7, 5, 3, 3), (300, 1200, 1, 1), (40, 1, 5, 5)])
def test_zeros_are_found(
    shape: tuple[int, ...], axes: set[int], mapped: bool, tmp_path: Path
) -> None:
    def found(w: np.ndarray) -> bool:
        if not mapped:
            return has_empty(w, axes)
        (tmp_path / "w").write_bytes(w.tobytes())
        with (tmp_path / "w").open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return has_empty(np.frombuffer(memory, w.dtype).reshape(shape), axes)

    random = np.random.default_rng(3)
    for share in (0.0, 0.5, 0.99):
        w = random.normal(size=shape) * (random.uniform(size=shape) >= share)
        empty = [(w == 0).all(axis=tuple({0, 1, 2, 3} - {axis})).any() for axis in axes]
        assert found(w) == any(empty)
    for axis in axes:
        for place in 0, shape[axis] - 1:
            w = random.normal(size=shape)
            w[(slice(None),) * axis + (place,)] = 0
            assert found(w)


def test_weights_whose_outputs_no_convolution_reads_are_not_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = Builder()
    y = padded(b, b.op("Relu", conv(b, b.input(1, 3, 5, 5), 5)), 5, group=5)
    graph = b.graph(b.op("Sigmoid", conv(b, y, 4, dead=[1])))
    asked: dict[str, set[int]] = {}

    def noted(w: np.ndarray, axes: set[int]) -> bool:
        asked[next(name for name, held in graph.constants.items() if held is w)] = axes
        return has_empty(w, axes)

    monkeypatch.setattr(sys.modules[drop_channels.__module__], "has_empty", noted)
    assert drop_channels(graph) is graph
    convs = [node for node in graph.nodes if node.op == "Conv"]
    assert [asked[node.inputs[1]] for node in convs] == [{0, 1}, {0}, {1}]


# -- whole networks -------------------------------------------------------------------------------
def network(kind: str, channels: int, left: int) -> onnx.ModelProto:
    """An inverted residual, in the middle of which `left` of some channels are not dead."""
    random, held = np.random.default_rng(5), {}
    nodes, source = [], "x"
    shapes = (channels, 5, 3, 3), (channels, 1, 3, 3), (5, channels, 1, 1)
    for n, shape in enumerate(shapes):
        w = random.normal(size=shape) / 8
        w[left if n < 2 else 5 :] = 0
        held |= {f"w{n}": w.astype(kind), f"b{n}": random.uniform(0.5, 1, shape[0]).astype(kind)}
        names, pads = [source, f"w{n}", f"b{n}"], [shape[2] // 2] * 4
        group = channels if n == 1 else 1
        nodes.append(helper.make_node("Conv", names, [f"c{n}"], pads=pads, group=group))
        source = f"r{n}"
        nodes.append(node("Relu" if n else "HardSwish", f"c{n}", source))
    nodes.append(node("Add", f"{source} x", "y"))
    proto = model(nodes, {"x": (1, 5, "h", "w")}, ["y"], held)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.elem_type = element
    return proto


@pytest.mark.parametrize(("kind", "error"), [("f2", 4e-3), ("f4", 1e-5), ("f8", 1e-12)])
@pytest.mark.parametrize(("channels", "left"), [(35, 12), (48, 16), (20, 0)])
def test_networks_of_each_type(channels: int, left: int, kind: str, error: float) -> None:
    data = network(kind, channels, left).SerializeToString()
    net = lc.load(data, threads=1)
    wide = network("f4" if kind == "f2" else kind, channels, left)
    for size in (6, 7), (9, 4), (1, 1):
        x = np.random.default_rng(1).normal(size=(1, 5, *size)).astype(kind)
        given = {"x": x.astype("f4" if kind == "f2" else kind)}
        expected = interpreted(read_model(wide.SerializeToString()).bind(
            {"x": x.shape}, "float64"), given)["y"]  # fmt: skip
        np.testing.assert_allclose(net.run({"x": x})["y"], expected, rtol=error, atol=error)
    assert net.plan.memory_bytes == net.used_bytes
    assert "filters of convolutions left out" in net.explain()
    dropped = net.plan.graph.dropped
    assert dropped == 2 * (channels - max(left, 4 if channels == 20 else 1))


@pytest.mark.parametrize("left", [12, 0])
def test_networks_in_tiles(left: int) -> None:
    """They have the bits of the whole."""
    tiled = lc.tiled(lc.load(network("f4", 35, left), threads=1), tile=24)
    x = np.random.default_rng(1).normal(size=(1, 5, 50, 61)).astype("f4")
    np.testing.assert_array_equal(tiled(x), tiled.whole(x))
    assert tiled.plan.windows.window.dropped


def test_a_gpu_leaves_them_out_too() -> None:
    graph = read_model(network("f8", 35, 12).SerializeToString()).bind({"x": (1, 5, 6, 7)})
    found = run_passes(graph, GPU_PASSES, check=True)
    assert_equal(graph, found)
    assert found.dropped == 46
