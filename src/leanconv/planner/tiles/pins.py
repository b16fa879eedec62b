"""Algorithms whose sums do not depend on where a window lies, and by which steps it may move.

Plain sums add the same products in the same order everywhere. Winograd does so for each position
in a tile of m outputs: windows begin at multiples of m then, all tiles are whole (`edges=whole`),
and a tile's results are right if all that it reads is. The Fourier transform is not used: its
blocks depend on the image's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leanconv.algorithms import select
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.algorithms.winograd.parameters import WinogradParameters
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import label
from leanconv.operators import Accuracy, convolution
from leanconv.planner.choice_cache import resolved_choices
from leanconv.planner.decision import Decision
from leanconv.records import dataclass
from leanconv.target import Target

_MOVING = ("fft",)  # algorithms whose bits depend on more than the place in a tile


@dataclass(frozen=True)
class Block:
    """What a layer computes together along one spatial axis.

    Attributes:
        outputs: elements of the result; blocks begin at multiples of it.
        beyond: indices of the input that it reads behind those of its window.
    """

    outputs: int = 1
    beyond: int = 0


def pinned(
    graph: Graph, target: Target, accuracy: Accuracy, decisions: Sequence[Decision]
) -> tuple[Decision, ...]:
    """Decisions with choices that give the same bits wherever a window lies.

    Args:
        graph: of a window, chains of convolutions not fused.
        target, accuracy: of the plan.
        decisions: one for each node; choices may be open.
    """
    resolved = resolved_choices(graph, target, accuracy, decisions)
    return tuple(
        replace(each, choice=_pinned(node, graph, target, accuracy, each))
        if node.op in convolution.OPS
        else each
        for node, each in zip(graph.nodes, resolved, strict=True)
    )


def _pinned(
    node: Node, graph: Graph, target: Target, accuracy: Accuracy, decision: Decision
) -> Choice:
    context = decision.context(node, graph, target, accuracy)
    pieces = convolution.problems(context, decision.choice)
    if len(pieces) > 1:  # phases, each of which chooses by itself otherwise
        return select.choice_named("direct")
    problem = pieces[0][0]
    for wanted in (decision.choice, AUTO):
        for candidate in select.ranked(problem, target, wanted, accuracy.reproducible):
            if candidate.choice.algorithm not in _MOVING:
                return _whole_edges(candidate.choice)
    raise UnsupportedError(
        f"{label(node)} is computed by {decision.choice}, whose sums depend on where a tile lies, "
        "and by no other algorithm; expected direct, winograd or another one: leave `algorithms` "
        "out, or accept a larger max_error"
    )


def _whole_edges(choice: Choice) -> Choice:
    """A choice whose tiles at the far edges are computed like all others."""
    given = choice.parameters
    if not isinstance(given, WinogradParameters) or given.form == "stages":
        return choice
    return replace(choice, parameters=replace(given, edges="whole"))


def blocks(node: Node, graph: Graph, decision: Decision) -> tuple[Block, ...]:
    """What a node computes together along each spatial axis of its result."""
    rank = len(graph.types[node.key].shape) - 2
    given = decision.choice.parameters
    if node.op not in convolution.OPS or not isinstance(given, WinogradParameters):
        return (Block(),) * max(rank, 0)
    assert given.m is not None
    tile = (1, *given.m)[-rank:]
    kernel = graph.types[node.inputs[1]].shape[2:]
    axes = zip(tile, kernel, node.attributes["strides"], node.attributes["dilations"], strict=True)
    if node.op == "ConvTranspose":
        return tuple(Block(m * stride) for m, _, stride, _ in axes)
    return tuple(
        Block(m * dilation, -taps % stride * dilation) for m, taps, stride, dilation in axes
    )
