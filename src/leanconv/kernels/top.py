"""TopK: the largest or smallest numbers along an axis, in order, and where they are.

Of equal numbers that of the lower place comes first. NaN is beyond all numbers (`sort_keys`): the
first of the largest, the last of the smallest, as in PyTorch; ONNX and onnxruntime define nothing.
Few along an axis with others behind it are found in lanes (`top_lanes`), few others by a list in a
register (`top_scan`), and many by sorting (`top_sort`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.kernels import top_lanes, top_scan
from leanconv.kernels.top_lanes import TopLanes
from leanconv.kernels.top_scan import TopScan
from leanconv.kernels.top_sort import TopSort
from leanconv.spec.format import Format
from leanconv.target import Target

_MOST_NUMBERS = 1 << 32  # places within a line have 32 bits


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Never: a result is no image of floats."""
    del node, graph, block
    return False


def lower(node: Node, graph: Graph, formats: Mapping[str, Format], target: Target) -> Lowered:
    """One kernel, whose results are the numbers and their places."""
    del formats
    (x,), (values, places) = node.inputs, node.outputs
    kind, axis, k = graph.types[x], node.attributes["axis"], node.attributes["k"]
    count = kind.shape[axis]
    if count > _MOST_NUMBERS:
        raise UnsupportedError(
            f"node {node.name or node.key!r}: TopK among {count} numbers; expected at most "
            f"{_MOST_NUMBERS} along an axis; cut the axis into several"
        )
    outer, inner = prod(kind.shape[:axis]), prod(kind.shape[axis + 1 :])
    largest = bool(node.attributes["largest"])
    kernel: Kernel
    if inner > 1 and k <= top_lanes.MOST:
        kernel = TopLanes(kind.dtype, largest, outer, count, inner, k)
    elif top_scan.fits(kind.dtype, k, target):
        kernel = TopScan(kind.dtype, largest, outer, count, inner, k)
    else:
        kernel = TopSort(kind.dtype, largest, outer, count, inner, k)
    call = Call(kernel, (x, values, places))
    return Lowered((call,), algorithm="top")
