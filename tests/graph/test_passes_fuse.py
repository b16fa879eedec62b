"""Moving residuals and activations into convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.graph.passes.canonical_forms import dense_to_conv
from leanconv.graph.passes.fuse_epilogues import (
    fuse_activations,
    fuse_affine,
    fuse_outer_residual,
    fuse_residual,
    hoist_activations,
)
from leanconv.graph.passes.recognise_activations import factor_sums
from leanconv.spec.activation import Activation
from support.graph_builder import Builder, applied, only, ops

# Residuals


def test_the_later_convolution_takes_the_residual() -> None:
    b = Builder()
    x = b.input(1, 4, 5, 5)
    one = b.conv(x, b.normal(4, 4, 1, 1))
    two = b.conv(x, b.normal(4, 4, 3, 3), b.normal(4), pads=(1, 1, 1, 1))
    for order in ((one, two), (two, one)):
        result = applied(fuse_residual, b.graph(b.op("Add", *order)))
        b.nodes.pop()
        assert ops(result) == ["Conv", "Conv"]
        assert result.nodes[1].inputs == (*b.nodes[1].inputs, one)


def test_the_other_branch_may_come_later() -> None:
    b = Builder()
    x = b.input(1, 4, 5, 5)
    one = b.conv(x, b.normal(4, 4, 1, 1))
    two = b.op("Exp", x)
    result = applied(fuse_residual, b.graph(b.op("Add", one, two)))
    assert ops(result) == ["Exp", "Conv"]
    assert result.nodes[1].inputs[2:] == ("", two)


def test_a_second_residual_and_its_activation_stay() -> None:
    b = Builder()
    x = b.input(1, 4, 5, 5)
    y = b.conv(x, b.normal(4, 4, 1, 1))
    y = b.op("Add", b.op("Add", y, x), b.op("Exp", x))
    result = applied(fuse_activations, applied(fuse_residual, b.graph(b.op("Relu", y))))
    assert ops(result) == ["Conv", "Exp", "Add", "Relu"]


def test_adds_that_stay() -> None:
    b = Builder()
    x, wide = b.input(1, 4, 5, 5), b.input(1, 1, 5, 5)

    def conv() -> str:
        return b.conv(x, b.normal(4, 4, 1, 1))

    shared, given, twice = conv(), conv(), conv()
    kept = [
        b.op("Add", conv(), wide),
        b.op("Add", conv(), b.normal(1, 4, 5, 5)),
        b.op("Add", b.op("Relu", conv()), x),
        b.op("Add", b.conv(x, b.normal(4, 4, 1, 1), activation=Activation("relu")), x),
        b.op("Add", shared, x),
        b.op("Exp", shared),
        b.op("Add", given, x),
        b.op("Add", twice, twice),
        b.op("Add", b.conv(x, b.normal(4, 4, 1, 1), op="ConvTranspose"), x),
    ]
    graph = b.graph(given, *kept)
    assert ops(applied(fuse_residual, graph)) == ops(graph)


# Activations


ACTIVATIONS: list[tuple[str, dict[str, Any], str]] = [
    ("Relu", {}, "relu"),
    ("Clip", {"min": -0.5, "max": 0.5}, "clip:-0.5:0.5"),
    ("LeakyRelu", {"alpha": 0.25}, "leaky_relu:0.25"),
    ("Sigmoid", {}, "sigmoid"),
    ("Silu", {}, "silu"),
    ("HardSigmoid", {"alpha": 0.2, "beta": 0.4}, "hard_sigmoid:0.2:0.4"),
    ("HardSwish", {}, "hard_swish"),
    ("Tanh", {}, "tanh"),
    ("Gelu", {"approximate": "none"}, "gelu"),
    ("Gelu", {"approximate": "tanh"}, "gelu_tanh"),
    ("Elu", {"alpha": 0.5}, "elu:0.5"),
]


@pytest.mark.parametrize(("op", "attributes", "text"), ACTIVATIONS, ids=lambda v: str(v)[:16])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_activations_fuse(op: str, attributes: dict[str, Any], text: str, kind: str) -> None:
    b = Builder()
    x = b.input(1, 4, 5, 5)
    y = b.conv(x, b.normal(4, 4, 1, 1), op=kind)
    y = b.op("Add", y, x) if kind == "Conv" else y
    y = b.op(op, y, **attributes)
    result = applied(fuse_activations, applied(fuse_residual, b.graph(y)))
    assert ops(result) == [kind]
    assert str(result.nodes[0].attributes["activation"]) == text


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1), (1,), ()])
def test_prelu_fuses(kind: str, shape: tuple[int, ...]) -> None:
    b = Builder()
    y = b.conv(b.input(1, 4, 5, 5), b.normal(4, 4, 1, 1), op=kind)
    result = applied(fuse_activations, b.graph(b.op("PRelu", y, b.normal(*shape))))
    assert ops(result) == [kind]
    assert result.nodes[0].inputs[2:4] == ("", "")
    assert result.types[result.nodes[0].inputs[4]].shape == (4,)


def test_activations_that_stay() -> None:
    b = Builder()
    x = b.input(1, 4, 5, 5)

    def conv() -> str:
        return b.conv(x, b.normal(4, 4, 1, 1))

    shared, given = conv(), conv()
    kept = [
        b.op("PRelu", conv(), b.normal(5)),
        b.op("PRelu", conv(), b.input(4, 1, 1)),
        b.op("Softmax", conv(), axis=1),
        b.op("Relu", shared),
        b.op("Tanh", shared),
        b.op("Relu", given),
    ]
    graph = b.graph(given, *kept)
    assert ops(applied(fuse_activations, graph)) == ops(graph)


def test_a_second_activation_stays() -> None:
    b = Builder()
    y = b.op("Tanh", b.op("Relu", b.conv(b.input(1, 4, 5, 5), b.normal(4, 4, 1, 1))))
    assert ops(applied(fuse_activations, b.graph(y))) == ["Conv", "Tanh"]


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_numbers_after_an_activation_fuse(kind: str) -> None:
    b = Builder()
    y = b.op("Relu", b.conv(b.input(1, 4, 5, 5), b.normal(4, 4, 1, 1), op=kind))
    for op, number, first in (("Mul", 3, 0), ("Add", 2, 1), ("Sub", 5, 1), ("Sub", 0.5, 0)):
        constant = b.const(np.full((1, 1, 1), number, np.float32))
        y = b.op(op, constant, y) if first else b.op(op, y, constant)
    result = applied(fuse_affine, applied(fuse_activations, b.graph(y)))
    assert ops(result) == [kind]
    assert result.nodes[0].attributes["activation"].affine == (-3.0, 2.5)


def test_numbers_after_an_activation_that_stay() -> None:
    b = Builder()
    x = b.input(1, 4, 5, 5)

    def active() -> str:
        return b.op("Relu", b.conv(x, b.normal(4, 4, 1, 1)))

    three = b.const(np.array(3, np.float32))
    shared = active()
    kept = [
        b.op("Mul", b.conv(x, b.normal(4, 4, 1, 1)), three),
        b.op("Mul", active(), b.normal(4, 1, 1)),
        b.op("Add", active(), b.const(np.ones((3, 1, 1, 1), np.float32))),
        b.op("Mul", shared, three),
    ]
    graph = applied(fuse_activations, b.graph(shared, *kept))
    assert ops(applied(fuse_affine, graph)) == ops(graph)


def test_a_residual_after_the_activation_fuses() -> None:
    b = Builder()
    x = b.input(1, 4, 5, 5)
    y = b.op("Sigmoid", b.conv(x, b.normal(4, 4, 1, 1)))
    y = b.op("Add", y, b.const(np.array(2, np.float32)))
    y = b.op("Add", x, y)
    graph = applied(fuse_affine, applied(fuse_activations, b.graph(b.op("Relu", y))))
    result = applied(fuse_outer_residual, graph)
    assert ops(result) == ["Conv", "Relu"]
    conv = result.nodes[0]
    assert conv.inputs[3] == x
    assert conv.attributes["activation"].before_residual
    assert applied(fuse_affine, result).nodes == result.nodes


def test_a_shortcut_around_a_small_factor_becomes_part_of_it() -> None:
    b = Builder()
    x, s = b.input(2, 4, 5, 5), b.input(2, 4, 1, 1)
    y = b.op("Add", b.op("Mul", b.op("Exp", s), x), x)
    assert ops(applied(factor_sums, b.graph(y))) == ["Exp", "Add", "Mul"]


def test_sums_that_are_not_factored() -> None:
    b = Builder()
    x, s = b.input(2, 4, 5, 5), b.input(2, 4, 1, 1)
    kept = [
        b.op("Add", b.op("Mul", x, b.op("Exp", x)), x),  # as large as x
        b.op("Add", b.op("Mul", x, s), b.op("Exp", x)),  # of another value
    ]
    graph = b.graph(*kept)
    assert ops(applied(factor_sums, graph)) == ops(graph)


def test_a_dense_layer_behind_a_map_of_few_channels_has_rows() -> None:
    """A kernel as long as the row would have sums of one channel, or two."""
    b = Builder()
    sizes = (20, 1, 12), (20, 2, 6), (20, 6, 2)
    rows = [b.op("Reshape", b.input(*size), shape=(20, 12)) for size in sizes]
    graph = b.graph(*(b.op("MatMul", each, b.normal(12, 7)) for each in rows))
    result = applied(dense_to_conv, graph)
    kernels = {result.types[n.inputs[1]].shape for n in result.nodes if n.op == "Conv"}
    assert kernels == {(7, 12, 1, 1), (7, 6, 2)}


def test_activations_pass_the_reshape_of_a_dense_layer() -> None:
    b = Builder()
    y = b.op("MatMul", b.input(2, 5, 7), b.normal(7, 3))
    z = b.op("PRelu", b.op("MatMul", b.input(5, 7), b.normal(7, 3)), b.normal(3))
    graph = b.graph(b.op("Tanh", b.op("Relu", y)), z)
    result = applied(hoist_activations, applied(dense_to_conv, graph))
    one = ["Reshape", "Conv", "Relu", "Tanh", "Reshape"]
    assert ops(result) == [*one[:2], "Reshape", "Conv", "PRelu", "Reshape", *one[2:]] or ops(
        result
    ) == [*one[:2], "Reshape", "Conv", *one[2:], "PRelu", "Reshape"]
    fused = ops(applied(fuse_activations, result))
    assert "PRelu" not in fused
    assert "Relu" not in fused


def test_activations_that_do_not_pass() -> None:
    b = Builder()
    view = b.op("Reshape", b.conv(b.input(1, 4, 2, 2), b.normal(4, 4, 1, 1)), shape=(1, 16))
    seen = b.op("Reshape", b.conv(b.input(1, 4, 2, 2), b.normal(4, 4, 1, 1)), shape=(1, 16))
    plain = b.op("Reshape", b.input(2, 3), shape=(6,))
    conv = b.conv(b.input(1, 4, 2, 2), b.normal(4, 4, 1, 1))
    shared = b.op("Reshape", conv, shape=(1, 16))
    kept = b.op("PRelu", view, b.normal(16)), b.op("Relu", seen), seen, b.op("Relu", plain)
    graph = b.graph(*kept, conv, b.op("Relu", shared))
    assert ops(applied(hoist_activations, graph)) == ops(graph)


def test_an_activation_passes_a_flatten() -> None:
    b = Builder()
    view = b.op("Reshape", b.conv(b.input(1, 4, 2, 2), b.normal(4, 4, 1, 1)), shape=(1, 16))
    result = applied(hoist_activations, b.graph(b.op("Relu", view)))
    assert ops(result) == ["Conv", "Relu", "Reshape"]
    assert only(result, "Reshape").outputs == ("v2",)
