"""The memory in which NumPy works while it computes an operation, beside operands and results.

It is stated by what was measured, rounded up; tests measure all operations on large arrays.
"""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.graph.ops.base import Types

_USUAL = 2
# Times the bytes of operands and results together.
_TIMES: Mapping[str, int] = {
    **dict.fromkeys(("Relu", "Neg", "Abs", "Exp", "Log", "Sqrt", "Reciprocal", "Softplus"), 0),
    **dict.fromkeys(("Add", "Sub", "Mul", "Min", "Max", "And", "Or", "Xor", "Not"), 0),
    **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), 0),
    **dict.fromkeys(("Reshape", "Transpose", "Concat", "Slice", "Split", "Expand", "Cast"), 0),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd", "MatMul"), 0),
    "Extremes": 0,
    **dict.fromkeys(("MaxPool", "MaxPoolWithIndices", "AveragePool"), 3),
    "Resample": 9,  # of codes: sums and products are four times as wide
    "RoiAlign": 4,
    "Expression": 16,  # the results of all terms
    "NonMaxSuppression": 5,
    "NonZero": 2,
    "Compress": 5,
    "Erf": 6,
    "Gelu": 7,
}
# Times 8 bytes for each of their elements: places are computed.
_PLACES: Mapping[str, int] = {
    **dict.fromkeys(("Gather", "GatherElements"), 1),
    **dict.fromkeys(("GatherND", "ScatterElements"), 2),
    "ScatterND": 3,
    "TopK": 3,
    "GridSample": 6,
}
_PLACE_BYTES = 8


def working_bytes(op: str, types: Types, results: Types) -> int:
    """The most that NumPy works in.

    Args:
        op: a key of `OPS`.
        types, results: of its inputs and outputs.
    """
    kinds = [kind for kind in (*types, *results) if kind is not None]
    if op in _PLACES:
        return _PLACES[op] * _PLACE_BYTES * sum(kind.elements for kind in kinds)
    return _TIMES.get(op, _USUAL) * sum(kind.bytes for kind in kinds)
