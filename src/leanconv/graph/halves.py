"""Values that are stored in halves: which operations read and write them, and as what.

An operation of float32 may have any of its values in memory as halves: it computes in float32, what
it reads is converted and what it gives is rounded. So float32 and the halves are one type to it,
and how each value is stored is the graph's choice (`passes.store_in_halves` makes it). Operations
that move elements take them as they lie, all in one type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS, infer_node
from leanconv.graph.ops.pointwise import terms_of
from leanconv.types import FLOAT32, HALVES, DType


class _Lifted(Mapping[str, TensorType]):
    """Types with float32 for halves; a view, as graphs are large and chains many."""

    def __init__(self, types: Mapping[str, TensorType]) -> None:
        self._types = types

    def __getitem__(self, name: str) -> TensorType:
        kind = self._types[name]
        return TensorType(kind.shape, FLOAT32) if kind.dtype in HALVES else kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


def in_float32(graph: Graph) -> Graph:
    """The graph as operations see it that compute: halves are float32."""
    return replace(graph, types=_Lifted(graph.types))


def stored_half(node: Node, graph: Graph) -> DType | None:
    """The half precision in which a node that computes has some value; None if it has none."""
    if not computes(node):
        return None
    names = (*node.outputs, *(n for n in node.inputs if n and n not in graph.constants))
    kinds = (graph.types[name].dtype for name in names if name in graph.types)
    return next((kind for kind in kinds if kind in HALVES), None)


def computes(node: Node) -> bool:
    """Return whether a node computes in float32, of values that may be stored in halves."""
    given = node.attributes
    stages = given["blocks"][0].stages if "blocks" in given else given.get("stages", ())
    return bool(OPS[node.op].halves) and all(stage.OP == "Conv" for stage in stages)


def moves(node: Node) -> bool:
    """Return whether a node moves elements, and computes nothing of them."""
    return OPS[node.op].moves is not None and node.attributes.get("reduction", "none") == "none"


def infer_stored(node: Node, graph: Graph, half: DType | None) -> TensorType:
    """The type of a node's one output, stored in a half precision if one is given."""
    (kind,) = infer_node(node, in_float32(graph).types)
    return TensorType(kind.shape, half) if half and kind.dtype == FLOAT32 else kind


def rounds_to_halves(node: Node, graph: Graph) -> float:
    """The relative error of a node's results that comes from storing them in halves."""
    if not OPS[node.op].halves:
        return 0.0
    stored = [each.stored.roundoff for each in terms_of(node) if each.stored]
    kinds = [graph.types[name].dtype for name in node.outputs]
    worst = max((kind.roundoff for kind in kinds if kind in HALVES), default=0.0)
    read = {graph.types[n].dtype for n in node.inputs if n and n not in graph.constants}
    if OPS[node.op].halves == "exact" and FLOAT32 not in read:
        return 0.0
    return math.hypot(worst, *stored)
