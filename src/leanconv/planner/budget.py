"""The fastest plan of a network within a budget of bytes and of error.

`merge_blocks` makes the first blocks of a network one operation that stores nothing between them.
That saves memory and costs time. Within a limit of bytes, the plan is the fastest one of the
network as it is and with its first 2, 3, … blocks merged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from leanconv.errors import BudgetError, SpecError
from leanconv.graph.ir import Graph
from leanconv.graph.passes.merge_blocks import blocks_to_merge, merge_blocks, mergeable
from leanconv.operators import Accuracy
from leanconv.planner.decision import Decision
from leanconv.planner.lowering import (
    LoweredGraph,
    default_decisions,
    format_rules,
    lower_graph,
)
from leanconv.planner.node_costs import NodeCost, NodeEvaluator, error_units, skeleton, units_error
from leanconv.planner.search_graph import SearchGraph, make_search_graph
from leanconv.planner.solver import Path, fastest, least_error, least_time, smallest
from leanconv.planner.storage import Storage, place
from leanconv.progress import steps
from leanconv.spec import PLAIN
from leanconv.target import Target
from leanconv.units import format_bytes

log = logging.getLogger(__name__)

_TRIES = 8  # with smaller and smaller limits, where buffers cannot be laid out without gaps


@dataclass(frozen=True, eq=False)
class PlacedPlan:
    """A plan that is lowered, with the places of its buffers.

    Attributes:
        planner: of the graph that is computed, whose first blocks may be merged.
        decisions: how each node is computed.
        lowered, storage: its calls, and where their values are stored.
        weight_bytes: of all constants.
        path: the solver's view of it; None for the plan without limits.
    """

    planner: Planner
    decisions: tuple[Decision, ...] | None
    lowered: LoweredGraph
    storage: Storage
    weight_bytes: int
    path: Path | None = None

    @property
    def memory_bytes(self) -> int:
        """Arena and weights."""
        return self.storage.arena_bytes + self.weight_bytes

    @property
    def order(self) -> tuple[int, int]:
        """Time, then bytes, of a plan that the solver has found."""
        assert self.path is not None
        return self.path.time, self.memory_bytes


@dataclass(frozen=True, order=True)
class FrontPoint:
    """The fastest plan for some limit, by the solver's model; ordered by time, then by bytes.

    Attributes:
        time_ns: predicted, of one thread.
        bytes: of arena and weights.
        arena_bytes: of the arena.
        merged: how many first blocks are one operation.
        exact: whether it is proved that none is faster.
    """

    time_ns: int
    bytes: int
    arena_bytes: int
    merged: int
    exact: bool


class Planner:
    """Plans of one network for given input shapes, target and threads.

    Args:
        graph: after the passes; its constants are not kept.
        target, threads: of the plan.
        accuracy: what is required of each layer; `layer_error` is a bound for one layer.
        max_error: for the whole network, None if only the layers are bounded.

    Attributes:
        merged: how many of the first blocks are one operation here; 0 for the network as it is.
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
        self.merged = 0
        self._unmerged = self

    # -- merged blocks ---------------------------------------------------------------------
    @cached_property
    def _merging(self) -> dict[int, Planner]:
        return {0: self}

    def merging(self, count: int) -> Planner:
        """The planner of the same network with its first blocks merged.

        Args:
            count: of blocks, 0 for none.

        Raises:
            SpecError: the network has fewer blocks that can be merged, or `count` is 1.
        """
        if self.merged:
            return self._unmerged.merging(count)
        if count not in self._merging:
            most = mergeable(self.graph)
            if not 2 <= count <= most:
                raise SpecError(f"{count} blocks cannot be merged; expected 0, or 2 to {most}")
            graph = merge_blocks(self.graph, count)
            made = Planner(graph, self.target, self.threads, self.accuracy, self.max_error)
            made.merged, made._unmerged = count, self
            self._merging[count] = made
        return self._merging[count]

    @property
    def family(self) -> list[Planner]:
        """The planners of the network as it is and with any number of first blocks merged.

        A reproducible plan merges none: a limit must not change its bits.
        """
        counts = [] if self.accuracy.reproducible else range(2, mergeable(self._unmerged.graph) + 1)
        return [self._unmerged, *(self.merging(count) for count in counts)]

    def merge(self, graph: Graph) -> Graph:
        """Merge the first blocks of the network's graph as this planner's graph has them."""
        return merge_blocks(graph, self.merged) if self.merged else graph

    @cached_property
    def evaluator(self) -> NodeEvaluator:
        """Evaluates the nodes' choices."""
        rules = format_rules(self.graph, self.target)
        evaluator = NodeEvaluator(self.graph, rules, self.target, self.accuracy)
        if self.merged:
            evaluator.follow(self._unmerged.evaluator, lambda: self._merged_times)
        return evaluator

    @cached_property
    def _merged_times(self) -> dict[str, int]:
        """The estimated time of the merged blocks one by one, by what the last of them defines."""
        plain = self._unmerged
        outputs = [node.outputs[0] for node in blocks_to_merge(plain.graph)[: self.merged]]
        pairs = zip(plain.graph.nodes, plain.defaults, strict=True)
        times = [plain.evaluator.least_ns(n, d) for n, d in pairs if n.outputs[0] in outputs]
        return {outputs[-1]: sum(times)}

    @cached_property
    def defaults(self) -> list[Decision]:
        """The formats of a plan without limits."""
        return default_decisions(self.evaluator.rules)

    def check(self, outputs: Sequence[str], decisions: Sequence[Decision]) -> None:
        """Check decisions that come from outside.

        Args:
            outputs: the values that the nodes defined when the decisions were made.
            decisions: one for each node.

        Raises:
            SpecError: they are for other nodes, or for formats that kernels do not take.
        """
        if list(outputs) != [node.outputs[0] for node in self.graph.nodes]:
            raise SpecError(
                f"it has {len(outputs)} levels of other names; expected the network's "
                f"{len(self.graph.nodes)}: plan anew"
            )
        rules = self.evaluator.rules
        for node, default, decision in zip(self.graph.nodes, self.defaults, decisions, strict=True):
            formats = (dict(decision.reads), decision.writes)
            usual = (dict(default.reads), default.writes)
            if formats != usual and formats not in rules.possible(node):
                shown = {name: str(form) for name, form in decision.reads.items()}
                raise SpecError(
                    f"node {node.name or node.outputs[0]!r} ({node.op}) cannot read {shown} and "
                    f"write {decision.writes}; expected formats that its kernels take: plan anew"
                )

    def chosen(self, decisions: Sequence[Decision]) -> tuple[NodeCost, ...]:
        """The estimated costs of the nodes of a plan."""
        triples = zip(self.graph.nodes, self.defaults, decisions, strict=True)
        return tuple(self.evaluator.chosen(node, default, d) for node, default, d in triples)

    @cached_property
    def search_graph(self) -> SearchGraph:
        """All plans."""
        return make_search_graph(self.evaluator, self.threads)

    @cached_property
    def smallest(self) -> PlacedPlan:
        """The plan of the fewest bytes, first blocks merged or not; the fastest of several.

        Raises:
            BudgetError: no plan keeps the error.
        """
        family = steps("searching plans", self.family, len(self.family))
        needed = [(planner._least_bytes, number) for number, planner in enumerate(family)]
        best: PlacedPlan | None = None
        for size, number in sorted((size, n) for size, n in needed if size is not None):
            if best is None or size <= best.memory_bytes:
                found = self.family[number]._smallest
                best = min(best or found, found, key=lambda each: (each.memory_bytes, each.order))
        if best is None:
            raise self._inaccurate()
        return best

    @cached_property
    def _smallest_path(self) -> Path | None:
        return smallest(self.search_graph.levels, self._error_limit)

    @property
    def _least_bytes(self) -> int | None:
        """Bytes below which this graph has no plan, None if it has none that keeps the error."""
        path = self._smallest_path
        return None if path is None else path.bytes + self.search_graph.base_bytes

    @cached_property
    def _smallest(self) -> PlacedPlan:
        """The plan of the fewest bytes for this graph, which has one."""
        path = self._smallest_path
        assert path is not None
        # The fastest plan of this size.
        path = fastest(self.search_graph.levels, path.bytes, self._error_limit) or path
        return self.place_plan(self.search_graph.decisions(path.transitions), path)

    @cached_property
    def _plain_graph(self) -> SearchGraph:
        """The plans in which each node is computed by its fastest choice between given formats."""
        return make_search_graph(self.evaluator, self.threads, vary_parameters=False)

    @cached_property
    def needs_no_reorder(self) -> bool:
        """Whether the plan without limits reorders no value.

        No plan is faster then: each node is computed by its fastest choice. (And a reproducible
        plan is not searched for, since no limit may change its bits.)
        """
        graph, formats = self.graph, dict.fromkeys(self.graph.types, PLAIN)
        for node, decision in zip(graph.nodes, self.defaults, strict=True):
            if any(formats[name] != form for name, form in decision.reads.items()):
                return self.evaluator.fixed
            formats[node.outputs[0]] = decision.writes
        return self.evaluator.fixed or all(formats[name] == PLAIN for name in graph.outputs)

    @property
    def _error_limit(self) -> int | None:
        return None if self.max_error is None else error_units(self.max_error, self._dtype, False)

    def within(self, limit: int | None) -> PlacedPlan:
        """The plan of least predicted time within a limit of bytes, and within `max_error`.

        Raises:
            BudgetError: there is none; `smallest_bytes` is the least limit that works.
        """
        if self.merged:
            return self._unmerged.within(limit)
        if self.max_error is None and self.needs_no_reorder:
            free = self.place_plan(None, None)
            if limit is None or free.memory_bytes <= limit:
                return free
        if limit is None:
            # Merged blocks are neither faster nor more accurate than one by one, and the parameters
            # that are varied to save bytes or error are no faster than the first choice.
            search_graph = self._plain_graph if self.max_error is None else self.search_graph
            path = fastest(search_graph.levels, None, self._error_limit)
            if path is None:
                raise self._inaccurate()
            return self.place_plan(search_graph.decisions(path.transitions), path)
        least = self.smallest
        if limit < least.memory_bytes:
            needed = least.memory_bytes
            raise BudgetError(
                f"the limit is {limit} bytes ({format_bytes(limit)}); the smallest plan needs "
                f"{needed} ({format_bytes(needed)}): weights {least.weight_bytes}, arena "
                f"{least.storage.arena_bytes}; give memory_limit={needed} or more",
                needed,
            )
        best = least
        family = self.family
        for planner in steps("searching plans", family, len(family)):
            if planner._bound < best.order[0]:
                found = planner._fastest(limit)
                best = min(best, found or best, key=lambda each: each.order)
        if best.path is not None and not best.path.exact:
            log.warning("the plan keeps its limits, but a faster one may exist")
        return best

    @cached_property
    def _bound(self) -> int:
        """A time that no plan of this graph falls below."""
        return least_time(self.search_graph.levels)

    def _fastest(self, limit: int) -> PlacedPlan | None:
        """The fastest plan of this graph that keeps the limits, None if there is none."""
        room = limit - self.search_graph.base_bytes
        for _ in range(_TRIES):
            path = fastest(self.search_graph.levels, room, self._error_limit)
            if path is None:
                break
            found = self.place_plan(self.search_graph.decisions(path.transitions), path)
            if found.memory_bytes <= limit:
                return found
            room -= found.memory_bytes - limit
        if (self._least_bytes or limit + 1) > limit:
            return None
        return self._smallest if self._smallest.memory_bytes <= limit else None

    def place_plan(self, decisions: Sequence[Decision] | None, path: Path | None) -> PlacedPlan:
        """Lower a plan and lay out its buffers."""
        lowered = lower_graph(self.graph, self.target, self.accuracy, decisions)
        storage = place(lowered, self.threads)
        _, weight_bytes = lowered.constants.places()
        kept = None if decisions is None else tuple(decisions)
        return PlacedPlan(self, kept, lowered, storage, weight_bytes, path)

    def front(self, points: int = 24) -> list[FrontPoint]:
        """Plans from the smallest to the fastest, none of which is both slower and larger."""
        fast = min(filter(None, (p._point(None) for p in self.family)), default=None)
        if fast is None:
            raise self._inaccurate()
        fast = self._fastest_point(fast.bytes) or fast
        low = min(filter(None, (planner._least_bytes for planner in self.family)))
        found: list[FrontPoint] = []
        for index in range(points):
            limit = low + (fast.bytes - low) * index // max(1, points - 1)
            point = self._fastest_point(limit)
            if point is not None and (not found or point.time_ns < found[-1].time_ns):
                found.append(point)
        return found

    def _fastest_point(self, limit: int) -> FrontPoint | None:
        best: FrontPoint | None = None
        for planner in self.family:
            if best is None or planner._bound < best.time_ns:
                found = planner._point(limit)
                best = found if best is None else min(best, found or best)
        return best

    def _point(self, limit: int | None) -> FrontPoint | None:
        base = self.search_graph.base_bytes
        room = None if limit is None else limit - base
        path = fastest(self.search_graph.levels, room, self._error_limit)
        if path is None:
            return None
        return FrontPoint(path.time, path.bytes + base, path.peak, self.merged, path.exact)

    def _inaccurate(self) -> BudgetError:
        assert self.max_error is not None
        least = units_error(least_error(self.search_graph.levels), self._dtype)
        return BudgetError(
            f"max_error is {self.max_error:.2g}; the most accurate plan is expected to err by "
            f"{least:.2g}; give max_error={least * 1.01:.2g} or more, or dtype='float64'",
            0,
            least,
        )
