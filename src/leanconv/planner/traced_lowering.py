"""Nodes lowered once for all sizes: a new shape of a network fills in numbers.

A node of open extents is lowered with symbols for them (`leanconv.symbolic`). What comes out, with
expressions in its kernels, is what lowering gives for every other size that answers the guards
alike; a size that does not is traced by itself, and kept beside. Where a symbol will not do, the
node is lowered for each shape as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np

from leanconv.codegen.lowered import Lowered, Packing
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import label
from leanconv.graph.regions import region_of
from leanconv.operators import Accuracy, operator_of
from leanconv.planner.decision import Decision
from leanconv.records import cached_property, dataclass
from leanconv.symbolic import (
    Evaluated,
    Expression,
    Expressions,
    NeedsNumberError,
    Symbol,
    Trace,
    Values,
    attempted,
    tell,
)
from leanconv.target import Target

_MOST_KEPT = 8  # of one node: sizes that answer in more ways are lowered one by one
_PLAIN = (bool, int, float, str, bytes, np.generic, np.ndarray, Enum, type)
_Fill = Callable[[Values], Any]


class TracedLowering:
    """Lowers the nodes of one graph.

    Args:
        graph: the network.
        target, accuracy: of the plan.
    """

    def __init__(self, graph: Graph, target: Target, accuracy: Accuracy) -> None:
        self._graph, self._target, self._accuracy = graph, target, accuracy
        self._origin = graph.origin
        self._memo: dict[Any, _Traces] = {}
        self._positions: dict[int, int] = {}
        if graph.origin is not None:
            self._memo = graph.origin.memo.setdefault((target, accuracy), {})
            self._table: Expressions = graph.origin.memo.setdefault("table", Expressions())
            self._numbers = Evaluated(graph.origin.values)
            self._positions = {id(node): i for i, node in enumerate(graph.origin.nodes)}

    def __call__(self, node: Node, decision: Decision) -> Lowered:
        """The kernels of a node."""
        position = self._positions.get(id(node))
        if self._origin is None or position is None or region_of(node) is not None:
            return self._plainly(node, decision)
        key = position, decision.choice, decision.writes, tuple(decision.reads.items())
        traces = self._memo.get(key)
        if traces is None:  # tracing takes longer, and there may never be another shape
            self._memo[key] = _Traces()
            return self._plainly(node, decision)
        made = traces.fitting(self._numbers)
        if made is None and not traces.closed:
            made = traces.keep(self._traced(position, decision))
        if made is None:
            return self._plainly(node, decision)
        return _with_packings(made, lambda: self._plainly(node, decision))

    def _plainly(self, node: Node, decision: Decision) -> Lowered:
        context = decision.context(node, self._graph, self._target, self._accuracy)
        return operator_of(node).lower(context, decision.choice)

    @cached_property
    def _symbolic(self) -> tuple[Trace, Graph]:
        assert self._origin is not None
        trace = Trace(table=self._table)
        return trace, self._origin.symbolic(trace)

    def _traced(self, position: int, decision: Decision) -> _Traced | None:
        """A node lowered with symbols; None where it needs numbers."""
        trace, graph = self._symbolic
        trace.guards = {}
        node = graph.nodes[position]

        def lower() -> _Traced:
            context = decision.context(node, graph, self._target, self._accuracy)
            return _Traced(operator_of(node).lower(context, decision.choice), trace.guards)

        made = attempted(lower)
        if isinstance(made, Exception):
            tell(f"{label(node)} is lowered for this shape", made)
            return None
        return made


@dataclass(eq=False)
class _Traces:
    """What is known of lowering one node in one way.

    Attributes:
        kept: for sizes that answer alike, each.
        closed: whether no more are to be made.
    """

    kept: list[_Traced] = field(default_factory=list)
    closed: bool = False

    def fitting(self, numbers: Evaluated) -> Lowered | None:
        """The node for these numbers, if they answer as those of one kept."""
        for trace in self.kept:
            lowered = trace.at(numbers)
            if lowered is not None:
                return lowered
        return None

    def keep(self, traced: _Traced | None) -> Lowered | None:
        """Keep what was traced just now; it for the values that it was traced with."""
        if traced is not None:
            self.kept.append(traced)
        self.closed = traced is None or len(self.kept) == _MOST_KEPT
        return None if traced is None else traced.here()


class _Traced:
    """A node lowered with symbols.

    Args:
        lowered: with expressions in kernels and sizes.
        guards: what lowering decided.

    Raises:
        NeedsNumberError: a recipe of weights follows the sizes, or a table holds them.
        TypeError: symbols may hide where they are not found.
    """

    def __init__(self, lowered: Lowered, guards: Mapping[Expression, float]) -> None:
        self._guards = dict(guards)
        self._symbols: dict[Expression, tuple[int, Symbol]] = {}  # positions, symbols
        for packing in lowered.packings:
            if self._filler(packing.recipe) is not None:
                raise NeedsNumberError("weights are packed in a way that follows the sizes")
        bare = tuple(
            replace(packing, make=dict, stream=None, calls=dict) for packing in lowered.packings
        )
        self._lowered = replace(lowered, packings=bare)
        self._fill = self._filler(self._lowered)

    def here(self) -> Lowered:
        """For the values that the symbols have now."""
        values = tuple(symbol.value for _, symbol in self._symbols.values())
        return self._lowered if self._fill is None else self._fill(values)

    def at(self, numbers: Evaluated) -> Lowered | None:
        """For these numbers of expressions; None if a guard does not hold."""
        try:
            for expression, wanted in self._guards.items():
                if numbers[expression] != wanted:
                    return None
            found = tuple([numbers[expression] for expression in self._symbols])
        except ArithmeticError:  # a division by nothing
            return None
        if self._fill is None:
            return self._lowered
        filled: Lowered = self._fill(found)
        return filled

    def _filler(self, value: Any) -> _Fill | None:
        """What puts the expressions' numbers into a value; None if it has no symbol."""
        if isinstance(value, Symbol):
            entry = len(self._symbols), value
            return itemgetter(self._symbols.setdefault(value.expression, entry)[0])
        if isinstance(value, tuple):
            return self._filler_of_tuple(value)
        if isinstance(value, Mapping):
            filled = self._filler_of_tuple(tuple(value.values()))
            names = tuple(value)
            return filled and (lambda numbers: dict(zip(names, filled(numbers), strict=True)))
        if value is None or isinstance(value, _PLAIN):
            if isinstance(value, np.ndarray) and value.dtype == object:
                raise NeedsNumberError("a table holds sizes")
            return None
        if is_dataclass(value):
            return self._filler_of_record(value)
        raise TypeError(f"{type(value).__name__} may hide symbols")

    def _filler_of_tuple(self, items: tuple[Any, ...]) -> _Fill | None:
        fillers = [self._filler(item) for item in items]
        if not any(fillers):
            return None
        pairs = list(zip(items, fillers, strict=True))
        return lambda numbers: tuple(
            [item if fill is None else fill(numbers) for item, fill in pairs]
        )

    def _filler_of_record(self, record: Any) -> _Fill | None:
        fixed, moving = {}, []
        for each in fields(record):
            value = getattr(record, each.name)
            fill = self._filler(value)
            if fill is None:
                fixed[each.name] = value
            else:
                moving.append((each.name, fill))
        if not moving:
            return None
        kind = type(record)

        def filled(numbers: Values) -> Any:
            made = object.__new__(kind)
            held = made.__dict__
            held.update(fixed)
            for name, fill in moving:
                held[name] = fill(numbers)
            return made

        return filled


def _with_packings(lowered: Lowered, plainly: Callable[[], Lowered]) -> Lowered:
    """The same; weights that must be packed are packed by the node lowered plainly."""
    if not lowered.packings:
        return lowered

    def packing(number: int, bare: Packing) -> Packing:
        @cache
        def plain() -> Packing:
            return plainly().packings[number]

        return replace(
            bare,
            make=lambda: plain().make(),
            stream=lambda: plain().pieces(),
            calls=lambda: plain().calls(),
        )

    packings = tuple(packing(number, bare) for number, bare in enumerate(lowered.packings))
    return replace(lowered, packings=packings)
