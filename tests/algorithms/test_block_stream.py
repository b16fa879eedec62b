"""Several blocks in one pass: against the blocks one by one, and what they need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.fused.stream import BlockStream, ring_rows
from leanconv.algorithms.parameters import Choice
from leanconv.codegen.forms import instance_of
from leanconv.codegen.host import host
from leanconv.codegen.tiling import Tile
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, TensorType
from leanconv.graph.passes.fuse_blocks import fuse_blocks, merge_blocks, mergeable
from leanconv.graph.verify import verify
from leanconv.operators import NodeContext
from leanconv.operators.chains import BLOCK_CHAIN
from leanconv.spec import Activation, Format
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64
from support.graph_builder import Builder
from support.interpret import interpret
from support.kernel_runner import run_kernel
from support.nodes import all_constants, run_lowered

pytestmark = pytest.mark.vectors

RELU6 = Activation("clip", (0.0, 6.0))


class Net:
    """A stem and some blocks.

    Args:
        blocks: of each: inner channels (0: none), outputs, kernel, stride.
    """

    def __init__(
        self,
        blocks: list[tuple[int, int, int, int]],
        size: tuple[int, int],
        batch: int = 1,
        integers: bool = False,
        dtype: str = FLOAT32,
        stem: bool = True,
    ) -> None:
        self.builder, self.integers, self.dtype = Builder(dtype, 7), integers, dtype
        self.activation = None if integers else RELU6
        b = self.builder
        x = y = b.input(batch, 3 if stem else 16, *size)
        if stem:
            w = self.numbers(16, 3, 3, 3)
            y = b.conv(x, w, self.numbers(16), **self.settings(3, 2))
        for inner, outputs, kernel, stride in blocks:
            y = self.block(y, inner, outputs, kernel, stride)
        self.plain = b.graph(y)

    def numbers(self, *shape: int) -> str:
        b = self.builder
        if self.integers:
            return b.const(b.random.integers(-1, 2, size=shape))
        return b.const(b.random.normal(size=shape) / np.sqrt(np.prod(shape[1:])))

    def settings(self, kernel: int, stride: int, **more: Any) -> dict[str, Any]:
        p = kernel // 2
        return {
            "strides": (stride,) * 2,
            "pads": (p,) * 4,
            "activation": self.activation,
            **more,
        }

    def block(self, x: str, inner: int, outputs: int, kernel: int, stride: int) -> str:
        b = self.builder
        width = b.types[x].shape[1]
        y, channels = x, inner or width
        if inner:
            w = self.numbers(channels, width, 1, 1)
            y = b.conv(y, w, self.numbers(channels), activation=self.activation)
        w = self.numbers(channels, 1, kernel, kernel)
        settings = self.settings(kernel, stride, group=channels)
        y = b.conv(y, w, self.numbers(channels), **settings)
        added = (x,) if inner and stride == 1 and width == outputs else ()
        return b.conv(y, self.numbers(outputs, channels, 1, 1), self.numbers(outputs), *added)

    def input(self) -> np.ndarray:
        random = np.random.default_rng(2)
        shape = self.plain.types["x0"].shape
        if self.integers:
            return random.integers(-1, 2, size=shape).astype(self.dtype)
        return random.standard_normal(shape).astype(self.dtype)

    def expected(self) -> np.ndarray:
        graph = self.plain
        types = {n: TensorType(t.shape, FLOAT64) for n, t in graph.types.items()}
        constants = {n: a.astype(np.float64) for n, a in graph.constants.items()}
        wide = replace(graph, types=types, constants=constants)
        return interpret(wide, {"x0": self.input().astype(np.float64)})[graph.outputs[0]]

    def merged(self) -> Graph:
        fused = fuse_blocks(self.plain)
        return verify(merge_blocks(fused, mergeable(fused)))


def streams(net: Net, target: Target | None = None) -> dict[Choice, BlockStream]:
    machine = target or host()
    graph = net.merged()
    (node,) = graph.nodes
    lanes = Format(machine.lanes(net.dtype))
    plain = graph.types["x0"].shape[1] == 3
    formats = {"x0": Format(0) if plain else lanes, node.outputs[0]: lanes}
    context, found = NodeContext(node, graph, formats, machine), {}
    for choice in BLOCK_CHAIN.choices(context):
        lowered = BLOCK_CHAIN.lower(context, choice)
        (call,) = lowered.calls
        assert isinstance(call.kernel, BlockStream)
        found[choice] = call.kernel
    return found


def run(
    net: Net, choice: Choice, cuts: tuple[float, ...] = (), target: Target | None = None
) -> np.ndarray:
    machine, graph = target or host(), net.merged()
    (node,) = graph.nodes
    lanes, x, out = Format(machine.lanes(net.dtype)), net.input(), node.outputs[0]
    plain = x.shape[1] == 3
    formats = {"x0": Format(0) if plain else lanes, out: lanes}
    lowered = BLOCK_CHAIN.lower(NodeContext(node, graph, formats, machine), choice)
    assert {n: a.nbytes for n, a in all_constants(lowered).items()} == dict(
        lowered.packings[0].bytes
    )
    return run_lowered(lowered, graph, formats, {"x0": x}, target, cuts)


MOBILE = [(0, 8, 3, 1), (48, 24, 3, 2), (72, 24, 3, 1), (72, 32, 3, 2)]
NETS: dict[str, tuple[list[tuple[int, int, int, int]], tuple[int, int], dict[str, Any]]] = {
    "mobile": (MOBILE, (57, 40), {}),
    "batch": (MOBILE[:3], (22, 21), {"batch": 3}),
    "5x5": ([(0, 16, 5, 1), (32, 16, 5, 1), (48, 40, 5, 2)], (33, 17), {}),
    "separable": ([(0, 24, 3, 2), (0, 33, 3, 1), (0, 20, 5, 2)], (41, 19), {}),
    "no stem": ([(32, 16, 3, 1), (32, 16, 3, 1)], (9, 12), {"stem": False}),
    "tiny": (MOBILE, (5, 3), {}),
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", NETS)
def test_every_choice_is_near_float64(name: str) -> None:
    blocks, size, more = NETS[name]
    net = Net(blocks, size, **more)
    expected = net.expected()
    for choice in streams(net):
        found = run(net, choice)
        assert np.abs(found - expected).max() < 2e-6 * np.abs(expected).max(), choice


@pytest.mark.drawn
@pytest.mark.parametrize("name", NETS)
def test_small_integers_are_exact_however_the_chunks_are_cut(name: str) -> None:
    blocks, size, more = NETS[name]
    net = Net(blocks[:3], size, integers=True, **more)
    expected = net.expected()
    assert np.abs(expected).max() < 2**24
    for choice in streams(net):
        for cuts in ((), (0.5,), tuple(i / 13 for i in range(13))):
            assert np.array_equal(run(net, choice, cuts), expected), (choice, cuts)


def test_other_registers_and_double_precision() -> None:
    haswell = preset("haswell")
    net = Net(MOBILE[:3], (22, 21), integers=True)
    for choice in streams(net, haswell):
        assert np.array_equal(run(net, choice, (0.4,), haswell), net.expected())
    net = Net(MOBILE, (22, 21), dtype=FLOAT64)
    for choice in streams(net):
        found, expected = run(net, choice), net.expected()
        assert np.abs(found - expected).max() < 1e-14 * np.abs(expected).max()


def test_rings_hold_a_few_rows() -> None:
    """MobileNetV2's first blocks: a step of one row needs 2, 2 and 4 new rows of those before."""
    blocks = [(112, 112, 1, 1, 3), (112, 56, 2, 1, 3), (56, 56, 1, 1, 3), (56, 28, 2, 1, 3)]
    assert ring_rows(blocks, 1, 1) == [7, 4, 3]  # one step before the first fills them
    assert ring_rows(blocks, 1, 2) == [5, 4, 3]  # two do it little by little


def test_only_neighbours_that_nobody_else_reads_are_merged() -> None:
    net = Net(MOBILE, (22, 21))
    fused = fuse_blocks(net.plain)
    assert mergeable(fused) == 4
    shorter = merge_blocks(fused, 2)
    assert [node.op for node in shorter.nodes] == ["BlockChain", "ConvChain", "ConvChain"]
    inputs = {"x0": net.input()}
    (y,) = net.plain.outputs
    assert np.array_equal(interpret(shorter, inputs)[y], interpret(fused, inputs)[y])
    second = replace(net.plain, outputs=(y, fused.nodes[1].outputs[0]))
    assert mergeable(fuse_blocks(second)) == 2
    first = replace(net.plain, outputs=(y, fused.nodes[0].outputs[0]))
    assert mergeable(fuse_blocks(first)) == 0
    alone = Net([(0, 8, 3, 1)], (9, 9))
    assert mergeable(fuse_blocks(alone.plain)) == 0


def test_an_unknown_choice_is_refused() -> None:
    net = Net(MOBILE, (22, 21))
    with pytest.raises(SpecError, match="expected one of"):
        run(net, BLOCK_CHAIN.choice_named("stream:step=9"))


class ConstantStream(BlockStream):
    """A stream with its extents as constants in its code."""

    VARIES = False


def of_six(kernel: BlockStream) -> BlockStream:
    """The same in tiles of six columns."""
    blocks = []
    for block in kernel.blocks:
        expand = block.expand and replace(block.expand, tile=Tile(6, 1))
        projects = tuple(replace(project, tile=Tile(6, 1)) for project in block.projects)
        depthwise = replace(block.depthwise, columns=6)
        blocks.append(replace(block, expand=expand, depthwise=depthwise, projects=projects))
    return replace(kernel, blocks=tuple(blocks))


def test_streams_of_equal_remainders_share_forms() -> None:
    sizes = (60, 88), (92, 112), (224, 136)
    forms: dict[str, set[str]] = {}
    for size in sizes:
        for choice, kernel in streams(Net(MOBILE[:3], size)).items():
            forms.setdefault(str(choice), set()).add(instance_of(of_six(kernel), host()).digest)
    assert forms
    for name, found in forms.items():
        assert len(found) == 1, name


@pytest.mark.parametrize("name", ["mobile", "batch", "separable"])
def test_words_of_streams_give_the_bits_of_constants(name: str) -> None:
    blocks, size, settings = NETS[name]
    *_, kernel = streams(Net(blocks, size, **settings)).values()
    random = np.random.default_rng(4)
    first, last = kernel.blocks[0], kernel.blocks[-1]
    x = random.standard_normal(kernel.batch * (first.expand or first.depthwise).conv.x.image, "f4")
    packed = [
        random.standard_normal(bytes_ // 4, "f4") for bytes_ in kernel.constant_bytes.values()
    ]
    y = np.full(kernel.batch * last.projects[0].conv.y.image, np.nan, "f4")
    expected = run_kernel(ConstantStream(**vars(kernel)), x, *packed, y)
    np.testing.assert_array_equal(run_kernel(kernel, x, *packed, y), expected)
