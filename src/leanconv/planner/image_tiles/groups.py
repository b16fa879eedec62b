"""Axes of an image that are cut together, and pins: choices of layers that let windows move.

Plain sums add the same products in the same order everywhere. Winograd does so for each position
in a tile of m outputs: windows begin at multiples of m then, all tiles are whole (`edges=whole`),
and a tile's results are right if all that it reads is. The Fourier transform is not used: its
blocks depend on the image's size. Chains of convolutions in one pass over rows make plain sums,
whatever rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from leanconv.algorithms import select
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.algorithms.winograd.sizes import WinogradParameters
from leanconv.errors import UnsupportedError
from leanconv.graph.fields.receptive_fields import Fields, InputAxis, Local, Whole
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import label
from leanconv.operators import Accuracy, conv_pieces, convolution, operator_of
from leanconv.planner.decisions import Decision, resolved_choices
from leanconv.records import dataclass, replace
from leanconv.target import Target


@dataclass(frozen=True, eq=False)
class Group:
    """Axes of inputs that are cut together: an image's height, and that of an image half as large.

    Attributes:
        base: the axis in whose indices places are counted.
        ratios: of each axis, its indices for one of the base's.
    """

    base: InputAxis
    ratios: Mapping[InputAxis, Fraction]


@dataclass(frozen=True, eq=False)
class Place:
    """The group that an axis of a value belongs to, with `density` elements for one of its base."""

    group: int
    density: Fraction


Places = Mapping[str, Mapping[int, Place]]
"""Of each value, its axes that are cut."""


@dataclass(frozen=True, eq=False)
class Cutting:
    """The axes of a network that can be cut, and those that cannot.

    Attributes:
        groups: axes that can be cut.
        whole: axes of inputs that cannot, each with the label of the node that reads all of them.
        places: of the values.
    """

    groups: tuple[Group, ...]
    whole: Mapping[InputAxis, str]
    places: Places

    def extents(self, graph: Graph) -> tuple[int, ...]:
        """The extents of the groups' bases, in the network for an image or for a window of it."""
        bases = (group.base for group in self.groups)
        return tuple(graph.types[name].shape[axis] for name, axis in bases)


def cutting(fields: Fields) -> Cutting:
    """Find the axes that are cut together, and those that cannot be."""
    edges = list(_edges(fields))
    groups: list[Group] = []
    whole: dict[InputAxis, str] = {}
    left = list(fields.axes)
    while left:
        ratios, because = _linked(left[0], edges)
        left = [key for key in left if key not in ratios]
        because = because or _whole_reason(fields, ratios)
        if because:
            whole.update(dict.fromkeys(ratios, because))
        else:
            groups.append(Group(next(iter(ratios)), ratios))
    return Cutting(tuple(groups), whole, _places(fields, groups))


def _edges(fields: Fields) -> Iterator[tuple[InputAxis, InputAxis, Fraction, str]]:
    """Pairs of axes that one axis of a value reads: indices of the second for one of the first."""
    for value, states in fields.states.items():
        seen: dict[int, tuple[InputAxis, Fraction]] = {}
        for key, state in states.items():
            if not isinstance(state, Local):
                continue
            first, stride = seen.setdefault(state.axis, (key, state.map.stride))
            if first != key:
                yield first, key, state.map.stride / stride, value


def _linked(
    base: InputAxis, edges: list[tuple[InputAxis, InputAxis, Fraction, str]]
) -> tuple[dict[InputAxis, Fraction], str]:
    """All axes linked to one, with their ratios; and why they cannot be cut, if they cannot."""
    ratios, queue, because = {base: Fraction(1)}, [base], ""
    while queue:
        here = queue.pop()
        for one, other, ratio, value in edges:
            if here == other:
                one, other, ratio = other, one, 1 / ratio
            if here != one:
                continue
            found = ratios[here] * ratio
            if other not in ratios:
                ratios[other] = found
                queue.append(other)
            elif ratios[other] != found:
                because = f"{value!r}, which mixes several scales"
    inputs = [name for name, _ in ratios]
    if len(set(inputs)) < len(inputs):
        because = because or f"a value that mixes several axes of {inputs[0]!r}"
    return ratios, because


def _whole_reason(fields: Fields, axes: Mapping[InputAxis, Fraction]) -> str:
    """The node because of which an output reads all of one of these axes; empty for none."""
    for output in fields.graph.outputs:
        for key in axes:
            state = fields.states[output].get(key)
            if isinstance(state, Whole):
                return state.because
    return ""


def _places(fields: Fields, groups: list[Group]) -> Places:
    found: dict[str, dict[int, Place]] = {}
    for value, states in fields.states.items():
        axes = found.setdefault(value, {})
        for number, group in enumerate(groups):
            for key, ratio in group.ratios.items():
                state = states.get(key)
                if isinstance(state, Local):
                    axes[state.axis] = Place(number, ratio / state.map.stride)
    return found


# -- algorithms whose sums do not depend on where a window lies ----------------------------------
CHAIN = "ConvChain"
_PLAIN_FORMS = ("rows", "panel")  # of which each element has one sum, over channels in order
_MOVING = ("fft",)  # algorithms whose bits depend on more than the place in a tile


@dataclass(frozen=True)
class Block:
    """The elements that a layer computes together along one spatial axis.

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
    chosen = tuple(
        replace(each, choice=_pinned(node, graph, target, accuracy, each))
        if node.op in convolution.OPS
        else each
        for node, each in zip(graph.nodes, resolved, strict=True)
    )
    return fitted(graph, target, accuracy, chosen)


def fitted(
    graph: Graph, target: Target, accuracy: Accuracy, pins: Sequence[Decision]
) -> tuple[Decision, ...]:
    """Decisions of other windows for this one: chains have forms of its size, and equal bits.

    Args:
        graph: of a window, or of the whole image.
        target, accuracy: of the plan.
        pins: one for each node.
    """
    return tuple(
        replace(each, choice=fused_form(node, graph, target, accuracy, each))
        if node.op == CHAIN
        else each
        for node, each in zip(graph.nodes, pins, strict=True)
    )


def fused_form(
    node: Node, graph: Graph, target: Target, accuracy: Accuracy, decision: Decision
) -> Choice:
    """Return the choice that computes a chain in one pass over rows.

    Raises:
        UnsupportedError: the chain cannot be computed so.
    """
    choices = operator_of(node).choices(decision.context(node, graph, target, accuracy))
    found = next((choice for choice in choices if choice.algorithm in _PLAIN_FORMS), None)
    if found is None:
        raise UnsupportedError(
            f"{label(node)} is not computed in one pass over rows in a tile of this size; expected "
            "a larger one"
        )
    return found


def slower_fused(
    graph: Graph, target: Target, accuracy: Accuracy, decisions: Sequence[Decision]
) -> frozenset[str]:
    """The results of those chains that are faster convolution by convolution, by estimate."""
    found = set()
    for node, decision in zip(graph.nodes, decisions, strict=True):
        if node.op == CHAIN:
            context = decision.context(node, graph, target, accuracy)
            fastest = operator_of(node).choices(context)[0]
            if fastest.algorithm not in _PLAIN_FORMS:
                found.add(node.key)
    return frozenset(found)


def _pinned(
    node: Node, graph: Graph, target: Target, accuracy: Accuracy, decision: Decision
) -> Choice:
    if decision.choice == conv_pieces.PRODUCT:  # whose sums depend on no place
        return decision.choice
    context = decision.context(node, graph, target, accuracy)
    pieces = convolution.problems(context, decision.choice)
    if len(pieces) > 1:  # phases, each of which chooses by itself otherwise
        return select.choice_named("direct")
    problem = pieces[0]
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
    """Return the block of a node along each spatial axis of its result."""
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
