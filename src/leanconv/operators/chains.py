"""What ConvChain and BlockChain nodes have in common: the convolutions that they consist of."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping
from dataclasses import replace
from typing import TypeAlias, cast

from leanconv.algorithms.fused.forms import Chain
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.rounding import sum_error
from leanconv.codegen.geometry import Access
from leanconv.graph.edit import frozen
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import infer_node
from leanconv.graph.ops.chain import ChainBlock, block_inputs, stage_inputs
from leanconv.operators.convolution import conv_spec
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.spec import ConvSpec, Format

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
    """The Conv nodes of each block, and the graph with the types of what is between them."""
    types: dict[str, TensorType] = {}
    open_axes: dict[str, Axes] = {}
    # A view: copying the types for every chain would take time quadratic in the graph.
    wide = replace(
        graph,
        types=ChainMap(types, cast(MutableMapping[str, TensorType], graph.types)),
        open_axes=ChainMap(open_axes, cast(MutableMapping[str, Axes], graph.open_axes)),
    )
    blocks, x, result, count = blocks_of(node), node.inputs[0], [], 0
    for block in blocks:
        inputs = block_inputs(node.inputs, count, x, block)
        if node.op == "ConvChain":
            inputs[1] = node.input(1)
        convs: list[Node] = []
        for number, stage in enumerate(block.stages):
            out = f"{node.output}/{count}"
            while out in graph.types:
                out += "'"
            last = block is blocks[-1] and number == len(block.stages) - 1
            out = node.output if last else out
            names = [name or "" for name in stage_inputs(inputs, number, x, len(block.stages))]
            conv = Node("Conv", tuple(names), (out,), frozen(stage.attributes), node.name)
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
    """The layers to fuse; a tensor without a given format is in blocks of channels."""
    formats, target = context.formats, context.target
    specs = [conv_spec(conv, graph) for conv in convs]
    blocked = Format(target.channel_block(specs[0].dtype))
    x, y = convs[0].inputs[0], convs[-1].output
    return Chain(
        specs[0] if len(specs) > 2 else None,
        specs[-2],
        specs[-1],
        Access.of_format(graph.types[x].shape, formats.get(x, blocked)),
        Access.of_format(graph.types[y].shape, blocked),
        context.any_size,
    )


def plain_error(spec: ConvSpec) -> float:
    """Expected error of one convolution of a fused chain, which makes plain sums."""
    access = Access.planes(spec.input_shape), Access.planes(spec.output_shape)
    return sum_error(Problem.of(spec, *access))
