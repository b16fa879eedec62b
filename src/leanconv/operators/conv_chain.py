"""ConvChain nodes: one block in one pass over rows, or convolution by convolution."""

from __future__ import annotations

import math
from dataclasses import replace

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
from leanconv.algorithms.fused.forms import Chain, ChainKernels, Form, build
from leanconv.algorithms.interface import constant_bytes
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.codegen.lowered import Call, Lowered, Packing
from leanconv.dtypes import ITEMSIZE
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.operators.chains import ChainChoice, ChainOperator, chain_of, plain_error, unfold
from leanconv.operators.convolution import CONVOLUTION
from leanconv.operators.operator import NodeContext
from leanconv.spec import Format
from leanconv.target import Target

LAYERS = "layers"


class ConvChain(ChainOperator):
    """One block: in one pass over rows, or convolution by convolution.

    The fused forms make plain sums, which any accepted error allows: there is nothing more
    accurate.
    """

    ops = ("ConvChain",)

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[ChainChoice]:
        """All ways to compute a chain, the cheapest by estimate first."""
        del vary_parameters
        convs, wide = unfold(context.node, context.graph)
        chain, target = chain_of(convs, wide, context), context.target
        reproducible = context.accuracy.reproducible
        judged = chain.alone() if reproducible else chain
        found = [_layers_choice(convs, wide, chain, context)]
        plain = math.sqrt(sum(plain_error(spec) ** 2 for spec in chain.specs))
        for form in possible_forms(judged, target):
            pieces = build(chain, form, target)
            costed = build(judged, form, target) if reproducible else pieces
            cycles = form_cycles(judged, form, costed, target)
            scratch = max(use.kernel.scratch_bytes for use in pieces.kernels)
            choice = ChainChoice(str(form), cycles, plain, scratch, pieces.temporaries, form)
            found.append(choice)
        return sorted(found, key=lambda choice: choice.cycles)

    def lower(self, context: NodeContext, choice: str | None = None) -> Lowered:
        """One call or two where the block is fused, those of its convolutions otherwise."""
        node, graph = context.node, context.graph
        convs, wide = unfold(node, graph)
        chain = chain_of(convs, wide, context)
        if choice is None:
            form = self.choices(context)[0].form
        else:
            judged = chain.alone() if context.accuracy.reproducible else chain
            form = _named_form(choice, judged, context.target)
        if form is None:
            return _by_layers(convs, wide, context)
        fused = build(chain, form, context.target)
        out = node.outputs[0]
        values = {"x": node.inputs[0], "residual": node.input(1), "y": out}
        temporaries = {f"{out}/{role}": size for role, size in fused.temporaries.items()}
        values.update({role: f"{out}/{role}" for role in fused.temporaries})
        weights = [graph.constants[conv.inputs[1]] for conv in convs]
        biases = [graph.constants[conv.input(2)] if conv.input(2) else None for conv in convs]
        packing = Packing(
            {f"{out}/{role}": size for role, size in constant_bytes(fused.kernels).items()},
            lambda: {f"{out}/{role}": a for role, a in _packed(weights, biases, fused).items()},
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


def _named_form(name: str, chain: Chain, target: Target) -> Form | None:
    """The form of that name, None for convolution by convolution.

    Raises:
        SpecError: the chain has no form of that name.
    """
    if name == LAYERS:
        return None
    forms = {str(form): form for form in possible_forms(chain, target)}
    if name not in forms:
        raise SpecError(
            f"got the form {name!r} of a chain of convolutions; expected one of "
            f"{', '.join((LAYERS, *forms))}"
        )
    return forms[name]


def _by_layers(convs: list[Node], graph: Graph, context: NodeContext) -> Lowered:
    dtype = graph.types[convs[0].inputs[0]].dtype
    blocked = Format(context.target.lanes(dtype))
    formats = {**context.formats, **{conv.outputs[0]: blocked for conv in convs}}
    accuracy = replace(context.accuracy, weights_from_dram=False)
    parts = [
        CONVOLUTION.lower(NodeContext(conv, graph, formats, context.target, accuracy))
        for conv in convs
    ]
    temporaries: dict[str, int] = {}
    for conv in convs[:-1]:
        kind = graph.types[conv.outputs[0]]
        size = blocked.elements(kind.shape) * np.dtype(kind.dtype).itemsize
        temporaries[conv.outputs[0]] = size
    for part in parts:
        temporaries.update(part.temporaries)
    packings = tuple(packing for part in parts for packing in part.packings)
    calls = tuple(call for part in parts for call in part.calls)
    name = " + ".join(part.algorithm for part in parts)
    return Lowered(calls, {}, temporaries, name, packings=packings)


def _layers_choice(
    convs: list[Node], graph: Graph, chain: Chain, context: NodeContext
) -> ChainChoice:
    """The convolutions one by one, what lies between them stored."""
    target, reproducible = context.target, context.accuracy.reproducible
    blocked = Format(target.lanes(chain.dtype))
    x, cycles, scratch, squares = chain.x, 0.0, 0, 0.0
    temporaries: dict[str, int] = {}
    for conv, spec in zip(convs, chain.specs, strict=True):
        y = Access.of_format(graph.types[conv.outputs[0]].shape, blocked)
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
        scratch = max(scratch, candidate.scratch_bytes)
        squares += candidate.choice.error**2
        for role, size in candidate.temporaries.items():
            temporaries[f"{conv.outputs[0]}/{role}"] = size
        if conv is not convs[-1]:
            image_bytes = y.image * ITEMSIZE[spec.dtype]
            temporaries[conv.outputs[0]] = spec.batch * image_bytes
            cycles += between_cycles(images * image_bytes, target)
        x = y
    return ChainChoice(LAYERS, cycles, math.sqrt(squares), scratch, temporaries)


def _packed(
    weights: list[np.ndarray], biases: list[np.ndarray | None], fused: ChainKernels
) -> dict[str, np.ndarray]:
    """The constants of a fused chain by role."""
    packed = fused.chain.pack(weights, biases)
    total, bias = fused.kernels[-1].kernel, biases[-1]
    if isinstance(total, SumOfParts) and bias is not None:
        packed["bias"] = total.pack_channels(bias)
    return packed
