"""What ConvChain and BlockChain nodes have in common: the convolutions that they consist of."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, MutableMapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast

import numpy as np

from leanconv.algorithms.fused.forms import Chain
from leanconv.algorithms.fused.kernel import Constants
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.rounding import sum_error
from leanconv.codegen.geometry import Access
from leanconv.codegen.lowered import Call
from leanconv.graph.edit import frozen
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import infer_node
from leanconv.graph.ops.chain import STAGES, ChainBlock, block_inputs, stage_inputs
from leanconv.kernels.reorder import reorder_call
from leanconv.operators.convolution import conv_spec
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.operators.quantised_node import QuantisedNode
from leanconv.spec import PLAIN, ConvSpec, Format

Axes: TypeAlias = tuple[int, ...]


class ChainOperator(Operator):
    """Convolutions that are computed together: blocks of channels in and out."""

    format_policy = FormatPolicy.BLOCKED_ONLY

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """Always."""
        del node, graph, block
        return True

    def accepts_mixed(self, node: Node) -> bool:
        """True if a first convolution reads the input, and nothing else does.

        Only that convolution takes both formats. A residual is read as y lies, so a first block
        that adds its own input needs that in blocks.
        """
        first = blocks_of(node)[0]
        itself = first.adds and (node.op == "BlockChain" or node.input(1) == node.inputs[0])
        return len(first.stages) > 2 and not itself

    def takes_codes(self, node: Node) -> bool:
        """Whether the convolutions are of codes."""
        return blocks_of(node)[0].stages[0].OP == "QLinearConv"

    def packed_inputs(self, node: Node) -> tuple[str, ...]:
        """All weights and biases."""
        return node.inputs[2:]


def blocks_of(node: Node) -> tuple[ChainBlock, ...]:
    """The blocks of a BlockChain, or the one that a ConvChain is."""
    if node.op == "ConvChain":
        return (ChainBlock(node.attributes["stages"], bool(node.input(1))),)
    blocks: tuple[ChainBlock, ...] = node.attributes["blocks"]
    return blocks


def unfold_blocks(node: Node, graph: Graph) -> tuple[list[list[Node]], Graph]:
    """The nodes of each block, and the graph with the types of what is between them."""
    types: dict[str, TensorType] = {}
    open_axes: dict[str, Axes] = {}
    # A view: copying the types for every chain would take time quadratic in the graph.
    wide = replace(
        graph,
        types=ChainMap(types, cast(MutableMapping[str, TensorType], graph.types)),
        open_axes=ChainMap(open_axes, cast(MutableMapping[str, Axes], graph.open_axes)),
    )
    blocks, x, result, count, read = blocks_of(node), node.inputs[0], [], 0, 0
    for block in blocks:
        inputs = block_inputs(node.inputs, read, x, block)
        read += block.operands
        if node.op == "ConvChain":
            inputs[1] = node.input(1)
        convs: list[Node] = []
        for number, stage in enumerate(block.stages):
            out = f"{node.output}/{count}"
            while out in graph.types:
                out += "'"
            last = block is blocks[-1] and number == len(block.stages) - 1
            out = node.output if last else out
            names = [name or "" for name in stage_inputs(inputs, number, x, block.stages)]
            conv = Node(stage.OP, tuple(names), (out,), frozen(stage.attributes), node.name)
            if out not in graph.types:
                (types[out],) = infer_node(conv, wide.types)
                open_axes[out] = wide.open_axes.get(x, ())
            convs.append(conv)
            x, count = out, count + 1
        result.append(convs)
    return result, wide


def unfold(node: Node, graph: Graph) -> tuple[list[Node], Graph]:
    """As `unfold_blocks`, for a node of one block."""
    (convs,), wide = unfold_blocks(node, graph)
    return convs, wide


def chain_of(convs: list[Node], graph: Graph, context: NodeContext) -> Chain:
    """The layers to fuse; a tensor without a given format is in blocks of channels.

    Codes that are plain are reordered before, into `x_form`.
    """
    formats = context.formats
    inner = [context_of(conv, graph, context) for conv in convs]
    specs = [_spec(each) for each in inner]
    blocked = Format(context.target.channel_block(specs[0].precision.x))
    x, y = convs[0].inputs[0], convs[-1].output
    form = QuantisedNode(inner[0]).x_form if has_codes(convs) else formats.get(x, blocked)
    return Chain(
        specs[0] if len(specs) > 2 else None,
        specs[-2],
        specs[-1],
        Access.of_format(graph.types[x].shape, form),
        Access.of_format(graph.types[y].shape, blocked),
        context.any_size,
    )


def is_fusable(convs: list[Node], context: NodeContext) -> bool:
    """Whether fused kernels take the formats: of codes, what is added and the result in blocks."""
    values = (context.node.input(1), context.node.output)
    return not has_codes(convs) or all(context.formats[name].block for name in values if name)


def plain_codes(
    context: NodeContext, chain: Chain, temporaries: dict[str, int]
) -> tuple[str, list[Call]]:
    """The input as fused kernels read it: the call that brings plain codes into blocks.

    Args:
        context: a chain.
        chain: the first of its blocks.
        temporaries: where the buffer's bytes are noted.

    Returns:
        The input's name, and calls before the others.
    """
    name = context.node.inputs[0]
    if not chain.has_codes or context.formats[name].block:
        return name, []
    kind, form = context.graph.types[name], Format(chain.x.block)
    own = f"{context.node.output}/{name} in blocks"
    temporaries[own] = form.elements(kind.shape) * kind.dtype.bytes
    return own, [reorder_call(kind.shape, kind.dtype, name, own, PLAIN, form)]


def has_codes(convs: list[Node]) -> bool:
    """Whether convolutions are of codes."""
    return convs[0].op == "QLinearConv"


def context_of(conv: Node, graph: Graph, context: NodeContext) -> NodeContext:
    """A convolution of a chain as its operator takes it: what has no given format is in blocks."""
    target, formats = context.target, dict(context.formats)
    for name in (*conv.inputs[:1], *conv.outputs):
        formats.setdefault(name, Format(target.channel_block(graph.types[name].dtype)))
    return NodeContext(conv, graph, formats, target, context.accuracy)


def _spec(context: NodeContext) -> ConvSpec:
    """The spec of a convolution."""
    if context.node.op == "QLinearConv":
        return QuantisedNode(context).spec
    return conv_spec(context.node, context.graph)


def constants_of(context: NodeContext) -> Constants:
    """The constants of a convolution, as fused kernels pack them."""
    node, given = context.node, context.graph.constants
    if node.op == "QLinearConv":
        made = QuantisedNode(context)
        return lambda shift: {"w": given[node.inputs[1]], **made.channels(shift)}
    names = {"w": node.inputs[1], "bias": node.input(2)}
    return lambda _: {role: given[name] for role, name in names.items() if name}


def sources_of(convs: Sequence[Node], graph: Graph) -> tuple[np.ndarray, ...]:
    """The arrays that constants are made of."""
    names = [conv.input(number) for conv in convs for number in STAGES[conv.op].CONSTANTS]
    return tuple(graph.constants[name] for name in names if name)


def numbers_of(convs: Sequence[Node], graph: Graph, context: NodeContext) -> Hashable:
    """What constants are made of beside arrays."""
    codes = (context_of(conv, graph, context) for conv in convs if conv.op == "QLinearConv")
    return tuple(QuantisedNode(each).numbers for each in codes)


def plain_error(spec: ConvSpec) -> float:
    """Expected error of one convolution of a fused chain, which makes plain sums."""
    access = Access.planes(spec.input_shape), Access.planes(spec.output_shape)
    return sum_error(Problem.of(spec, *access)) if spec.precision.x.is_float else 0.0
