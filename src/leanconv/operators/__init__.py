"""From nodes of a graph to kernels: one table finds the operator of every operation.

`operator` is the interface: the formats that a node takes, the choices of how to compute it with
their estimates, its kernels. `convolution` computes single convolutions, of floats and of codes
(`conv_node`: what a node says of one), `weight_gradient` the gradients of their weights, `chains`
several at once, `single_kernel` all other operations. `calls` makes a node's calls of kernels.
"""

from __future__ import annotations

from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Node
from leanconv.operators.chains import BLOCK_CHAIN, CONV_CHAIN
from leanconv.operators.convolution import CONVOLUTIONS
from leanconv.operators.loop import LOOP
from leanconv.operators.operator import (
    Accuracy,
    FormatPolicy,
    NodeContext,
    Operator,
    by_operation,
)
from leanconv.operators.single_kernel import SINGLE_KERNELS
from leanconv.operators.weight_gradient import WEIGHT_GRADIENT

__all__ = [
    "OPERATORS",
    "Accuracy",
    "FormatPolicy",
    "NodeContext",
    "Operator",
    "operator_of",
]

OPERATORS = by_operation(
    *CONVOLUTIONS, CONV_CHAIN, BLOCK_CHAIN, LOOP, WEIGHT_GRADIENT, *SINGLE_KERNELS
)


def operator_of(node: Node) -> Operator:
    """The operator that computes a node.

    Raises:
        UnsupportedError: there is none.
    """
    if node.op not in OPERATORS:
        raise UnsupportedError(
            f"node {node.name!r}: no kernel for {node.op}; expected one of "
            f"{', '.join(sorted(OPERATORS))}; rewrite the node in terms of those"
        )
    return OPERATORS[node.op]
