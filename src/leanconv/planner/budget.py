"""The fastest plan of a network within a budget of bytes and of error.

`merge_blocks` makes the first blocks of a network one operation that stores nothing between them.
That saves memory and costs time. Within a limit of bytes, the plan is the fastest one of the
network as it is and with its first 2, 3, … blocks merged.
"""

from __future__ import annotations

import logging

from leanconv.errors import BudgetError, SpecError
from leanconv.graph.ir import Graph
from leanconv.graph.passes.merge_blocks import mergeable
from leanconv.operators import Accuracy
from leanconv.planner.graph_planner import FrontPoint, GraphPlanner, PlacedPlan
from leanconv.planner.node_costs import skeleton, units_error
from leanconv.planner.solver import least_error
from leanconv.progress import steps
from leanconv.records import cached_property
from leanconv.target import Target
from leanconv.units import format_bytes

log = logging.getLogger(__name__)


class Planner:
    """Plans of one network for given input shapes, target and threads.

    Args:
        graph: after the passes; its constants are not kept.
        target, threads: of the plan.
        accuracy: what is required of each layer; `layer_error` is a bound for one layer.
        max_error: for the whole network, None if only the layers are bounded.

    Attributes:
        unmerged: plans of the network as it is.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        threads: int,
        accuracy: Accuracy,
        max_error: float | None = None,
    ) -> None:
        self.unmerged = GraphPlanner(skeleton(graph), target, threads, accuracy, max_error)
        self._merging = {0: self.unmerged}

    def merging(self, count: int) -> GraphPlanner:
        """Plans of the network with its first blocks merged.

        Args:
            count: of blocks, 0 for none.

        Raises:
            SpecError: the network has fewer blocks that can be merged, or `count` is 1.
        """
        if count not in self._merging:
            most = mergeable(self.unmerged.graph)
            if not 2 <= count <= most:
                raise SpecError(f"{count} blocks cannot be merged; expected 0, or 2 to {most}")
            self._merging[count] = self.unmerged.merging(count)
        return self._merging[count]

    @cached_property
    def family(self) -> list[GraphPlanner]:
        """Plans of the network as it is and with any number of first blocks merged.

        A reproducible plan merges none: a limit must not change its bits.
        """
        reproducible = self.unmerged.accuracy.reproducible
        counts = [] if reproducible else range(2, mergeable(self.unmerged.graph) + 1)
        return [self.unmerged, *(self.merging(count) for count in counts)]

    @cached_property
    def smallest(self) -> PlacedPlan:
        """The plan of the fewest bytes, first blocks merged or not; the fastest of several.

        Raises:
            BudgetError: no plan keeps the error.
        """
        family = steps("searching plans", self.family, len(self.family))
        needed = [(planner.least_bytes, number) for number, planner in enumerate(family)]
        best: PlacedPlan | None = None
        for size, number in sorted((size, n) for size, n in needed if size is not None):
            if best is None or size <= best.memory_bytes:
                found = self.family[number].smallest
                best = min(best or found, found, key=lambda each: (each.memory_bytes, each.order))
        if best is None:
            raise self._inaccurate()
        return best

    def within(self, limit: int | None) -> PlacedPlan:
        """The plan of least predicted time within a limit of bytes, and within `max_error`.

        Raises:
            BudgetError: there is none; `smallest_bytes` is the least limit that works.
        """
        plain = self.unmerged
        if limit is None or (plain.max_error is None and plain.needs_no_reorder):
            free = plain.unlimited()
            if free is None:
                raise self._inaccurate()
            if limit is None or free.memory_bytes <= limit:
                return free
        best = least = self.smallest
        if limit < least.memory_bytes:
            needed = least.memory_bytes
            raise BudgetError(
                f"the limit is {limit} bytes ({format_bytes(limit)}); the smallest plan needs "
                f"{needed} ({format_bytes(needed)}): weights {least.weight_bytes}, arena "
                f"{least.storage.arena_bytes}; give memory_limit={needed} or more",
                needed,
            )
        for planner in steps("searching plans", self.family, len(self.family)):
            if planner.least_ns < best.order[0]:
                found = planner.fastest(limit)
                best = min(best, found or best, key=lambda each: each.order)
        if best.path is not None and not best.path.exact:
            log.warning("the plan keeps its limits, but a faster one may exist")
        return best

    def front(self, points: int = 24) -> list[FrontPoint]:
        """Plans from the smallest to the fastest, none of which is both slower and larger."""
        fast = min(filter(None, (p.front_point(None) for p in self.family)), default=None)
        if fast is None:
            raise self._inaccurate()
        fast = self._fastest_point(fast.bytes) or fast
        sizes = [planner.least_bytes for planner in self.family]
        low = min(size for size in sizes if size is not None)
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
            if best is None or planner.least_ns < best.time_ns:
                found = planner.front_point(limit)
                best = found if best is None else min(best, found or best)
        return best

    def _inaccurate(self) -> BudgetError:
        plain = self.unmerged
        assert plain.max_error is not None
        least = units_error(least_error(plain.search_graph.levels), plain.graph.dtype)
        return BudgetError(
            f"max_error is {plain.max_error:.2g}; the most accurate plan is expected to err by "
            f"{least:.2g}; give max_error={least * 1.01:.2g} or more, or dtype='float64'",
            0,
            least,
        )
