"""The fastest plan of a network within a budget of bytes and of error.

`merge_blocks` makes the first blocks of a network one operation that stores nothing between them.
That saves memory and costs time. Within a limit of bytes, the plan is the fastest one of the
network as it is and with its first 2, 3, … blocks merged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from leanconv.errors import BudgetError, SpecError
from leanconv.graph.ir import Graph
from leanconv.graph.passes.merge_blocks import mergeable
from leanconv.operators import Accuracy
from leanconv.operators.operator import layer_error
from leanconv.planner.decision import Decision
from leanconv.planner.graph_planner import FrontPoint, GraphPlanner, PlacedPlan
from leanconv.planner.least_error import least_max_error
from leanconv.planner.node_costs import error_units, skeleton, units_error
from leanconv.progress import steps
from leanconv.records import cached_property, dataclass
from leanconv.target import Target
from leanconv.types import FLOAT64
from leanconv.units import counted, error_text, format_bytes

log = logging.getLogger(__name__)


class Planner:
    """Plans of one network for given input shapes, target and threads.

    Args:
        graph: after the passes; its constants are not kept.
        target, threads: of the plan.
        accuracy: what is required of each layer; `layer_error` is a bound for one layer.
        max_error: for the whole network, None if only the layers are bounded.
        growths: of nodes where it was measured, by their outputs; see `NodeCost.growth`.
        streams: whether weights are read from a file in each run: see `weight_streaming`.

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
        growths: Mapping[str, float] = MappingProxyType({}),
        streams: bool = False,
    ) -> None:
        given = skeleton(graph), target, threads, accuracy, max_error
        self.unmerged = GraphPlanner(*given, growths=growths, streams=streams)
        self._merging = {0: self.unmerged}

    def with_max_error(self, max_error: float) -> Planner:
        """Plans of the same network for another `max_error`, and the choices of its layers then."""
        plain, accuracy = self.unmerged, self.unmerged.accuracy
        if not plain.growths:
            accuracy = replace(accuracy, layer_error=layer_error(max_error, plain.graph.dtype))
        given = plain.target, plain.threads, accuracy, max_error, plain.growths, plain.streams
        return Planner(plain.graph, *given)

    def keeps(self, max_error: float, limit: int | None) -> bool:
        """Whether a plan of the same choices keeps an error, and a limit of bytes if one is given.

        It does if `within` finds one.
        """
        if limit is None:
            units = error_units(max_error, self.unmerged.graph.coarsest, up=False)
            return self.unmerged.least_error_units <= units
        for planner in self.family:
            allowing = planner.allowing(max_error)
            needed = allowing.least_bytes
            if needed is not None and max(needed, allowing.smallest.memory_bytes) <= limit:
                return True
        return False

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

        A reproducible plan merges none: a limit must not change its bits. Nor does one of measured
        growths, which merged blocks have none of.
        """
        whole = self.unmerged.accuracy.reproducible or self.unmerged.growths
        counts = [] if whole else range(2, mergeable(self.unmerged.graph) + 1)
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
            raise self._inaccurate(None)
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
                raise self._inaccurate(limit)
            if limit is None or free.memory_bytes <= limit:
                return free
        if self._least_bytes is None:
            raise self._inaccurate(limit)
        best = least = self.smallest
        if limit < least.memory_bytes:
            needed = least.memory_bytes
            more = plain.streams or least.storage.arena_bytes > limit
            raise BudgetError(
                f"the limit is {counted(limit, 'byte')} ({format_bytes(limit)}); the smallest plan "
                f"needs {counted(needed, 'byte')} ({format_bytes(needed)}): weights "
                f"{counted(least.weight_bytes, 'byte')}, buffers between layers "
                f"{counted(least.storage.arena_bytes, 'byte')}; give memory_limit={needed} or more"
                + ("" if more else ", or stream_weights=True"),
                needed,
            )
        for planner in steps("searching plans", self.family, len(self.family)):
            if planner.least_ns < best.order[0]:
                found = planner.fastest(limit)
                best = min(best, found or best, key=lambda each: each.order)
        if best.path is not None and not best.path.exact:
            log.warning("the plan keeps its limits, but a faster one may exist")
        return best

    def fastest_decisions(self) -> tuple[Sequence[Decision], bool]:
        """The decisions of `within(None)`, which nothing lowers, and whether none can be faster.

        Raises:
            BudgetError: no plan keeps the error.
        """
        found = self.unmerged.unlimited_decisions()
        if found is None:
            raise self._inaccurate(None)
        return found

    def front(self, points: int = 24) -> list[FrontPoint]:
        """Plans from the smallest to the fastest, none of which is both slower and larger."""
        fast = min(filter(None, (p.front_point(None) for p in self.family)), default=None)
        if fast is None:
            raise self._inaccurate(None)
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

    @cached_property
    def _least_bytes(self) -> int | None:
        """Bytes below which there is no plan; None if none keeps the error."""
        found = (planner.least_bytes for planner in self.family)
        return min((size for size in found if size is not None), default=None)

    def _inaccurate(self, limit: int | None) -> BudgetError:
        """What is raised where no plan keeps the error: it says which one works.

        Args:
            limit: bytes within which that is to work, if any plan needs as few.
        """
        plain = self.unmerged
        assert plain.max_error is not None
        within = "" if limit is None else f" within {limit} bytes"
        coarsest = plain.graph.coarsest
        guess = units_error(plain.least_error_units, coarsest)
        least = least_max_error(self._at(limit), coarsest, guess)
        if least is None:
            least, within = least_max_error(self._at(None), coarsest, guess), ""
        assert least is not None, "no plan keeps any error"
        double = " or more" if plain.graph.dtype == FLOAT64 else " or more, or dtype='float64'"
        return BudgetError(
            f"max_error is {plain.max_error:.3g}; the most accurate plan{within} is expected to "
            f"err by {least:.3g}; give max_error={error_text(least)}{double}",
            0,
            least,
        )

    def _at(self, limit: int | None) -> Callable[[float], _Within]:
        return lambda max_error: _Within(self.with_max_error(max_error), limit)


@dataclass(frozen=True, eq=False)
class _Within:
    """The plans of one power of two within a limit of bytes; see `least_max_error`."""

    planner: Planner
    limit: int | None

    def least_units(self) -> int:
        """The least error of any plan, in units."""
        return self.planner.unmerged.least_error_units

    def keeps(self, max_error: float) -> bool:
        """Whether a plan keeps this error within the limit."""
        return self.planner.keeps(max_error, self.limit)
