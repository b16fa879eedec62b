"""Transposed convolutions whose weights a run computes: phases, all phases as one, col2im."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.parameters import AUTO
from leanconv.codegen.host import host
from leanconv.graph.ir import Graph, Node
from leanconv.operators import NodeContext, operator_of
from leanconv.planner.formats import FormatRules
from leanconv.spec import NHWC, PLAIN, Format
from leanconv.types import FLOAT32
from support.interpret import interpret
from support.nodes import integers, one_node, run_lowered

Shape = tuple[int, ...]

# x, w (C, K / group, kernel…), and what differs from stride 1 without padding.
LAYERS: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((2, 16, 7, 9), (16, 24, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 16, 6, 6), (16, 16, 3, 3), {"strides": (2, 2), "pads": (1,) * 4, "more": (1, 1)}),
    ((2, 8, 5, 4), (8, 16, 2, 2), {"strides": (2, 2)}),
    ((1, 5, 4, 7), (5, 3, 5, 4), {"strides": (3, 2), "pads": (2, 1, 0, 2), "more": (2, 0)}),
    ((1, 12, 5, 5), (12, 4, 3, 3), {"group": 3, "strides": (2, 1), "pads": (1, 1, 0, 1)}),
    ((2, 20, 6, 5), (20, 1, 3, 3), {"group": 20, "strides": (2, 2), "pads": (1,) * 4}),
    ((1, 16, 5, 6), (16, 1, 3, 3), {"group": 16, "pads": (1,) * 4}),
    ((1, 8, 5, 5), (8, 8, 1, 1), {"strides": (2, 2), "more": (1, 1)}),
    ((1, 8, 6, 7), (8, 9, 3, 2), {"dilations": (2, 3), "strides": (2, 1), "pads": (1, 2, 1, 2)}),
    ((1, 4, 1, 1), (4, 6, 2, 2), {"pads": (0, 1, 1, 0)}),
    ((1, 3, 9, 8), (3, 4, 2, 2), {"pads": (4, 3, 4, 5)}),  # more than the kernel
    ((2, 16, 17, 1), (16, 3, 3, 1), {"pads": (5, 0, 4, 0)}),
    ((2, 6, 11), (6, 5, 4), {"strides": (3,), "pads": (1, 2), "more": (2,)}),
    ((1, 3, 2, 2), (3, 4, 1, 1), {"strides": (3, 3), "pads": (1, 1, 2, 2)}),  # no tap at all
    ((2, 6, 3, 3), (6, 5, 1, 2), {"group": 2, "strides": (2, 3), "pads": (1, 0, 0, 1)}),
    ((1, 4, 3, 4, 3), (4, 2, 2, 3, 2), {"group": 2, "strides": (2, 1, 2), "pads": (0, 1, 0) * 2}),
]


def made(layer: int, taps_first: bool, bias: bool, exact: bool) -> tuple[Node, Graph, Any]:
    """A graph of one node, and what it reads."""
    x, w, given = LAYERS[layer]
    rank, group = len(x) - 2, given.get("group", 1)
    attributes = {
        "strides": given.get("strides", (1,) * rank),
        "pads": given.get("pads", (0,) * 2 * rank),
        "dilations": given.get("dilations", (1,) * rank),
        "output_padding": given.get("more", (0,) * rank),
        "group": group,
        "kernel_shape": w[2:],
        "taps_first": taps_first,
        "exact": exact,
    }
    inputs = {"x": integers(x, "f4", 1), "w": integers((w[0], int(np.prod(w[1:]))), "f4", 2)}
    inputs |= {"b": integers((w[1] * group,), "f4", 3)} if bias else {}
    return *one_node("DataConvTranspose", inputs, {}, tuple(inputs), attributes), inputs


def all_choices(node: Node, graph: Graph, block: int) -> list[tuple[NodeContext, Any]]:
    """Every choice in every format that the operator accepts, and in channels-last memory."""
    rules = FormatRules(graph, Format(block), {FLOAT32})
    found = []
    places = [reads | dict.fromkeys(node.outputs, to) for reads, to in rules.possible(node)]
    for formats in (*places, {"x": NHWC, "y": NHWC}):
        known = dict.fromkeys(graph.types, PLAIN) | formats
        context = NodeContext(node, graph, known, host())
        choices = operator_of(node).choices(context)
        first = {choice.algorithm: choice for choice in reversed(choices)}
        found += [(context, choice) for choice in (AUTO, *first.values())]
    return found


@pytest.mark.vectors
@pytest.mark.parametrize("taps_first", [False, True])
@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_sums_of_small_integers_are_exact(layer: int, taps_first: bool) -> None:
    node, graph, inputs = made(layer, taps_first, bias=layer % 2 == taps_first, exact=True)
    expected = interpret(graph, inputs)["y"]
    for context, choice in all_choices(node, graph, host().lanes(FLOAT32)):
        lowered = operator_of(node).lower(context, choice)
        y = run_lowered(lowered, graph, context.formats, inputs)
        np.testing.assert_array_equal(y, expected, err_msg=f"{choice}, {context.formats}")


@pytest.mark.vectors
@pytest.mark.parametrize("taps_first", [False, True])
@pytest.mark.parametrize("layer", [0, 1, 2, 4, 6])
def test_transforms_read_turned_weights(layer: int, taps_first: bool) -> None:
    node, graph, inputs = made(layer, taps_first, False, exact=False)
    expected = interpret(graph, inputs)["y"]
    seen = set()
    for context, choice in all_choices(node, graph, host().lanes(FLOAT32)):
        lowered = operator_of(node).lower(context, choice)
        seen.add(lowered.algorithm)
        y = run_lowered(lowered, graph, context.formats, inputs)
        assert np.abs(y - expected).max() <= 1e-4 * np.abs(expected).max(), choice
    assert layer != 0 or "winograd" in seen


def test_rows_of_other_lengths_are_refused() -> None:
    node, _, inputs = made(0, False, False, True)
    wrong = {**inputs, "w": inputs["w"][:, :-1]}
    with pytest.raises(Exception, match="expected rows of kernels of"):
        one_node("DataConvTranspose", wrong, {}, tuple(wrong), node.attributes)
