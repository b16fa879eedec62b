"""The fastest plan of a network within a budget of bytes and of error."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from leanconv.errors import BudgetError, SpecError
from leanconv.graph.ir import Graph
from leanconv.planner.lowering import (
    Decision,
    LoweredGraph,
    default_decisions,
    format_rules,
    lower_graph,
)
from leanconv.planner.operations import Accuracy
from leanconv.planner.outline import Outline, Outliner, error_units, skeleton, units_error
from leanconv.planner.solver import Way, fastest, leanest, least_error
from leanconv.planner.space import Space, make_space
from leanconv.planner.storage import Storage, place
from leanconv.planner.weights import weight_places
from leanconv.target import Target
from leanconv.units import format_bytes

log = logging.getLogger(__name__)

_TRIES = 8  # at a limit, where buffers cannot be laid out without gaps


@dataclass(frozen=True, eq=False)
class Realised:
    """A plan with its places.

    Attributes:
        decisions: how each node is computed.
        lowered, storage: what that becomes.
        weight_bytes: of all constants.
        way: the solver's view of it; None for the plan without limits.
    """

    decisions: tuple[Decision, ...] | None
    lowered: LoweredGraph
    storage: Storage
    weight_bytes: int
    way: Way | None = None

    @property
    def memory_bytes(self) -> int:
        """Arena and weights."""
        return self.storage.arena_bytes + self.weight_bytes


class Planner:
    """Plans of one network for given input shapes, target and threads.

    Args:
        graph: after the passes; its constants are not kept.
        target, threads: of the plan.
        accuracy: what is asked of each layer; `layer_error` is a bound for one layer.
        max_error: for the whole network, None if only the layers are bounded.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        threads: int,
        accuracy: Accuracy,
        max_error: float | None = None,
    ) -> None:
        self.graph, self.target, self.threads = skeleton(graph), target, threads
        self.accuracy, self.max_error = accuracy, max_error
        dtypes = {graph.types[name].dtype for name in graph.inputs}
        self._dtype = next(iter(dtypes), "float32")

    @cached_property
    def outliner(self) -> Outliner:
        """What is known of the nodes' ways."""
        rules = format_rules(self.graph, self.target)
        return Outliner(self.graph, rules, self.target, self.threads, self.accuracy)

    @cached_property
    def defaults(self) -> list[Decision]:
        """The formats of a plan without limits."""
        return default_decisions(self.outliner.rules)

    def check(self, outputs: Sequence[str], decisions: Sequence[Decision]) -> None:
        """Check decisions that come from outside.

        Args:
            outputs: the values that the nodes define, as the decisions were made for.
            decisions: one for each node.

        Raises:
            SpecError: they are for other nodes, or for formats that kernels do not take.
        """
        if list(outputs) != [node.outputs[0] for node in self.graph.nodes]:
            raise SpecError("its layers are not those of the network")
        rules = self.outliner.rules
        for node, default, decision in zip(self.graph.nodes, self.defaults, decisions, strict=True):
            asked = (dict(decision.reads), decision.writes)
            if asked != (dict(default.reads), default.writes) and asked not in rules.possible(node):
                shown = {name: str(form) for name, form in decision.reads.items()}
                raise SpecError(
                    f"node {node.name or node.outputs[0]!r} ({node.op}) cannot read {shown} and "
                    f"write {decision.writes}"
                )

    def chosen(self, decisions: Sequence[Decision]) -> tuple[Outline, ...]:
        """What is estimated for the nodes of a plan."""
        triples = zip(self.graph.nodes, self.defaults, decisions, strict=True)
        return tuple(self.outliner.chosen(node, default, d) for node, default, d in triples)

    @cached_property
    def space(self) -> Space:
        """All plans."""
        return make_space(self.outliner, self.threads)

    @cached_property
    def leanest(self) -> Realised:
        """The plan of the fewest bytes.

        Raises:
            BudgetError: no plan keeps the error.
        """
        way = leanest(self.space.layers, self._error_limit)
        if way is None:
            raise self._inaccurate()
        # Of the plans of so few bytes, the fastest.
        way = fastest(self.space.layers, way.bytes, self._error_limit) or way
        return self.realise(self.space.decisions(way.moves), way)

    @property
    def _error_limit(self) -> int | None:
        return None if self.max_error is None else error_units(self.max_error, self._dtype, False)

    def within(self, limit: int | None) -> Realised:
        """The plan of least predicted time within a limit of bytes, and within `max_error`.

        Raises:
            BudgetError: there is none; `smallest_bytes` is the least limit that works.
        """
        if self.max_error is None:
            free = self.realise(None, None)
            # Without reorders nothing is faster: each node is computed in its fastest way.
            settled = all(step.op != "Reorder" for step in free.lowered.steps)
            if limit is None or (settled and free.memory_bytes <= limit):
                return free
        if limit is None:
            way = fastest(self.space.layers, None, self._error_limit)
            if way is None:
                raise self._inaccurate()
            return self.realise(self.space.decisions(way.moves), way)
        least = self.leanest
        if limit < least.memory_bytes:
            needed = least.memory_bytes
            raise BudgetError(
                f"the limit is {limit} bytes ({format_bytes(limit)}); the leanest plan needs "
                f"{needed} ({format_bytes(needed)}): weights {least.weight_bytes}, arena "
                f"{least.storage.arena_bytes}; give memory_limit={needed} or more",
                needed,
            )
        return self._fastest(limit, least)

    def _fastest(self, limit: int, least: Realised) -> Realised:
        room = limit - self.space.base_bytes
        for _ in range(_TRIES):
            way = fastest(self.space.layers, room, self._error_limit)
            if way is None:
                break
            if not way.exact:
                log.warning("the plan keeps its limits, but a faster one may exist")
            found = self.realise(self.space.decisions(way.moves), way)
            if found.memory_bytes <= limit:
                return found
            room -= found.memory_bytes - limit
        return least

    def realise(self, decisions: Sequence[Decision] | None, way: Way | None) -> Realised:
        """Lower a plan and lay out its buffers."""
        lowered = lower_graph(self.graph, self.target, self.accuracy, decisions)
        storage = place(lowered, self.threads)
        _, weight_bytes = weight_places(lowered)
        kept = None if decisions is None else tuple(decisions)
        return Realised(kept, lowered, storage, weight_bytes, way)

    def front(self, points: int = 24) -> list[Way]:
        """Plans from the leanest to the fastest, none of which is both slower and larger."""
        fast = fastest(self.space.layers, None, self._error_limit)
        if fast is None:
            raise self._inaccurate()
        fast = fastest(self.space.layers, fast.bytes, self._error_limit) or fast
        low = leanest(self.space.layers, self._error_limit)
        assert low is not None
        found: list[Way] = []
        for index in range(points):
            limit = low.bytes + (fast.bytes - low.bytes) * index // max(1, points - 1)
            way = fastest(self.space.layers, limit, self._error_limit)
            if way is not None and (not found or way.time < found[-1].time):
                found.append(way)
        return found

    def _inaccurate(self) -> BudgetError:
        assert self.max_error is not None
        least = units_error(least_error(self.space.layers), self._dtype)
        return BudgetError(
            f"max_error is {self.max_error:.2g}; the most accurate plan is expected to err by "
            f"{least:.2g}; give max_error={least * 1.01:.2g} or more, or dtype='float64'",
            0,
            least,
        )
