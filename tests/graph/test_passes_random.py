"""Every pass, and all of them in order, on random graphs and on the blocks of real networks."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanconv.graph.ir import Graph
from leanconv.graph.passes import PASSES, run_passes
from leanconv.graph.passes.drop_channels import drop_channels
from leanconv.graph.passes.simplify import drop_dead
from leanconv.types import FLOAT32
from support.graph_builder import Builder, applied, assert_equal, ops

CLIPS = [(0.0, 6.0), (0.0, np.inf), (-1.0, 1.0), (-np.inf, 0.5), (0.0, 1.0)]
UNARY: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}),
    ("Sigmoid", {}),
    ("Tanh", {}),
    ("HardSwish", {}),
    ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    ("LeakyRelu", {"alpha": 0.1}),
    ("Elu", {"alpha": 0.7}),
    ("Gelu", {"approximate": "none"}),
    ("Abs", {}),
    ("Erf", {}),
    *(("Clip", {"min": low, "max": high}) for low, high in CLIPS),
]


class PrunedBuilder(Builder):
    """Makes constants that are 0 for some places along their first two axes."""

    def normal(self, *shape: int) -> str:
        name = super().normal(*shape)
        for axis in range(min(2, len(shape))):
            if self.random.uniform() < 0.6:
                dead = self.random.uniform(size=shape[axis]) < 0.5
                self.constants[name][(slice(None),) * axis + (dead,)] = 0
        return name


class Grower:
    """Adds random nodes to a builder, reading what is there already, recent values most."""

    def __init__(self, seed: int, *, pruned: bool = False) -> None:
        self.choice = random.Random(seed)
        self.most = 7 if pruned else 2  # outputs of a group
        self.b = (PrunedBuilder if pruned else Builder)(seed=seed)
        n, c = self.choice.randint(1, 2), self.choice.choice([3, 6, 7] if pruned else [1, 2, 4])
        extents = [self.choice.randint(1, 5) for _ in range(self.choice.choice([1, 2, 2, 2, 3]))]
        self.values = [self.b.input(n, c, *extents)]
        if self.choice.random() < 0.5:
            self.values.append(self.b.input(n, c, *extents))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.b.types[name].shape

    def pick(self) -> str:
        recent = self.values[-self.choice.choice([1, 1, 2, 3, 8]) :]
        return self.choice.choice(recent)

    def grow(self, count: int) -> Graph:
        steps = [
            self.unary,
            self.unary,
            self.binary,
            self.binary,
            self.constant,
            self.constant,
            self.conv,
            self.conv,
            self.residual,
            self.branches,
            self.batch_norm,
            self.dense,
            self.pad,
            self.move,
            self.reduce,
            self.prelu,
        ]
        while len(self.b.nodes) < count:
            made = self.choice.choice(steps)(self.pick())
            if made:
                self.values.append(made)
        outputs = {self.values[-1], *(v for v in self.values[2:] if self.choice.random() < 0.12)}
        return self.b.graph(*sorted(outputs))

    def unary(self, x: str) -> str:
        op, attributes = self.choice.choice(UNARY)
        return self.b.op(op, x, **attributes)

    def binary(self, x: str) -> str | None:
        others = [v for v in self.values if self.shape(v) == self.shape(x)]
        op = self.choice.choice(["Add", "Add", "Mul", "Sub", "Max"])
        pair = [x, self.choice.choice(others[-3:])]
        self.choice.shuffle(pair)
        if op == "Mul":
            pair[1] = self.b.op("Tanh", pair[1])  # keeps the numbers small
        return self.b.op(op, *pair)

    def constant(self, x: str) -> str | None:
        shape = self.shape(x)
        full = [1] * len(shape)
        if shape and self.choice.random() < 0.6:
            axis = self.choice.choice([1, 1, -1]) if len(shape) > 1 else 0
            full[axis] = shape[axis]
        values = self.choice.choice([0.0, 1.0, 3.0, 1 / 6, 0.5, None, None])
        c = self.b.normal(*full) if values is None else self.b.const(np.full(full, values))
        pair = [x, c]
        op = self.choice.choice(["Add", "Mul", "Sub", "Min", "Max"])
        if op != "Max":
            self.choice.shuffle(pair)
        return self.b.op(op, *pair)

    def conv(self, x: str) -> str | None:
        shape = self.shape(x)
        if not 3 <= len(shape) <= 5:
            return None
        c, spatial = shape[1], len(shape) - 2
        group = self.choice.choice([g for g in (1, 2, c) if c % g == 0])
        out = group * self.choice.randint(1, self.most)
        kernel = [self.choice.randint(1, min(3, n)) for n in shape[2:]]
        given: dict[str, Any] = {"group": group}
        op, w = "Conv", (out, c // group, *kernel)
        if self.choice.random() < 0.2:
            op, w = "ConvTranspose", (c, out // group, *kernel)
        elif self.choice.random() < 0.5:
            given["pads"] = tuple(self.choice.randint(0, 1) for _ in range(2 * spatial))
            given["strides"] = tuple(self.choice.randint(1, 2) for _ in range(spatial))
        bias = [self.b.normal(out)] if self.choice.random() < 0.5 else []
        return self.b.conv(x, self.b.normal(*w), *bias, op=op, **given)

    def residual(self, x: str) -> str | None:
        shape = self.shape(x)
        if not 3 <= len(shape) <= 5:
            return None
        spatial = len(shape) - 2
        w = self.b.normal(shape[1], shape[1], *(3 for _ in range(spatial)))
        y = self.b.conv(x, w, pads=(1,) * (2 * spatial))
        others = [v for v in self.values if self.shape(v) == shape]
        for _ in range(self.choice.randint(1, 2)):
            y = self.b.op("Add", y, self.choice.choice(others))
        return y

    def branches(self, x: str) -> str | None:
        """Convolutions of one input, it itself, their norms and sums, in any order."""
        shape = self.shape(x)
        if not 3 <= len(shape) <= 5:
            return None
        spatial, group = len(shape) - 2, self.choice.choice([1, shape[1]])
        parts = [x] if self.choice.random() < 0.4 else []
        for _ in range(self.choice.randint(1, 3)):
            half, step = self.choice.randint(0, 1), self.choice.randint(1, 2)
            w = self.b.normal(shape[1], shape[1] // group, *(2 * half + 1 for _ in range(spatial)))
            steps = {"pads": (half * step,) * (2 * spatial), "dilations": (step,) * spatial}
            parts.append(self.b.conv(x, w, group=group, **steps))
        while len(parts) > 1:
            each = parts.pop(self.choice.randrange(len(parts)))
            norm = self.choice.random() < 0.4
            parts[-1] = self.b.op("Add", parts[-1], self.b.batch_norm(each) if norm else each)
        return parts[0]

    def batch_norm(self, x: str) -> str | None:
        return self.b.batch_norm(x) if 2 <= len(self.shape(x)) <= 5 else None

    def dense(self, x: str) -> str | None:
        shape = self.shape(x)
        if len(shape) < 2:
            return None
        if self.choice.random() < 0.6:
            x = self.b.op("Reshape", x, shape=(shape[0], int(np.prod(shape[1:]))))
        w = self.b.normal(self.shape(x)[-1], self.choice.randint(1, 4))
        if len(self.shape(x)) == 2 and self.choice.random() < 0.5:
            return self.b.op("Gemm", x, w, transA=0, transB=0, alpha=0.5, beta=1.0)
        return self.b.op("MatMul", x, w)

    def pad(self, x: str) -> str | None:
        rank = len(self.shape(x))
        pads = [0] * (2 * rank)
        for axis in range(2, rank):
            pads[axis], pads[rank + axis] = (self.choice.randint(0, 1) for _ in range(2))
        return self.b.op("Pad", x, pads=tuple(pads), mode="constant", value=0.0)

    def move(self, x: str) -> str | None:
        shape = self.shape(x)
        if self.choice.random() < 0.5:
            perm = self.choice.sample(range(len(shape)), len(shape))
            return self.b.op("Transpose", x, perm=tuple(perm))
        groups = [shape, (shape[0], int(np.prod(shape[1:]))), (*shape, 1), tuple(shape[::-1])]
        return self.b.op("Reshape", x, shape=self.choice.choice(groups)) if len(shape) < 6 else None

    def reduce(self, x: str) -> str | None:
        shape = self.shape(x)
        if not 3 <= len(shape) <= 5:
            return None
        if self.choice.random() < 0.5:
            return self.b.pool(x, shape[2:], self.choice.choice(["AveragePool", "MaxPool"]))
        axes = tuple(range(2, len(shape)))
        return self.b.op("ReduceMean", x, axes=axes, keepdims=self.choice.random() < 0.5)

    def prelu(self, x: str) -> str | None:
        shape = self.shape(x)
        if len(shape) < 2:
            return None
        return self.b.op("PRelu", x, self.b.normal(shape[1], *(1 for _ in shape[2:])))


seeds = st.integers(0, 2**32)


@pytest.mark.parametrize("one", sorted(set(PASSES), key=lambda p: p.__name__))
@settings(max_examples=30, deadline=None)
@given(seed=seeds, count=st.integers(2, 14))
def test_each_pass(one: Any, seed: int, count: int) -> None:
    graph = drop_dead(Grower(seed).grow(count))
    once = applied(one, graph)
    applied(one, once)


@settings(max_examples=200, deadline=None)
@given(seed=seeds, count=st.integers(2, 25))
def test_all_passes(seed: int, count: int) -> None:
    graph = Grower(seed).grow(count)
    result = run_passes(graph, check=True)
    assert_equal(graph, result)
    assert not {"BatchNormalization", "Gemm", "MatMul"} & set(ops(result))


@settings(max_examples=200, deadline=None)
@given(seed=seeds, count=st.integers(5, 30))
def test_dead_channels(seed: int, count: int) -> None:
    graph = Grower(seed, pruned=True).grow(count)
    before = run_passes(graph, PASSES[: PASSES.index(drop_channels)])
    assert_equal(before, drop_channels(before))
    assert_equal(graph, run_passes(graph, check=True))


@settings(max_examples=200, deadline=None)
@given(seed=seeds, count=st.integers(2, 15))
def test_any_order_of_passes(seed: int, count: int) -> None:
    graph = Grower(seed).grow(count)
    order = random.Random(seed).choices(PASSES, k=8)
    assert_equal(graph, run_passes(graph, order, check=True))


@settings(max_examples=100, deadline=None)
@given(seed=seeds, count=st.integers(2, 20))
def test_every_value_that_is_an_output_survives(seed: int, count: int) -> None:
    graph = Grower(seed).grow(count)
    every = tuple(name for node in graph.nodes for name in node.outputs)
    graph = dataclasses.replace(graph, outputs=every)
    assert_equal(graph, run_passes(graph, check=True))


def conv_bn(b: Builder, x: str, out: int, kernel: int = 1, **given: Any) -> str:
    channels = b.types[x].shape[1] // given.get("group", 1)
    pads = (kernel // 2,) * 4
    return b.batch_norm(b.conv(x, b.normal(out, channels, kernel, kernel), pads=pads, **given))


def test_an_inverted_residual() -> None:
    b = Builder()
    x = conv_bn(b, b.input(1, 3, 6, 6), 4, 3)
    y = b.op("Clip", conv_bn(b, x, 8), min=0.0, max=6.0)
    y = b.op("Clip", conv_bn(b, y, 8, 3, group=8), min=0.0, max=6.0)
    z = b.op("Add", x, conv_bn(b, y, 4))
    graph = b.graph(z)
    result = run_passes(graph, check=True)
    assert_equal(graph, result)
    assert ops(result) == ["Conv", "ConvChain"]
    assert result.nodes[1].inputs[:2] == (result.nodes[0].outputs[0],) * 2


def test_a_bottleneck_with_a_projection() -> None:
    b = Builder()
    x = b.input(1, 4, 6, 6)
    y = b.op("Relu", conv_bn(b, x, 4, 3))
    z = b.op("Relu", b.op("Add", conv_bn(b, y, 8), conv_bn(b, x, 8)))
    graph = b.graph(z)
    result = run_passes(graph, check=True)
    assert_equal(graph, result)
    assert ops(result) == ["Conv"] * 3
    assert result.nodes[-1].input(3)
    assert str(result.nodes[-1].attributes["activation"]) == "relu"


@pytest.mark.parametrize("keepdims", [False, True])
def test_squeeze_and_excite(keepdims: bool) -> None:
    b = Builder()
    x = b.op("Tanh", b.input(2, 4, 5, 5))
    y = b.op("ReduceMean", x, axes=(2, 3), keepdims=keepdims)
    y = b.op("Reshape", y, shape=(2, 4)) if keepdims else y
    plain = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0}
    y = b.op("Relu", b.op("Gemm", y, b.normal(4, 2), b.normal(2), **plain))
    y = b.op("Gemm", y, b.normal(2, 4), b.normal(4), **plain)
    y = b.op("Clip", b.op("Add", y, 3.0), min=0.0, max=6.0)
    y = b.op("Reshape", b.op("Div", y, 6.0), shape=(2, 4, 1, 1))
    graph = b.graph(b.op("Mul", x, y))
    result = run_passes(graph, check=True)
    assert_equal(graph, result)
    assert ops(result) == ["Tanh", "ReduceMean", "Conv", "Conv", "Mul"]


def test_a_classifier() -> None:
    b = Builder()
    x = b.op("Relu", conv_bn(b, b.input(2, 3, 4, 4), 5, 3))
    x = b.op("Reshape", b.pool(x, (2, 2), "MaxPool", strides=(2, 2)), shape=(2, 20))
    for _ in range(2):
        w = b.normal(b.types[x].shape[1], 6)
        x = b.op("Relu", b.op("Add", b.op("MatMul", x, w), b.normal(6)))
    graph = b.graph(b.op("Softmax", x, axis=1))
    result = run_passes(graph, check=True)
    assert_equal(graph, result)
    assert ops(result) == ["Conv", "MaxPool", "Conv", "Conv", "Reshape", "Softmax"]


def test_a_long_chain_takes_linear_time() -> None:
    b = Builder(FLOAT32)
    x = b.input(1, 2, 1, 1)
    for _ in range(3000):
        x = b.op("Reshape", b.op("Add", x, 0.5), shape=(1, 2, 1, 1))
    result = run_passes(b.graph(x), check=True)
    assert ops(result) == ["Expression"] * 188
    assert sum(len(node.attributes["terms"]) for node in result.nodes) == 3000
