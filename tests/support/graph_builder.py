"""Small graphs for tests: a builder that infers types, and a check that nothing has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.graph.edit import frozen
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import infer_node
from leanconv.graph.passes import Pass
from leanconv.graph.verify import verify
from leanconv.types import FLOAT64
from support.interpret import interpret


class Builder:
    """Collects inputs, constants and nodes in order; `graph` ends it."""

    def __init__(self, dtype: str = FLOAT64, seed: int = 0) -> None:
        self.dtype = dtype
        self.random = np.random.default_rng(seed)
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: list[str] = []
        self.nodes: list[Node] = []

    def input(self, *shape: int) -> str:
        """A new input of the network."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.types[name] = TensorType(shape, self.dtype)
        return name

    def const(self, array: Any) -> str:
        """A constant of the graph's dtype."""
        held = np.asarray(array, dtype=self.dtype)
        name = f"c{len(self.constants)}"
        self.constants[name] = held
        self.types[name] = TensorType(held.shape, self.dtype)
        return name

    def normal(self, *shape: int) -> str:
        """A constant of normally distributed numbers."""
        return self.const(self.random.normal(size=shape))

    def op(self, op: str, *inputs: str | float, **attributes: Any) -> str:
        """A node; numbers among the inputs become scalar constants."""
        names = tuple(i if isinstance(i, str) else self.const(i) for i in inputs)
        out = f"v{len(self.nodes)}"
        node = Node(op, names, (out,), frozen(attributes), f"{op.lower()}_{len(self.nodes)}")
        (self.types[out],) = infer_node(node, self.types)
        self.nodes.append(node)
        return out

    def conv(
        self, x: str, w: str, *more: str, op: str = "Conv", output_padding: Any = 0, **given: Any
    ) -> str:
        """A Conv or ConvTranspose; `strides`, `dilations` as tuples, `pads` as in the graph."""
        spatial = len(self.types[x].shape) - 2
        attributes = {
            "strides": (1,) * spatial,
            "pads": (0,) * (2 * spatial),
            "dilations": (1,) * spatial,
            "group": 1,
            "activation": None,
        }
        if op == "ConvTranspose":
            attributes["output_padding"] = output_padding or (0,) * spatial
        return self.op(op, x, w, *more, **{**attributes, **given})

    def pool(self, x: str, kernel: tuple[int, ...], op: str = "AveragePool", **given: Any) -> str:
        """A pool with stride 1 and no padding unless said otherwise."""
        spatial = len(kernel)
        attributes = {
            "kernel_shape": kernel,
            "strides": (1,) * spatial,
            "pads": (0,) * (2 * spatial),
            "dilations": (1,) * spatial,
            "ceil_mode": False,
            "count_include_pad": False,
        }
        return self.op(op, x, **{**attributes, **given})

    def batch_norm(self, x: str) -> str:
        """A BatchNormalization with random statistics."""
        channels = self.types[x].shape[1]
        variance = self.const(self.random.uniform(0.5, 2.0, channels))
        parts = [self.normal(channels) for _ in range(3)]
        return self.op("BatchNormalization", x, *parts, variance, epsilon=1e-5)

    def graph(self, *outputs: str) -> Graph:
        """The verified graph."""
        return verify(
            Graph(
                tuple(self.inputs),
                outputs,
                tuple(self.nodes),
                frozen(self.types),
                frozen(self.constants),
            )
        )


def ops(graph: Graph) -> list[str]:
    """The operations of a graph in order."""
    return [node.op for node in graph.nodes]


def only(graph: Graph, op: str) -> Node:
    """The one node of that operation."""
    (node,) = [node for node in graph.nodes if node.op == op]
    return node


def feed(graph: Graph, seed: int = 1) -> dict[str, np.ndarray]:
    """Random inputs."""
    random = np.random.default_rng(seed)
    return {
        name: random.normal(size=graph.types[name].shape).astype(graph.types[name].dtype)
        for name in graph.inputs
    }


def assert_equal(before: Graph, after: Graph, tolerance: float = 1e-12) -> None:
    """Check both graphs and compare what they compute.

    The tolerance is relative to the largest number that occurs anywhere in the first graph.
    """
    verify(before)
    verify(after)
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    inputs = feed(before)
    every = tuple(name for node in before.nodes for name in node.outputs)
    inner = interpret(replace(before, outputs=(*before.outputs, *every)), inputs)
    largest = max((float(np.abs(v).max()) for v in inner.values() if v.size), default=0.0)
    assert np.isfinite(largest)
    found = interpret(after, inputs)
    for name in before.outputs:
        assert after.types[name] == before.types[name]
        np.testing.assert_allclose(
            found[name], inner[name], rtol=0, atol=tolerance * max(largest, 1e-30), err_msg=name
        )


def applied(one: Pass, graph: Graph, tolerance: float = 1e-12) -> Graph:
    """Apply a pass and check that it keeps the graph sound, its values, and the graph it got."""
    held = (graph.nodes, dict(graph.types), {n: a.copy() for n, a in graph.constants.items()})
    result = one(graph)
    assert_equal(graph, result, tolerance)
    assert graph.nodes == held[0]
    assert dict(graph.types) == held[1]
    assert all(np.array_equal(graph.constants[n], a) for n, a in held[2].items())
    return result
