"""Products around a softmax become one node, which is what ONNX Runtime computes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import GPU_PASSES, run_passes
from support.onnx_models import model, reference

Shapes = dict[str, list[int | str]]
SHAPES: Shapes = {"q": [2, 3, 17, 8], "k": [2, 3, 8, 21], "v": [2, 3, 21, 16]}


def attention(
    scale: str = "",
    mask: bool = False,
    transposed: bool = False,
    shapes: Shapes = SHAPES,
    held: dict[str, Any] | None = None,
    axis: int = -1,
    also: str = "",
) -> onnx.ModelProto:
    """q, k, v -> y, each step under its own name."""
    nodes, keys = [], "k"
    if transposed:
        nodes.append(helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]))
        keys = "kt"
    nodes.append(helper.make_node("MatMul", ["q", keys], ["s"]))
    last = "s"
    if scale:
        nodes.append(helper.make_node(scale, [last, "factor"], ["scaled"]))
        last = "scaled"
    if mask:
        nodes.append(helper.make_node("Add", ["mask", last], ["masked"]))
        last = "masked"
    nodes.append(helper.make_node("Softmax", [last], ["p"], axis=axis))
    nodes.append(helper.make_node("MatMul", ["p", "v"], ["y"]))
    constants = {"factor": np.float32(0.7 if scale == "Mul" else 1.3), **(held or {})}
    given = {name: shape for name, shape in shapes.items() if name not in constants}
    return model(nodes, given, ["y", also] if also else ["y"], constants, 17)


def inputs(proto: onnx.ModelProto, **sizes: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {
        each.name: random.normal(
            size=[d.dim_value or sizes[d.dim_param] for d in each.type.tensor_type.shape.dim]
        ).astype("f4")
        for each in proto.graph.input
    }


def ops(proto: onnx.ModelProto, passes: Any = None) -> list[str]:
    bound = read_model(proto.SerializeToString()).bind()
    graph = run_passes(bound) if passes is None else run_passes(bound, passes)
    return [node.op for node in graph.nodes]


MASKED = {**SHAPES, "mask": [2, 1, 17, 21]}
TRANSPOSED = {**SHAPES, "k": [2, 3, 21, 8]}
FUSED = {
    "plain": attention(),
    "times": attention("Mul"),
    "over": attention("Div"),
    "masked": attention("Mul", mask=True, shapes=MASKED),
    "mask-of-rows": attention(mask=True, shapes={**SHAPES, "mask": [17, 1]}),
    "mask-of-keys": attention(mask=True, shapes={**SHAPES, "mask": [1, 3, 1, 21]}),
    "mask-held": attention(
        mask=True, held={"mask": np.linspace(-2, 1, 17 * 21, dtype="f4").reshape(17, 21)}
    ),
    "transposed": attention("Div", transposed=True, shapes=TRANSPOSED),
    "matrices": attention(shapes={"q": [5, 4], "k": [4, 70], "v": [70, 3]}),
}


@pytest.mark.parametrize("name", FUSED)
def test_one_node_gives_what_the_products_give(name: str) -> None:
    proto = FUSED[name]
    assert ops(proto) == ["Attention"]
    given = inputs(proto)
    net = lc.load(proto.SerializeToString(), threads=2)
    expected = reference(proto, given)["y"]
    np.testing.assert_allclose(net.run(given)["y"], expected, rtol=1e-4, atol=1e-6)


LEFT = {
    "axis": attention(axis=2),
    "read": attention(also="p"),
    "scores-read": attention("Mul", also="s"),
    "constant-keys": attention(held={"k": np.ones((2, 3, 8, 21), "f4")}),
    "constant-values": attention(held={"v": np.ones((2, 3, 21, 16), "f4")}),
    "one-head-of-keys": attention(shapes={**SHAPES, "k": [2, 1, 8, 21]}),
    "factors": attention("Mul", held={"factor": np.arange(1, 22, dtype="f4")}),
    "large-mask": attention(mask=True, shapes={**SHAPES, "mask": [5, 2, 3, 17, 21]}),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_products_are_left_alone(name: str) -> None:
    assert "Attention" not in ops(LEFT[name])
    assert "Softmax" in ops(LEFT[name])


def test_factors_of_queries_and_keys_become_one() -> None:
    """As PyTorch writes scaled_dot_product_attention: a root of the factor on either side."""
    nodes = [
        helper.make_node("Mul", ["q", "f"], ["qf"]),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("Mul", ["kt", "f"], ["ktf"]),
        helper.make_node("MatMul", ["qf", "ktf"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    proto = model(nodes, TRANSPOSED, ["y"], {"f": np.float32(0.4)}, 17)
    assert ops(proto) == ["Attention"]
    given = inputs(proto)
    found = lc.load(proto.SerializeToString(), threads=1).run(given)["y"]
    np.testing.assert_allclose(found, reference(proto, given)["y"], rtol=1e-4, atol=1e-6)


def test_graphs_for_a_gpu_have_no_attention() -> None:
    assert ops(FUSED["times"], GPU_PASSES) == ["MatMul", "Mul", "Softmax", "MatMul"]


def test_open_sizes_in_one_load() -> None:
    shapes: Shapes = {"q": ["N", 4, "M", 24], "k": ["N", 4, "S", 24], "v": ["N", 4, "S", 40]}
    shapes["mask"] = ["N", 1, 1, "S"]
    proto = attention("Mul", mask=True, transposed=True, shapes=shapes)
    net = lc.load(proto.SerializeToString(), threads=2)
    for n, m, s in ((1, 9, 9), (2, 1, 50), (1, 130, 7), (3, 49, 49), (1, 1, 1), (1, 60, 2100)):
        given = inputs(proto, N=n, M=m, S=s)
        expected = reference(proto, given)["y"]
        np.testing.assert_allclose(net.run(given)["y"], expected, rtol=1e-4, atol=1e-6)


def test_no_square_matrix_is_held() -> None:
    shapes: Shapes = {"q": [1, 2, 2048, 16], "k": [1, 2, 16, 2048], "v": [1, 2, 2048, 16]}
    plan = lc.load(attention(shapes=shapes).SerializeToString(), threads=1).plan
    assert plan.arena_bytes < 1 << 20  # the matrices are 32 MiB
    assert "attention" in lc.load(attention().SerializeToString()).explain()
