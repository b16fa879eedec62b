"""ConvChain nodes: one block in one pass over rows, or convolution by convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from leanconv.algorithms import select
from leanconv.algorithms.fused.cost import (
    between_cycles,
    form_cycles,
    imbalance,
    possible_forms,
    weights_cycles,
)
from leanconv.algorithms.fused.forms import (
    FORM_NAMES,
    Chain,
    ChainKernels,
    ChainParameters,
    Form,
    build,
    form_of_size,
)
from leanconv.algorithms.fused.kernel import Constants, SumOfParts
from leanconv.algorithms.parameters import AUTO, Choice, Parameters
from leanconv.algorithms.problem import Problem
from leanconv.codegen.lowered import Lowered, PackCall
from leanconv.errors import SpecError
from leanconv.operators.calls import Part, lowered
from leanconv.operators.chain_layers import ChainLayers, ChainOperator, layers_of, plain_error
from leanconv.operators.conv_node import ConvNode, of_codes
from leanconv.operators.convolution import CONVOLUTIONS
from leanconv.operators.operator import NodeContext, by_operation
from leanconv.operators.single_kernel import SINGLE_KERNELS
from leanconv.records import replace
from leanconv.target import Target

LAYERS = Choice("layers")
_OPERATORS = by_operation(*CONVOLUTIONS, *SINGLE_KERNELS)


class ConvChain(ChainOperator):
    """One block: in one pass over rows, or convolution by convolution.

    The fused forms make plain sums, which any accepted error allows: there is nothing more
    accurate.
    """

    ops = ("ConvChain",)

    algorithms = MappingProxyType(
        {LAYERS.algorithm: Parameters, **dict.fromkeys(FORM_NAMES, ChainParameters)}
    )

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """All choices for a chain, the cheapest by estimate first."""
        del vary_parameters
        (layers,) = layers_of(context)
        chain, target = layers.chain, context.target
        judged = chain.alone() if context.accuracy.reproducible else chain
        found = [_layers_choice(layers)]
        moved, stored = layers.moved_bytes / target.costs.copy, layers.stored_error
        for form in possible_forms(judged, target):
            choice = _costed(form, chain, judged, target, layers.in_halves)
            cycles, error = choice.cycles + moved, choice.error + stored
            found.append(replace(choice, cycles=cycles, error=error))
        return sorted(found, key=lambda choice: choice.cycles)

    def estimated(self, context: NodeContext, choice: Choice) -> Choice:
        """Return the choice for this size, with its costs, of a form chosen for the usual size.

        Raises:
            SpecError: the chain has no such form.
        """
        (layers,) = layers_of(context)
        chain = layers.chain
        judged = chain.alone() if context.accuracy.reproducible else chain
        if not chain.any_size or choice.algorithm not in FORM_NAMES:
            return super().estimated(context, choice)
        form = form_of_size(choice, judged)
        return _costed(form, chain, judged, context.target, layers.in_halves)

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """One or two calls if the block is fused, else those of its convolutions."""
        (layers,) = layers_of(context)
        chain = layers.chain
        judged = chain.alone() if context.accuracy.reproducible else chain
        choice = self.default_choice(context) if choice == AUTO else choice
        form = _form_of(choice, judged, context.target)
        if form is None:
            return _by_layers(layers)
        fused, constants = build(chain, form, context.target), layers.constants
        # What adds partial results up reads a residual just before it writes the same elements; a
        # chain reads rows of its input, which may be the residual, after it has written others.
        part = Part(
            fused.kernels,
            lambda: _pack_calls(constants, fused),
            (tuple(use.kernel.packing for use in fused.kernels), layers.numbers),
            layers.sources,
            fused.temporaries,
            lambda kernel: isinstance(kernel, SumOfParts),
        )
        name = f"{'inverted_residual' if chain.expand else 'separable'} {form.name}"
        return layers.on_halves(lowered(context, layers.images, layers.forms, [part], name))


CONV_CHAIN = ConvChain()


def _costed(form: Form, chain: Chain, judged: Chain, target: Target, halves: bool) -> Choice:
    """The choice of a form, with its cycles and error; its operands may be in halves."""
    error = math.sqrt(sum(plain_error(spec) ** 2 for spec in chain.specs))
    cycles = form_cycles(judged, form, build(judged, form, target), target, halves)
    return replace(form.choice, cycles=cycles, error=error)


def _form_of(choice: Choice, chain: Chain, target: Target) -> Form | None:
    """The form of a choice, None for convolution by convolution."""
    if choice == LAYERS:
        return None
    if chain.any_size and choice.algorithm in FORM_NAMES:
        return form_of_size(choice, chain)
    forms = {form.choice: form for form in possible_forms(chain, target)}
    if choice not in forms:
        raise SpecError(
            f"got the form {str(choice)!r} of a chain of convolutions; expected one of "
            f"{', '.join(map(str, (LAYERS, *forms)))}"
        )
    return forms[choice]


def _by_layers(layers: ChainLayers) -> Lowered:
    accuracy = replace(layers.context.accuracy, weights_from_dram=False)
    inner = [replace(layers.context_of(node), accuracy=accuracy) for node in layers.nodes]
    parts = [_OPERATORS[each.node.op].lower(each) for each in inner]
    temporaries: dict[str, int] = {}
    for each in inner[:-1]:
        out = each.node.output
        kind = layers.graph.types[out]
        temporaries[out] = each.formats[out].elements(kind.shape) * kind.dtype.bytes
    constants: dict[str, np.ndarray] = {}
    for part in parts:
        temporaries.update(part.temporaries)
        constants.update(part.constants)
    packings = tuple(packing for part in parts for packing in part.packings)
    calls = tuple(call for part in parts for call in part.calls)
    name = " + ".join(part.algorithm for part in parts)
    return Lowered(calls, constants, temporaries, name, packings=packings)


def _layers_choice(layers: ChainLayers) -> Choice:
    """The choice of running the operations one by one, with the values between them stored."""
    context = layers.context
    target, reproducible = context.target, context.accuracy.reproducible
    others = [node for node in layers.nodes if node not in layers.convolutions]
    choices = [_OPERATORS[node.op].choices(layers.context_of(node))[0] for node in others]
    cycles, squares = sum(choice.cycles for choice in choices), 0.0
    for conv, spec in zip(layers.convolutions, layers.chain.specs, strict=True):
        problem, beside = _problem(layers.context_of(conv))
        candidate = select.choose(problem, target, reproducible=reproducible)
        images = 1 if reproducible else spec.batch
        judged, chunks = problem, candidate.kernels[-1].kernel.chunks
        if reproducible and spec.batch > 1:
            judged = problem.alone()
            chunks = select.choose(judged, target).kernels[-1].kernel.chunks
        own = select.estimated_cycles(candidate.choice, judged, target)
        own += weights_cycles(problem.conv.weight_bytes, target)
        cycles += own * imbalance(chunks) + beside
        squares += candidate.choice.error**2
        if conv.key != layers.convolutions[-1].key:
            image_bytes = problem.conv.y.image * problem.conv.precision.y.bytes
            cycles += between_cycles(images * image_bytes, target)
    return replace(LAYERS, cycles=cycles, error=math.sqrt(squares))


def _problem(context: NodeContext) -> tuple[Problem, float]:
    """A convolution by itself, and the cycles of bringing plain codes into blocks before."""
    made = ConvNode(context)
    if of_codes(context.node):
        return made.problem, made.reorder_cycles
    one = replace(made.problem, weights_from_dram=False, any_size=(), small_weights=False)
    return one, 0.0


def _pack_calls(constants: Sequence[Constants], fused: ChainKernels) -> dict[str, list[PackCall]]:
    calls = fused.chain.pack_calls(constants)
    total, last = fused.kernels[-1].kernel, constants[-1](0)
    if isinstance(total, SumOfParts) and "bias" in last:
        calls["bias"] = total.channel_calls(last["bias"])
    return calls
