"""Recognising activations, and moving residuals and activations into convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from leanconv.graph.passes.dense_to_conv import dense_to_conv
from leanconv.graph.passes.factor_sums import factor_sums
from leanconv.graph.passes.fuse_activations import fuse_activations
from leanconv.graph.passes.fuse_affine import fuse_affine
from leanconv.graph.passes.fuse_residual import fuse_outer_residual, fuse_residual
from leanconv.graph.passes.hoist_activations import hoist_activations
from leanconv.graph.passes.recognise_activations import recognise_activations
from leanconv.spec.activation import Activation
from leanconv.types import FLOAT32, FLOAT64
from support.graph_builder import Builder, applied, only, ops

Pattern = Callable[[Builder, str], str]
ROOT = math.sqrt(0.5)
CUBIC = 0.044715
SCALE = math.sqrt(2 / math.pi)


def erf1(b: Builder, x: str, divide: bool = True) -> str:
    inside = b.op("Div", x, math.sqrt(2)) if divide else b.op("Mul", ROOT, x)
    return b.op("Add", b.op("Erf", inside), 1.0)


def tanh1(b: Builder, inside: str) -> str:
    return b.op("Add", 1.0, b.op("Tanh", b.op("Mul", inside, SCALE)))


def clip6(b: Builder, x: str) -> str:
    return b.op("Clip", b.op("Add", x, 3.0), min=0.0, max=6.0)


def relu6(b: Builder, x: str) -> str:
    return b.op("Min", b.op("Max", b.op("Add", 3.0, x), 0.0), 6.0)


def cube(b: Builder, x: str) -> str:
    return b.op("Add", x, b.op("Mul", b.op("Pow", x, 3.0), CUBIC))


PATTERNS: dict[str, tuple[str, dict[str, Any], Pattern]] = {
    "silu": ("Silu", {}, lambda b, x: b.op("Mul", x, b.op("Sigmoid", x))),
    "silu, turned": ("Silu", {}, lambda b, x: b.op("Mul", b.op("Sigmoid", x), x)),
    "hard swish": (
        "HardSwish",
        {},
        lambda b, x: b.op("Mul", x, b.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)),
    ),
    "hard swish, clip": (
        "HardSwish",
        {},
        lambda b, x: b.op("Mul", x, b.op("Div", clip6(b, x), 6.0)),
    ),
    "hard swish, clip, late": (
        "HardSwish",
        {},
        lambda b, x: b.op("Div", b.op("Mul", clip6(b, x), x), 6.0),
    ),
    "hard swish, relu6": (
        "HardSwish",
        {},
        lambda b, x: b.op("Mul", b.op("Mul", x, relu6(b, x)), 1 / 6),
    ),
    "hard sigmoid, clip": (
        "HardSigmoid",
        {"alpha": 1 / 6, "beta": 0.5},
        lambda b, x: b.op("Mul", 1 / 6, clip6(b, x)),
    ),
    "hard sigmoid, relu6": (
        "HardSigmoid",
        {"alpha": 1 / 6, "beta": 0.5},
        lambda b, x: b.op("Div", relu6(b, x), 6.0),
    ),
    "hard sigmoid, keras": (
        "HardSigmoid",
        {"alpha": 0.2, "beta": -0.5},
        lambda b, x: b.op("Clip", b.op("Sub", b.op("Mul", x, 0.2), 0.5), min=0.0, max=1.0),
    ),
    "gelu": (
        "Gelu",
        {"approximate": "none"},
        lambda b, x: b.op("Mul", b.op("Mul", x, erf1(b, x)), 0.5),
    ),
    "gelu, half first": (
        "Gelu",
        {"approximate": "none"},
        lambda b, x: b.op("Mul", b.op("Mul", x, 0.5), erf1(b, x, divide=False)),
    ),
    "gelu, half of the gate": (
        "Gelu",
        {"approximate": "none"},
        lambda b, x: b.op("Mul", b.op("Div", erf1(b, x), 2.0), x),
    ),
    "gelu, half inside": (
        "Gelu",
        {"approximate": "none"},
        lambda b, x: b.op(
            "Mul",
            x,
            b.op("Add", 0.5, b.op("Mul", 0.5, b.op("Erf", b.op("Mul", x, ROOT)))),
        ),
    ),
    "gelu, tanh": (
        "Gelu",
        {"approximate": "tanh"},
        lambda b, x: b.op("Mul", b.op("Mul", 0.5, x), tanh1(b, cube(b, x))),
    ),
    "gelu, tanh, products": (
        "Gelu",
        {"approximate": "tanh"},
        lambda b, x: b.op(
            "Mul",
            b.op("Mul", 0.5, x),
            tanh1(
                b,
                b.op("Add", b.op("Mul", b.op("Mul", b.op("Mul", x, x), x), CUBIC), x),
            ),
        ),
    ),
    "gelu, tanh, square": (
        "Gelu",
        {"approximate": "tanh"},
        lambda b, x: b.op(
            "Mul",
            0.5,
            b.op(
                "Mul",
                tanh1(
                    b,
                    b.op("Mul", x, b.op("Add", 1.0, b.op("Mul", b.op("Mul", CUBIC, x), x))),
                ),
                x,
            ),
        ),
    ),
    "relu, max": ("Relu", {}, lambda b, x: b.op("Max", x, 0.0)),
    "relu, clip": ("Relu", {}, lambda b, x: b.op("Clip", x, min=0.0, max=math.inf)),
    "clip": (
        "Clip",
        {"min": -1.0, "max": 2.0},
        lambda b, x: b.op("Max", -1.0, b.op("Min", b.const([2.0]), x)),
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_patterns(name: str, dtype: str) -> None:
    op, attributes, pattern = PATTERNS[name]
    b = Builder(dtype)
    x = b.op("Mul", b.input(4, 50), b.const(np.full(50, 3.0)))
    y = pattern(b, x)
    result = applied(
        recognise_activations, b.graph(b.op("Abs", y)), 1e-6 if "2" in dtype else 1e-12
    )
    assert ops(result) == ["Mul", op, "Abs"]
    found = result.nodes[1]
    assert found.inputs == (x,)
    assert set(found.attributes) == set(attributes)
    for key, value in attributes.items():
        assert found.attributes[key] == (value if isinstance(value, str) else pytest.approx(value))


@pytest.mark.parametrize("name", [n for n in PATTERNS if n not in ("relu, max", "relu, clip")])
def test_patterns_whose_inside_is_read_stay(name: str) -> None:
    op, _, pattern = PATTERNS[name]
    b = Builder()
    x = b.op("Mul", b.input(4, 50), b.const(np.full(50, 3.0)))
    y = pattern(b, x)
    inner = [node.outputs[0] for node in b.nodes[1:-1]]
    result = applied(recognise_activations, b.graph(*inner, y))
    assert op == "Clip" or op not in ops(result)


LOOKALIKES: dict[str, Pattern] = {
    "another gate": lambda b, x: b.op("Mul", x, b.op("Sigmoid", b.op("Neg", x))),
    "quick gelu": lambda b, x: b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, 1.702))),
    "mish": lambda b, x: b.op("Mul", x, b.op("Tanh", b.op("Softplus", x))),
    "twice silu": lambda b, x: b.op("Mul", b.op("Mul", x, 2.0), b.op("Sigmoid", x)),
    "no half": lambda b, x: b.op("Mul", x, erf1(b, x)),
    "another root": lambda b, x: b.op(
        "Mul", b.op("Mul", x, 0.5), b.op("Add", b.op("Erf", b.op("Mul", x, 0.7)), 1.0)
    ),
    "another weight": lambda b, x: b.op(
        "Mul",
        b.op("Mul", x, 0.5),
        b.op("Add", b.op("Mul", b.op("Erf", b.op("Mul", x, ROOT)), 0.9), 1.0),
    ),
    "another cube": lambda b, x: b.op(
        "Mul",
        b.op("Mul", x, 0.5),
        tanh1(b, b.op("Add", x, b.op("Mul", b.op("Pow", x, 2.0), CUBIC))),
    ),
    "another hard sigmoid": lambda b, x: b.op(
        "Mul", x, b.op("HardSigmoid", x, alpha=0.2, beta=0.5)
    ),
    "a clip to 5": lambda b, x: b.op(
        "Mul", x, b.op("Div", b.op("Clip", b.op("Add", x, 3.0), min=0.0, max=5.0), 6.0)
    ),
    "a float32 sixth": lambda b, x: b.op(
        "Mul", x, b.op("HardSigmoid", x, alpha=float(np.float32(1 / 6)), beta=0.5)
    ),
    "a widening maximum": lambda b, x: b.op("Max", x, b.const(np.zeros((1, 1, 1)))),
    "a maximum per column": lambda b, x: b.op("Max", x, b.const(np.zeros(50))),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_lookalikes_stay(name: str) -> None:
    b = Builder()
    x = b.input(4, 50)
    graph = b.graph(LOOKALIKES[name](b, x))
    assert ops(applied(recognise_activations, graph)) == ops(graph)


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


def test_a_dense_layer_behind_a_map_of_one_channel_has_rows() -> None:
    """A kernel as long as the row would have one channel."""
    b = Builder()
    rows = b.op("Reshape", b.input(20, 1, 12), shape=(20, 12))
    maps = b.op("Reshape", b.input(20, 3, 4), shape=(20, 12))
    graph = b.graph(b.op("MatMul", rows, b.normal(12, 7)), b.op("MatMul", maps, b.normal(12, 7)))
    result = applied(dense_to_conv, graph)
    kernels = {result.types[n.inputs[1]].shape for n in result.nodes if n.op == "Conv"}
    assert kernels == {(7, 12, 1, 1), (7, 3, 4)}


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
