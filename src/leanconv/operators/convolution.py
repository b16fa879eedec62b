"""Conv and ConvTranspose nodes: one convolution, one for each phase of the output, or col2im."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np

from leanconv.algorithms import select
from leanconv.algorithms.direct.packed import PackedConv
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.magnitudes import Magnitudes, are_small
from leanconv.algorithms.parameters import AUTO, Choice, Parameters
from leanconv.algorithms.problem import Problem, default_error
from leanconv.algorithms.rounding import half_error
from leanconv.codegen.geometry import PhasedAccess
from leanconv.codegen.lowered import Call, Lowered, PackCall, Packing
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.late import Late
from leanconv.operators import col2im_node
from leanconv.operators.half_values import precision_of
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.operators.transposed import (
    MOST_PHASES,
    joined,
    of_phases,
    one_kernel,
    phase_count,
    phases,
    together,
    transposed_window,
)
from leanconv.records import replace
from leanconv.spec import ConvSpec
from leanconv.target import Target
from leanconv.types import HALVES, SINGLE, DType, Precision

OPS = ("Conv", "ConvTranspose")
PHASES = Choice("phases")  # several, each computed as is best for it
OF_TRANSPOSED = frozenset({PHASES.algorithm, col2im_node.CHOICE.algorithm})  # and of no others
_DIRECT = select.choice_named("direct")


class Convolution(Operator):
    """Convolutions by themselves: a choice is an algorithm, with its parameters or without."""

    ops = OPS
    format_policy = FormatPolicy.PREFER_BLOCKED
    algorithms: Mapping[str, type[Parameters]] = Late(
        (*select.PARAMETERS, *OF_TRANSPOSED),
        lambda name: Parameters if name in OF_TRANSPOSED else select.PARAMETERS[name],
    )

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """Whether input and output may both be in blocks of channels."""
        groups = node.attributes["group"]
        if groups == 1:
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
        """True without groups."""
        return bool(node.attributes["group"] == 1)

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """The cheapest choice, then the others that keep the error."""
        other = _product(context)
        if other and _too_many_phases(context):
            return [other]
        found = self._of_convolutions(context, vary_parameters)
        first = found[0] if other is None or found[0].cycles <= other.cycles else other
        return list(dict.fromkeys((first, *found, *filter(None, [other]))))

    def _of_convolutions(self, context: NodeContext, vary_parameters: bool) -> list[Choice]:
        """Those of one convolution; one where there are phases, each of which has its own."""
        target, reproducible = context.target, context.accuracy.reproducible
        (problem, first), *others = chosen = _chosen(problems(context), context, AUTO)
        if others:
            return [_costed(PHASES, chosen, target)]
        found = [_costed(first.choice, chosen, target)]
        if vary_parameters and not reproducible:
            found += (choice for choice, _ in select.choices(problem, target))
        elif not reproducible:
            ranked = select.ranked(problem, target)
            found += (_costed(c.choice, [(problem, c)], target) for c in ranked)
        return found

    def default_choice(self, context: NodeContext) -> Choice:
        """The cheapest algorithm."""
        other = _product(context)
        if other and _too_many_phases(context):
            return other
        chosen = _chosen(problems(context), context, AUTO)
        first = PHASES if len(chosen) > 1 else chosen[0][1].choice
        if other is None or _costed(first, chosen, context.target).cycles <= other.cycles:
            return first
        return other

    def estimated(self, context: NodeContext, choice: Choice) -> Choice:
        """What an algorithm costs a node, with parameters or without.

        Raises:
            SpecError: the algorithm cannot compute the node.
        """
        if choice == col2im_node.CHOICE:
            return col2im_node.estimated(context)
        chosen = _chosen(problems(context, choice), context, choice)
        return _costed(choice, chosen, context.target)

    def magnitudes(self, context: NodeContext, choice: Choice) -> Magnitudes:
        """Where the error that a choice states for a node holds, with usual weights."""
        if choice == col2im_node.CHOICE:
            return select.magnitudes_of(*col2im_node.candidate_of(context))
        chosen = _chosen(problems(context, choice), context, choice)
        return Magnitudes.of_all(select.magnitudes_of(*each) for each in chosen)

    def details(self, context: NodeContext, choice: Choice) -> list[str]:
        """What was chosen for each convolution of a node, for people: `"tile 14x2"`."""
        if choice == col2im_node.CHOICE:
            return [col2im_node.candidate_of(context)[1].details]
        target, reproducible = context.target, context.accuracy.reproducible
        named = AUTO if choice == PHASES else choice
        pieces = problems(context, choice)
        return [select.choose(each, target, named, reproducible).details for each, _ in pieces]

    def rejections(self, context: NodeContext) -> dict[str, str]:
        """Why algorithms do not compute a node, or are not considered for it, by name."""
        if _product(context) and _too_many_phases(context):
            return {}
        return select.rejections(problems(context)[0][0], context.target)

    def packed_inputs(self, node: Node) -> tuple[str, ...]:
        """Weights, bias and slopes."""
        return tuple(node.input(number) for number in (1, 2, 4))

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """The kernels of the algorithm, for each phase of a transposed convolution."""
        node, graph = context.node, context.graph
        x_name, y_name = node.inputs[0], node.output
        channels = {
            role: graph.constants[node.inputs[index]]
            for role, index in (("bias", 2), ("slope", 4))
            if node.input(index)
        }
        if choice == AUTO and node.op == "ConvTranspose":
            choice = self.default_choice(context)
        if choice == col2im_node.CHOICE:
            _, product = col2im_node.candidate_of(context)
            parts = [(product, [graph.constants[node.inputs[1]]])]
        else:
            pieces = problems(context, choice)
            if isinstance(access := pieces[0][0].y, PhasedAccess):
                channels = {role: of_phases(values, access) for role, values in channels.items()}
            parts = _joined(pieces, context, choice)
        calls: list[Call] = []
        packings: list[Packing] = []
        temporaries: dict[str, int] = {}
        names: list[str] = []
        for number, (chosen, weights) in enumerate(parts):
            suffix = f".{number}" if len(parts) > 1 else ""
            values = {"x": x_name, "y": y_name, "residual": node.input(3)}
            packed = chosen.constant_bytes
            values.update({role: f"{y_name}/{role}{suffix}" for role in packed})
            packings.append(_packing(chosen, packed, values, weights, channels))
            for role, size in chosen.temporaries.items():
                values[role] = f"{y_name}/{role}{suffix}"
                temporaries[values[role]] = size
            for use in chosen.kernels:
                # A tile reads its residual just before it writes the same elements.
                residual = use.roles.index("residual") if "residual" in use.roles else None
                in_place = () if residual is None or use.roles[-1] != "y" else (residual,)
                calls.append(Call(use.kernel, tuple(values[r] for r in use.roles), in_place))
            names.append(chosen.choice.algorithm)
        return Lowered(tuple(calls), {}, temporaries, names[0], packings=tuple(packings))


CONVOLUTION = Convolution()


def conv_spec(node: Node, graph: Graph) -> ConvSpec:
    """The spec of a Conv node."""
    x, w = graph.types[node.inputs[0]], graph.types[node.inputs[1]]
    addends = bool(node.input(2)), bool(node.input(3))
    precision = precision_of(x.dtype, graph.types[node.output].dtype)
    return attributes_spec(x.shape, w.shape, node.attributes, precision, *addends)


def attributes_spec(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: Mapping[str, Any],
    precision: Precision | DType,
    bias: bool,
    residual: bool,
) -> ConvSpec:
    """The spec of ONNX's attributes, for x (N, C, spatial…) and w (K, C/g, kernel…)."""
    rank = len(x_shape) - 2
    return ConvSpec(
        batch=x_shape[0],
        in_channels=w_shape[1] * attributes["group"],  # of x they may be open
        out_channels=w_shape[0],
        size=x_shape[2:],
        kernel=w_shape[2:],
        stride=tuple(attributes["strides"]),
        dilation=tuple(attributes["dilations"]),
        pad_begin=tuple(attributes["pads"][:rank]),
        pad_end=tuple(attributes["pads"][rank:]),
        groups=attributes["group"],
        precision=Precision.of(precision),
        bias=bias,
        residual=residual,
        activation=attributes["activation"],
    )


def _product(context: NodeContext) -> Choice | None:
    """What the product costs whose results overlap; None where it does not compute the node."""
    return None if col2im_node.refusal(context) else col2im_node.estimated(context)


def _too_many_phases(context: NodeContext) -> bool:
    """Whether a transposed convolution has more phases than are computed one by one."""
    node, graph = context.node, context.graph
    window = transposed_window(node, graph, graph.constants[node.inputs[1]])
    return phase_count(window) > MOST_PHASES


def problems(context: NodeContext, choice: Choice = AUTO) -> list[tuple[Problem, np.ndarray]]:
    """The convolutions that a node consists of, each with its weights.

    Args:
        context: the node.
        choice: how it is computed; the phases of a transposed convolution are one convolution only
            where that can compute them so.

    Raises:
        SpecError: it is a choice of transposed convolutions, and the node is none.
    """
    node, graph, accuracy = context.node, context.graph, context.accuracy
    x, y = context.access(node.inputs[0]), context.access(node.output)
    w, max_error = graph.constants[node.inputs[1]], accuracy.layer_error
    kinds = graph.types[node.inputs[0]].dtype, graph.types[node.output].dtype
    if max_error is not None and any(kind in HALVES for kind in kinds):
        # That is the error of what is computed; what is stored in halves errs besides.
        max_error += default_error(precision_of(*kinds)) - default_error(SINGLE)
    if max_error is not None and accuracy.half is not None:
        max_error += half_error(accuracy.half) + default_error(SINGLE)
    if node.op == "Conv":
        if choice.algorithm in OF_TRANSPOSED:
            raise SpecError(
                f"node {node.name or node.key!r} (Conv) cannot be computed by {choice}; expected a "
                "transposed convolution, or an algorithm of convolutions"
            )
        found = [(Problem.of(conv_spec(node, graph), x, y, max_error), w)]
    else:
        found = phases(node, graph, x, y, w, max_error)
    from_dram, any_size = accuracy.weights_from_dram, context.any_size
    small = are_small(w)
    pieces = [
        (
            replace(problem, weights_from_dram=from_dram, any_size=any_size, small_weights=small),
            weights,
        )
        for problem, weights in found
    ]
    if node.op == "ConvTranspose":
        target = context.target
        one = together(pieces, y, pieces[0][0].lanes(target))
        if one and _pays(one[0], tuple(problem for problem, _ in pieces), target, choice):
            return [one]
    return pieces


def _pays(one: Problem, apart: tuple[Problem, ...], target: Target, choice: Choice) -> bool:
    """Whether phases are computed as one convolution; for sizes that are open, by taps alone."""
    if choice == PHASES:
        return False
    if choice != AUTO and select.refusal(choice, one, target):
        return False
    if not select.is_possible(one, target):
        return False
    taps = prod(one.window.kernel) * len(apart)
    if one.any_size:
        return taps == sum(prod(problem.window.kernel) for problem in apart)
    return _cheaper(one.alone(), tuple(problem.alone() for problem in apart), target)


@lru_cache(maxsize=256)
def _cheaper(one: Problem, apart: tuple[Problem, ...], target: Target) -> bool:
    """Whether one convolution is estimated to take no longer than its phases one by one."""
    chosen = _phases_chosen(apart, target, False, AUTO)
    each = (select.estimated_cycles(c.choice, p, target) for p, c in chosen)
    choice = select.choose(one, target).choice
    return select.estimated_cycles(choice, one, target) <= sum(each)


def _joined(
    pieces: Sequence[tuple[Problem, np.ndarray]], context: NodeContext, choice: Choice
) -> list[tuple[Candidate, list[np.ndarray]]]:
    """How each piece is computed, with its weights; phases of one kernel are one piece."""
    found = _chosen(pieces, context, choice)
    result = []
    for numbers in one_kernel(found):
        _, candidate = found[numbers[0]]
        if len(numbers) > 1:
            candidate = joined([found[number] for number in numbers])
        result.append((candidate, [pieces[number][1] for number in numbers]))
    return result


def _chosen(
    pieces: Sequence[tuple[Problem, np.ndarray]], context: NodeContext, choice: Choice
) -> list[tuple[Problem, Candidate]]:
    """Each piece of a node with how it is computed.

    Of phases with one window, those beside the first are written with an offset, which direct
    convolution alone can: all of them are computed like that then, with one kernel.
    """
    found = [problem for problem, _ in pieces]
    if choice == PHASES:
        choice = AUTO
    return _phases_chosen(found, context.target, context.accuracy.reproducible, choice)


def _phases_chosen(
    pieces: Sequence[Problem], target: Target, reproducible: bool, choice: Choice
) -> list[tuple[Problem, Candidate]]:
    """The same for the problems alone."""
    offset = [problem.window for problem in pieces if problem.y_offset]
    found: list[tuple[Problem, Candidate]] = []
    for problem in pieces:
        if (known := _of_one_kernel(problem, found)) is not None:
            found.append((problem, known))
            continue
        one = _DIRECT if choice == AUTO and problem.window in offset else choice
        if one == AUTO and problem.any_size:
            one = select.usual_choice(problem, target, reproducible)
        found.append((problem, select.choose(problem, target, one, reproducible)))
    return found


def _of_one_kernel(
    problem: Problem, found: Sequence[tuple[Problem, Candidate]]
) -> Candidate | None:
    """How another phase is computed that differs only in where it is written; None if none is."""
    here = replace(problem, y_offset=0)
    for other, candidate in found:
        kernel = candidate.kernels[0].kernel
        if isinstance(kernel, PackedConv) and replace(other, y_offset=0) == here:
            return candidate
    return None


def _costed(choice: Choice, chosen: Sequence[tuple[Problem, Candidate]], target: Target) -> Choice:
    """A choice with the cycles and the error of all pieces of a node."""
    cycles = sum(select.estimated_cycles(c.choice, problem, target) for problem, c in chosen)
    return replace(choice, cycles=cycles, error=max(c.choice.error for _, c in chosen))


def _packing(
    chosen: Candidate,
    sizes: Mapping[str, int],
    values: Mapping[str, str],
    weights: Sequence[np.ndarray],
    channels: Mapping[str, np.ndarray],
) -> Packing:
    """The constants of one candidate, to be packed when there is a place for them.

    Its weights are one array, or those of several phases, one after the other.
    """

    @cache
    def calls() -> dict[str, Sequence[PackCall]]:
        found = chosen.packing(weights[0], channels)
        for part in weights[1:]:
            found["w"] = [*found["w"], *chosen.packing(part, {})["w"]]
        return {values[role]: each for role, each in found.items()}

    packed = {values[role]: size for role, size in sizes.items()}
    sources = (*weights, *channels.values())
    return Packing(packed, calls, chosen.packing_recipe(tuple(channels)), sources)
