"""Chains of convolutions for tests: a graph of one ConvChain node, and what each form computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leanconv.algorithms.parameters import Choice
from leanconv.codegen.host import host
from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.passes.fuse_blocks import fuse_blocks
from leanconv.graph.verify import verify
from leanconv.operators import Accuracy, NodeContext
from leanconv.operators.chains import CONV_CHAIN
from leanconv.spec import Activation, Format
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64
from support.graph_builder import Builder
from support.interpret import interpret
from support.kernel_runner import Guard, guarded_operand
from support.nodes import run_lowered

RELU6 = Activation("clip", (0.0, 6.0))


@dataclass(frozen=True)
class Block:
    """One chain: channels before, between (0: no first convolution) and after, and the rest."""

    inputs: int
    inner: int
    outputs: int
    size: tuple[int, int]
    kernel: int = 3
    stride: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilation: int = 1
    residual: bool = False
    batch: int = 1
    activations: tuple[Activation | None, ...] = (RELU6, RELU6, None)
    first: tuple[int, int] = (1, 1)  # kernel and stride of the first convolution
    bias: bool = True
    dtype: str = FLOAT32
    integers: bool = False

    def graph(self) -> Graph:
        """The three convolutions."""
        b = Builder(self.dtype, 5)

        def numbers(*shape: int) -> str:
            if self.integers:
                return b.const(b.random.integers(-2, 3, size=shape))
            return b.normal(*shape)

        def more(channels: int) -> tuple[str, ...]:
            return (numbers(channels),) if self.bias else ("",)

        x = y = b.input(self.batch, self.inputs, *self.size)
        first, depthwise, last = self.activations
        channels = self.inner or self.inputs
        if self.inner:
            k, s = self.first
            w = numbers(channels, self.inputs, k, k)
            y = b.conv(y, w, *more(channels), strides=(s, s), pads=(k // 2,) * 4, activation=first)
        y = b.conv(
            y,
            numbers(channels, 1, self.kernel, self.kernel),
            *more(channels),
            group=channels,
            strides=(self.stride,) * 2,
            dilations=(self.dilation,) * 2,
            pads=self.pads,
            activation=depthwise,
        )
        w = numbers(self.outputs, channels, 1, 1)
        added = (x,) if self.residual else ()
        y = b.conv(y, w, *more(self.outputs), *added, activation=last)
        return b.graph(y)

    def input(self) -> np.ndarray:
        """Random numbers for the graph's input."""
        random = np.random.default_rng(3)
        shape = (self.batch, self.inputs, *self.size)
        if self.integers:
            return random.integers(-2, 3, size=shape).astype(self.dtype)
        return random.standard_normal(shape).astype(self.dtype)

    def expected(self) -> np.ndarray:
        """The result in float64."""
        graph = self.graph()
        types = {n: TensorType(t.shape, FLOAT64) for n, t in graph.types.items()}
        constants = {n: a.astype(np.float64) for n, a in graph.constants.items()}
        wide = replace(graph, types=types, constants=constants)
        return interpret(wide, {"x0": self.input().astype(np.float64)})[graph.outputs[0]]


class Runner:
    """A block lowered for a target, blocked in and out (plain in if `plain`)."""

    def __init__(self, block: Block, target: Target | None = None, plain: bool = False) -> None:
        self.block, self.target = block, target or host()
        self.graph = verify(fuse_blocks(block.graph()))
        (self.node,) = self.graph.nodes
        assert self.node.op == "ConvChain"
        lanes = Format(self.target.lanes(block.dtype))
        self.formats = {"x0": Format(0) if plain else lanes, self.node.outputs[0]: lanes}

    def context(self, reproducible: bool = False) -> NodeContext:
        """The block's node as its operator is asked about it."""
        accuracy = Accuracy(reproducible=reproducible)
        return NodeContext(self.node, self.graph, self.formats, self.target, accuracy)

    def choices(self) -> list[Choice]:
        """All ways to compute the block."""
        return CONV_CHAIN.choices(self.context())

    def lower(self, choice: Choice) -> Lowered:
        """The kernels of one of them."""
        return CONV_CHAIN.lower(self.context(), choice)

    def run(
        self,
        choice: Choice,
        cuts: Sequence[float] = (),
        order: Callable[[int], Sequence[int]] | None = None,
        guard: Guard = guarded_operand,
    ) -> np.ndarray:
        """Run one of them, each grid cut at these parts of it, on buffers full of NaN.

        With an order, chunks are done one by one in the order that it makes of their number. Each
        array is copied into a guard.
        """
        target = None if self.target is host() else self.target
        inputs = {"x0": self.block.input()}
        lowered = self.lower(choice)
        return run_lowered(lowered, self.graph, self.formats, inputs, target, cuts, order, guard)


def chain_node(graph: Graph) -> Node:
    """The one ConvChain of a graph."""
    (node,) = [node for node in graph.nodes if node.op == "ConvChain"]
    return node
