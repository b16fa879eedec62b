"""Sums of convolutions of one input: one convolution, or what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import leanconv as lc
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import GPU_PASSES, UNFUSED_PASSES, run_passes
from leanconv.graph.passes.add_convolutions import add_convolutions
from leanconv.graph.passes.fold_batch_norm import fold_batch_norm
from leanconv.spec.activation import Activation
from leanconv.types import FLOAT32
from support.graph_builder import Builder, applied, only, ops
from support.hostile import MIB, bounded, node
from support.onnx_models import model, reference

R = np.random.default_rng(11)


def conv(b: Builder, x: str, *kernel: int, group: int = 1, out: int = 0, **given: Any) -> str:
    """A convolution of maps that stay as they are, of any kernel of odd extents."""
    channels = b.types[x].shape[1]
    steps = given.get("dilations", (1,) * len(kernel))
    pads = tuple(n // 2 * step for n, step in zip(kernel, steps, strict=True)) * 2
    w = b.normal(out or channels, channels // group, *kernel)
    return b.conv(x, w, *given.pop("more", ()), group=group, **{"pads": pads, **given})


def merged(b: Builder, *outputs: str) -> Graph:
    """The graph when norms are folded and sums are made, which computes the same."""
    return applied(add_convolutions, applied(fold_batch_norm, b.graph(*outputs)))


def summed(b: Builder, *parts: str) -> str:
    total = parts[0]
    for each in parts[1:]:
        total = b.op("Add", total, each)
    return total


# -- made -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize("shape", [(2, 6, 7), (2, 6, 5, 7), (1, 6, 4, 5, 3)])
def test_three_branches_with_norms(shape: tuple[int, ...], group: int, order: int) -> None:
    """As RepVGG and, where each channel is a group, MobileOne: any order of the sum."""
    b = Builder()
    x, rank = b.op("Relu", b.input(*shape)), len(shape) - 2
    parts = [
        b.batch_norm(conv(b, x, *(3,) * rank, group=group)),
        b.batch_norm(conv(b, x, *(1,) * rank, group=group)),
        b.batch_norm(x),
    ]
    first = order % 3
    rest = [parts[(first + 1) % 3], parts[(first + 2) % 3]]
    y = b.op("Add", parts[first], b.op("Add", *(rest if order < 3 else rest[::-1])))
    found = merged(b, b.op("Relu", y))
    assert ops(found) == ["Relu", "Conv", "Relu"]
    made = only(found, "Conv")
    assert found.types[made.inputs[1]].shape == (6, 6 // group, *(3,) * rank)
    assert made.attributes["pads"] == (1,) * (2 * rank)
    assert made.attributes["group"] == group
    assert made.input(2)


@pytest.mark.parametrize("branches", [2, 3, 4, 6])
def test_many_branches(branches: int) -> None:
    """Pointwise ones, as between the depthwise of MobileOne."""
    b = Builder()
    x = b.op("Relu", b.input(1, 5, 4, 4))
    parts = [b.batch_norm(conv(b, x, 1, 1, more=(b.normal(5),))) for _ in range(branches)]
    found = merged(b, summed(b, *parts, b.batch_norm(x)))
    assert ops(found) == ["Relu", "Conv"]
    assert found.types[only(found, "Conv").inputs[1]].shape == (5, 5, 1, 1)


@pytest.mark.parametrize("factor", [False, True])
def test_the_input_itself(factor: bool) -> None:
    """It is a delta; beside one convolution, and without a factor, it stays that one's residual."""
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 6, 6))
    more = b.op("Mul", x, b.normal(4, 1, 1)) if factor else x
    found = merged(b, b.op("Add", conv(b, x, 3, 3), more))
    assert ops(found) == ["Relu", "Conv", *([] if factor else ["Add"])]
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 6, 6))
    assert ops(merged(b, summed(b, conv(b, x, 3, 3), x, conv(b, x, 1, 1)))) == ["Relu", "Conv"]


def test_the_input_of_several_convolutions_is_the_networks() -> None:
    b = Builder()
    x = b.input(1, 4, 6, 6)
    assert ops(merged(b, summed(b, conv(b, x, 3, 3), conv(b, x, 1, 1), x))) == ["Conv"]


def test_kernels_of_several_sizes() -> None:
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 9, 8))
    kernels = [(7, 7), (5, 3), (1, 7), (3, 1), (1, 1)]
    found = merged(b, summed(b, *(conv(b, x, *each, group=4) for each in kernels)))
    assert ops(found) == ["Relu", "Conv"]
    assert found.types[only(found, "Conv").inputs[1]].shape == (4, 1, 7, 7)


def test_dilated_ones_beside_single_taps() -> None:
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 9, 8))
    one = conv(b, x, 3, 3, dilations=(2, 3))
    found = merged(b, summed(b, one, conv(b, x, 1, 1), conv(b, x, 3, 1, dilations=(2, 1)), x))
    assert ops(found) == ["Relu", "Conv"]
    assert only(found, "Conv").attributes["dilations"] == (2, 3)


def test_dilated_ones_within_a_large_kernel() -> None:
    """As UniRepLKNet is trained: all taps lie on those of the largest kernel."""
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 16, 15))
    steps = [(13, 1), (5, 1), (7, 2), (3, 3), (3, 4), (3, 5)]
    parts = [b.batch_norm(conv(b, x, n, n, dilations=(step, step), group=4)) for n, step in steps]
    found = merged(b, b.op("Relu", summed(b, *parts)))
    assert ops(found) == ["Relu", "Conv", "Relu"]
    assert found.types[only(found, "Conv").inputs[1]].shape == (4, 1, 13, 13)


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (1, 2)])
def test_strides(size: tuple[int, int]) -> None:
    """The shortcut of a stage's first block: no input itself, its maps are larger."""
    b = Builder()
    x = b.op("Relu", b.input(2, 4, *size))
    parts = [conv(b, x, n, n, out=6, strides=(2, 2)) for n in (3, 1)]
    found = merged(b, b.op("Relu", summed(b, *parts)))
    assert ops(found) == ["Relu", "Conv", "Relu"]
    assert only(found, "Conv").attributes["strides"] == (2, 2)


def test_uneven_padding() -> None:
    """Taps before and behind, and an end that reads less than its padding."""
    b = Builder()
    x = b.op("Relu", b.input(1, 3, 8, 8))
    one = b.conv(x, b.normal(3, 3, 4, 4), pads=(2, 0, 1, 3), strides=(1, 1))
    two = b.conv(x, b.normal(3, 3, 2, 3), pads=(1, 0, 0, 2))
    found = merged(b, summed(b, one, two))
    assert ops(found) == ["Relu", "Conv"]
    assert found.types[only(found, "Conv").inputs[1]].shape == (3, 3, 4, 4)


def test_factors_and_summands_in_between_and_behind() -> None:
    """A norm of the sum, as where such blocks are quantised (QARepVGG), and halves of it."""
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 6, 6))
    y = summed(b, b.batch_norm(conv(b, x, 3, 3)), conv(b, x, 1, 1))
    y = b.op("Sub", b.normal(4, 1, 1), b.op("Mul", y, 0.5))
    y = b.batch_norm(b.op("Add", y, x))
    assert ops(merged(b, b.op("Relu", y))) == ["Relu", "Conv", "Relu"]


def test_sums_behind_each_other_and_a_residual_around_them() -> None:
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 6, 6))
    y = x
    for _ in range(3):
        parts = [b.batch_norm(conv(b, y, 3, 3)), b.batch_norm(conv(b, y, 1, 1)), b.batch_norm(y)]
        y = b.op("Relu", summed(b, *parts))
    z = b.op("Add", summed(b, conv(b, y, 3, 3), conv(b, y, 1, 1)), x)
    found = merged(b, z)
    assert ops(found) == ["Relu", *["Conv", "Relu"] * 3, "Conv", "Add"]
    whole = run_passes(b.graph(z), UNFUSED_PASSES, check=True)
    assert [op for op in ops(whole) if op == "Add"] == []


def test_weights_are_rounded_once() -> None:
    b = Builder(FLOAT32)
    x = b.op("Relu", b.input(1, 8, 6, 6))
    parts = [b.batch_norm(conv(b, x, 3, 3)), conv(b, x, 1, 1), b.batch_norm(x)]
    graph = b.graph(summed(b, *parts))
    found = applied(add_convolutions, graph, 1e-6)
    names = [node.inputs for node in graph.nodes if node.op == "BatchNormalization"]
    affine = []
    for _, scale, shift, mean, variance in names:
        factor = b.constants[scale] / np.sqrt(b.constants[variance].astype("f8") + 1e-5)
        affine.append((factor, b.constants[shift] - factor * b.constants[mean]))
    convs = [b.constants[each.inputs[1]].astype("f8") for each in graph.nodes if each.op == "Conv"]
    expected = convs[0] * affine[0][0][:, None, None, None]
    expected[:, :, 1, 1] += convs[1][:, :, 0, 0] + np.diag(affine[1][0])
    made = only(found, "Conv")
    np.testing.assert_array_equal(found.constants[made.inputs[1]], expected.astype("f4"))
    bias = affine[0][1] + affine[1][1]
    np.testing.assert_allclose(found.constants[made.inputs[2]], bias, rtol=1e-6, atol=1e-7)


# -- left alone -----------------------------------------------------------------------------------
def test_what_others_see() -> None:
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 6, 6))
    one, two = conv(b, x, 3, 3), conv(b, x, 1, 1)
    y = b.op("Add", one, two)
    assert ops(merged(b, y, one)) == ["Relu", "Conv", "Conv", "Add"]
    assert ops(merged(b, b.op("Mul", b.op("Relu", y), two))) == [
        "Relu", "Conv", "Conv", "Add", "Relu", "Mul"
    ]  # fmt: skip


def test_an_inner_sum_that_others_see_is_one_itself() -> None:
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 6, 6))
    y = b.op("Add", conv(b, x, 3, 3), conv(b, x, 1, 1))
    z = b.op("Add", y, conv(b, x, 1, 1))
    assert ops(merged(b, y, z)) == ["Relu", "Conv", "Conv", "Add"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"strides": (2, 2)}, {"kernel": (1, 1), "strides": (2, 1)}),
        ({"dilations": (2, 2)}, {}),
        ({"group": 2}, {"kernel": (1, 1)}),
        ({"kernel": (3, 1)}, {"kernel": (1, 3)}),
        ({"pads": (2, 2, 0, 0)}, {"pads": (0, 0, 2, 2)}),
        ({"activation": Activation("relu")}, {}),
    ],
)
def test_other_geometries(one: dict[str, Any], two: dict[str, Any]) -> None:
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 6, 1))
    parts = [conv(b, x, *each.pop("kernel", (3, 3)), **each) for each in (dict(one), dict(two))]
    assert ops(merged(b, summed(b, *parts))) == ["Relu", "Conv", "Conv", "Add"]


def test_the_input_between_taps() -> None:
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 6, 6))
    y = b.conv(x, b.normal(4, 4, 2, 2), pads=(1,) * 4, dilations=(2, 2))
    assert ops(merged(b, b.op("Add", y, b.op("Mul", x, 2.0)))) == ["Relu", "Conv", "Mul", "Add"]


def test_other_inputs_and_weights_that_are_data() -> None:
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 6, 6))
    other = b.op("Abs", x)
    assert ops(merged(b, b.op("Add", conv(b, x, 3, 3), conv(b, other, 3, 3)))) == [
        "Relu", "Abs", "Conv", "Conv", "Add"
    ]  # fmt: skip
    w = b.input(4, 4, 1, 1)
    y = b.op("Add", conv(b, x, 3, 3), b.conv(x, w))
    assert ops(merged(b, y))[-3:] == ["Conv", "Conv", "Add"]


@pytest.mark.parametrize("given", [{}, {"out": 1, "pads": (1, 1, 1, 1)}])
def test_sums_that_broadcast(given: dict[str, Any]) -> None:
    b = Builder()
    x = b.op("Relu", b.input(1, 4, 3, 3))
    y = b.op("Add", conv(b, x, 1, 1), conv(b, x, 3, 3, **{"pads": (0,) * 4, **given}))
    assert ops(merged(b, y)) == ["Relu", "Conv", "Conv", "Add"]


def test_factors_that_widen() -> None:
    b = Builder()
    x = b.input(1, 1, 4, 4)
    y = b.op("Add", b.op("Mul", b.conv(x, b.normal(1, 1, 1, 1)), b.normal(3, 1, 1)), x)
    assert ops(merged(b, y)) == ["Conv", "Mul", "Add"]


def test_sums_that_are_not_finite() -> None:
    b = Builder(FLOAT32)
    x = b.op("Relu", b.input(1, 4, 6, 6))
    huge = b.const(np.full((4, 4, 1, 1), 3e38))
    y = b.op("Add", b.conv(x, huge), b.conv(x, huge))
    graph = b.graph(y)
    assert add_convolutions(graph).nodes[1:3] == graph.nodes[1:3]


def test_one_large_weight_for_all_is_not_copied_for_each() -> None:
    w = numpy_helper.from_array(np.ones((512, 512, 1, 1), "f4"), "w")  # 1 MiB
    nodes = []
    for i in range(100):
        nodes += [node("Conv", "x w", f"a{i}"), node("Conv", "x w", f"b{i}")]
        nodes += [node("Mul", f"b{i} k{i}", f"c{i}"), node("Add", f"a{i} c{i}", f"y{i}")]
    proto = model(nodes, {"x": (1, 512, 1, 1)}, [f"y{i}" for i in range(100)],
                  {f"k{i}": np.float32(i) for i in range(100)})  # fmt: skip
    proto.graph.initializer.append(w)
    with bounded(20, 80 * MIB):
        run_passes(read_model(proto.SerializeToString()).bind())


def test_long_sums_take_linear_time() -> None:
    nodes = [node("Conv", "x w", "s0")]
    for i in range(3000):
        nodes += [node("Conv", "x w", f"c{i}"), node("Add", f"s{i} c{i}", f"s{i + 1}")]
    held = {"w": np.ones((2, 2, 1, 1), "f4")}
    proto = model(nodes, {"x": (1, 2, 4, 4)}, ["s3000"], held)
    graph = read_model(proto.SerializeToString()).bind()
    with bounded(20, 64 * MIB):
        found = add_convolutions(graph)
    assert len(found.nodes) < len(graph.nodes)


# -- whole networks -------------------------------------------------------------------------------
def block_network(
    channels: int, side: int, blocks: int, group: int = 1, seed: int = 3
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """RepVGG's blocks as they are trained, and merged by hand."""
    random = np.random.default_rng(seed)
    nodes: dict[bool, list[onnx.NodeProto]] = {False: [], True: []}
    held: dict[bool, dict[str, np.ndarray]] = {False: {}, True: {}}
    for i in range(blocks):
        weights = {
            f"a{i}": random.standard_normal((channels, channels // group, 3, 3)) / channels,
            f"b{i}": random.standard_normal((channels, channels // group, 1, 1)) / channels,
        }
        total, bias = np.zeros((channels, channels // group, 3, 3)), np.zeros(channels)
        for branch in "abx":
            scale, shift, mean = (random.standard_normal(channels) / 2 for _ in range(3))
            variance = random.uniform(0.5, 1.5, channels)
            parts = {"s": scale, "t": shift, "m": mean, "v": variance}
            held[False] |= {f"{branch}{i}{n}": a.astype("f4") for n, a in parts.items()}
            source, name = f"y{i}" if i else "x", f"{branch}{i}"
            if branch != "x":
                pads = [1] * 4 if branch == "a" else [0] * 4
                made = helper.make_node(
                    "Conv", [source, name], [f"{name}c"], pads=pads, group=group
                )
                nodes[False].append(made)
                held[False][name] = weights[name].astype("f4")
                source = f"{name}c"
            operands = [source, *(f"{name}{n}" for n in "stmv")]
            nodes[False].append(helper.make_node("BatchNormalization", operands, [f"{name}n"]))
            factor = (scale / np.sqrt(variance + 1e-5))[:, None, None, None]
            if branch == "a":
                total += factor * weights[name]
            elif branch == "b":
                total[:, :, 1:2, 1:2] += factor * weights[name]
            else:
                outputs = np.arange(channels)
                total[outputs, outputs % (channels // group), 1, 1] += factor.reshape(-1)
            bias += shift - factor.reshape(-1) * mean
        nodes[False] += [
            node("Add", f"a{i}n b{i}n", f"s{i}"),
            node("Add", f"s{i} x{i}n", f"t{i}"),
            node("Relu", f"t{i}", f"y{i + 1}"),
        ]
        source = f"y{i}" if i else "x"
        merged_conv = helper.make_node(
            "Conv", [source, f"w{i}", f"q{i}"], [f"t{i}"], pads=[1] * 4, group=group
        )
        nodes[True] += [merged_conv, node("Relu", f"t{i}", f"y{i + 1}")]
        held[True] |= {f"w{i}": total.astype("f4"), f"q{i}": bias.astype("f4")}
    shape = {"x": (1, channels, side, side)}
    trained, by_hand = (model(nodes[k], shape, [f"y{blocks}"], held[k]) for k in (False, True))
    return trained, by_hand


@pytest.mark.parametrize("group", [1, 4, 16])
def test_blocks_as_trained_are_those_merged_by_hand(group: int) -> None:
    trained, by_hand = block_network(16, 14, 3, group)
    x = R.standard_normal((1, 16, 14, 14)).astype("f4")
    networks = [lc.load(each, threads=1) for each in (trained, by_hand)]
    plans = [[(step.op, step.algorithm) for step in net.plan.steps] for net in networks]
    assert plans[0] == plans[1]
    assert sum(op == "Conv" for op, _ in plans[0]) == 3
    expected = reference(trained, {"x": x})["y3"]
    for net in networks:
        np.testing.assert_allclose(net(x), expected, rtol=1e-4, atol=1e-4 * abs(expected).max())
    gpu = run_passes(read_model(trained.SerializeToString()).bind(), GPU_PASSES)
    assert ops(gpu) == ["Conv"] * 3


def test_open_sizes_and_float64() -> None:
    trained, _ = block_network(8, 14, 2)
    for axis in (0, 2, 3):
        trained.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"n{axis}"
    net = lc.load(trained, threads=1)
    for size in ((1, 8, 9, 10), (2, 8, 14, 5), (1, 8, 30, 31), (3, 8, 2, 1)):
        x = R.standard_normal(size).astype("f4")
        np.testing.assert_allclose(net(x), reference(trained, {"x": x})["y2"], rtol=1e-4, atol=1e-4)
    x = R.standard_normal((1, 8, 9, 9))
    found = lc.load(trained, threads=1, dtype="float64")(x)
    np.testing.assert_allclose(found, net(x.astype("f4")), rtol=1e-4, atol=1e-4)


def test_quantised_branches_stay_codes() -> None:
    """Codes of weights are not added: each branch has its own scale."""
    held: dict[str, Any] = {"zero": np.uint8(0), "none": np.int8(0), "one": np.float32(0.05)}
    nodes = [
        node("QuantizeLinear", "x one zero", "q"),
        node("DequantizeLinear", "q one zero", "d"),
    ]
    for name, size in (("a", 3), ("b", 1)):
        held[name] = R.integers(-9, 9, (8, 8, size, size)).astype("i1")
        nodes += [
            node("DequantizeLinear", f"{name} one none", f"{name}w"),
            node("Conv", f"d {name}w", f"{name}c", pads=[size // 2] * 4),
            node("QuantizeLinear", f"{name}c one zero", f"{name}q"),
            node("DequantizeLinear", f"{name}q one zero", f"{name}d"),
        ]
    nodes += [
        node("Add", "ad bd", "s"),
        node("QuantizeLinear", "s one zero", "sq"),
        node("DequantizeLinear", "sq one zero"),
    ]
    proto = model(nodes, {"x": (1, 8, 9, 9)}, ["y"], held)
    x = R.random((1, 8, 9, 9)).astype("f4")
    net = lc.load(proto, threads=1)
    assert sum(step.op.endswith("Conv") for step in net.plan.steps) == 2
    np.testing.assert_allclose(net(x), reference(proto, {"x": x})["y"], rtol=0, atol=0.0501)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sum(data: st.DataObject) -> None:
    """Kernels, paddings, steps and groups at random: the same values, fewer convolutions or not."""
    b = Builder(seed=data.draw(st.integers(0, 99)))
    rank = data.draw(st.integers(1, 3))
    group = data.draw(st.sampled_from([1, 2, 4]))
    x = b.op(
        "Relu",
        b.input(
            data.draw(st.integers(1, 2)), 4, *(data.draw(st.integers(1, 6)) for _ in range(rank))
        ),
    )
    strides = tuple(data.draw(st.integers(1, 2)) for _ in range(rank))
    parts = []
    for _ in range(data.draw(st.integers(1, 4))):
        kernel = tuple(data.draw(st.integers(1, 4)) for _ in range(rank))
        steps = tuple(data.draw(st.sampled_from([1, 1, 2])) for _ in range(rank))
        ends = []
        for n, step in zip(kernel, steps, strict=True):
            before = data.draw(st.integers(0, (n - 1) * step))
            ends.append((before, (n - 1) * step - before))
        pads = (*(before for before, _ in ends), *(after for _, after in ends))
        w = b.normal(4, 4 // group, *kernel)
        part = b.conv(x, w, strides=strides, pads=pads, dilations=steps, group=group)
        parts.append(b.batch_norm(part) if data.draw(st.booleans()) else part)
    if all(stride == 1 for stride in strides) and data.draw(st.booleans()):
        parts.append(b.batch_norm(x) if data.draw(st.booleans()) else x)
    y = summed(b, *data.draw(st.permutations(parts)))
    merged(b, b.op("Relu", y))
