"""Chains of convolutions of codes in one pass: the codes of the convolutions one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.parameters import Choice
from leanconv.codegen.host import host
from leanconv.graph.ir import Graph
from leanconv.operators import NodeContext
from leanconv.operators.block_chain import BLOCK_CHAIN
from leanconv.operators.conv_chain import CONV_CHAIN
from leanconv.spec import PLAIN, Activation, Format
from leanconv.target import Target
from leanconv.types import INT8, UINT8, DType
from support.code_chains import CodeNet
from support.integer_conv import runnable
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
    "one pixel": ((2, 16, 1, 1), 32, 16, {"residual": "x"}),
}


def net_of(name: str, dtype: DType) -> tuple[CodeNet, str]:
    shape, inner, outputs, given = BLOCKS[name]
    net = CodeNet(shape, dtype)
    return net, net.block("x", inner, outputs, **given)


def run(
    graph: Graph, values: dict[str, np.ndarray], target: Target, plain: bool = False
) -> dict[Choice, np.ndarray]:
    """What each choice of the one node computes."""
    (node,) = graph.nodes
    form = Format(target.channel_block(UINT8))
    formats = dict.fromkeys((*graph.inputs, *graph.outputs), form)
    formats |= {"x": PLAIN} if plain else {}
    context = NodeContext(node, graph, formats, target)
    operator = BLOCK_CHAIN if node.op == "BlockChain" else CONV_CHAIN
    found = {}
    for choice in operator.choices(context):
        lowered = operator.lower(context, choice)
        machine = None if target is host() else target
        found[choice] = run_lowered(lowered, graph, formats, values, machine, (0.4,))
    return found


@pytest.mark.parametrize("dtype", [UINT8, INT8])
@pytest.mark.parametrize("name", BLOCKS)
def test_every_form_gives_the_codes_of_the_layers(name: str, dtype: DType) -> None:
    net, output = net_of(name, dtype)
    found = run(net.fused(output), net.values(), host())
    kinds = {str(choice).partition(":")[0] for choice in found}
    assert kinds == {"layers", "panel"} | ({"rows"} if BLOCKS[name][1] else set())
    expected = net.expected(output)
    assert len(np.unique(expected)) > 20
    for choice, codes in found.items():
        np.testing.assert_array_equal(codes, expected, err_msg=str(choice))


@pytest.mark.parametrize("target", runnable())
def test_other_registers(target: Target) -> None:
    for name in ("residual", "stride 2", "stem"):
        for dtype in (UINT8, INT8):
            net, output = net_of(name, dtype)
            for choice, codes in run(net.fused(output), net.values(), target).items():
                np.testing.assert_array_equal(codes, net.expected(output), err_msg=str(choice))
