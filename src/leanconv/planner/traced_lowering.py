"""Nodes lowered once for all sizes: a new shape of a network fills in numbers.

A node of open extents is lowered with symbols for them (`leanconv.symbolic`). What comes out, with
expressions in its kernels, is what lowering gives for every other size that answers the guards
alike; a size that does not is traced by itself, and kept beside. Where a symbol will not do, the
node is lowered for each shape as it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from leanconv.codegen.lowered import Lowered, Packing
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import label
from leanconv.graph.regions import region_of
from leanconv.operators import Accuracy, operator_of
from leanconv.planner.decision import Decision
from leanconv.records import cached_property
from leanconv.symbolic import Expressions, Holes, Made, Memo, NeedsNumberError, Trace
from leanconv.target import Target

_MOST_KEPT = 8  # of one node: sizes that answer in more ways are lowered one by one


class TracedLowering:
    """Lowers the nodes of one graph.

    Args:
        graph: the network.
        target, accuracy: of the plan.
    """

    def __init__(self, graph: Graph, target: Target, accuracy: Accuracy) -> None:
        self._graph, self._target, self._accuracy = graph, target, accuracy
        self._origin = graph.origin
        self._memo: dict[Any, Memo[Lowered]] = {}
        if graph.origin is not None:
            self._memo = graph.origin.memo.setdefault((target, accuracy), {})
            self._table: Expressions = graph.origin.memo.setdefault("table", Expressions())

    def __call__(self, node: Node, decision: Decision) -> Lowered:
        """The kernels of a node."""
        position = self._origin.positions.get(node.wiring) if self._origin else None
        if self._origin is None or position is None or region_of(node) is not None:
            return self._plainly(node, decision)
        key = position, decision.choice, decision.writes, tuple(decision.reads.items())
        memo = self._memo.get(key)
        if memo is None:  # tracing takes longer, and there may never be another shape
            self._memo[key] = Memo(_MOST_KEPT)
            return self._plainly(node, decision)
        lowered = memo.at(self._origin.values)
        if lowered is None and not (memo.full or memo.refusals):
            made = memo.attempt(
                f"{label(node)} is lowered for this shape", lambda: self._traced(position, decision)
            )
            lowered = None if made is None else made.at(self._origin.values)
        if lowered is None:
            return self._plainly(node, decision)
        return _with_packings(lowered, lambda: self._plainly(node, decision))

    def _plainly(self, node: Node, decision: Decision) -> Lowered:
        context = decision.context(node, self._graph, self._target, self._accuracy)
        return operator_of(node).lower(context, decision.choice)

    @cached_property
    def _symbolic(self) -> tuple[Trace, Graph]:
        assert self._origin is not None
        trace = Trace(table=self._table)
        return trace, self._origin.symbolic(trace)

    def _traced(self, position: int, decision: Decision) -> Made[Lowered]:
        """A node lowered with symbols.

        Raises:
            NeedsNumberError: it needs numbers, a recipe of weights follows the sizes, or a table
                holds them.
        """
        trace, graph = self._symbolic
        trace.guards = {}
        node = graph.nodes[position]
        context = decision.context(node, graph, self._target, self._accuracy)
        lowered = operator_of(node).lower(context, decision.choice)
        holes = Holes()
        if any(holes.filler(packing.recipe) for packing in lowered.packings):
            raise NeedsNumberError("weights are packed in a way that follows the sizes")
        bare = tuple(replace(packing, calls=dict) for packing in lowered.packings)
        lowered = replace(lowered, packings=bare)
        fill = holes.filler(lowered)
        return Made(lowered, trace.guards, holes.symbols, fill)


def _with_packings(lowered: Lowered, plainly: Callable[[], Lowered]) -> Lowered:
    """The same; weights that must be packed are packed by the node lowered plainly."""
    if not lowered.packings:
        return lowered

    def packing(number: int, bare: Packing) -> Packing:
        @cache
        def plain() -> Packing:
            return plainly().packings[number]

        return replace(bare, calls=lambda: plain().calls())

    packings = tuple(packing(number, bare) for number, bare in enumerate(lowered.packings))
    return replace(lowered, packings=packings)
