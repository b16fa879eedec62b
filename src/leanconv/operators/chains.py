"""What the operators of ConvChain and BlockChain nodes have in common."""

from __future__ import annotations

from leanconv.algorithms.problem import Problem
from leanconv.algorithms.rounding import sum_error
from leanconv.codegen.geometry import Access
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.chain import ConvStage
from leanconv.operators.chain_layers import blocks_of
from leanconv.operators.operator import FormatPolicy, Operator
from leanconv.spec import ConvSpec


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
        return len(first.convolutions) > 2 and not itself

    def takes_codes(self, node: Node) -> bool:
        """Whether the convolutions are of codes."""
        return blocks_of(node)[0].stages[-1].OP == "QLinearConv"

    def packed_inputs(self, node: Node) -> tuple[str, ...]:
        """All constants of convolutions."""
        packed, place = list[str](), 2
        for stage in (stage for block in blocks_of(node) for stage in block.stages):
            count = len(stage.CONSTANTS)
            if isinstance(stage, ConvStage):
                packed += node.inputs[place : place + count]
            place += count
        return tuple(packed)


def plain_error(spec: ConvSpec) -> float:
    """Expected error of one convolution of a fused chain, which makes plain sums."""
    access = Access.planes(spec.input_shape), Access.planes(spec.output_shape)
    return sum_error(Problem.of(spec, *access)) if spec.precision.x.is_float else 0.0
