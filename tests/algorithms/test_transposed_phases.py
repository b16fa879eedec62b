"""Phases of a transposed convolution: one kernel where they differ in weights and place only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.codegen.lowered import Lowered
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.operators import NodeContext
from leanconv.operators.convolution import CONVOLUTION
from leanconv.spec import PLAIN, Format
from leanconv.target import Target, preset
from support.graph_builder import Builder
from support.nodes import run_node

TARGET = preset("znver4")


def _graph(x: tuple[int, ...], w: tuple[int, ...], **given: Any) -> Graph:
    builder = Builder("float32")
    y = builder.conv(builder.input(*x), builder.normal(*w), op="ConvTranspose", **given)
    return builder.graph(y)


def _lower(node: Node, graph: Graph, formats: Mapping[str, Format], target: Target) -> Lowered:
    return CONVOLUTION.lower(NodeContext(node, graph, formats, target))


def _lowered(graph: Graph) -> Lowered:
    (node,) = graph.nodes
    return _lower(node, graph, dict.fromkeys(graph.types, PLAIN), TARGET)


@pytest.mark.parametrize(
    ("w", "given", "most"),
    [
        ((21, 21, 16, 16), {"strides": (8, 8)}, 1),  # 64 phases
        ((8, 8, 2, 2), {"strides": (2, 2)}, 1),
        ((8, 8, 8, 8), {"strides": (4, 4), "pads": (2, 2, 2, 2)}, 4),  # 16 phases
        ((8, 8, 32, 32), {"strides": (32, 32), "pads": (3, 3, 3, 3)}, 9),  # 1,024 phases
    ],
)
def test_phases_that_are_alike_are_one_kernel(
    w: tuple[int, ...], given: dict[str, Any], most: int
) -> None:
    lowered = _lowered(_graph((1, w[0], 9, 9), w, **given))
    kernels = [call.kernel for call in lowered.calls]
    assert len(set(kernels)) == len(kernels) <= most
    phases = sum(kernel.phases for kernel in kernels if isinstance(kernel, DirectConv))
    assert phases == np.prod(given["strides"])


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 16, 5, 7), (16, 16, 4, 4), {"strides": (4, 2), "pads": (1, 0, 2, 1)}),
        ((1, 16, 6, 5), (16, 16, 3, 5), {"strides": (3, 4), "dilations": (2, 3)}),
        ((3, 32, 1, 1), (32, 16, 2, 2), {"strides": (2, 2)}),
        ((1, 48, 20, 20), (48, 32, 2, 2), {"strides": (2, 2)}),
        ((1, 16, 4, 4), (16, 16, 1, 2), {"strides": (3, 3)}),  # phases without a tap
    ],
)
def test_joined_phases_are_numpys(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], blocked: bool
) -> None:
    draw = np.random.default_rng(3)
    arrays = {"x": draw.normal(size=x).astype(np.float32)}
    constants = {
        "w": draw.normal(size=w).astype(np.float32),
        "b": draw.normal(size=w[1]).astype(np.float32),
    }
    given = {
        "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1,
        "activation": None, "output_padding": (0, 0),
    }  # fmt: skip
    outcome = run_node(
        _lower, "ConvTranspose", arrays, constants,
        order=("x", "w", "b"), blocked=blocked, **{**given, **attributes},
    )  # fmt: skip
    error = np.abs(outcome.y - outcome.expected).max() / np.abs(outcome.expected).max()
    assert error < 5e-6


def test_too_many_phases_are_refused_before_they_are_made() -> None:
    graph = _graph((1, 2, 40, 40), (2, 2, 3, 3), strides=(2**20, 1), output_padding=(9, 0))
    with pytest.raises(UnsupportedError, match="phases; expected at most 1024"):
        _lowered(graph)
