"""Why the choices for a node lost that were not taken."""

from __future__ import annotations

import math
from dataclasses import replace

from leanconv.errors import LeanConvError
from leanconv.graph.ir import Graph, Node
from leanconv.operators import operator_of
from leanconv.planner.decision import Decision
from leanconv.planner.found_plans import is_searched, range_graph
from leanconv.planner.network_plan import NetworkPlan
from leanconv.planner.node_costs import NodeCost
from leanconv.planner.representatives import representative_types
from leanconv.records import cached_property
from leanconv.units import format_bytes, format_ns, shape_text

NO_FASTER = "no faster"
_MOST_SWAPS = 40  # candidates for which a whole plan is placed, to find its bytes


class Reasons:
    """Why a plan with another choice for one node is worse.

    Args:
        plan: of a network.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        self._plan, self._planner, self._left = plan, plan.planner, _MOST_SWAPS
        self._decisions = [node_cost.decision for node_cost in plan.node_costs]

    def of(self, number: int, node_cost: NodeCost, chosen: NodeCost) -> str:
        """Why a choice for the node of a number lost against the chosen one."""
        if node_cost.estimated_ns >= chosen.estimated_ns:
            return _slower(node_cost.estimated_ns, chosen.estimated_ns, self._plan)
        error = self._over_the_error(node_cost, chosen)
        if error:
            return error
        if self._plan.limit is None:
            return self._kept_once(number, node_cost, chosen)
        return self._under_the_limit(number, node_cost, self._plan.limit)

    def _over_the_error(self, node_cost: NodeCost, chosen: NodeCost) -> str:
        """How much more the network would err than it may; empty if it would not."""
        plan, allowed = self._plan, self._planner.max_error
        others = max(0.0, plan.predicted_error**2 - chosen.passed_error**2)
        error = math.sqrt(others + node_cost.passed_error**2)
        if allowed is None or error <= allowed:
            return ""
        return f"the error would be {error:.2g}, over {allowed:.2g}"

    def _kept_once(self, number: int, node_cost: NodeCost, chosen: NodeCost) -> str:
        """Why a choice that is estimated to be faster lost where there is no limit."""
        sized = self._sized(number)
        if sized is None:
            return _uncounted(node_cost, chosen)
        node, graph, name = sized
        times = [self._estimated_ns(node, graph, c.decision) for c in (node_cost, chosen)]
        once = shape_text(graph.types[name].shape)
        if times[0] is None or times[1] is None:
            return f"estimated faster here, but chosen for inputs of {once} and all sizes like it"
        if times[0] < times[1]:
            return _uncounted(node_cost, chosen)
        there = _slower(times[0], times[1], self._plan)
        return (
            f"estimated faster here, but one choice holds for all sizes like {once}, and at {once} "
            f"it is {there}"
        )

    def _sized(self, number: int) -> tuple[Node, Graph, str] | None:
        """A node, the network at the size that its choice was made for, and what has this size.

        None where that is its own size.
        """
        planner = self._planner
        if is_searched(planner):
            graph = self._range_graph
            return None if graph is None else (graph.nodes[number], graph, graph.inputs[0])
        node = planner.graph.nodes[number]
        graph = _represented(node, planner.graph)
        return None if graph is None else (node, graph, node.inputs[0])

    @cached_property
    def _range_graph(self) -> Graph | None:
        return range_graph(self._planner, self._plan.decisions)

    def _estimated_ns(self, node: Node, graph: Graph, decision: Decision) -> int | None:
        """The estimate of a choice in a graph of other sizes; None where it cannot be made."""
        planner = self._planner
        context = decision.context(node, graph, planner.target, planner.accuracy)
        operator = operator_of(node)
        known = {str(choice): choice for choice in operator.choices(context)}
        try:
            named = known.get(str(decision.choice))
            found = named or operator.estimated(context, decision.choice)
        except LeanConvError:
            return None
        return planner.target.costs.ns(found.cycles)

    def _under_the_limit(self, number: int, node_cost: NodeCost, limit: int) -> str:
        """What the plan of another choice would need more than the limit allows."""
        plan = self._plan
        if not self._left:
            return "faster, but the limit is better spent on other layers"
        self._left -= 1
        decisions = [*self._decisions]
        decisions[number] = node_cost.decision
        over = plan.planner.place_plan(decisions, None).memory_bytes - limit
        if over > 0:
            return f"the plan would need {format_bytes(over)} more than the limit"
        return _uncounted(node_cost, plan.node_costs[number])


def _uncounted(node_cost: NodeCost, chosen: NodeCost) -> str:
    """Why nothing is gained by a choice that is estimated to be faster and keeps the limits."""
    if node_cost.time_ns < chosen.time_ns:
        return "faster by itself, but its layouts cost the layers beside it more"
    if _formats(node_cost) != _formats(chosen):
        return "not compared by time: it needs layout changes before or after"
    return "not compared by time: it is there for limits of bytes or error only"


def _formats(node_cost: NodeCost) -> tuple[object, ...]:
    return node_cost.decision.writes, *sorted(node_cost.decision.reads.items())


def _represented(node: Node, graph: Graph) -> Graph | None:
    """The graph with what stands for a node's open extents; None where it has none.

    For them algorithms are chosen, where there are several (`planner.choice_cache`).
    """
    if not operator_of(node).algorithms:
        return None
    types = representative_types(node, graph)
    own = {name: graph.types[name] for name in types}
    return None if types == own else replace(graph, types={**graph.types, **types})


def _slower(time_ns: int, chosen_ns: int, plan: NetworkPlan) -> str:
    if time_ns == chosen_ns:
        return NO_FASTER
    times = [format_ns(plan.shared_ns(each)) for each in (time_ns, chosen_ns)]
    if times[0] == times[1]:
        return f"slower by {(time_ns / chosen_ns - 1):.1%}"
    return f"slower, {times[0]} against {times[1]}"
