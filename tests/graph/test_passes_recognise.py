"""Recognising activations in the operations that files make of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from leanconv.graph.passes.recognise_activations import recognise_activations
from leanconv.types import FLOAT32, FLOAT64
from support.graph_builder import Builder, applied, ops

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
