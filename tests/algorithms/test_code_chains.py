"""Chains of convolutions of codes in one pass: the codes of the convolutions one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.fused.kernel import FusedChain
from leanconv.algorithms.fused.stream import BlockStream
from leanconv.algorithms.parameters import Choice
from leanconv.codegen.dot import fitting_lanes
from leanconv.codegen.host import host
from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph
from leanconv.operators import NodeContext
from leanconv.operators.chains import BLOCK_CHAIN, CONV_CHAIN
from leanconv.spec import PLAIN, Activation, Format
from leanconv.target import Target, preset
from leanconv.types import INT8, UINT8, DType
from support.code_chains import CodeNet
from support.integer_conv import runnable, some_exceeding, some_fours_exceeding
from support.nodes import run_lowered

# Input, channels between and after, and the rest.
BLOCKS: dict[str, tuple[tuple[int, ...], int, int, dict[str, Any]]] = {
    "residual": ((1, 24, 13, 11), 144, 24, {"residual": "x"}),
    "stride 2": ((1, 16, 15, 14), 96, 24, {"strides": (2, 2)}),
    "5x5": ((1, 20, 9, 10), 50, 20, {"kernel": 5, "residual": "x"}),
    "uneven pads": (
        (2, 32, 7, 7),
        192,
        40,
        {"kernel": 5, "strides": (2, 2), "pads": (1, 2, 3, 2)},
    ),
    "no expansion": ((1, 33, 12, 13), 0, 15, {}),
    "no expansion, stride 2": ((3, 64, 9, 9), 0, 72, {"strides": (2, 2)}),
    "one row": ((1, 16, 1, 9), 32, 16, {"residual": "x"}),
    "one column, 5x5": ((1, 16, 17, 1), 64, 8, {"kernel": 5}),
    "no pads": ((1, 8, 8, 19), 64, 32, {"pads": (0, 0, 0, 0)}),
    "dilated": ((1, 16, 14, 12), 48, 33, {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    "stem": ((1, 3, 19, 23), 32, 16, {"first": (3, 2)}),
    "strides larger than the kernel": ((1, 16, 13, 13), 32, 16, {"strides": (4, 4)}),
    "an activation": ((1, 16, 6, 7), 32, 16, {"activation": Activation("leaky_relu", (0.25,))}),
    "border": ((2, 24, 13, 11), 144, 24, {"residual": "x", "border": True}),
    "border, stride 2": ((1, 16, 15, 14), 96, 24, {"strides": (2, 2), "border": True}),
    "uneven border": (
        (1, 32, 7, 7),
        64,
        40,
        {"kernel": 5, "strides": (2, 2), "pads": (1, 2, 3, 4), "border": True},
    ),
    "tables": ((2, 24, 13, 11), 144, 24, {"residual": "x", "tables": True}),
    "tables, a border": ((1, 20, 9, 7), 50, 24, {"border": True, "tables": True}),
    "a table, no expansion": ((1, 33, 12, 13), 0, 15, {"tables": True}),
    "stem with tables": ((1, 3, 19, 23), 32, 16, {"first": (3, 2), "tables": True}),
    "mostly border": ((1, 17, 4, 5), 32, 16, {"pads": (4, 5, 4, 3), "border": True}),
    "border below": ((1, 17, 4, 5), 32, 16, {"pads": (0, 0, 2, 0), "border": True}),
    "stem with a border": ((1, 3, 19, 23), 32, 16, {"first": (3, 2), "border": True}),
    "one pixel": ((2, 16, 1, 1), 32, 16, {"residual": "x"}),
}


def net_of(name: str, dtype: DType) -> tuple[CodeNet, str]:
    shape, inner, outputs, given = BLOCKS[name]
    net = CodeNet(shape, dtype)
    return net, net.block("x", inner, outputs, **given)


def run(
    graph: Graph,
    values: dict[str, np.ndarray],
    target: Target,
    plain: bool = False,
    cuts: tuple[float, ...] = (0.4,),
) -> dict[Choice, np.ndarray]:
    """What each choice of the one node computes."""
    machine = None if target is host() else target
    lowered, formats = all_lowered(graph, target, plain)
    return {
        choice: run_lowered(each, graph, formats, values, machine, cuts)
        for choice, each in lowered.items()
    }


def all_lowered(
    graph: Graph, target: Target, plain: bool = False
) -> tuple[dict[Choice, Lowered], dict[str, Format]]:
    """The calls of each choice of the one node, and the formats of values."""
    (node,) = graph.nodes
    form = Format(target.channel_block(UINT8))
    formats = dict.fromkeys((*graph.inputs, *graph.outputs), form)
    formats |= {"x": PLAIN} if plain else {}
    context = NodeContext(node, graph, formats, target)
    operator = BLOCK_CHAIN if node.op == "BlockChain" else CONV_CHAIN
    return {each: operator.lower(context, each) for each in operator.choices(context)}, formats


# What depends on the codes' type: their dot products, and numbers beside the image. The other
# blocks differ by shapes, and are of one type each.
BOTH = ("residual", "stride 2", "no expansion", "stem", "border", "tables", "stem with a border")


@pytest.mark.drawn
@pytest.mark.vectors
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for number, name in enumerate(BLOCKS)
        for dtype in ((UINT8, INT8) if name in BOTH else ((UINT8, INT8)[number % 2],))
    ],
)
def test_every_form_gives_the_codes_of_the_layers(name: str, dtype: DType) -> None:
    net, output = net_of(name, dtype)
    found = run(net.fused(output), net.values(), host())
    kinds = {str(choice).partition(":")[0] for choice in found}
    assert kinds == {"layers", "panel"} | ({"rows"} if BLOCKS[name][1] else set())
    expected = net.expected(output)
    assert len(np.unique(expected)) > 20
    for choice, codes in found.items():
        np.testing.assert_array_equal(codes, expected, err_msg=str(choice))


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable())
def test_other_registers(target: Target) -> None:
    names = ("residual", "stride 2", "stem", "tables, a border")
    for name, dtype in zip(names, (UINT8, INT8, INT8, UINT8), strict=True):
        net, output = net_of(name, dtype)
        for choice, codes in run(net.fused(output), net.values(), target).items():
            np.testing.assert_array_equal(codes, net.expected(output), err_msg=str(choice))


IMAGES: dict[str, tuple[int, tuple[int, ...], tuple[int, int], tuple[int, int]]] = {
    "usual": (3, (1, 1, 1, 1), (37, 41), (3, 2)),
    "uneven border": (4, (0, 2, 1, 0), (20, 9), (3, 2)),
    "no border": (1, (0, 0, 0, 0), (12, 33), (3, 1)),
    "border only above": (2, (3, 0, 0, 0), (5, 6), (5, 2)),
    "one pixel": (3, (1, 1, 1, 1), (1, 1), (3, 1)),
    "1x1": (3, (0, 0, 0, 0), (7, 40), (1, 1)),
    "strides larger than the kernel": (3, (1, 1, 2, 2), (14, 17), (2, 3)),
}


@pytest.mark.drawn
@pytest.mark.vectors
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("usual", INT8), *((name, (UINT8, INT8)[i % 2]) for i, name in enumerate(IMAGES))],
)
def test_codes_of_an_image_are_made_by_rows(name: str, dtype: DType) -> None:
    channels, pads, size, first = IMAGES[name]
    net = CodeNet((), dtype)
    output = net.block(net.image(channels, pads, size), 32, 20, first=first)
    graph = net.fused(output)
    assert [node.op for node in graph.nodes] == ["ConvChain"]
    found = run(graph, net.values(), host(), plain=True)
    for choice, codes in found.items():
        np.testing.assert_array_equal(codes, net.expected(output), err_msg=str(choice))


def test_plain_codes_of_an_image_need_no_buffer() -> None:
    net = CodeNet((1, 3, 21, 35))
    output = net.block("x", 32, 20, first=(3, 2))
    found = run(net.fused(output), net.values(), host(), plain=True)
    for choice, codes in found.items():
        np.testing.assert_array_equal(codes, net.expected(output), err_msg=str(choice))


# Of each block: channels between and after, kernel, stride.
STREAMS: dict[str, tuple[int, tuple[int, int], list[tuple[int, int, int, int]]]] = {
    "mobile": (3, (57, 40), [(32, 8, 3, 1), (48, 24, 3, 2), (72, 24, 3, 1), (72, 32, 3, 2)]),
    "batch, 5x5": (3, (21, 17), [(16, 16, 5, 1), (32, 16, 5, 1), (48, 40, 5, 2)]),
    "separable": (16, (30, 19), [(0, 24, 3, 2), (0, 33, 3, 1), (0, 20, 5, 2)]),
    "no image": (16, (9, 12), [(32, 16, 3, 1), (32, 16, 3, 1)]),
    "borders": (3, (33, 26), [(32, 8, 3, 1), (48, 24, 3, 2), (72, 24, 5, 1), (72, 32, 3, 2)]),
    "tables": (3, (33, 26), [(32, 8, 3, 1), (48, 24, 3, 2), (72, 24, 5, 1), (72, 32, 3, 2)]),
    "tiny": (3, (5, 3), [(32, 8, 3, 1), (48, 24, 3, 2), (72, 24, 3, 1)]),
}


def stream_of(name: str, dtype: DType = UINT8) -> tuple[CodeNet, str]:
    channels, size, blocks = STREAMS[name]
    net = CodeNet((1, channels, *size), dtype)
    y = net.image(channels, (1, 1, 1, 1), size) if channels < 5 else "x"
    for number, (inner, outputs, kernel, stride) in enumerate(blocks):
        first = (3, 2) if y == "qp" else (1, 1)
        adds = inner and number and stride == 1 and net.types[y].shape[1] == outputs
        given = {"first": first, "residual": y if adds else "", "strides": (stride, stride)}
        given |= {"border": name in ("borders", "tables"), "tables": name == "tables"}
        y = net.block(y, inner, outputs, kernel, **given)
    return net, y


@pytest.mark.drawn
@pytest.mark.parametrize("name", STREAMS)
def test_blocks_in_one_pass_give_the_codes_of_the_layers(name: str) -> None:
    net, output = stream_of(name)
    graph, values = net.fused(output, merged=True), net.values()
    assert [node.op for node in graph.nodes] == ["BlockChain"]
    expected = net.expected(output)
    plain = net.types["x"].shape[1] < 5
    for cuts in ((), (0.4,), tuple(i / 13 for i in range(13))):
        for choice, codes in run(graph, values, host(), plain, cuts).items():
            np.testing.assert_array_equal(codes, expected, err_msg=f"{choice} {cuts}")


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable())
def test_streams_for_other_registers(target: Target) -> None:
    net, output = stream_of("mobile", INT8)
    for choice, codes in run(net.fused(output, True), net.values(), target, True).items():
        np.testing.assert_array_equal(codes, net.expected(output), err_msg=str(choice))


def test_mobile_blocks_of_codes_need_few_bytes() -> None:
    """The first blocks of MobileNetV2: an image of 602 KB, 25 KB behind them, rows between."""
    net = CodeNet(())
    y = net.block(net.image(3, (1, 1, 1, 1), (224, 224)), 32, 16, first=(3, 2))
    y = net.block(y, 96, 24, strides=(2, 2))
    y = net.block(net.block(y, 144, 24, residual=y), 144, 32, strides=(2, 2))
    graph = net.fused(y, merged=True)
    (node,) = graph.nodes
    for name in ("znver4", "sapphirerapids"):
        target = preset(name)
        formats = {"x": PLAIN, y: Format(target.channel_block(UINT8))}
        context = NodeContext(node, graph, formats, target)
        found = [BLOCK_CHAIN.lower(context, each) for each in BLOCK_CHAIN.choices(context)]
        assert all(not lowered.temporaries for lowered in found)
        assert min(lowered.calls[0].kernel.scratch_bytes for lowered in found) < 64 * 1024


without_vnni = pytest.mark.parametrize(
    "target", [each for each in runnable() if fitting_lanes(each.values[0])]
)


def let_some_exceed(net: CodeNet, way: str) -> None:
    """Give the dense convolutions weights of which few are too much for sums in 16 bits."""
    drawn = {"bytes": some_exceeding, "fours": some_fours_exceeding}[way]
    for number, (name, w) in enumerate(net.constants.items()):
        if w.ndim == 4 and w.shape[1] > 1:
            net.constants[name] = drawn(w.shape, number)


def excess_of(kernel: FusedChain | BlockStream, way: str) -> list[int]:
    """Vectors of what exceeds, of each dense convolution that adds up products so."""
    blocks = kernel.blocks if isinstance(kernel, BlockStream) else (kernel.block,)
    stages = (stage for block in blocks for stage in block.stages.values())
    return [s.excess for s in stages if isinstance(s, DirectConv) and s.way == way]


@pytest.mark.drawn
@without_vnni
@pytest.mark.parametrize("dtype", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("name", ["residual", "stride 2", "no expansion", "stem", "border"])
@pytest.mark.parametrize("way", ["bytes", "fours"])
def test_blocks_add_what_exceeds(way: str, name: str, dtype: DType, target: Target) -> None:
    net, output = net_of(name, dtype)
    let_some_exceed(net, way)
    graph, expected = net.fused(output), net.expected(output)
    assert len(np.unique(expected)) > 20
    for choice, codes in run(graph, net.values(), target).items():
        np.testing.assert_array_equal(codes, expected, err_msg=str(choice))
    for choice, lowered in all_lowered(graph, target)[0].items():
        if choice.algorithm != "layers" and name != "stem":  # of that a quarter exceeds
            assert any(excess_of(lowered.calls[0].kernel, way)), choice


@pytest.mark.drawn
@without_vnni
@pytest.mark.parametrize("name", ["mobile", "separable", "tables"])
@pytest.mark.parametrize("way", ["bytes", "fours"])
def test_streams_of_blocks_add_what_exceeds(way: str, name: str, target: Target) -> None:
    net, output = stream_of(name)
    let_some_exceed(net, way)
    graph, plain = net.fused(output, merged=True), net.types["x"].shape[1] < 5
    for choice, codes in run(graph, net.values(), target, plain).items():
        np.testing.assert_array_equal(codes, net.expected(output), err_msg=str(choice))
    for lowered in all_lowered(graph, target, plain)[0].values():
        assert sum(map(bool, excess_of(lowered.calls[0].kernel, way))) > 1


@without_vnni
@pytest.mark.parametrize("extreme", [-128, 127])
def test_blocks_widen_where_all_exceeds(extreme: int, target: Target) -> None:
    net, output = net_of("residual", UINT8)
    dense = {name: w for name, w in net.constants.items() if w.ndim == 4 and w.shape[1] > 1}
    net.constants |= {name: np.full_like(w, extreme) for name, w in dense.items()}
    graph = net.fused(output)
    for choice, codes in run(graph, net.values(), target).items():
        np.testing.assert_array_equal(codes, net.expected(output), err_msg=str(choice))
    for choice, lowered in all_lowered(graph, target)[0].items():
        assert choice.algorithm == "layers" or not excess_of(lowered.calls[0].kernel, "bytes")
