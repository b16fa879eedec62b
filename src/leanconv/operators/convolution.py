"""Single convolutions over every precision: of floats, of codes, transposed, of data by data.

A choice is an algorithm, with its parameters or without. A transposed convolution is one for each
phase of its output, one for all of them, or a product whose results are added where they overlap.

    DataConv(x, w, bias) -> y             w: (K, C / g · taps); w or bias may be constants
    DataConvTranspose(x, w, bias) -> y    w: (C, K / g · taps); the same

What packs constants once for other convolutions is here calls before the convolution's own, from
the value into memory that the run works in. What packing takes is part of the estimated time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from leanconv.algorithms import select
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.algorithms.parameters import AUTO, Choice, Parameters
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import PhasedAccess
from leanconv.codegen.lowered import Calls, Lowered
from leanconv.graph.ir import Graph, Node
from leanconv.kernels.packing import rearranged
from leanconv.lazy_imports import Late
from leanconv.operators import conv_pieces, transposed
from leanconv.operators.calls import Made, Part, lowered, packed_in_runs
from leanconv.operators.conv_node import (
    ConvNode,
    code_shift,
    is_transposed,
    of_codes,
    of_data,
    packed_inputs,
    with_merged_groups,
)
from leanconv.operators.conv_pieces import OF_TRANSPOSED, PHASES, PRODUCT, Chosen
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.records import replace
from leanconv.types import as_dtype

OPS = ("Conv", "ConvTranspose")


class Convolution(Operator):
    """Convolutions by themselves.

    Args:
        ops: the operations.
        format_policy: in which format they are computed.
        algorithms: the parameters of each that they may name.
    """

    def __init__(
        self,
        *ops: str,
        format_policy: FormatPolicy = FormatPolicy.PREFER_BLOCKED,
        algorithms: Mapping[str, type[Parameters]] = select.PARAMETERS,
    ) -> None:
        self.ops, self.format_policy, self.algorithms = ops, format_policy, algorithms

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """Return whether input and output may both be in blocks of channels.

        For codes always: groups that do not fill blocks are merged.
        """
        groups = node.attributes["group"]
        if groups == 1 or of_codes(node):
            return True
        inputs = graph.types[node.inputs[0]].shape[1] // groups
        outputs = graph.types[node.output].shape[1] // groups
        if inputs % block == 0 and outputs % block == 0:
            return True
        if is_transposed(node) or block % outputs:
            return False
        span = block // outputs * inputs
        return span in (block, 2 * block) or (span < block and block % span == 0)

    def accepts_mixed(self, node: Node) -> bool:
        """True without groups, and for codes, which are reordered into a buffer of the node."""
        return of_codes(node) or bool(node.attributes["group"] == 1)

    def takes_codes(self, node: Node) -> bool:
        """True for convolutions of codes."""
        return of_codes(node)

    def may_be_last(self, node: Node, graph: Graph) -> tuple[str, ...]:
        """Return input and output, of Convs only dense or depthwise; no output with a residual.

        Floats are read and written where they lie.
        """
        x, y, groups = node.inputs[0], node.output, node.attributes["group"]
        if of_codes(node):
            return x, y
        by_channels = groups == 1 or graph.types[x].shape[1] == graph.types[y].shape[1] == groups
        if node.op == "ConvTranspose" or not by_channels:
            return ()
        return (x,) if node.input(3) else (x, y)

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """Return the cheapest choice, then the others that keep the error."""
        made = ConvNode(context)
        other = _product(made)
        if other and conv_pieces.too_many_phases(made):
            return [other]
        found = (_choices_of_data if made.of_data else _choices)(made, vary_parameters)
        first = found[0] if other is None or found[0].cycles <= other.cycles else other
        return list(dict.fromkeys((first, *found, *filter(None, [other]))))

    def default_choice(self, context: NodeContext) -> Choice:
        """Return the cheapest algorithm."""
        if of_data(context.node):
            return self.choices(context)[0]
        made = ConvNode(context)
        other = _product(made)
        if other and conv_pieces.too_many_phases(made):
            return other
        chosen = conv_pieces.chosen(made, AUTO)
        first = PHASES if len(chosen) > 1 else chosen[0][1].choice
        if other is None or _costed(first, chosen, made).cycles <= other.cycles:
            return first
        return other

    def estimated(self, context: NodeContext, choice: Choice) -> Choice:
        """Return an algorithm's choice for a node, with its cycles and error.

        Raises:
            SpecError: the algorithm cannot compute the node.
        """
        made = ConvNode(context)
        chosen = conv_pieces.chosen(made, choice)
        if choice == PRODUCT or (choice == AUTO and len(chosen) == 1):
            choice = chosen[0][1].choice
        return _costed(choice, chosen, made)

    def magnitudes(self, context: NodeContext, choice: Choice) -> Magnitudes:
        """Return the bounds between which a choice's stated error holds, with usual weights."""
        chosen = conv_pieces.chosen(ConvNode(context), choice)
        return Magnitudes.of_all(select.magnitudes_of(*each) for each in chosen)

    def details(self, context: NodeContext, choice: Choice) -> list[str]:
        """Return a text for people on each convolution of a node, such as `"tile 14x2"`."""
        return [candidate.details for _, candidate in conv_pieces.chosen(ConvNode(context), choice)]

    def rejections(self, context: NodeContext) -> dict[str, str]:
        """Return why algorithms do not compute a node, or are not considered, by name."""
        made = ConvNode(context)
        if _product(made) and conv_pieces.too_many_phases(made):
            return {}
        return select.rejections(conv_pieces.pieces(made, AUTO)[0].problem, context.target)

    def packed_inputs(self, node: Node) -> tuple[str, ...]:
        """Return the names of weights, bias and other constants of channels; of data none."""
        return () if of_data(node) else tuple(map(node.input, packed_inputs(node)))

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """Return the kernels of the algorithm, for each phase of a transposed convolution."""
        made, node = ConvNode(context), context.node
        if of_codes(node) and not context.graph.types[node.output].elements:
            return Lowered((), algorithm="empty")
        if choice == AUTO and (of_data(node) or is_transposed(node)):
            choice = self.default_choice(context)
        parts, algorithm, before = _parts(made, choice)
        images = {"x": node.inputs[0], "y": node.output, "residual": made.residual}
        found = lowered(context, images, made.forms, parts, algorithm)
        return packed_in_runs(found, made.data, before) if of_data(node) else found


CONVOLUTION = Convolution(
    *OPS,
    algorithms=Late(
        (*select.PARAMETERS, *OF_TRANSPOSED),
        lambda name: Parameters if name in OF_TRANSPOSED else select.PARAMETERS[name],
    ),
)
CONVOLUTION_OF_CODES = Convolution("QLinearConv", format_policy=FormatPolicy.BLOCKED_ONLY)
CONVOLUTION_BY_DATA = Convolution(
    "DataConv", "DataConvTranspose", algorithms=CONVOLUTION.algorithms
)
CONVOLUTIONS = (CONVOLUTION, CONVOLUTION_OF_CODES, CONVOLUTION_BY_DATA)


# -- choices -----------------------------------------------------------------------------------
def _choices(made: ConvNode, vary_parameters: bool) -> list[Choice]:
    """Return the choices of one convolution, or the one of a node computed in phases."""
    target = made.context.target
    (problem, first), *others = chosen = conv_pieces.chosen(made, AUTO)
    if others:
        return [_costed(PHASES, chosen, made)]
    found = [_costed(first.choice, chosen, made)]
    if made.context.accuracy.reproducible:
        return found
    if vary_parameters:
        varied, beside = select.choices(problem, target), made.reorder_cycles
        found += (replace(choice, cycles=choice.cycles + beside) for choice, _ in varied)
    elif not made.of_codes:
        ranked = select.ranked(problem, target)
        found += (_costed(each.choice, [(problem, each)], made) for each in ranked)
    return found


def _choices_of_data(made: ConvNode, vary_parameters: bool) -> list[Choice]:
    """Return the choices of a convolution by data, the cheapest first, packing included."""
    target, found = made.context.target, list[Choice]()
    for way in conv_pieces.ways(made):
        beside = sum(each.cycles(made.context.target) for each in way[0].before)
        if len(way) > 1:
            whole = _costed(PHASES, conv_pieces.pieces_chosen(way, made, PHASES), made)
            found.append(replace(whole, cycles=whole.cycles + beside))
            continue
        exact, reproducible = made.node.attributes["exact"], made.reproducible
        each = conv_pieces.packed_each_run(
            way[0].problem, target, reproducible, exact, vary_parameters
        )
        found += (replace(choice, cycles=choice.cycles + beside) for choice, _ in each)
    return sorted(found, key=lambda choice: choice.cycles)


def _costed(choice: Choice, chosen: Chosen, made: ConvNode) -> Choice:
    """A choice with the cycles and the error of all convolutions of a node."""
    cycles = conv_pieces.cycles_of(chosen, made) + made.reorder_cycles
    error = max(candidate.choice.error for _, candidate in chosen)
    return replace(choice, cycles=cycles, error=error)


def _product(made: ConvNode) -> Choice | None:
    """Return the choice of col2im with its costs; None where it does not compute the node."""
    if conv_pieces.product_refusal(made):
        return None
    chosen = [conv_pieces.product_of(made)]
    return _costed(chosen[0][1].choice, chosen, made)


def problems(context: NodeContext, choice: Choice = AUTO) -> list[Problem]:
    """The convolutions that a node consists of.

    Args:
        context: the node.
        choice: how it is computed; the phases of a transposed convolution are one convolution only
            where that can compute them so.

    Raises:
        SpecError: it is a choice of transposed convolutions, and the node is none.
    """
    return [piece.problem for piece in conv_pieces.pieces(ConvNode(context), choice)]


# -- calls and constants -----------------------------------------------------------------------
def _parts(made: ConvNode, choice: Choice) -> tuple[list[Part], str, list[Made]]:
    """Return a node's parts, the algorithm's name, and what runs make of data before they pack.

    Phases of one kernel are one part.
    """
    if choice == PRODUCT:
        part, before = _part(made, *conv_pieces.product_of(made), [made.weights])
        return [part], choice.algorithm, before
    pieces = conv_pieces.pieces(made, choice)
    found = conv_pieces.pieces_chosen(pieces, made, choice)
    parts, before = list[Part](), list(pieces[0].before)
    for numbers in transposed.one_kernel(found):
        problem, candidate = found[numbers[0]]
        if len(numbers) > 1:
            candidate = transposed.joined([found[number] for number in numbers])
        part, more = _part(made, problem, candidate, [pieces[n].weights for n in numbers])
        parts.append(part)
        before += more
    return parts, found[0][1].choice.algorithm, before


def _part(
    made: ConvNode, problem: Problem, candidate: Candidate, weights: Sequence[np.ndarray]
) -> tuple[Part, list[Made]]:
    """The kernels of a candidate, and what runs make of a bias that is data.

    Its weights are one array, or those of several phases, one after the other.
    """
    channels_of, shift, y = made.channels, code_shift(candidate), problem.conv.y
    groups, merged = made.node.attributes["group"], made.merged_groups(problem)
    before = list[Made]()
    if isinstance(y, PhasedAccess) and made.bias_is_data:
        bias = channels_of(shift)["bias"]
        repeated = np.empty(problem.conv.out_channels, bias.dtype)
        order = partial(transposed.of_phases, y=y)
        calls = [
            rearranged(bias[np.newaxis, np.newaxis], order, repeated.size, as_dtype(bias.dtype))
        ]
        before, channels_of = [Made(repeated, calls)], lambda _: {"bias": repeated}

    def pack() -> Calls:  # holds no more of the graph than these arrays
        channels = channels_of(shift)
        if isinstance(y, PhasedAccess) and not before:
            channels = {role: transposed.of_phases(values, y) for role, values in channels.items()}
        found = candidate.packing(with_merged_groups(weights[0], groups, merged), channels)
        for part in weights[1:]:
            found["w"] = [*found["w"], *candidate.packing(part, {})["w"]]
        return found

    recipe = candidate.packing_recipe(made.marks(candidate, problem))
    sources = (*weights, *made.sources)
    return Part(candidate.kernels, pack, recipe, sources, candidate.temporaries), before
