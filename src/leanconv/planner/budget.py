"""The fastest plan of a network within a budget of bytes and of error.

`merge_blocks` makes the first blocks of a network one operation that stores nothing between them.
That saves memory and costs time. Within a limit of bytes, the plan is the fastest one of the
network as it is and with its first 2, 3, … blocks merged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from leanconv.algorithms.magnitudes import stand_in
from leanconv.codegen.dot import fitting_lanes
from leanconv.errors import BudgetError, SpecError
from leanconv.graph.ir import Graph
from leanconv.graph.passes.fuse_blocks import mergeable
from leanconv.graph.regions import with_regions
from leanconv.graph.zeros import MOST_PIXELS
from leanconv.operators import Accuracy, operator_of
from leanconv.planner.decisions import Decision, remembered
from leanconv.planner.error_growth import error_units, units_error
from leanconv.planner.graph_planner import FrontPoint, GraphPlanner, PlacedPlan
from leanconv.progress import steps
from leanconv.records import cached_property, dataclass, replace
from leanconv.target import Target
from leanconv.types import FLOAT64, DType
from leanconv.units import counted, error_text, format_bytes

log = logging.getLogger(__name__)


class Planner:
    """Plans of one network for given input shapes, target and threads.

    Args:
        graph: after the passes; its constants are not kept.
        target, threads: of the plan.
        accuracy: required of each layer; `layer_error` is a bound for one layer.
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
        given = skeleton(graph, fitting_lanes(target)), target, threads, accuracy, max_error
        self.unmerged = GraphPlanner(*given, growths=growths, streams=streams)
        self._merging = {0: self.unmerged}

    def with_max_error(self, max_error: float) -> Planner:
        """Plans of the same network for another `max_error`, and the choices of its layers then."""
        plain, accuracy = self.unmerged, self.unmerged.accuracy
        if not plain.growths:
            accuracy = accuracy.within(max_error, plain.graph.dtype)
        given = plain.target, plain.threads, accuracy, max_error, plain.growths, plain.streams
        return Planner(plain.graph, *given)

    def keeps(self, max_error: float, limit: int | None) -> bool:
        """Return whether a plan of the same choices keeps an error, and a limit of bytes if given.

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
        """A planner of the network with its first blocks merged.

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
        """Make the error to raise where no plan keeps `max_error`: it names one that works.

        Args:
            limit: bytes within which that is to work, if any plan needs as few.
        """
        plain = self.unmerged
        assert plain.max_error is not None
        within = "" if limit is None else f" within {limit} bytes"
        guess = units_error(plain.least_error_units, plain.graph.coarsest)
        least = _least_max_error(self, limit, guess)
        if least is None:
            least, within = _least_max_error(self, None, guess), ""
        assert least is not None, "no plan keeps any error"
        double = " or more" if plain.graph.dtype == FLOAT64 else " or more, or dtype='float64'"
        return BudgetError(
            f"max_error is {plain.max_error:.3g}; the most accurate plan{within} is expected to "
            f"err by {least:.3g}; give max_error={error_text(least)}{double}",
            0,
            least,
        )


def skeleton(graph: Graph, lanes: int | None = None) -> Graph:
    """The graph with the shapes of the convolutions' weights, but not their bytes.

    The constants in place of weights that are too small to be transformed are as small.

    Other constants keep their values, as the lowering of a node may depend on them.

    Args:
        graph: the network.
        lanes: as of `stand_in`.
    """
    packed = remembered(graph, "weights", _packed_alone)
    memo = {} if graph.origin is None else graph.origin.memo.setdefault("shapes of weights", {})

    def bare(name: str) -> np.ndarray:
        key = name, packed[name] <= MOST_PIXELS, lanes
        if key not in memo:
            memo[key] = stand_in(graph.constants[name], packed[name], lanes)
        found: np.ndarray = memo[key]
        return found

    constants = {
        name: bare(name) if name in packed else array for name, array in graph.constants.items()
    }
    within = with_regions(graph, lambda inner: skeleton(inner, lanes))
    return replace(within, constants=constants)


def _packed_alone(graph: Graph) -> dict[str, int]:
    """Values that are packed, and read in no other way: the least pixels of what each gives."""
    weights: dict[str, int] = {}
    others: set[str] = set(graph.outputs)
    for node in graph.nodes:
        packed = operator_of(node).packed_inputs(node)
        for name in packed:
            shape = graph.types[node.outputs[0]].shape if graph.origin is None else (0,)
            pixels = math.prod(shape[:1] + shape[2:])  # of sizes that a file leaves open maybe few
            weights[name] = min(pixels, weights.get(name, pixels))
        others.update(name for name in node.inputs if name not in packed)
    return {name: pixels for name, pixels in weights.items() if name not in others}


# -- the least `max_error` that some plan keeps, to the last digit ----------------------------
# Which choices a layer has depends on the power of two below `max_error` (`layer_error`), and on
# nothing else of it. So the least one is found in two steps: the least power above which some error
# works, and between that power and the next one, where the choices stay the same, the least error
# of a plan. Errors are whole numbers of units there (`error_units`). Below the least error all is
# refused: between the two powers no plan errs less, and between the next lower ones none works.
_MOST = 2.0**100  # an error that every plan keeps


@dataclass(frozen=True)
class _Range:
    """The errors from one power of two up to the next one, and the plans for them."""

    low: float
    high: float
    plans: Planner
    limit: int | None

    def keeps(self, max_error: float) -> bool:
        return self.plans.keeps(max_error, self.limit)

    def works(self) -> bool:
        return self.keeps(math.nextafter(self.high, 0.0))

    def least(self, dtype: DType) -> float:
        """The least error of the range that works; some must."""
        units = self.plans.unmerged.least_error_units
        first = max(self.low, units_error(units, dtype))
        if self.keeps(first):
            return first
        # The limit of bytes leaves the most accurate plans out.
        low = max(units, error_units(self.low, dtype, up=False))
        high = error_units(math.nextafter(self.high, 0.0), dtype, up=False)
        while high - low > 1:
            middle = (low + high) // 2
            if self.keeps(units_error(middle, dtype)):
                high = middle
            else:
                low = middle
        return units_error(high, dtype)


def _least_max_error(plans: Planner, limit: int | None, guess: float) -> float | None:
    """Return the least `max_error` that some plan keeps, None if none keeps any.

    Args:
        plans: of the network, for any `max_error`.
        limit: of bytes, if there is one.
        guess: where the search begins; few powers are looked at if it is close.
    """
    dtype = plans.unmerged.graph.coarsest
    first, last = math.frexp(dtype.roundoff)[1] - 1, 0  # the powers of two that are distinguished

    def between(exponent: int) -> _Range:
        low = math.ldexp(1.0, exponent)
        return _Range(
            0.0 if exponent == first else low,
            _MOST if exponent == last else 2 * low,
            plans.with_max_error(low),
            limit,
        )

    exponent = min(last, max(first, math.frexp(guess)[1] - 1))
    found = between(exponent)
    if not found.works():
        while exponent < last:
            exponent += 1
            found = between(exponent)
            if found.works():
                return found.least(dtype)
        return None
    while exponent > first:
        exponent -= 1
        below = between(exponent)
        if not below.works():
            break
        found = below
    return found.least(dtype)
