"""Single convolutions over every precision: of floats, of codes, transposed, of data by data.

A choice is an algorithm, with its parameters or without. A transposed convolution is one for each
phase of its output, one for all of them, or a product whose results are added where they overlap.

    DataConv(x, w, bias) -> y         w: (K, C / g · taps); w or bias may be constants

What packs constants once for other convolutions is here calls before the convolution's own, from
the value into memory that the run works in. What packing takes is part of the estimated time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

import numpy as np

from leanconv.algorithms import col2im, select
from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.direct.shape import PackedConv
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.algorithms.parameters import AUTO, Choice, Parameters
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import PhasedAccess
from leanconv.codegen.lowered import Calls, Lowered
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.lazy_imports import Late
from leanconv.operators import transposed
from leanconv.operators.calls import Part, lowered, packed_in_runs
from leanconv.operators.conv_node import (
    ConvNode,
    code_shift,
    of_codes,
    of_data,
    packed_inputs,
    with_merged_groups,
)
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.records import replace
from leanconv.target import Target

OPS = ("Conv", "ConvTranspose")
PHASES = Choice("phases")  # several, each computed as is best for it
PRODUCT = Choice(col2im.NAME)  # whose results overlap
OF_TRANSPOSED = frozenset({PHASES.algorithm, PRODUCT.algorithm})  # and of no others
_DIRECT = select.choice_named("direct")

Chosen = list[tuple[Problem, Candidate]]


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
        if node.op == "ConvTranspose" or block % outputs:
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
        by_channels = groups == 1 or graph.types[node.inputs[1]].shape[:2] == (groups, 1)
        if node.op != "Conv" or not by_channels:
            return ()
        return (x,) if node.input(3) else (x, y)

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """Return the cheapest choice, then the others that keep the error."""
        made = ConvNode(context)
        other = _product(made)
        if other and _too_many_phases(made):
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
        if other and _too_many_phases(made):
            return other
        chosen = _chosen(made, AUTO)
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
        chosen = _chosen(made, choice)
        if of_data(context.node) or choice == PRODUCT:
            choice = chosen[0][1].choice
        return _costed(choice, chosen, made)

    def magnitudes(self, context: NodeContext, choice: Choice) -> Magnitudes:
        """Return the bounds between which a choice's stated error holds, with usual weights."""
        chosen = _chosen(ConvNode(context), choice)
        return Magnitudes.of_all(select.magnitudes_of(*each) for each in chosen)

    def details(self, context: NodeContext, choice: Choice) -> list[str]:
        """Return a text for people on each convolution of a node, such as `"tile 14x2"`."""
        return [candidate.details for _, candidate in _chosen(ConvNode(context), choice)]

    def rejections(self, context: NodeContext) -> dict[str, str]:
        """Return why algorithms do not compute a node, or are not considered, by name."""
        made = ConvNode(context)
        if _product(made) and _too_many_phases(made):
            return {}
        return select.rejections(_pieces(made, AUTO)[0][0], context.target)

    def packed_inputs(self, node: Node) -> tuple[str, ...]:
        """Return the names of weights, bias and other constants of channels; of data none."""
        return () if of_data(node) else tuple(map(node.input, packed_inputs(node)))

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """Return the kernels of the algorithm, for each phase of a transposed convolution."""
        made, node = ConvNode(context), context.node
        if of_codes(node) and not context.graph.types[node.output].elements:
            return Lowered((), algorithm="empty")
        if choice == AUTO and (of_data(node) or node.op == "ConvTranspose"):
            choice = self.default_choice(context)
        parts, algorithm = _parts(made, choice)
        images = {"x": node.inputs[0], "y": node.output, "residual": made.residual}
        found = lowered(context, images, made.forms, parts, algorithm)
        return packed_in_runs(found, made.data) if of_data(node) else found


CONVOLUTION = Convolution(
    *OPS,
    algorithms=Late(
        (*select.PARAMETERS, *OF_TRANSPOSED),
        lambda name: Parameters if name in OF_TRANSPOSED else select.PARAMETERS[name],
    ),
)
CONVOLUTION_OF_CODES = Convolution("QLinearConv", format_policy=FormatPolicy.BLOCKED_ONLY)
CONVOLUTIONS = (CONVOLUTION, CONVOLUTION_OF_CODES, Convolution("DataConv"))


# -- choices -----------------------------------------------------------------------------------
def _choices(made: ConvNode, vary_parameters: bool) -> list[Choice]:
    """Return the choices of one convolution, or the one of a node computed in phases."""
    target = made.context.target
    (problem, first), *others = chosen = _chosen(made, AUTO)
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
    """Return the choices of a DataConv, the cheapest first, packing included."""
    problem, target, reproducible = made.problem, made.context.target, made.reproducible
    exact = made.node.attributes["exact"]
    if vary_parameters and not reproducible:
        found = select.choices(problem, target)
    else:
        ranked = select.ranked(problem, target, reproducible=reproducible)
        found = [(each.choice, each) for each in ranked]
    if exact:
        found = [each for each in found if not select.transforms(each[0], problem)]
    if not found:
        candidate = select.choose(problem, target, _DIRECT if exact else AUTO, reproducible)
        found = [(candidate.choice, candidate)]
    costed = [_costed(choice, [(problem, each)], made) for choice, each in found]
    return sorted(costed, key=lambda choice: choice.cycles)


def _costed(choice: Choice, chosen: Chosen, made: ConvNode) -> Choice:
    """A choice with the cycles and the error of all convolutions of a node."""
    cycles = sum(_cycles(candidate.choice, problem, made) for problem, candidate in chosen)
    if made.of_data:
        (problem, candidate), *_ = chosen
        return replace(choice, cycles=cycles + candidate.packing_cycles(problem.conv.dtype.bytes))
    error = max(candidate.choice.error for _, candidate in chosen)
    return replace(choice, cycles=cycles + made.reorder_cycles, error=error)


def _cycles(choice: Choice, problem: Problem, made: ConvNode) -> float:
    if choice.algorithm == PRODUCT.algorithm:
        return col2im.cost(problem, made.context.target)
    return select.estimated_cycles(choice, problem, made.context.target)


def _product(made: ConvNode) -> Choice | None:
    """Return the choice of col2im with its costs; None where it does not compute the node."""
    if _product_refusal(made):
        return None
    chosen = [product_of(made)]
    return _costed(chosen[0][1].choice, chosen, made)


def _product_refusal(made: ConvNode) -> str | None:
    """Why a node cannot be computed as a product whose results overlap; None if it can."""
    if made.node.op != "ConvTranspose":
        return "only transposed convolutions are"
    return col2im.refusal(made.problem, made.context.target)


def product_of(made: ConvNode) -> tuple[Problem, Candidate]:
    """A transposed convolution as a product whose results overlap (col2im).

    Raises:
        SpecError: it cannot be computed like that.
    """
    if reason := _product_refusal(made):
        node = made.node
        raise SpecError(
            f"node {node.name or node.key!r} ({node.op}) cannot be computed by col2im: {reason}"
        )
    return made.problem, col2im.candidate(made.problem, made.context.target)


def _too_many_phases(made: ConvNode) -> bool:
    return transposed.phase_count(made.problem.conv.window) > transposed.MOST_PHASES


# -- the convolutions of a node ----------------------------------------------------------------
def problems(context: NodeContext, choice: Choice = AUTO) -> list[Problem]:
    """The convolutions that a node consists of.

    Args:
        context: the node.
        choice: how it is computed; the phases of a transposed convolution are one convolution only
            where that can compute them so.

    Raises:
        SpecError: it is a choice of transposed convolutions, and the node is none.
    """
    return [problem for problem, _ in _pieces(ConvNode(context), choice)]


def _pieces(made: ConvNode, choice: Choice) -> list[tuple[Problem, np.ndarray]]:
    """Return the convolutions of a node, each with its weights."""
    node, target = made.node, made.context.target
    if node.op != "ConvTranspose":
        if choice.algorithm in OF_TRANSPOSED:
            raise SpecError(
                f"node {node.name or node.key!r} ({node.op}) cannot be computed by {choice}; "
                "expected a transposed convolution, or an algorithm of convolutions"
            )
        return [(made.problem, made.weights)]
    pieces = transposed.phases(node, made.problem, made.weights)
    one = transposed.together(pieces, made.problem.conv.y, made.problem.conv.lanes(target))
    if one and _pays(one[0], tuple(problem for problem, _ in pieces), target, choice):
        return [one]
    return pieces


def _pays(one: Problem, apart: tuple[Problem, ...], target: Target, choice: Choice) -> bool:
    """Return whether one convolution computes all phases; of open sizes by taps alone."""
    if choice == PHASES:
        return False
    if choice != AUTO and select.refusal(choice, one, target):
        return False
    if not select.is_possible(one, target):
        return False
    taps = prod(one.conv.window.kernel) * len(apart)
    if one.any_size:
        return taps == sum(prod(problem.conv.window.kernel) for problem in apart)
    return _cheaper(one.alone(), tuple(problem.alone() for problem in apart), target)


@lru_cache(maxsize=256)
def _cheaper(one: Problem, apart: tuple[Problem, ...], target: Target) -> bool:
    chosen = _phases_chosen(apart, target, False, AUTO)
    each = (select.estimated_cycles(c.choice, p, target) for p, c in chosen)
    choice = select.choose(one, target).choice
    return select.estimated_cycles(choice, one, target) <= sum(each)


def _chosen(made: ConvNode, choice: Choice) -> Chosen:
    """Return each convolution of a node with the candidate that computes it."""
    if choice == PRODUCT:
        return [product_of(made)]
    return _pieces_chosen(_pieces(made, choice), made, choice)


def _pieces_chosen(
    pieces: Sequence[tuple[Problem, np.ndarray]], made: ConvNode, choice: Choice
) -> Chosen:
    found, choice = [problem for problem, _ in pieces], AUTO if choice == PHASES else choice
    return _phases_chosen(found, made.context.target, made.reproducible, choice)


def _phases_chosen(
    pieces: Sequence[Problem], target: Target, reproducible: bool, choice: Choice
) -> Chosen:
    """Return each phase with the candidate that computes it.

    Of phases with one window, those beside the first are written with an offset, which direct
    convolution alone can: all of them are computed like that then, with one kernel.
    """
    offset = [problem.conv.window for problem in pieces if problem.conv.y_offset]
    found: Chosen = []
    for problem in pieces:
        if (known := _of_one_kernel(problem, found)) is not None:
            found.append((problem, known))
            continue
        one = _DIRECT if choice == AUTO and problem.conv.window in offset else choice
        if one == AUTO and problem.any_size and problem.conv.precision.accumulate.is_float:
            one = select.usual_choice(problem, target, reproducible)
        found.append((problem, select.choose(problem, target, one, reproducible)))
    return found


def _of_one_kernel(problem: Problem, found: Chosen) -> Candidate | None:
    """Return the candidate of a phase that differs only in where it writes; None without one."""
    here = with_conv(problem, y_offset=0)
    for other, candidate in found:
        kernel = candidate.kernels[0].kernel
        if isinstance(kernel, PackedConv) and with_conv(other, y_offset=0) == here:
            return candidate
    return None


# -- calls and constants -----------------------------------------------------------------------
def _parts(made: ConvNode, choice: Choice) -> tuple[list[Part], str]:
    """Return a node's parts, one for all phases of a kernel, and the algorithm's name."""
    if choice == PRODUCT:
        return [_part(made, *product_of(made), [made.weights])], choice.algorithm
    pieces, parts = _pieces(made, choice), []
    found = _pieces_chosen(pieces, made, choice)
    for numbers in transposed.one_kernel(found):
        problem, candidate = found[numbers[0]]
        if len(numbers) > 1:
            candidate = transposed.joined([found[number] for number in numbers])
        parts.append(_part(made, problem, candidate, [pieces[n][1] for n in numbers]))
    return parts, found[0][1].choice.algorithm


def _part(
    made: ConvNode, problem: Problem, candidate: Candidate, weights: Sequence[np.ndarray]
) -> Part:
    """The kernels of a candidate.

    Its weights are one array, or those of several phases, one after the other.
    """
    channels_of, shift, y = made.channels, code_shift(candidate), problem.conv.y
    groups, merged = made.node.attributes["group"], made.merged_groups(problem)

    def pack() -> Calls:  # holds no more of the graph than these arrays
        channels = channels_of(shift)
        if isinstance(y, PhasedAccess):
            channels = {role: transposed.of_phases(values, y) for role, values in channels.items()}
        found = candidate.packing(with_merged_groups(weights[0], groups, merged), channels)
        for part in weights[1:]:
            found["w"] = [*found["w"], *candidate.packing(part, {})["w"]]
        return found

    recipe = candidate.packing_recipe(made.marks(candidate, problem))
    sources = (*weights, *made.sources)
    return Part(candidate.kernels, pack, recipe, sources, candidate.temporaries)
