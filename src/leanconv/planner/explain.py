"""Why a network is planned as it is: every candidate, the peak, the front, the error."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from leanconv.algorithms import select
from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.canonical import canonical_text
from leanconv.graph.ir import Node
from leanconv.operators import conv_chain, convolution, operator_of
from leanconv.operators.accuracy import NETWORK_ERROR
from leanconv.planner.arena import Lifetime, PlacedBuffers
from leanconv.planner.decision import Decision, node_key
from leanconv.planner.network_plan import NetworkPlan
from leanconv.planner.node_costs import NodeCost, shared_ns
from leanconv.planner.plan_file import buffer_document
from leanconv.planner.reasons import Reasons
from leanconv.units import format_bytes

_INEXACT = "the search was cut short: a faster plan may keep the limits, too"


def explain_network(plan: NetworkPlan, front: bool = True) -> dict[str, Any]:
    """Say of every layer which candidates there were, and why all but one lost.

    Args:
        plan: of a network.
        front: whether the plans for other limits are looked for, which takes a second or more.

    Returns:
        JSON: `layers` with their `candidates`, `arena` with the buffers and the peak, `front`,
        the requested limits, the record of `costs`, and the plan's bytes, time and error. Times
        are the estimates of what runs, 0 for a view; only the `front` and `counted_ns` count as
        the search does, where no choice is faster than that of a plan without limits.
    """
    planner = plan.planner
    return {
        "asked": {
            "inputs": {name: list(kind.shape) for name, kind in plan.inputs.items()},
            "threads": plan.threads,
            "memory_limit": plan.limit,
            "max_error": planner.max_error,
        },
        "costs": planner.target.costs.cpu,
        "predicted_ns": plan.predicted_ns,
        "counted_ns": plan.counted_ns,
        "predicted_error": plan.predicted_error,
        "memory_bytes": plan.memory_bytes,
        "weight_bytes": plan.weight_bytes,
        "arena_bytes": plan.arena_bytes,
        "merged_blocks": planner.merged,
        "exact": plan.exact,
        "arena": explain_arena(plan),
        "front": explain_front(plan) if front else [],
        "text": "\n".join(_closing_lines(plan)),
        "layers": _layers(plan),
    }


def _layers(plan: NetworkPlan) -> list[dict[str, Any]]:
    """The steps that run, and the views between them, in order."""
    nodes, moves = _node_layers(plan), _moves(plan)
    layers: list[dict[str, Any]] = []
    for node, layer in zip(plan.planner.graph.nodes, nodes, strict=True):
        layers += moves.pop(node.outputs[0], [])
        layers.append(layer)
    for left in moves.values():
        layers += left
    squares = 0.0
    for layer in layers:
        squares += layer["passed_error"] ** 2
        layer["error_so_far"] = math.sqrt(squares)
    return layers


def _node_layers(plan: NetworkPlan) -> list[dict[str, Any]]:
    """Each node of the graph with its candidates."""
    planner = plan.planner
    reasons, words = Reasons(plan), _Names(plan)
    layers = []
    for number, (node, chosen) in enumerate(zip(planner.graph.nodes, plan.node_costs, strict=True)):
        others = _others(planner.search_graph.node_costs[number], chosen)
        facts = {**_facts(chosen, plan.threads), **words.of(node, chosen)}
        candidates = [
            {
                **_facts(node_cost, plan.threads),
                **words.of(node, node_cost),
                "chosen": False,
                "reason": reasons.of(number, node_cost, chosen),
            }
            for node_cost in others
        ]
        layers.append(
            {
                "name": node.name or node.outputs[0],
                "op": node.op,
                "output": node.outputs[0],
                "shape": list(planner.graph.types[node.outputs[0]].shape),
                **facts,
                "candidates": [{**facts, "chosen": True, "reason": ""}, *candidates],
                "rejected": _rejected(plan, node, chosen.decision),
            }
        )
    return layers


def _moves(plan: NetworkPlan) -> dict[str, list[dict[str, Any]]]:
    """The reorders between layouts as layers, by the output of the node that runs after them."""
    found: dict[str, list[dict[str, Any]]] = {}
    waiting: list[dict[str, Any]] = []
    for step, estimated_ns in zip(plan.steps, plan.step_estimates(), strict=True):
        if step.op != "Reorder":
            found[step.output], waiting = waiting, []
            continue
        facts: dict[str, Any] = {
            "algorithm": step.algorithm,
            "way": None,
            "reads": {},
            "writes": step.algorithm.rpartition(" ")[2],
            "time_ns": estimated_ns,
            "weight_bytes": step.weight_bytes,
            "scratch_bytes": 0,
            "temporary_bytes": 0,
            "error": 0.0,
            "passed_error": 0.0,
            "words": step.algorithm,
            "parameters": "",
            "selector": None,
        }
        only = {**facts, "chosen": True, "reason": ""}
        named = {"name": step.name, "op": step.op, "output": step.output, "shape": []}
        waiting.append({**named, **facts, "candidates": [only], "rejected": {}})
    found[""] = waiting
    return found


def explain_arena(plan: NetworkPlan) -> dict[str, Any]:
    """The arena over time: each buffer's place and life, and what makes the peak."""
    time, alive = _peak(plan.storage.buffers)
    return {
        "bytes": plan.arena_bytes,
        "calls": [step.name for step in plan.steps for _ in step.kernels],
        "buffers": [buffer_document(buffer, offset) for buffer, offset in plan.storage.buffers],
        "peak": {
            "call": time,
            "bytes": sum(buffer.bytes for buffer in alive),
            "buffers": [buffer.name for buffer in alive],
        },
    }


def explain_front(plan: NetworkPlan) -> list[dict[str, Any]]:
    """Time and bytes of plans at other limits, the smallest first."""
    return [
        {
            "bytes": point.bytes,
            "time_ns": shared_ns(point.time_ns, plan.threads),
            "arena_bytes": point.arena_bytes,
            "merged_blocks": point.merged,
            "exact": point.exact,
        }
        for point in plan.budget.front()
    ]


def summary(plan: NetworkPlan) -> str:
    """A line for each step, and what makes the memory."""
    lines = [
        f"{step.name}: {step.op} by {step.algorithm}, {step.flops / 1e6:.2f} MFLOP, "
        f"weights {format_bytes(step.weight_bytes)}, output {format_bytes(step.output_bytes)}"
        for step in plan.steps
    ]
    lines += _closing_lines(plan)
    return "\n".join([*lines, *([] if plan.exact else [_INEXACT])])


def _closing_lines(plan: NetworkPlan) -> tuple[str, ...]:
    lines = memory_text(plan), plan.planner.target.costs_text, magnitudes_text(plan)
    return (*filter(None, lines), error_text(plan))


def magnitudes_text(plan: NetworkPlan) -> str:
    """Where the errors of the layers that are convolutions by themselves hold; "" without such."""
    planner = plan.planner
    found = [
        convolution.CONVOLUTION.magnitudes(
            chosen.decision.context(node, planner.graph, planner.target, planner.accuracy),
            chosen.decision.choice,
        )
        for node, chosen in zip(planner.graph.nodes, plan.node_costs, strict=True)
        if node.op in convolution.OPS
    ]
    if not found:
        return ""
    all_of = Magnitudes.of_all(found)
    return (
        f"a layer's error is stated where its largest result is at least {all_of.least_result:.1e} "
        f"and no input exceeds {all_of.most_input:.1e}, with weights of size 1 at most; over the "
        "sum of a result's absolute weights where that is above 1"
    )


def memory_text(plan: NetworkPlan) -> str:
    """What a plan's memory consists of, and where its peak is."""
    time, alive = _peak(plan.storage.buffers)
    calls = [step.name for step in plan.steps for _ in step.kernels]
    lines = [
        f"memory {plan.memory_bytes} bytes ({format_bytes(plan.memory_bytes)}): weights "
        f"{plan.weight_bytes}, arena {plan.arena_bytes} (largest live set {plan.live_bytes}, "
        f"scratch {plan.scratch_bytes})"
    ]
    if alive:
        largest = sorted(alive, key=lambda buffer: -buffer.bytes)
        shown = ", ".join(f"{b.name} {format_bytes(b.bytes)}" for b in largest[:4])
        lines.append(f"the arena's peak is at {calls[time]}: {shown}")
    return "\n".join(lines)


def error_text(plan: NetworkPlan) -> str:
    """The error that a plan states and, where that is more than is aimed at, why."""
    planner, stated = plan.planner, plan.predicted_error
    if plan.measured_error is not None:
        return f"error measured on samples {stated:.3g}: for other data it is an estimate"
    text = f"expected error {stated:.1e}"
    aim = NETWORK_ERROR[next((kind.dtype for kind in plan.inputs.values()), "float32")]
    if planner.max_error is not None or stated <= aim:
        return (
            f"{text}, an estimate: it takes a layer's error to grow up to 5 times on its way to "
            "the outputs"
        )
    share = planner.accuracy.layer_error
    pairs = zip(planner.graph.nodes, plan.node_costs, strict=True)
    layers = sorted(
        ((cost, node.name or node.outputs[0]) for node, cost in pairs if cost.error),
        key=lambda layer: -layer[0].passed_error,
    )
    most = ", ".join(f"{name} {cost.passed_error:.1e}" for cost, name in layers[:3])
    return (
        f"{text}, more than the {aim:.0e} aimed at: the errors of {len(layers)} layers add up like "
        f"independent ones, each at most {share:.1e} or that of plain sums, and grow on their way "
        f"to the outputs (the most: {most}); max_error={aim:.0e} asks for a plan that keeps it, or "
        "for the least that can be kept"
    )


def _peak(placed: PlacedBuffers) -> tuple[int, list[Lifetime]]:
    """The first call with the most bytes alive, and the buffers alive then."""
    buffers = [buffer for buffer, _ in placed]
    most, best, alive = -1, 0, []
    for time in sorted({buffer.first for buffer in buffers}):
        now = [buffer for buffer in buffers if buffer.first <= time <= buffer.last]
        total = sum(buffer.bytes for buffer in now)
        if total > most:
            most, best, alive = total, time, now
    return best, alive


def _facts(node_cost: NodeCost, threads: int) -> dict[str, Any]:
    decision = node_cost.decision
    return {
        "algorithm": node_cost.algorithm,
        "way": str(decision.choice) or None,
        "reads": {name: str(form) for name, form in decision.reads.items()},
        "writes": str(decision.writes),
        "time_ns": shared_ns(node_cost.estimated_ns, threads),
        "weight_bytes": node_cost.weight_bytes,
        "scratch_bytes": node_cost.scratch_bytes,
        "temporary_bytes": sum(node_cost.temporaries.values()),
        "error": node_cost.error,
        "passed_error": node_cost.passed_error,
    }


class _Names:
    """Choices of nodes as text for people, and as the user would select them."""

    def __init__(self, plan: NetworkPlan) -> None:
        self._planner = plan.planner
        self._known: dict[object, str] = {}

    def of(self, node: Node, node_cost: NodeCost) -> dict[str, Any]:
        """The name, the parameters and the selector of one choice for a node.

        Returns:
            `words`: `"winograd F(4x4, 3x3)"`; `parameters`: what else was chosen; `selector`: the
            text that selects it for a convolution, as `algorithm=` takes it, None for others.
        """
        choice, algorithm = node_cost.decision.choice, node_cost.algorithm
        if node.op not in convolution.OPS:
            words = f"layer by layer ({algorithm})" if choice == conv_chain.LAYERS else algorithm
            shown = str(choice.parameters).replace("=", " ").replace(",", ", ")
            return {"words": words, "parameters": shown, "selector": None}
        parameters = self._parameters(node, node_cost.decision)
        form = re.match(r"F\([^)]*\)", parameters)
        words = f"{algorithm} {form[0]}" if form else algorithm
        return {"words": words, "parameters": parameters, "selector": str(choice) or None}

    def _parameters(self, node: Node, decision: Decision) -> str:
        planner = self._planner
        key = node_key(node, planner.graph, decision), decision.choice
        if key not in self._known:
            accuracy = planner.accuracy
            context = decision.context(node, planner.graph, planner.target, accuracy)
            made = [
                select.choose(
                    problem, planner.target, decision.choice, accuracy.reproducible
                ).details
                for problem, _ in convolution.problems(context, decision.choice)
            ]
            self._known[key] = "; ".join(dict.fromkeys(made))
        return self._known[key]


def _rejected(plan: NetworkPlan, node: Node, decision: Decision) -> dict[str, str]:
    """Algorithms that cannot compute a node, with their reasons."""
    planner = plan.planner
    context = decision.context(node, planner.graph, planner.target, planner.accuracy)
    return operator_of(node).rejections(context)


def _others(node_costs: Sequence[NodeCost], chosen: NodeCost) -> list[NodeCost]:
    """The choices that differ from the chosen one and from each other by more than their names."""
    found: dict[object, NodeCost] = {_case(chosen): chosen}
    for node_cost in sorted(node_costs, key=lambda cost: cost.estimated_ns):
        found.setdefault(_case(node_cost), node_cost)
    return list(found.values())[1:]


def _case(node_cost: NodeCost) -> str:
    """All that a choice says of itself, but for its name."""
    facts = _facts(node_cost, 1)
    del facts["way"]
    return canonical_text(facts)
