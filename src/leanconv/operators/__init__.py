"""From nodes of a graph to kernels: one table finds the operator of every operation.

`operator` is the interface: the formats that a node takes, the choices of how to compute it with
their estimates, its kernels. `convolution` computes single convolutions, `quantised_conv` those of
codes, `conv_chain` and `block_chain` several at once, `single_kernel` all other operations.
"""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Node
from leanconv.kernels import (
    attention,
    code_matmul,
    deform,
    elementwise,
    extreme_places,
    gather,
    global_pool,
    grid_sample,
    layout,
    lookup,
    lrn,
    matmul,
    nms,
    normalise,
    packed_matmul,
    plane_pool,
    pool,
    recurrence,
    reduce,
    resample,
    resize,
    roi_align,
    running,
    scatter,
    softmax,
    top,
)
from leanconv.operators.accuracy import Accuracy
from leanconv.operators.block_chain import BLOCK_CHAIN
from leanconv.operators.conv_chain import CONV_CHAIN
from leanconv.operators.convolution import CONVOLUTION
from leanconv.operators.loop import LOOP
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.operators.quantised_conv import QUANTISED_CONVOLUTION
from leanconv.operators.single_kernel import SingleKernel

__all__ = [
    "OPERATORS",
    "Accuracy",
    "FormatPolicy",
    "NodeContext",
    "Operator",
    "operator_of",
]


def _table(*operators: Operator) -> dict[str, Operator]:
    table: dict[str, Operator] = {}
    for operator in operators:
        for op in operator.ops:
            assert op not in table, f"two operators compute {op}"
            table[op] = operator
    return table


OPERATORS: Mapping[str, Operator] = _table(
    CONVOLUTION,
    QUANTISED_CONVOLUTION,
    CONV_CHAIN,
    BLOCK_CHAIN,
    LOOP,
    SingleKernel(roi_align, FormatPolicy.PREFER_BLOCKED),
    SingleKernel(deform, FormatPolicy.PREFER_BLOCKED),
    *map(
        SingleKernel,
        (
            attention,
            code_matmul,
            elementwise,
            extreme_places,
            gather,
            global_pool,
            grid_sample,
            layout,
            lookup,
            lrn,
            matmul,
            nms,
            normalise,
            packed_matmul,
            plane_pool,
            pool,
            recurrence,
            reduce,
            resample,
            resize,
            running,
            scatter,
            softmax,
            top,
        ),
    ),
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
