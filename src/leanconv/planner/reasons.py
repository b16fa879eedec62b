"""A plan's memory, costs, magnitudes and error as text, and why a choice lost."""

from __future__ import annotations

import math

from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.errors import LeanConvError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.zeros import LEAST, zeros_of
from leanconv.operators import convolution, operator_of
from leanconv.operators.operator import network_error
from leanconv.planner.arena import Lifetime, PlacedBuffers
from leanconv.planner.decisions import Decision, representative_types
from leanconv.planner.found_plans import is_searched, range_graph
from leanconv.planner.graph_planner import GraphPlanner
from leanconv.planner.network_plan import NetworkPlan
from leanconv.planner.node_costs import NodeCost
from leanconv.records import cached_property, replace
from leanconv.units import counted, format_bytes, format_ns, shape_text

NO_FASTER = "no faster"
_MOST_SWAPS = 40  # candidates for which a whole plan is placed, to find its bytes


class Reasons:
    """Why a plan with another choice for one node is worse.

    Args:
        plan: of a network.
        planner: that made it.
    """

    def __init__(self, plan: NetworkPlan, planner: GraphPlanner) -> None:
        self._plan, self._planner, self._left = plan, planner, _MOST_SWAPS
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
        """Say by how much a choice would exceed the network's error; "" if it would not."""
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
        """Say why a faster choice was not taken: bytes that its plan needs over the limit."""
        plan = self._plan
        if not self._left:
            return "faster, but the limit is better spent on other layers"
        self._left -= 1
        decisions = [*self._decisions]
        decisions[number] = node_cost.decision
        over = self._planner.place_plan(decisions, None).memory_bytes - limit
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
    """The graph with the usual sizes for a node's open extents; None where it has none.

    For them algorithms are chosen, where there are several (`planner.decisions`).
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


# -- of the plan as a whole ----------------------------------------------------------------------
def closing_lines(plan: NetworkPlan) -> tuple[str, ...]:
    """Memory, costs, magnitudes and error of a plan, in lines."""
    lines = (
        memory_text(plan),
        _storage_text(plan),
        _dropped_text(plan),
        _zeros_text(plan),
        plan.target.costs_text,
        magnitudes_text(plan),
    )
    return (*filter(None, lines), error_text(plan), *filter(None, [plan.late_text]))


def _storage_text(plan: NetworkPlan) -> str:
    """In which type values are stored; "" for float32 without a choice."""
    asked = plan.accuracy.half
    if plan.precision:
        return f"weights and values of float32 are stored in {plan.precision}"
    if asked is None:
        return ""
    return (
        f"weights and values stay in float32, which is faster here by estimate; products may be of "
        f"numbers rounded to {asked}"
    )


def _dropped_text(plan: NetworkPlan) -> str:
    """How many channels are left out; "" for none."""
    count = plan.graph.dropped
    why = "of zeros, whose results are numbers, or that nothing reads"
    return f"{counted(count, 'filter')} of convolutions left out: {why}" if count else ""


def _zeros_text(plan: NetworkPlan) -> str:
    """How many weights of 0 are left out, and how many layers multiply theirs; "" without any."""
    left, weights, layers, dense = 0, 0, 0, 0
    for node, chosen in zip(plan.graph.nodes, plan.node_costs, strict=True):
        sparse = chosen.decision.choice.algorithm == "sparse"
        arrays = (plan.graph.constants.get(n) for n in operator_of(node).packed_inputs(node))
        for w in (each for each in arrays if each is not None and each.ndim > 2):
            zeros = zeros_of(w)
            if zeros is not None and sparse:
                layers, left, weights = layers + 1, left + w.size - zeros.nonzeros, weights + w.size
            dense += zeros is not None and not sparse
    found = []
    if layers:
        verb = "leaves" if layers == 1 else "leave"
        found.append(
            f"{counted(layers, 'convolution')} {verb} out the weights that are 0: {left} of "
            f"{weights} ({left / weights:.1%})"
        )
    if dense:
        named = f"{dense} more" if layers else counted(dense, "convolution")
        verb = "multiplies" if dense == 1 else "multiply"
        found.append(f"{named} with at least {LEAST:.0%} zeros {verb} them")
    return "; ".join(found)


def magnitudes_text(plan: NetworkPlan) -> str:
    """Say for which magnitudes the errors of convolutions hold; "" without convolutions."""
    found = [
        convolution.CONVOLUTION.magnitudes(
            chosen.decision.context(node, plan.graph, plan.target, plan.accuracy),
            chosen.decision.choice,
        )
        for node, chosen in zip(plan.graph.nodes, plan.node_costs, strict=True)
        if node.op in convolution.OPS
    ]
    if not found:
        return ""
    all_of = Magnitudes.of_all(found)
    return (
        f"the layers' errors hold for largest results of at least {all_of.least_result:.1e} and "
        f"inputs of at most {all_of.most_input:.1e} (docs/algorithms.md, Magnitudes)"
    )


def memory_text(plan: NetworkPlan) -> str:
    """Say what a plan's memory consists of, and where its peak is."""
    time, alive = arena_peak(plan.storage.buffers)
    calls = [step.name for step in plan.steps for _ in step.kernels]
    lines = [
        f"memory {counted(plan.memory_bytes, 'byte')} ({format_bytes(plan.memory_bytes)}): weights "
        f"{counted(plan.weight_bytes, 'byte')}, buffers between layers "
        f"{counted(plan.arena_bytes, 'byte')} (at most {counted(plan.live_bytes, 'byte')} in use "
        f"at once, {counted(plan.scratch_bytes, 'byte')} of scratch)"
        + (
            f", arrays behind them at {'most' if plan.late_bounded else 'least'} "
            f"{counted(plan.late_bytes, 'byte')}" * bool(plan.late_bytes)
        )
        + f", compiled in runs {counted(plan.segment_bytes, 'byte')}" * bool(plan.segment_bytes)
    ]
    if plan.readings:
        lines.append(_streaming_text(plan))
    if alive:
        largest = sorted(alive, key=lambda buffer: -buffer.bytes)
        shown = ", ".join(f"{b.name} {format_bytes(b.bytes)}" for b in largest[:4])
        lines.append(f"most of these buffers are in use at {calls[time]}: {shown}")
    return "\n".join(lines)


def _streaming_text(plan: NetworkPlan) -> str:
    size, largest = plan.streamed_bytes, max(reading.bytes for reading in plan.readings)
    rate = plan.bytes_a_ns  # GB/s
    return (
        f"each run reads {counted(size, 'byte')} ({format_bytes(size)}) of weights from a file, "
        f"{counted(len(plan.readings), 'piece')} of at most {format_bytes(largest)}, each while "
        f"the one before is used; at {rate:.1f} GB/s, measured when the plan was made (the file "
        f"was in the page cache), it waits {format_ns(plan.waiting_ns)} for them; reading them "
        f"from a disk of 1 GB/s takes {format_ns(size)}"
    )


def error_text(plan: NetworkPlan) -> str:
    """The error that a plan states and, where that is more than is aimed at, why."""
    stated = plan.predicted_error
    if plan.measured_error is not None:
        return f"error measured on samples {stated:.3g}: for other data it is an estimate"
    if not stated:
        return (
            "no error is stated: none of what is compiled is a convolution, or a product with "
            "weights, in floats; what other operations round is not counted"
        )
    text = f"expected error {stated:.1e}" + " of what is compiled" * bool(plan.late_text)
    aim = network_error(plan.dtype)
    if plan.max_error is not None or stated <= aim:
        return (
            f"{text}, an estimate: it takes a layer's error to grow up to 5 times on its way to "
            "the outputs"
        )
    share = plan.accuracy.layer_error
    pairs = zip(plan.graph.nodes, plan.node_costs, strict=True)
    layers = sorted(
        ((cost, node.name or node.key) for node, cost in pairs if cost.error),
        key=lambda layer: -layer[0].passed_error,
    )
    most = ", ".join(f"{name} {cost.passed_error:.1e}" for cost, name in layers[:3])
    return (
        f"{text}, more than the {aim:.0e} aimed at: the errors of {len(layers)} layers add up like "
        f"independent ones, each at most {share:.1e} or that of plain sums, and grow on their way "
        f"to the outputs (the most: {most}); max_error={aim:.0e} asks for a plan that keeps it, or "
        "for the least that can be kept"
    )


def arena_peak(placed: PlacedBuffers) -> tuple[int, list[Lifetime]]:
    """The first call with the most bytes alive, and the buffers alive then."""
    buffers = [buffer for buffer, _ in placed]
    most, best, alive = -1, 0, []
    for time in sorted({buffer.first for buffer in buffers}):
        now = [buffer for buffer in buffers if buffer.first <= time <= buffer.last]
        total = sum(buffer.bytes for buffer in now)
        if total > most:
            most, best, alive = total, time, now
    return best, alive
