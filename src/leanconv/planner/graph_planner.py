"""Plans of one graph: the solver's paths, lowered and with the places of their buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.passes.fuse_blocks import blocks_to_merge, merge_blocks
from leanconv.operators import Accuracy
from leanconv.planner.decisions import Decision, saved_products
from leanconv.planner.error_growth import error_units
from leanconv.planner.formats import format_rules
from leanconv.planner.lowered_graph import LoweredGraph
from leanconv.planner.lowering import lower_graph, plan_bodies, usual_decisions
from leanconv.planner.node_costs import GraphViews, NodeCost, NodeEvaluator, step_times
from leanconv.planner.search_graph import SearchGraph, make_search_graph
from leanconv.planner.solver import Path, fastest, least_error, least_time, smallest
from leanconv.planner.storage import Storage
from leanconv.planner.weight_streaming import lay_out, parts_of_layers
from leanconv.records import cached_property
from leanconv.spec import PLAIN, Format
from leanconv.target import Target

_TRIES = 8  # with smaller and smaller limits, where buffers cannot be laid out without gaps


@dataclass(frozen=True, eq=False)
class PlacedPlan:
    """A plan that is lowered, with the places of its buffers.

    Attributes:
        planner: of the graph that is computed, whose first blocks may be merged.
        decisions: how each node is computed.
        lowered, storage: its calls, and where their values are stored.
        weight_bytes: of all constants that stay in memory.
        path: the solver's view of it; None for the plan without limits.
    """

    planner: GraphPlanner
    decisions: tuple[Decision, ...] | None
    lowered: LoweredGraph
    storage: Storage
    weight_bytes: int
    path: Path | None = None

    @property
    def memory_bytes(self) -> int:
        """Arena and weights."""
        return self.storage.arena_bytes + self.weight_bytes

    def step_estimates(self) -> tuple[int, ...]:
        """The estimated time of each step."""
        planner, steps = self.planner, self.lowered.steps
        chosen = planner.chosen(self.decisions or planner.defaults)
        costs = planner.target.costs
        return step_times(steps, planner.graph.nodes, chosen, costs, planner.threads)

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


@dataclass(frozen=True, eq=False)
class GraphPlanner:
    """Plans of one graph: of a network as it is, or with its first blocks merged.

    Attributes:
        graph: with the shapes of the weights, but not their bytes: see `skeleton`.
        target, threads: of the plan.
        accuracy: required of each layer; `layer_error` is a bound for one layer.
        max_error: for the whole network, None if only the layers are bounded.
        merged: how many of the first blocks are one operation here; 0 for the network as it is.
        unmerged: the planner of the network as it is; None if this is that one.
        growths: of nodes where it was measured, by their outputs; see `NodeCost.growth`.
        streams: whether weights are read from a file in each run: see `weight_streaming`.
    """

    graph: Graph
    target: Target
    threads: int
    accuracy: Accuracy
    max_error: float | None
    merged: int = 0
    unmerged: GraphPlanner | None = None
    growths: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    streams: bool = False

    def merging(self, count: int) -> GraphPlanner:
        """A planner of this graph, nothing of which is merged, with its first blocks merged."""
        graph = merge_blocks(self.graph, count)
        return replace(self, graph=graph, merged=count, unmerged=self)

    def allowing(self, max_error: float) -> GraphPlanner:
        """The planner of the same graph and choices for another `max_error`."""
        other = replace(self, max_error=max_error)
        # A frozen instance keeps what it has computed in its `__dict__`, and so does its copy.
        other.__dict__.update(evaluator=self.evaluator, search_graph=self.search_graph)
        return other

    def merge(self, graph: Graph) -> Graph:
        """Merge the first blocks of the network's graph as this planner's graph has them."""
        return merge_blocks(graph, self.merged) if self.merged else graph

    @cached_property
    def evaluator(self) -> NodeEvaluator:
        """Evaluates the nodes' choices."""
        plan_bodies(self.graph, self.target, self.accuracy)
        rules = format_rules(self.graph, self.target, self.accuracy)
        given = self.graph, rules, self.target, self.accuracy, self.growths
        evaluator = NodeEvaluator(*given, parts_of_layers(self.graph) if self.streams else {})
        if self.unmerged is not None:
            plain, merged = self.unmerged, self.merged
            evaluator.follow(plain.evaluator, lambda: plain.merged_times(merged))
        return evaluator

    def merged_times(self, count: int) -> dict[str, int]:
        """The estimated time of the first blocks one by one, by the output of the last of them."""
        outputs = [node.key for node in blocks_to_merge(self.graph)[:count]]
        pairs = zip(self.graph.nodes, self.defaults, strict=True)
        times = [self.evaluator.least_ns(n, d) for n, d in pairs if n.key in outputs]
        return {outputs[-1]: sum(times)}

    @cached_property
    def defaults(self) -> list[Decision]:
        """The formats of a plan without limits."""
        return usual_decisions(self.graph, self.target, self.accuracy)

    def check(self, outputs: Sequence[str], decisions: Sequence[Decision]) -> None:
        """Check decisions that come from outside.

        Args:
            outputs: the values that the nodes defined when the decisions were made.
            decisions: one for each node.

        Raises:
            SpecError: decisions are for other nodes, or for formats that kernels do not take.
        """
        if list(outputs) != [node.key for node in self.graph.nodes]:
            raise SpecError(
                f"it has {len(outputs)} levels of other names; expected the network's "
                f"{len(self.graph.nodes)}: plan anew"
            )
        rules = self.evaluator.rules
        for node, default, decision in zip(self.graph.nodes, self.defaults, decisions, strict=True):
            layout = decision.layout
            if layout != default.layout and layout not in rules.possible(node):
                shown = {name: str(form) for name, form in decision.reads.items()}
                raise SpecError(
                    f"node {node.name or node.key!r} ({node.op}) cannot read {shown} and "
                    f"write {decision.writes}; expected formats that its kernels take: plan anew"
                )

    def chosen(self, decisions: Sequence[Decision]) -> tuple[NodeCost, ...]:
        """The estimated costs of the nodes of a plan."""
        triples = zip(self.graph.nodes, self.defaults, decisions, strict=True)
        views = GraphViews(self.graph)
        found: list[NodeCost] = []
        for node, default, decision in triples:
            found += views.follow(node, [self.evaluator.chosen(node, default, decision)])
        return tuple(found)

    @cached_property
    def search_graph(self) -> SearchGraph:
        """The graph of all plans that a search goes through."""
        return make_search_graph(self.evaluator, self.threads, streams=self.streams)

    @cached_property
    def needs_no_reorder(self) -> bool:
        """True if the plan without limits reorders no value, and no convolution saves products.

        No plan is faster then: each node is computed by its fastest choice, and only where they
        save products are planes faster than the usual format. (And a reproducible plan is not
        searched for, since no limit may change its bits.)
        """
        if self.evaluator.fixed:
            return True
        return not self._usual_reorders and not self.saved_products

    @cached_property
    def saved_products(self) -> Mapping[int, tuple[float, ...]]:
        """What is known of convolutions that take fewer products in planes, by numbers of nodes."""
        found = ((n, saved_products(node, self.graph)) for n, node in enumerate(self.graph.nodes))
        return {number: each for number, each in found if each}

    @cached_property
    def usual_ns(self) -> int:
        """Estimated time of one thread in the usual formats, with the cheapest choices.

        The plan without limits takes no longer.
        """
        types, costs = self.graph.types, self.target.costs
        moved = sum(costs.reorder_ns(types[name].bytes) for name in self._usual_reorders)
        return moved + sum(cost.estimated_ns for cost in self.chosen(self.defaults))

    @cached_property
    def _usual_reorders(self) -> tuple[str, ...]:
        """The values that are reordered in the usual formats, one entry for each other format."""
        graph, found = self.graph, []
        formats: dict[str, set[Format]] = {name: {PLAIN} for name in graph.types}
        for node, decision in zip(graph.nodes, self.defaults, strict=True):
            for name, form in decision.reads.items():
                if form not in formats[name]:
                    formats[name].add(form)
                    found.append(name)
            formats.update((name, {decision.writes}) for name in node.outputs)
        return (*found, *(name for name in graph.outputs if PLAIN not in formats[name]))

    def error_units(self, decisions: Sequence[Decision], wanted: Callable[[Node], bool]) -> int:
        """The error that some nodes of a plan add to the network's, as `error_units` counts it."""
        dtype, found = self.graph.coarsest, 0
        for node, default, decision in zip(self.graph.nodes, self.defaults, decisions, strict=True):
            if wanted(node):
                cost = self.evaluator.chosen(node, default, decision)
                found += error_units(cost.passed_error, dtype)
        return found

    @property
    def error_limit(self) -> int | None:
        """The largest error that a plan may have, in the units of `error_units`."""
        if self.max_error is None:
            return None
        return error_units(self.max_error, self.graph.coarsest, up=False)

    @cached_property
    def least_ns(self) -> int:
        """A time that no plan falls below."""
        return least_time(self.search_graph.levels)

    @cached_property
    def least_error_units(self) -> int:
        """An error that no plan falls below, in the units of `error_units`."""
        return least_error(self.search_graph.levels)

    @cached_property
    def _smallest_path(self) -> Path | None:
        return smallest(self.search_graph.levels, self.error_limit)

    @property
    def least_bytes(self) -> int | None:
        """Bytes below which there is no plan, None if there is none that keeps the error."""
        path = self._smallest_path
        return None if path is None else path.bytes + self.search_graph.base_bytes

    @cached_property
    def smallest(self) -> PlacedPlan:
        """The plan of the fewest bytes; there must be one that keeps the error."""
        path = self._smallest_path
        assert path is not None
        # The fastest plan of this size.
        path = fastest(self.search_graph.levels, path.bytes, self.error_limit) or path
        return self._placed_path(self.search_graph, path)

    def unlimited(self) -> PlacedPlan | None:
        """The fastest plan, None if none keeps the error.

        Merged blocks are neither faster nor more accurate than one by one.
        """
        if self.max_error is None and self.needs_no_reorder:
            return self.place_plan(None, None)
        found = self._unlimited_path
        return None if found is None else self._placed_path(*found)

    def unlimited_decisions(self) -> tuple[Sequence[Decision], bool] | None:
        """The decisions of `unlimited`, which nothing lowers, and whether none can be faster."""
        if self.max_error is None and self.needs_no_reorder:
            return self.defaults, True
        found = self._unlimited_path
        if found is None:
            return None
        search_graph, path = found
        return search_graph.decisions(path.transitions), path.exact

    @cached_property
    def _unlimited_path(self) -> tuple[SearchGraph, Path] | None:
        search_graph = None
        if self.max_error is None:
            # Parameters that are varied to save bytes or error are no faster than the first choice.
            search_graph = make_search_graph(
                self.evaluator, self.threads, vary_parameters=False, streams=self.streams
            )
        search_graph = search_graph or self.search_graph
        path = fastest(search_graph.levels, None, self.error_limit)
        return None if path is None else (search_graph, path)

    def fastest(self, limit: int) -> PlacedPlan | None:
        """The fastest plan within a limit of bytes that keeps the error, None if there is none."""
        room = limit - self.search_graph.base_bytes
        for _ in range(_TRIES):
            path = fastest(self.search_graph.levels, room, self.error_limit)
            if path is None:
                break
            found = self._placed_path(self.search_graph, path)
            if found.memory_bytes <= limit:
                return found
            room -= found.memory_bytes - limit
        if (self.least_bytes or limit + 1) > limit:
            return None
        return self.smallest if self.smallest.memory_bytes <= limit else None

    def front_point(self, limit: int | None) -> FrontPoint | None:
        """The fastest plan within a limit by the solver's model, None if there is none."""
        base = self.search_graph.base_bytes
        room = None if limit is None else limit - base
        path = fastest(self.search_graph.levels, room, self.error_limit)
        if path is None:
            return None
        return FrontPoint(path.time, path.bytes + base, path.peak, self.merged, path.exact)

    def _placed_path(self, search_graph: SearchGraph, path: Path) -> PlacedPlan:
        return self.place_plan(search_graph.decisions(path.transitions), path)

    def place_plan(self, decisions: Sequence[Decision] | None, path: Path | None) -> PlacedPlan:
        """Lower a plan and lay out its buffers."""
        lowered = lower_graph(self.graph, self.target, self.accuracy, decisions)
        layout = lay_out(lowered, self.threads, kept=() if self.streams else None)
        made = None if decisions is None else tuple(decisions)
        return PlacedPlan(self, made, lowered, layout.storage, layout.constant_bytes, path)
