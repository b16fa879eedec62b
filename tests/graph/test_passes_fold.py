"""Folding into weights: batch norm, constants per channel, padding, pools, dense layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.graph.edit import frozen
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import infer
from leanconv.graph.passes.canonical_forms import (
    dense_to_conv,
    global_pooling,
    merge_pads,
    pool_channels_last,
    transpose_interleaved,
)
from leanconv.graph.passes.fold_batch_norm import fold_batch_norm
from leanconv.graph.passes.simplify import simplify
from leanconv.graph.verify import verify
from leanconv.spec.activation import Activation
from leanconv.types import FLOAT32, INT8, UINT8, DType
from support.graph_builder import Builder, applied, only, ops

WEIGHTS = {  # operation, group -> shape of weights from 4 to 6 channels
    ("Conv", 1): (6, 4, 3, 2),
    ("Conv", 2): (6, 2, 3, 2),
    ("ConvTranspose", 1): (4, 6, 3, 2),
    ("ConvTranspose", 2): (4, 3, 3, 2),
}


@pytest.mark.parametrize(("op", "group"), WEIGHTS)
@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_after(op: str, group: int, bias: bool) -> None:
    b = Builder()
    x = b.input(2, 4, 5, 6)
    more = (b.normal(6),) if bias else ()
    w = b.normal(*WEIGHTS[op, group])
    y = b.conv(x, w, *more, op=op, group=group, pads=(1, 0, 1, 1))
    assert ops(applied(fold_batch_norm, b.graph(b.batch_norm(y)))) == [op]


@pytest.mark.parametrize(
    ("op", "first"),
    [("Add", 0), ("Add", 1), ("Sub", 0), ("Sub", 1), ("Mul", 0), ("Mul", 1), ("Div", 0)],
)
@pytest.mark.parametrize("shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1), (1, 1, 1, 1)])
def test_constants_after(op: str, first: int, shape: tuple[int, ...]) -> None:
    b = Builder()
    y = b.conv(b.input(2, 4, 5, 6), b.normal(6, 4, 3, 3), pads=(1, 1, 1, 1))
    c = b.normal(*shape)
    z = b.op(op, *((c, y) if first else (y, c)))
    assert ops(applied(fold_batch_norm, b.graph(z))) == ["Conv"]


def test_a_chain_folds_and_weights_stay_when_only_shifted() -> None:
    b = Builder()
    w = b.normal(6, 4, 1, 1)
    y = b.conv(b.input(2, 4, 5, 6), w)
    y = b.op("Sub", b.op("Add", y, b.normal(6, 1, 1)), 3.0)
    assert only(applied(fold_batch_norm, b.graph(y)), "Conv").inputs[1] == w
    z = b.batch_norm(b.op("Div", y, b.normal(6, 1, 1)))
    assert ops(applied(fold_batch_norm, b.graph(z))) == ["Conv"]


@pytest.mark.parametrize("shape", [(6,), (5, 1), (2, 1, 1, 1), (2, 6, 5, 6), (1, 1, 6, 1, 1)])
def test_constants_along_other_axes_stay(shape: tuple[int, ...]) -> None:
    b = Builder()
    y = b.conv(b.input(2, 4, 5, 6), b.normal(6, 4, 1, 1))
    assert ops(applied(fold_batch_norm, b.graph(b.op("Mul", y, b.normal(*shape))))) == [
        "Conv",
        "Mul",
    ]


def test_a_constant_that_widens_the_channels_stays() -> None:
    b = Builder()
    y = b.conv(b.input(2, 4, 5, 6), b.normal(1, 4, 1, 1))
    result = applied(fold_batch_norm, b.graph(b.op("Mul", y, b.normal(3, 1, 1))))
    assert ops(result) == ["Conv", "Mul"]


def test_what_others_see_is_not_folded() -> None:
    b = Builder()
    y = b.conv(b.input(2, 4, 5, 6), b.normal(6, 4, 1, 1))
    z = b.batch_norm(y)
    assert ops(applied(fold_batch_norm, b.graph(z, y))) == ["Conv", "Mul", "Add"]
    b.op("Add", y, z)
    assert ops(applied(fold_batch_norm, b.graph("v2"))) == ["Conv", "Mul", "Add", "Add"]


def test_activation_and_residual_stop_folding() -> None:
    b = Builder()
    x = b.input(2, 4, 5, 6)
    y = b.conv(x, b.normal(4, 4, 1, 1), activation=Activation("relu"))
    z = b.conv(x, b.normal(4, 4, 1, 1), "", x)
    result = applied(fold_batch_norm, b.graph(b.op("Mul", y, 2.0), b.op("Mul", z, 2.0)))
    assert ops(result) == ["Conv", "Conv", "Mul", "Mul"]


@pytest.mark.parametrize("group", [1, 2])
def test_before_a_convolution_without_padding(group: int) -> None:
    b = Builder()
    x = b.op("Relu", b.input(2, 4, 5, 6))
    y = b.op("Add", b.op("Mul", b.batch_norm(x), 2.0), b.normal(4, 1, 1))
    w = b.normal(6, 4 // group, 3, 3)
    z = b.conv(y, w, b.normal(6), group=group, activation=Activation("relu"))
    assert ops(applied(fold_batch_norm, b.graph(z))) == ["Relu", "Conv"]


def test_before_a_padded_convolution_only_the_factor() -> None:
    b = Builder()
    y = b.op("Div", b.op("Sub", b.input(1, 3, 8, 8), b.normal(3, 1, 1)), b.normal(3, 1, 1))
    z = b.conv(y, b.normal(4, 3, 3, 3), pads=(1, 1, 1, 1))
    assert ops(applied(fold_batch_norm, b.graph(z))) == ["Sub", "Conv"]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (1, 4, 1, 1)])
def test_before_a_padded_convolution_one_addition_stays(group: int, shape: tuple[int, ...]) -> None:
    b = Builder()
    x = b.op("Relu", b.input(2, 4, 5, 6))
    y = b.op("Add", b.op("Mul", x, b.normal(*shape)), b.normal(*shape))
    w = b.normal(6, 4 // group, 3, 3)
    z = b.conv(y, w, b.normal(6), group=group, pads=(1, 0, 2, 1))
    result = applied(fold_batch_norm, b.graph(z))
    assert ops(result) == ["Relu", "Add", "Conv"]
    (added,) = (result.constants[only(result, "Add").inputs[1]],)
    assert added.size == (4 if shape and shape != (1,) else 1)
    assert ops(applied(fold_batch_norm, result)) == ["Relu", "Add", "Conv"]


def test_longer_chains_before_a_padded_convolution_become_one_addition() -> None:
    b = Builder()
    y = b.op("Sub", b.op("Div", b.batch_norm(b.input(1, 3, 8, 8)), 0.5), b.normal(3, 1, 1))
    z = b.conv(y, b.normal(4, 3, 3, 3), pads=(1, 1, 1, 1))
    assert ops(applied(fold_batch_norm, b.graph(z))) == ["Add", "Conv"]


def test_factors_of_nothing_stay_before_a_padded_convolution() -> None:
    """0 · x + shift is no 0 · (x + shift / 0); what the shift would overflow in stays, too."""
    for factor in (0.0, 1e-300):
        b = Builder()
        y = b.op("Add", b.op("Mul", b.input(1, 3, 8, 8), factor), 1e20)
        z = b.conv(y, b.normal(4, 3, 3, 3), pads=(1, 1, 1, 1))
        assert ops(applied(fold_batch_norm, b.graph(z))) == ["Mul", "Add", "Conv"]


def test_factors_that_others_read_stay() -> None:
    b = Builder()
    y = b.op("Add", b.op("Mul", b.input(1, 3, 8, 8), 2.0), 1.0)
    z = b.conv(y, b.normal(4, 3, 3, 3), pads=(1, 1, 1, 1))
    graph = b.graph(z, b.op("Exp", y))
    assert sorted(ops(applied(fold_batch_norm, graph))) == ["Add", "Conv", "Exp", "Mul"]


def test_batch_norm_alone_becomes_mul_and_add() -> None:
    b = Builder()
    kept = [b.batch_norm(b.input(*shape)) for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5, 2))]
    assert ops(applied(fold_batch_norm, b.graph(*kept))) == ["Mul", "Add"] * 3


def test_weights_are_rounded_once() -> None:
    b = Builder(FLOAT32)
    y = b.batch_norm(b.conv(b.input(1, 2, 3, 3), b.normal(3, 2, 1, 1)))
    result = applied(fold_batch_norm, b.graph(y), tolerance=1e-6)
    w = result.constants[only(result, "Conv").inputs[1]]
    gamma, variance = (b.constants[b.nodes[1].inputs[i]].astype(np.float64) for i in (1, 4))
    exact = b.constants["c0"] * (gamma / np.sqrt(variance + 1e-5)).reshape(-1, 1, 1, 1)
    assert w.dtype == np.float32
    assert np.array_equal(w, exact.astype(np.float32))
    assert not w.flags.writeable


def test_what_overflows_is_not_folded() -> None:
    b = Builder(FLOAT32)
    y = b.conv(b.input(1, 1, 1, 1), b.const(np.full((1, 1, 1, 1), 1e30)))
    z = b.op("Mul", b.op("Mul", y, 1e-30), 1e30)
    result = fold_batch_norm(b.graph(b.op("Mul", z, 1e30)))
    assert ops(result) == ["Conv", "Mul"]


def test_one_shared_weight_is_not_copied_without_end() -> None:
    b = Builder(FLOAT32)
    x, w = b.input(1, 1024, 1, 1), b.normal(1024, 1024, 1, 1)
    kept = [b.op("Mul", b.conv(x, w), float(i + 2)) for i in range(40)]
    result = fold_batch_norm(b.graph(*kept))
    held = sum(array.nbytes for array in result.constants.values())
    assert held < 8 * b.constants[w].nbytes + 32 * 2**20
    assert ops(result).count("Mul") > 20


def test_dense_layers_fold_too() -> None:
    b = Builder()
    x = b.input(5, 7)
    y = b.op("MatMul", b.batch_norm(x), b.normal(7, 3))
    y = b.batch_norm(b.op("Add", y, b.normal(3)))
    z = b.op("Mul", b.op("MatMul", b.input(2, 5, 7), b.normal(7, 3)), b.normal(3))
    result = applied(fold_batch_norm, applied(dense_to_conv, b.graph(y, z)))
    assert ops(result) == ["Reshape", "Conv", "Reshape"] * 2
    assert [len(node.inputs) for node in result.nodes] == [1, 3, 1] * 2


@pytest.mark.parametrize(("shape", "constant"), [((8,), (8,)), ((4, 2), (2,)), ((4, 2), (4, 1))])
def test_a_view_that_mixes_rows_and_channels_stays(
    shape: tuple[int, ...], constant: tuple[int, ...]
) -> None:
    b = Builder()
    y = b.op("Reshape", b.conv(b.input(2, 3, 1, 1), b.normal(4, 3, 1, 1)), shape=shape)
    result = applied(fold_batch_norm, b.graph(b.op("Mul", y, b.normal(*constant))))
    assert ops(result) == ["Conv", "Reshape", "Mul"]


# Dense layers


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 3.0)])
@pytest.mark.parametrize("bias", [None, (3,), (1, 3), (), (1, 1)])
def test_gemm(trans: int, alpha: float, beta: float, bias: Any) -> None:
    b = Builder()
    w = b.normal(3, 7) if trans else b.normal(7, 3)
    c = () if bias is None else (b.normal(*bias),)
    y = b.op("Gemm", b.input(5, 7), w, *c, transA=0, transB=trans, alpha=alpha, beta=beta)
    result = applied(dense_to_conv, b.graph(y))
    assert ops(result) == ["Reshape", "Conv", "Reshape"]
    assert result.types[only(result, "Conv").inputs[1]].shape == (3, 7, 1, 1)


def test_gemm_that_does_not_qualify() -> None:
    b = Builder()
    w, x = b.normal(5, 3), b.input(5, 7)
    plain = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0}
    kept = [
        b.op("Gemm", x, w, **{**plain, "transA": 1}),
        b.op("Gemm", x, b.input(7, 2), **plain),
        b.op("Gemm", x, b.normal(7, 2), b.normal(5, 2), **plain),
        b.op("Gemm", x, b.normal(7, 2), b.normal(5, 1), **plain),
        b.op("Gemm", x, b.normal(7, 2), b.input(2), **plain),
        b.op("MatMul", b.normal(4, 5), x),
        b.op("MatMul", b.input(7), b.normal(7, 2)),
        b.op("MatMul", x, b.normal(7)),
        b.op("MatMul", x, b.normal(2, 7, 3)),
    ]
    assert ops(applied(dense_to_conv, b.graph(*kept))) == ["Gemm"] * 5 + ["MatMul"] * 4


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 5, 4, 5), (2, 5, 2, 3, 2), (1, 6, 1, 1)])
def test_a_flattened_map_is_read_itself(shape: tuple[int, ...]) -> None:
    b = Builder()
    size = int(np.prod(shape[1:]))
    x = b.op("Reshape", b.input(*shape), shape=(shape[0], size))
    result = applied(dense_to_conv, b.graph(b.op("MatMul", x, b.normal(size, 4))))
    assert ops(result) == ["Conv", "Reshape"]
    assert result.types[only(result, "Conv").inputs[1]].shape == (4, *shape[1:])


def test_a_map_flattened_otherwise_is_not() -> None:
    b = Builder()
    x = b.op("Reshape", b.input(4, 3, 2, 2), shape=(2, 24))
    result = applied(dense_to_conv, b.graph(b.op("MatMul", x, b.normal(24, 4))))
    assert ops(result) == ["Reshape", "Reshape", "Conv", "Reshape"]


def test_a_batched_product_and_a_shared_weight() -> None:
    b = Builder()
    w = b.normal(7, 3)
    kept = b.op("MatMul", b.input(2, 5, 7), w), b.op("MatMul", b.input(4, 7), w)
    result = applied(dense_to_conv, b.graph(*kept))
    assert ops(result) == ["Reshape", "Conv", "Reshape"] * 2
    assert len(result.constants) == 1


# Padding


PADS = (0, 0, 1, 2, 0, 0, 0, 3)


def test_pads_merge_into_a_convolution() -> None:
    b = Builder()
    x = b.input(2, 3, 5, 6)
    y = b.op("Pad", x, pads=PADS, mode="constant", value=0.0)
    z = b.conv(y, b.normal(4, 3, 3, 3), pads=(1, 0, 0, 2), strides=(2, 1))
    result = applied(merge_pads, b.graph(z))
    assert ops(result) == ["Conv"]
    assert only(result, "Conv").attributes["pads"] == (2, 2, 0, 5)
    result = applied(merge_pads, b.graph(z, b.op("Exp", y)))  # and stay for other users
    assert ops(result) == ["Pad", "Conv", "Exp"]
    assert result.nodes[1].inputs[0] == x


@pytest.mark.parametrize(("own", "counts", "merges"), [(0, 0, 1), (0, 1, 1), (1, 1, 1), (1, 0, 0)])
def test_pads_merge_into_an_average_pool(own: int, counts: int, merges: int) -> None:
    b = Builder()
    y = b.op("Pad", b.input(2, 3, 5, 6), pads=PADS, mode="constant", value=0.0)
    z = b.pool(y, (3, 5), pads=(own,) * 4, count_include_pad=bool(counts))
    assert ops(applied(merge_pads, b.graph(z))) == ["Pad"] * (not merges) + ["AveragePool"]


@pytest.mark.parametrize(
    ("pads", "mode", "value"),
    [
        (PADS, "edge", 0.0),
        (PADS, "constant", 1.0),
        ((0, 1, 1, 1, 0, 0, 1, 1), "constant", 0.0),
        ((1, 0, 1, 1, 0, 0, 1, 1), "constant", 0.0),
    ],
)
def test_other_padding_stays(pads: tuple[int, ...], mode: str, value: float) -> None:
    b = Builder()
    y = b.op("Pad", b.input(2, 3, 5, 6), pads=pads, mode=mode, value=value)
    w = b.normal(4, b.types[y].shape[1], 3, 3)
    assert ops(applied(merge_pads, b.graph(b.conv(y, w)))) == ["Pad", "Conv"]


WINDOWS: dict[str, Any] = {
    "maximum": lambda b, y: b.pool(y, (5, 5), "MaxPool"),
    "ceiling": lambda b, y: b.pool(y, (5, 5), ceil_mode=True, strides=(2, 2)),
    "small kernel": lambda b, y: b.pool(y, (3, 3)),
    "transposed": lambda b, y: b.conv(y, b.normal(3, 4, 2, 2), op="ConvTranspose"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_pads_before_other_windows_stay(name: str) -> None:
    b = Builder()
    y = b.op("Pad", b.input(2, 3, 5, 6), pads=PADS, mode="constant", value=0.0)
    assert ops(applied(merge_pads, b.graph(WINDOWS[name](b, y))))[0] == "Pad"


# Pools


@pytest.mark.parametrize(("op", "reduction"), [("AveragePool", "Mean"), ("MaxPool", "Max")])
@pytest.mark.parametrize("extents", [(7,), (4, 5), (2, 3, 2)])
def test_pools_over_the_whole_map(op: str, reduction: str, extents: tuple[int, ...]) -> None:
    b = Builder()
    y = b.pool(b.input(2, 3, *extents), extents, op, strides=(2,) * len(extents))
    node = only(applied(global_pooling, b.graph(y)), f"Reduce{reduction}")
    assert node.attributes["axes"] == tuple(range(2, 2 + len(extents)))


def test_other_pools_stay() -> None:
    b = Builder()
    x = b.input(2, 3, 5, 5)
    kept = [
        b.pool(x, (5, 4)),
        b.pool(x, (3, 3), dilations=(2, 2)),
        b.pool(x, (5, 5), pads=(1,) * 4, strides=(3, 3), count_include_pad=True),
    ]
    assert ops(applied(global_pooling, b.graph(*kept))) == ["AveragePool"] * 3


def test_whole_maps_of_integers_stay_pools() -> None:
    """There are no reductions of them; a file with one was not loaded."""
    x = TensorType((2, 3, 5, 4), INT8)
    window = {"kernel_shape": (5, 4), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
    attributes = frozen({**window, "ceil_mode": False, "count_include_pad": False})
    node = Node("MaxPool", ("x",), ("y",), attributes)
    types = {"x": x, "y": TensorType((2, 3, 1, 1), INT8)}
    graph = verify(Graph(("x",), ("y",), (node,), types, {}))
    assert ops(verify(global_pooling(graph))) == ["MaxPool"]


@pytest.mark.parametrize("axes", [(2, 3), (1,), (0, 1, 2, 3), (3, 2)])
def test_reductions_keep_their_axes(axes: tuple[int, ...]) -> None:
    b = Builder()
    y = b.op("ReduceMean", b.input(2, 3, 4, 5), axes=axes, keepdims=False)
    assert ops(applied(global_pooling, b.graph(y))) == ["ReduceMean", "Reshape"]


def _channels_last(dtype: DType, extents: tuple[int, ...], channels: int) -> Graph:
    """A Transpose, a MaxPool and a Transpose back."""
    axes = len(extents)
    types = {"x": TensorType((2, *extents, channels), dtype)}
    window = {"kernel_shape": (3,) * axes, "strides": (2,) * axes, "dilations": (1,) * axes}
    edges = {"pads": (1,) * axes + (0,) * axes, "ceil_mode": False, "count_include_pad": False}
    types["a"] = TensorType((2, channels, *extents), dtype)
    types["b"] = infer("MaxPool", [types["a"]], {**window, **edges})[0]
    types["y"] = TensorType((2, *types["b"].shape[2:], channels), dtype)
    to_first, to_last = (0, axes + 1, *range(1, axes + 1)), (0, *range(2, axes + 2), 1)
    nodes = (
        Node("Transpose", ("x",), ("a",), frozen({"perm": to_first})),
        Node("MaxPool", ("a",), ("b",), frozen({**window, **edges})),
        Node("Transpose", ("b",), ("y",), frozen({"perm": to_last})),
    )
    return verify(Graph(("x",), ("y",), nodes, types, {}))


@pytest.mark.parametrize("extents", [(9,), (7, 10)])
@pytest.mark.parametrize("dtype", [INT8, UINT8])
def test_codes_are_pooled_where_channels_are_last(dtype: DType, extents: tuple[int, ...]) -> None:
    found = applied(pool_channels_last, _channels_last(dtype, extents, 67))
    assert ops(found) == ["Reshape", "MaxPool", "Reshape"]


def test_few_channels_volumes_and_floats_are_transposed() -> None:
    for graph in (
        _channels_last(INT8, (7, 10), 3),
        _channels_last(INT8, (5, 5, 5), 67),
        _channels_last(FLOAT32, (7, 10), 67),
    ):
        assert ops(verify(pool_channels_last(graph))) == ["Transpose", "MaxPool", "Transpose"]


@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 3, 4, 1), 3), ((5, 1), 1), ((3, 1, 1), 1), ((1, 4, 1), 2)]
)
def test_elements_taken_in_turn_are_transposed(shape: tuple[int, ...], axis: int) -> None:
    for dtype in (FLOAT32, INT8):
        b = Builder(dtype)
        x, z = b.input(*shape), b.input(*shape)
        result = applied(transpose_interleaved, b.graph(b.op("Concat", x, z, x, axis=axis)))
        assert ops(result) == ["Reshape", "Reshape", "Reshape", "Concat", "Transpose"]
        assert only(result, "Concat").attributes["axis"] == 0


def test_what_is_joined_by_runs_stays() -> None:
    b = Builder()
    rows, pairs, one = b.input(1, 4), b.input(3, 2), b.input(1, 1, 1)
    more, constant = b.input(3, 1), b.normal(3, 1)
    outputs = [
        b.op("Concat", rows, rows, axis=0),
        b.op("Concat", pairs, more, axis=1),
        b.op("Concat", one, one, axis=2),
        b.op("Concat", more, constant, axis=1),
    ]
    assert ops(applied(transpose_interleaved, b.graph(*outputs))) == ["Concat"] * 4


@pytest.mark.parametrize("step", [1, 2, -1])
def test_a_slice_between_transposes_comes_first(step: int) -> None:
    b = Builder()
    turned = b.op("Transpose", b.input(2, 3, 5, 7), perm=(0, 2, 3, 1))
    starts, sizes = (0, 1 if step > 0 else 4, 0, 1), (2, 2, 7, 2)
    cut = b.op("Slice", turned, starts=starts, steps=(1, step, 1, 1), sizes=sizes)
    back = b.op("Transpose", cut, perm=(0, 3, 1, 2))
    result = applied(transpose_interleaved, b.graph(back))
    assert ops(result) == ["Slice", "Transpose", "Transpose"]
    assert ops(applied(simplify, result)) == ["Slice"]
    kept = b.op("Exp", b.op("Slice", turned, starts=(0,) * 4, steps=(1,) * 4, sizes=sizes))
    assert ops(applied(transpose_interleaved, b.graph(back, kept)))[:2] == ["Transpose", "Slice"]
