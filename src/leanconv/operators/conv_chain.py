"""ConvChain nodes: one block in one pass over rows, or convolution by convolution."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from leanconv.algorithms import select
from leanconv.algorithms.common.partial_results import SumOfParts
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
from leanconv.algorithms.interface import constant_bytes
from leanconv.algorithms.parameters import AUTO, Choice, Parameters
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.codegen.lowered import Call, Lowered, Packing
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.operators.chains import ChainOperator, chain_of, plain_error, unfold
from leanconv.operators.convolution import CONVOLUTION
from leanconv.operators.operator import NodeContext
from leanconv.spec import Format
from leanconv.target import Target

LAYERS = Choice("layers")


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
        convs, wide = unfold(context.node, context.graph)
        chain, target = chain_of(convs, wide, context), context.target
        judged = chain.alone() if context.accuracy.reproducible else chain
        found = [_layers_choice(convs, wide, chain, context)]
        found += [_costed(form, chain, judged, target) for form in possible_forms(judged, target)]
        return sorted(found, key=lambda choice: choice.cycles)

    def estimated(self, context: NodeContext, choice: Choice) -> Choice:
        """What a form costs that was chosen for the usual one of many sizes.

        Raises:
            SpecError: the chain has no such form.
        """
        chain = chain_of(*unfold(context.node, context.graph), context)
        judged = chain.alone() if context.accuracy.reproducible else chain
        if not chain.any_size or choice.algorithm not in FORM_NAMES:
            return super().estimated(context, choice)
        return _costed(form_of_size(choice, judged), chain, judged, context.target)

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """One or two calls if the block is fused, else those of its convolutions."""
        node, graph = context.node, context.graph
        convs, wide = unfold(node, graph)
        chain = chain_of(convs, wide, context)
        judged = chain.alone() if context.accuracy.reproducible else chain
        choice = self.default_choice(context) if choice == AUTO else choice
        form = _form_of(choice, judged, context.target)
        if form is None:
            return _by_layers(convs, wide, context)
        fused = build(chain, form, context.target)
        out = node.output
        values = {"x": node.inputs[0], "residual": node.input(1), "y": out}
        temporaries = {f"{out}/{role}": size for role, size in fused.temporaries.items()}
        values.update({role: f"{out}/{role}" for role in fused.temporaries})
        weights = [graph.constants[conv.inputs[1]] for conv in convs]
        biases = [graph.constants[conv.input(2)] if conv.input(2) else None for conv in convs]
        packing = Packing(
            {f"{out}/{role}": size for role, size in constant_bytes(fused.kernels).items()},
            lambda: {f"{out}/{role}": a for role, a in _packed(weights, biases, fused).items()},
            recipe=tuple(use.kernel.packing for use in fused.kernels),
            sources=(*weights, *(bias for bias in biases if bias is not None)),
        )
        calls = []
        for use in fused.kernels:
            names = tuple(values.get(role, f"{out}/{role}") for role in use.roles)
            # What adds partial results up reads a residual just before it writes the same
            # elements; a chain reads rows of its input, which may be the residual, after it has
            # written others.
            sums = isinstance(use.kernel, SumOfParts) and "residual" in use.roles
            in_place = (use.roles.index("residual"),) if sums else ()
            calls.append(Call(use.kernel, names, in_place))
        kind = "inverted_residual" if len(convs) > 2 else "separable"
        name = f"{kind} {form.name}"
        return Lowered(tuple(calls), {}, temporaries, name, packings=(packing,))


CONV_CHAIN = ConvChain()


def _costed(form: Form, chain: Chain, judged: Chain, target: Target) -> Choice:
    """The choice of a form, with what it costs."""
    error = math.sqrt(sum(plain_error(spec) ** 2 for spec in chain.specs))
    cycles = form_cycles(judged, form, build(judged, form, target), target)
    return replace(form.choice, cycles=cycles, error=error)


def _form_of(choice: Choice, chain: Chain, target: Target) -> Form | None:
    """The form of a choice, None for convolution by convolution.

    Raises:
        SpecError: the chain has no such form.
    """
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


def _by_layers(convs: list[Node], graph: Graph, context: NodeContext) -> Lowered:
    dtype = graph.types[convs[0].inputs[0]].dtype
    blocked = Format(context.target.channel_block(dtype))
    formats = {**context.formats, **{conv.output: blocked for conv in convs}}
    accuracy = replace(context.accuracy, weights_from_dram=False)
    parts = [
        CONVOLUTION.lower(NodeContext(conv, graph, formats, context.target, accuracy))
        for conv in convs
    ]
    temporaries: dict[str, int] = {}
    for conv in convs[:-1]:
        kind = graph.types[conv.output]
        size = blocked.elements(kind.shape) * kind.dtype.bytes
        temporaries[conv.output] = size
    for part in parts:
        temporaries.update(part.temporaries)
    packings = tuple(packing for part in parts for packing in part.packings)
    calls = tuple(call for part in parts for call in part.calls)
    name = " + ".join(part.algorithm for part in parts)
    return Lowered(calls, {}, temporaries, name, packings=packings)


def _layers_choice(convs: list[Node], graph: Graph, chain: Chain, context: NodeContext) -> Choice:
    """The convolutions one by one, what lies between them stored."""
    target, reproducible = context.target, context.accuracy.reproducible
    blocked = Format(target.channel_block(chain.dtype))
    x, cycles, squares = chain.x, 0.0, 0.0
    for conv, spec in zip(convs, chain.specs, strict=True):
        y = Access.of_format(graph.types[conv.output].shape, blocked)
        problem = Problem.of(spec, x, y, context.accuracy.layer_error)
        candidate = select.choose(problem, target, reproducible=reproducible)
        images = 1 if reproducible else spec.batch
        judged, chunks = problem, candidate.kernels[-1].kernel.chunks
        if reproducible and spec.batch > 1:
            judged = problem.alone()
            chunks = select.choose(judged, target).kernels[-1].kernel.chunks
        own = select.estimated_cycles(candidate.choice, judged, target)
        own += weights_cycles(spec.weight_bytes, target)
        cycles += own * imbalance(chunks)
        squares += candidate.choice.error**2
        if conv is not convs[-1]:
            image_bytes = y.image * spec.dtype.bytes
            cycles += between_cycles(images * image_bytes, target)
        x = y
    return replace(LAYERS, cycles=cycles, error=math.sqrt(squares))


def _packed(
    weights: list[np.ndarray], biases: list[np.ndarray | None], fused: ChainKernels
) -> dict[str, np.ndarray]:
    """The constants of a fused chain by role."""
    packed = fused.chain.pack(weights, biases)
    total, bias = fused.kernels[-1].kernel, biases[-1]
    if isinstance(total, SumOfParts) and bias is not None:
        packed["bias"] = total.pack_channels(bias)
    return packed
