"""Estimated cycles of resizing by weights: `Resample`, and `Resize` that is linear.

Beside what is moved, cells are multiplied and added one by one where the last axis is mixed, and in
vectors where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from leanconv.codegen.shuffles import power_below
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.resample import order
from leanconv.graph.ops.resize import resized_axes
from leanconv.kernels.resize import grown_maps
from leanconv.spec.format import Format
from leanconv.target import Target
from leanconv.types import INT32

_MIX = 6  # operations of a vector of the result: four cells, and two rows' weights


def resized_cycles(
    node: Node, graph: Graph, formats: Mapping[str, Format], target: Target
) -> float:
    """Estimated cycles of a Resample, or of a linear Resize.

    Args:
        node: the operation.
        graph: that holds its types.
        formats: of its operand and result.
        target: whose lanes and costs count.
    """
    source, result = graph.types[node.inputs[0]], graph.types[node.output]
    single, vectors, read = _operations(node, graph, formats, target)
    costs, item = target.costs, result.dtype.bytes
    moved = costs.moved((min(source.elements, read) + result.elements) * item, target.l2_bytes)
    return float(costs.stage + moved + single * costs.element_move + vectors * costs.vector_move)


def _operations(
    node: Node, graph: Graph, formats: Mapping[str, Format], target: Target
) -> tuple[float, float, int]:
    """Operations on elements, those on vectors, and the elements that are read."""
    source, result = graph.types[node.inputs[0]], graph.types[node.output]
    block, given = formats[node.output].block, node.attributes
    lanes = target.lanes(result.dtype if result.dtype.is_float else INT32)
    shape = list(source.shape)
    if node.op == "Resize":
        resized = resized_axes(source.shape, node.attributes)
        corners = 1 << sum(resized)
        if not block and grown_maps(resized, source, result):
            spread = 2 * prod(source.shape[:-1]) * result.shape[-1]
            return spread, _MIX * result.elements / lanes, source.elements
        cells = 2 * corners * result.elements
        if not block and resized[-1]:
            return cells, 0.0, corners * result.elements
        width = block or power_below(result.shape[-1], lanes)
        return 0.0, cells / width, corners * result.elements
    single = vectors = 0.0
    for axis in order(given):
        number = given["axes"].index(axis)
        stretch = max(1.0, 1 / given["scales"][number]) if given["antialias"] else 1.0
        taps = min(ceil(stretch * (4 if given["mode"] == "cubic" else 2)), shape[axis])
        shape[axis] = given["sizes"][number]
        inner = prod(shape[axis + 1 :]) * (block or 1)
        if inner == 1:
            single += prod(shape) * taps
        else:
            vectors += prod(shape) * taps / min(lanes, inner)
    return single, vectors, source.elements
