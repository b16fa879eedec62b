"""Chains of convolutions: `ConvChain` nodes, one block, and `BlockChain` nodes, several.

One block is computed in one pass over rows, or convolution by convolution; several in one pass:
`merge_blocks` makes them to save memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from leanconv.algorithms import select
from leanconv.algorithms.fused import cost
from leanconv.algorithms.fused.block import BlockKernels, rows_access
from leanconv.algorithms.fused.forms import (
    FORM_NAMES,
    Chain,
    ChainKernels,
    ChainParameters,
    Form,
    block_kernels,
    build,
    form_of_size,
)
from leanconv.algorithms.fused.kernel import Constants, SumOfParts
from leanconv.algorithms.fused.stream import BlockStream, ring_rows
from leanconv.algorithms.interface import KernelUse
from leanconv.algorithms.parameters import AUTO, COUNT, Choice, Kind, Parameters, parameter
from leanconv.algorithms.problem import Problem
from leanconv.codegen.lowered import Lowered, PackCall
from leanconv.errors import SpecError
from leanconv.operators.calls import Part, lowered
from leanconv.operators.chain_layers import ChainLayers, ChainOperator, layers_of, plain_error
from leanconv.operators.conv_node import ConvNode, of_codes
from leanconv.operators.convolution import CONVOLUTIONS
from leanconv.operators.operator import NodeContext, by_operation
from leanconv.operators.single_kernel import SINGLE_KERNELS
from leanconv.records import dataclass, replace
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
        for form in cost.possible_forms(judged, target):
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
        form = form_of_size(choice, judged, context.target)
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
    cycles = cost.form_cycles(judged, form, build(judged, form, target), target, halves)
    return replace(form.choice, cycles=cycles, error=error)


def _form_of(choice: Choice, chain: Chain, target: Target) -> Form | None:
    """The form of a choice, None for convolution by convolution."""
    if choice == LAYERS:
        return None
    if chain.any_size and choice.algorithm in FORM_NAMES:
        return form_of_size(choice, chain, target)
    forms = {form.choice: form for form in cost.possible_forms(chain, target)}
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
        own += cost.weights_cycles(problem.conv.weight_bytes, target)
        cycles += own * cost.imbalance(chunks) + beside
        squares += candidate.choice.error**2
        if conv.key != layers.convolutions[-1].key:
            image_bytes = problem.conv.y.image * problem.conv.precision.y.bytes
            cycles += cost.between_cycles(images * image_bytes, target)
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


# -- several blocks in one pass ----------------------------------------------------------------
_STEPS = (1, 2, 4)
_MOST_WARM = 4
_RUNS = 4  # times that the pass is begun; each fills the rings anew


_BLOCKS = Kind(
    lambda text: text if set(text) <= {"r", "p"} else None, "a letter r or p for each block"
)


@dataclass(frozen=True)
class StreamParameters(Parameters):
    """Output rows of a step; for each block, rows (r) or panels (p) of its expansion are kept."""

    step: int | None = parameter(COUNT)
    blocks: str | None = parameter(_BLOCKS)


@dataclass(frozen=True)
class _Pass:
    """A pass over the blocks: output rows of a step, which blocks keep rows of their expansion."""

    step: int
    keeps: tuple[bool, ...]

    @property
    def choice(self) -> Choice:
        """The choice as a plan names it: `"stream:step=1,blocks=rrp"`."""
        blocks = "".join("r" if keeps else "p" for keeps in self.keeps)
        return Choice("stream", StreamParameters(self.step, blocks))


@lru_cache(maxsize=64)
def _alone(chain: Chain, target: Target) -> BlockKernels:
    """A block by itself, which keeps rows of its expansion."""
    return block_kernels(chain, target, 1, ring=True)


def _passes(chains: Sequence[Chain], target: Target) -> Iterator[_Pass]:
    """All blocks keep rows of their expansion; then those of the most scratch keep panels."""
    height = chains[-1].depthwise.output_size[0]
    sizes = [_alone(chain, target).scratch_bytes for chain in chains]
    for step in sorted({min(step, height) for step in _STEPS}):
        for limit in sorted({*sizes, 0}, reverse=True):
            yield _Pass(step, tuple(size <= limit for size in sizes))


def _shape(block: BlockKernels) -> tuple[int, int, int, int, int]:
    """A block as `ring_rows` takes it: expanded rows, output rows, stride, padding, reach."""
    window = block.depthwise.conv.window
    return (block.height, window.out[1], window.stride[1], block.row_pad, block.input_rows)


@lru_cache(maxsize=64)
def _rings(shapes: tuple[tuple[int, int, int, int, int], ...], step: int) -> tuple[list[int], int]:
    """The fewest rows between blocks of these shapes, and the steps that begin a chunk."""
    found = [(ring_rows(shapes, step, warm), warm) for warm in range(1, _MOST_WARM + 1)]
    return min(found, key=lambda pair: (sum(pair[0]), pair[1]))


@lru_cache(maxsize=256)
def _build(chains: tuple[Chain, ...], one: _Pass, target: Target) -> BlockStream:
    """The kernel of a pass, with the fewest rows between the blocks."""
    rows, warm = _rings(tuple(_shape(_alone(chain, target)) for chain in chains), one.step)
    lanes = chains[0].lanes(target)
    between = [
        rows_access(kept, chain.project.output_size[1], lanes)
        for kept, chain in zip(rows, chains, strict=False)
    ]
    xs, ys = [chains[0].x, *between], [*between, chains[-1].y]
    blocks = [
        block_kernels(
            replace(chain, x=x, y=y), target, 1, keeps, x_ring=ring, single=chain.project.residual
        )
        for chain, x, y, keeps, ring in zip(chains, xs, ys, one.keeps, [0, *rows], strict=True)
    ]
    return BlockStream(chains[0].depthwise.batch, tuple(blocks), tuple(rows), one.step, warm)


def _cycles(chains: Sequence[Chain], kernel: BlockStream, target: Target) -> float:
    """Estimated cycles of one core: expanded rows computed again, weights read in each step."""
    total, step = 0.0, kernel.step
    for block in reversed(kernel.blocks):
        height, out, stride, _, reach = _shape(block)
        calls = out / min(step, out)
        again = reach if not block.keeps_expanded else stride + (reach - stride) / min(step, out)
        if block.expand is not None:
            made = out * max(stride, again) + _RUNS * reach
            made = min(made, calls * height)
            total += made * cost.expand_row_cycles(block, target)
            total += calls * cost.image_cycles(block, made / calls, target)
        total += (out + _RUNS * reach) * cost.block_row_cycles(block, target)
        step = min(step * stride, height)
    weights = sum(spec.weight_bytes for chain in chains for spec in chain.specs)
    passes = kernel.strips if weights > target.costs.l2_share * target.l2_bytes else 1
    total += passes * cost.weights_cycles(weights, target)
    return kernel.batch * total * cost.imbalance(kernel.chunks)


class BlockChain(ChainOperator):
    """Several blocks that store nothing between them, for the least memory."""

    ops = ("BlockChain",)

    algorithms = MappingProxyType({"stream": StreamParameters})

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """The choices for a BlockChain, the cheapest by estimate first.

        Each takes fewer bytes, of scratch or of weights, than any that is cheaper.
        """
        del vary_parameters
        blocks = layers_of(context)
        chains = tuple(layers.chain for layers in blocks)
        target, judged = context.target, chains
        if context.accuracy.reproducible:
            judged = tuple(chain.alone() for chain in chains)
        error = math.sqrt(sum(plain_error(s) ** 2 for chain in chains for s in chain.specs))
        error += math.hypot(*(layers.stored_error for layers in blocks))
        kept: dict[tuple[int, int], Choice] = {}
        kernels = {one.choice: _build(judged, one, target) for one in _passes(chains, target)}
        costs = {choice: _cycles(judged, kernel, target) for choice, kernel in kernels.items()}
        for choice, cycles in sorted(costs.items(), key=lambda item: item[1]):
            kernel = kernels[choice]
            size = kernel.scratch_bytes, sum(kernel.constant_bytes.values())
            if not any(other[0] <= size[0] and other[1] <= size[1] for other in kept):
                kept[size] = replace(choice, cycles=cycles, error=error)
        return list(kept.values())

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """Return one call, of the kernel that computes all blocks."""
        target, blocks = context.target, layers_of(context)
        chains = tuple(layers.chain for layers in blocks)
        passes = {one.choice: one for one in _passes(chains, target)}
        choice = self.default_choice(context) if choice == AUTO else choice
        if choice not in passes:
            raise SpecError(
                f"got the form {str(choice)!r} of a chain of blocks; expected one of "
                f"{', '.join(map(str, passes))}"
            )
        kernel, first = _build(chains, passes[choice], target), blocks[0]
        constants = [layers.constants for layers in blocks]
        part = Part(
            (KernelUse(kernel, kernel.operands),),
            lambda: kernel.pack_calls(constants),
            (kernel.packing, tuple(layers.numbers for layers in blocks)),
            tuple(array for layers in blocks for array in layers.sources),
        )
        text = f"{len(chains)} blocks by rows"
        return first.on_halves(lowered(context, first.images, first.forms, [part], text))


BLOCK_CHAIN = BlockChain()
