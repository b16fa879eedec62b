"""Why a network is planned as it is: every candidate, the peak, the front, the error."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from leanconv.canonical import canonical_text
from leanconv.codegen.forms import extent_names, forms_of_skeleton, instance_of, split
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import lock
from leanconv.graph.ir import Node
from leanconv.graph.ops.pointwise import terms_of
from leanconv.graph.regions import region_of
from leanconv.graph.template import Template, Templates
from leanconv.operators import chains, convolution, operator_of
from leanconv.planner.budget import Planner
from leanconv.planner.decisions import Decision, node_key
from leanconv.planner.found_plans import Decided, RangePlan, range_graph
from leanconv.planner.graph_planner import GraphPlanner
from leanconv.planner.network_plan import NetworkPlan
from leanconv.planner.node_costs import NodeCost
from leanconv.planner.plan_file import buffer_document
from leanconv.planner.reasons import Reasons, arena_peak, closing_lines
from leanconv.records import dataclass
from leanconv.symbolic import Memo
from leanconv.target import Target
from leanconv.units import counted, format_bytes, format_ns, shape_text

_INEXACT = "the search was cut short: a faster plan may keep the limits, too"


def explain_network(plan: NetworkPlan, decided: Decided, front: bool = True) -> dict[str, Any]:
    """Say of every layer which candidates there were, and why all but one lost.

    Args:
        plan: of a network.
        decided: the plan's decisions.
        front: whether the plans for other limits are looked for, which takes a second or more.

    Returns:
        JSON: `layers` with their `candidates`, `arena` with the buffers and the peak, `front`,
        the requested limits, the record of `costs`, and the plan's bytes (`streamed_bytes` are read
        from a file in each run, which waits `waiting_ns` for them), time and error. Times
        are the estimates of what runs, 0 for a view; only the `front` and `counted_ns` count as
        the search does, where no choice is faster than that of a plan without limits.
    """
    return {
        "asked": {
            "inputs": {name: list(kind.shape) for name, kind in plan.inputs.items()},
            "threads": plan.threads,
            "memory_limit": plan.limit,
            "max_error": plan.max_error,
        },
        "costs": plan.target.costs.cpu,
        "predicted_ns": plan.predicted_ns,
        "counted_ns": plan.counted_ns,
        "predicted_error": plan.predicted_error,
        "memory_bytes": plan.memory_bytes,
        "weight_bytes": plan.weight_bytes,
        "arena_bytes": plan.arena_bytes,
        "streamed_bytes": plan.streamed_bytes,
        "waiting_ns": plan.waiting_ns,
        "merged_blocks": plan.merged,
        "exact": plan.exact,
        "late": plan.late_text,
        "dropped_channels": plan.graph.dropped,
        "arena": explain_arena(plan),
        "front": explain_front(plan, decided.budget) if front else [],
        "text": "\n".join(closing_lines(plan)),
        "layers": _layers(plan, decided.planner),
    }


def _layers(plan: NetworkPlan, planner: GraphPlanner) -> list[dict[str, Any]]:
    """The steps that run, and the views between them, in order."""
    nodes, moves = _node_layers(plan, planner), _moves(plan)
    layers: list[dict[str, Any]] = []
    for node, layer in zip(plan.graph.nodes, nodes, strict=True):
        layers += moves.pop(node.key, [])
        layers.append(layer)
    for left in moves.values():
        layers += left
    squares = 0.0
    for layer in layers:
        squares += layer["passed_error"] ** 2
        layer["error_so_far"] = math.sqrt(squares)
        layer["next_best"] = next_best(layer)
    return layers


def _node_layers(plan: NetworkPlan, planner: GraphPlanner) -> list[dict[str, Any]]:
    reasons, words = Reasons(plan, planner), _Names(plan)
    layers = []
    for number, (node, chosen) in enumerate(zip(plan.graph.nodes, plan.node_costs, strict=True)):
        others = _others(planner.search_graph.node_costs[number], chosen)
        facts = {**_facts(chosen, plan.shared_ns), **words.of(node, chosen)}
        candidates = [
            {
                **_facts(node_cost, plan.shared_ns),
                **words.of(node, node_cost),
                "chosen": False,
                "reason": reasons.of(number, node_cost, chosen),
            }
            for node_cost in others
        ]
        layers.append(
            {
                "name": node.name or node.key,
                "op": node.op,
                "output": node.key,
                "shape": list(plan.graph.types[node.key].shape),
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
    """The arena over time: each buffer's place and life, and the buffers of the peak."""
    time, alive = arena_peak(plan.storage.buffers)
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


def explain_front(plan: NetworkPlan, budget: Planner) -> list[dict[str, Any]]:
    """Time and bytes of plans at other limits, the smallest first."""
    share = plan.counted_ns / max(1, plan.alone_ns)
    return [
        {
            "bytes": point.bytes,
            "time_ns": round(point.time_ns * share),
            "arena_bytes": point.arena_bytes,
            "merged_blocks": point.merged,
            "exact": point.exact,
        }
        for point in budget.front()
    ]


def summary(plan: NetworkPlan, decided: Decided) -> str:
    """A line for each step, with the fastest choice that lost; then the parts of the memory."""
    layers = {layer["output"]: layer for layer in _node_layers(plan, decided.planner)}
    estimates = plan.step_estimates()
    lines = []
    for step, time_ns in zip(plan.steps, estimates, strict=True):
        layer = None if step.op == "Reorder" else layers.get(step.output)
        line = (
            f"{step.name}: {step.op} by {layer['words'] if layer else step.algorithm}, "
            f"{format_ns(time_ns)}, {step.flops / 1e6:.2f} MFLOP, "
            f"weights {format_bytes(step.weight_bytes)}, output {format_bytes(step.output_bytes)}"
        )
        if layer and layer["error"]:
            line += f", error {layer['error']:.1e}"
        beside = next_best(layer) if layer else ""
        lines.append(f"{line}; next best {beside}" if beside else line)
    lines += [f"predicted {format_ns(plan.predicted_ns)}, {counted(plan.threads, 'thread')}"]
    lines += [*closing_lines(plan), *_range_line(plan, decided.planner)]
    return "\n".join([*lines, *([] if plan.exact else [_INEXACT])])


def _range_line(plan: NetworkPlan, planner: GraphPlanner) -> list[str]:
    """For which sizes the plan was found, where it holds for more than these."""
    graph = None if plan.limit is not None else range_graph(planner, plan.decisions)
    if graph is None:
        return []
    sizes = ", ".join(f"{name} {shape_text(graph.types[name].shape)}" for name in graph.inputs)
    return [
        f"found for {sizes}, and for all sizes like it; net.specialise(shape) plans for one alone"
    ]


def next_best(layer: Mapping[str, Any]) -> str:
    """The fastest choice of a layer that lost, and why; empty where there is none.

    Args:
        layer: one of `explain_network`'s `layers`.
    """
    others = [candidate for candidate in layer["candidates"] if not candidate["chosen"]]
    best = min(others, key=lambda candidate: candidate["time_ns"], default=None)
    return f"{_apart(best, layer)}: {best['reason']}" if best else ""


def _apart(candidate: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """A candidate in words that differ from those of the chosen one."""
    words = str(candidate["words"])
    if words != chosen["words"]:
        return words
    if candidate["parameters"] != chosen["parameters"]:
        return f"{words} ({candidate['parameters']})"
    return f"{words} in other layouts"


def _facts(node_cost: NodeCost, shared_ns: Callable[[int], int]) -> dict[str, Any]:
    decision = node_cost.decision
    return {
        "algorithm": node_cost.algorithm,
        "way": str(decision.choice) or None,
        "reads": {name: str(form) for name, form in decision.reads.items()},
        "writes": str(decision.writes),
        "time_ns": shared_ns(node_cost.estimated_ns),
        "weight_bytes": node_cost.weight_bytes,
        "scratch_bytes": node_cost.scratch_bytes,
        "temporary_bytes": sum(node_cost.temporaries.values()),
        "error": node_cost.error,
        "passed_error": node_cost.passed_error,
    }


class _Names:
    """Choices of nodes as text for people, and as the user would select them."""

    def __init__(self, plan: NetworkPlan) -> None:
        self._plan = plan
        self._known: dict[object, str] = {}

    def of(self, node: Node, node_cost: NodeCost) -> dict[str, Any]:
        """The name, the parameters and the selector of one choice for a node.

        Returns:
            `words`: `"winograd F(4x4, 3x3)"`; `parameters`: what else was chosen; `selector`: the
            text that selects it for a convolution, as `algorithm=` takes it, None for others.
        """
        choice, algorithm = node_cost.decision.choice, node_cost.algorithm
        if node.op not in convolution.OPS:
            words = f"layer by layer ({algorithm})" if choice == chains.LAYERS else algorithm
            region = region_of(node)
            if region is not None:
                count = counted(node.attributes["count"], "iteration")
                words = f"{algorithm} of {count}, {counted(len(region.graph.nodes), 'node')} each"
            if node.op == "Expression":
                words = f"{algorithm} {', '.join(term.op for term in terms_of(node))}"
            shown = str(choice.parameters).replace("=", " ").replace(",", ", ")
            if algorithm == "direct":  # of codes
                shown = self._parameters(node, node_cost.decision)
                words = f"{algorithm} ({shown})" if shown else algorithm
            return {"words": words, "parameters": shown, "selector": None}
        parameters = self._parameters(node, node_cost.decision)
        form = re.match(r"F(\([^)]*\))|([\d.]+% of the weights are 0)", parameters)
        words = (
            algorithm if form is None else f"{algorithm} {form[0] if form[1] else f'({form[0]})'}"
        )
        return {"words": words, "parameters": parameters, "selector": str(choice) or None}

    def _parameters(self, node: Node, decision: Decision) -> str:
        plan = self._plan
        key = node_key(node, plan.graph, decision, plan.target), decision.choice
        if key not in self._known:
            context = decision.context(node, plan.graph, plan.target, plan.accuracy)
            made = convolution.CONVOLUTION.details(context, decision.choice)
            self._known[key] = "; ".join(dict.fromkeys(made))
        return self._known[key]


def _rejected(plan: NetworkPlan, node: Node, decision: Decision) -> dict[str, str]:
    context = decision.context(node, plan.graph, plan.target, plan.accuracy)
    return operator_of(node).rejections(context)


def _others(node_costs: Sequence[NodeCost], chosen: NodeCost) -> list[NodeCost]:
    """The choices that differ from the chosen one and from each other by more than their names."""
    found: dict[object, NodeCost] = {_case(chosen): chosen}
    for node_cost in sorted(node_costs, key=lambda cost: cost.estimated_ns):
        found.setdefault(_case(node_cost), node_cost)
    return list(found.values())[1:]


def _case(node_cost: NodeCost) -> str:
    """All that a report has of a choice, but for its name."""
    facts = _facts(node_cost, int)
    del facts["way"]
    return canonical_text(facts)


# -- what sizes of a network share, what they do not, and why ------------------------------------
@dataclass(frozen=True)
class Shared:
    """Something that is made once for all sizes that answer its guards alike.

    Attributes:
        level: `"graph"`, `"choice"`, `"search"`, `"layer"` or `"kernel"`.
        name: of what is shared.
        kept: how many were made, for sizes that answer in different ways; forms of kernels.
        served: how often one of them served a later size; of kernels, how many there are.
        guards: the number of questions about sizes while they were made.
        parted_by: the guards that some of them have and others have not, or answer otherwise.
        refusals: why others are made for each size by itself.
    """

    level: str
    name: str
    kept: int
    served: int
    guards: int
    parted_by: Sequence[str]
    refusals: Sequence[str]


def what_is_shared(
    templates: Iterable[Templates], kernels: Iterable[Kernel], target: Target
) -> list[Shared]:
    """List what the sizes that a network has met share.

    Args:
        templates: its graphs.
        kernels: of the plans for these sizes; those whose form is not known are emitted.
        target: the processor they are emitted for.
    """
    memos = [memo for each in templates for memo in each.memos]
    rows = [_row("graph", f"for open {', '.join(memo.names)}", memo, memo.names) for memo in memos]
    for memo in memos:
        for entry in memo.entries:
            assert isinstance(entry, Template)
            rows += _of_template(entry, memo.names)
    return [*rows, *_of_kernels(kernels, target)]


def _row(level: str, name: str, memo: Memo[Any], names: Sequence[str]) -> Shared:
    guards = [entry.numbers.texts(names) for entry in memo.entries]
    asked = sum(map(len, guards))
    return Shared(level, name, len(guards), memo.uses, asked, _parting(guards), memo.refusals)


def _parting(guards: Sequence[Sequence[str]]) -> list[str]:
    """The guards that some have and others have not, or answer otherwise."""
    texts = dict.fromkeys(guard for each in guards for guard in each)
    found = [guard for guard in texts if not all(guard in each for each in guards)]
    return list(dict.fromkeys(guard.removeprefix("not ") for guard in found))


def _of_template(template: Template, extents: Sequence[str]) -> Iterator[Shared]:
    """List the choices and lowered layers of graphs that were filled in from a template."""
    names = template.numbers.result_texts(extents)
    for key, held in template.memo.items():
        if isinstance(held, Memo):
            yield _row("choice", key if isinstance(key, str) else str(key[0]), held, names)
        elif isinstance(held, RangePlan):
            yield _of_search(held, extents)
        elif isinstance(held, dict):
            lowered = ((each, memo) for each, memo in held.items() if isinstance(memo, Memo))
            for (position, *_), memo in lowered:
                node = template.result.nodes[position]
                if memo.entries or memo.refusals:  # else only one size has come so far
                    yield _row("layer", f"{node.op} {node.name or node.key}", memo, names)


def _of_search(found: RangePlan, extents: Sequence[str]) -> Shared:
    """Describe a search that was made for the size that stands for a range."""
    size = ", ".join(
        f"{name} {extent}" for name, extent in zip(extents, found.extents, strict=True)
    )
    refusals = []
    if not found.decisions:
        refusals.append("each size is searched by itself: the network has no plan for this one")
    elif found.unserved:
        refusals.append(f"{counted(found.unserved, 'size')} searched alone: other guards or errors")
    return Shared("search", size, bool(found.decisions), found.served, 0, (), refusals)


def _of_kernels(kernels: Iterable[Kernel], target: Target) -> Iterator[Shared]:
    """A row for all kernels that differ in sizes alone, and one for a class that never shares."""
    alike: dict[tuple[str, Hashable], dict[Kernel, None]] = {}
    for kernel in kernels:
        key = type(kernel).__name__, split(kernel)[0] if kernel.VARIES else None
        alike.setdefault(key, {})[kernel] = None
    for (name, skeleton), found in alike.items():
        with lock:
            digests = {instance_of(kernel, target).digest for kernel in found}
        guards, refusals = list[Sequence[str]](), list[str]()
        if skeleton is None:
            refusals.append(f"{len(found)} have all numbers in their code")
        else:
            kernel = next(iter(found))
            forms = [f for f in forms_of_skeleton(kernel, target) if f.digest in digests]
            guards = [form.numbers.texts(extent_names(kernel)) for form in forms]
        asked = sum(map(len, guards))
        yield Shared("kernel", name, len(digests), len(found), asked, _parting(guards), refusals)
