"""Decisions that override the cost model: algorithms that the user names, and tuned ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from leanconv.algorithms.parameters import AUTO
from leanconv.errors import SpecError
from leanconv.graph.convert import RULES
from leanconv.graph.file_graph import FileNode
from leanconv.graph.ir import Graph, Node
from leanconv.graph.network_inputs import meant
from leanconv.graph.regions import all_constants, regions_of
from leanconv.operators import Accuracy, convolution, operator_of
from leanconv.operators.weight_gradient import WEIGHT_GRADIENT
from leanconv.planner import tuner
from leanconv.planner.decisions import Decision
from leanconv.planner.formats import default_decisions, format_rules
from leanconv.progress import steps
from leanconv.spec import NHWC, PLAIN
from leanconv.target import Target

_OPS = frozenset(op for each in (*convolution.CONVOLUTIONS, WEIGHT_GRADIENT) for op in each.ops)


def check_layers(algorithms: Mapping[str, str], nodes: Sequence[FileNode]) -> None:
    """Refuse names that no node of a file has, before any shape is known.

    Raises:
        SpecError: there is no node of a name.
    """
    held = list(_with_held(nodes))
    layers = [node.name for node in held if RULES[node.op].products]
    known = {name for node in held for name in (node.name, *node.outputs)}
    _check_names(algorithms, known, layers)


def _with_held(nodes: Sequence[FileNode]) -> Iterator[FileNode]:
    for node in nodes:
        yield node
        for graph in node.graphs.values():
            yield from _with_held(graph.nodes)


def _check_names(
    algorithms: Mapping[str, str], known: Collection[str], layers: Sequence[str]
) -> None:
    unknown = [name for name in algorithms if name not in known]
    if unknown:
        raise SpecError(
            f"algorithms names {unknown[0]!r}, which is no convolution of the network; expected "
            f"some of {', '.join(layers[:8])}{', …' if len(layers) > 8 else ''}"
            f"{meant(unknown[0], layers)}"
        )


def with_algorithms(
    graph: Graph, target: Target, accuracy: Accuracy, algorithms: Mapping[str, str]
) -> tuple[Decision, ...]:
    """The default decisions, but for the convolutions that are named.

    Args:
        graph: after the passes, its blocks not fused.
        target, accuracy: of the plan.
        algorithms: by the name of the convolution's node in the file (its output's, if it has
            none): an algorithm as `plan_conv2d` takes it, `"winograd:m=4"`.

    Raises:
        SpecError: there is no convolution of a name.
    """
    names = [_name(node) for node in graph.nodes if node.op in _OPS]
    inside = {_name(node) for node in _inside(graph) if node.op in _OPS}
    held = next((name for name in algorithms if name in inside and name not in names), None)
    if held is not None:
        raise SpecError(
            f"algorithms names {held!r}, which is inside a loop that is one node; expected a "
            "convolution outside: the algorithms of a loop's body are chosen"
        )
    _check_names(algorithms, names, names)
    decisions = default_decisions(format_rules(graph, target, accuracy))
    return tuple(
        _named(decision, algorithms[_name(node)], node, graph, target, accuracy)
        if node.op in _OPS and _name(node) in algorithms
        else decision
        for node, decision in zip(graph.nodes, decisions, strict=True)
    )


def _named(
    decision: Decision, text: str, node: Node, graph: Graph, target: Target, accuracy: Accuracy
) -> Decision:
    """A decision with the choice of a text; without NHWC where that does not take it."""
    operator = operator_of(node)
    decision = replace(decision, choice=operator.choice_named(text))
    if NHWC not in (*decision.reads.values(), decision.writes):
        return decision
    try:
        operator.estimated(decision.context(node, graph, target, accuracy), decision.choice)
    except SpecError:
        plain = {name: PLAIN if form == NHWC else form for name, form in decision.reads.items()}
        writes = PLAIN if decision.writes == NHWC else decision.writes
        return replace(decision, reads=plain, writes=writes)
    return decision


def tuned(
    graph: Graph, target: Target, threads: int, accuracy: Accuracy, decisions: Sequence[Decision]
) -> tuple[Decision, ...]:
    """Decisions in which every convolution by itself is the fastest by measurement.

    Each is measured with its weights in the level of memory in which the rest of the network leaves
    them. Overrides stay, and the choices of fused blocks are left to the cost model.

    Raises:
        SpecError: the accuracy is reproducible, and no cache keeps what is measured.
    """
    weights = sum(array.nbytes for array in all_constants(graph))
    nodes, result = graph.nodes, list(decisions)
    left = [n for n, each in enumerate(result) if nodes[n].op == "Conv" and each.choice == AUTO]
    for number in steps("tuning layers", left, len(left)):
        node, decision = nodes[number], result[number]
        context = decision.context(node, graph, target, accuracy)
        (problem,) = convolution.problems(context)
        if accuracy.reproducible:
            found = tuner.tune_for_any_batch(problem, target, weights)
        else:
            found = tuner.tune(problem, target, threads, other_weight_bytes=weights)
        result[number] = replace(decision, choice=found.choice)
    return tuple(result)


def _inside(graph: Graph) -> Iterator[Node]:
    """The nodes of all graphs that nodes of a graph hold."""
    for region in regions_of(graph):
        yield from region.graph.nodes
        yield from _inside(region.graph)


def _name(node: Node) -> str:
    return node.name or node.key
