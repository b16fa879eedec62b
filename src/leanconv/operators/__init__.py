"""From nodes of a graph to kernels: one table finds the operator of every operation.

`operator` is the interface: the formats that a node takes, the choices of how to compute it with
their estimates, its kernels. `convolution` computes single convolutions, of floats and of codes
(`conv_node`: what a node says of one), `conv_chain` and `block_chain` several at once,
`single_kernel` all other operations. `calls` makes a node's calls of kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Node
from leanconv.kernels import elementwise, layout, lookup
from leanconv.operators.block_chain import BLOCK_CHAIN
from leanconv.operators.conv_chain import CONV_CHAIN
from leanconv.operators.convolution import (
    CONVOLUTION,
    CONVOLUTION_OF_CODES,
    CONVOLUTION_OF_DATA,
)
from leanconv.operators.loop import LOOP
from leanconv.operators.operator import Accuracy, FormatPolicy, NodeContext, Operator
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


# Each module of `kernels` by its operations; it is imported when a node of these is planned.
_KERNELS: Mapping[str, Sequence[str]] = {
    "roi_align": ("RoiAlign",),
    "deform": ("DeformColumns",),
    "attention": ("Attention",),
    "code_matmul": ("QLinearMatMul",),
    "elementwise": elementwise.OPS,
    "extreme_places": ("ArgMax", "ArgMin"),
    "gather": ("Gather", "GatherElements", "GatherND"),
    "global_pool": ("QLinearGlobalAveragePool",),
    "sampling": ("GridSample",),
    "layout": layout.OPS,
    "lookup": lookup.OPS,
    "lrn": ("LRN",),
    "matmul": ("MatMul", "Gemm"),
    "nms": ("NonMaxSuppression",),
    "nonzero": ("NonZero", "Compress"),
    "normalise": ("Normalise",),
    "packed_matmul": ("MatMulNBits",),
    "plane_pool": ("MaxPoolWithIndices",),
    "pool": ("MaxPool", "AveragePool", "QLinearAveragePool"),
    "recurrence": ("Recurrence",),
    "reduce": (
        *("ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "Extremes"),
        *("ReduceL1", "ReduceSumSquare", "ReduceMeanSquare"),
    ),
    "resample": ("Resample",),
    "resize": ("Resize",),
    "running": ("CumSum", "CumProd"),
    "scatter": ("ScatterElements", "ScatterND"),
    "softmax": ("Softmax", "LogSoftmax"),
    "top": ("TopK",),
}
_BLOCKED = ("roi_align", "deform")  # better in blocks, whatever their inputs are in


def _single(name: str) -> Operator:
    policy = FormatPolicy.PREFER_BLOCKED if name in _BLOCKED else FormatPolicy.FOLLOW_INPUTS
    return SingleKernel(f"leanconv.kernels.{name}", _KERNELS[name], policy)


OPERATORS: Mapping[str, Operator] = _table(
    CONVOLUTION,
    CONVOLUTION_OF_DATA,
    CONVOLUTION_OF_CODES,
    CONV_CHAIN,
    BLOCK_CHAIN,
    LOOP,
    *map(_single, _KERNELS),
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
