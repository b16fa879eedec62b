"""The cost model's choices for nodes whose decisions leave them open, cached on disk.

Choosing for a network takes tenths of a second, and depends on shapes and on whether weights are
too small to be transformed: nodes that are equal but for their weights share a choice otherwise,
and later processes read those of the whole network from disk.
Open extents are chosen for as their representatives.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache, entries_in
from leanconv.codegen.keys import choice_key
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.operators import Accuracy, operator_of
from leanconv.planner.decision import Decision, node_key
from leanconv.planner.representatives import representative_types
from leanconv.progress import steps
from leanconv.records import dataclass
from leanconv.symbolic import fixed
from leanconv.target import Target

_STORE_BYTES = 16 * 2**20
_MOST_KNOWN = 4096  # cases of one target and accuracy


def resolved_choices(
    graph: Graph, target: Target, accuracy: Accuracy, decisions: Sequence[Decision]
) -> list[Decision]:
    """Decisions with the cost model's choices where there are several and none is made.

    Args:
        graph: the network.
        target, accuracy: of the plan.
        decisions: one for each node.
    """
    cases = {
        number: _case(node, graph, decision)
        for number, (node, decision) in enumerate(zip(graph.nodes, decisions, strict=True))
        if decision.choice == AUTO and operator_of(node).algorithms
    }
    choice_of = _choices({case.key: case for case in cases.values()}, graph, target, accuracy)
    return [
        replace(decision, choice=choice_of[cases[number].key]) if number in cases else decision
        for number, decision in enumerate(decisions)
    ]


@dataclass(frozen=True)
class _Case:
    """A node to choose for, and the types of its values to choose for."""

    node: Node
    decision: Decision
    types: Mapping[str, TensorType]
    key: str


def _case(node: Node, graph: Graph, decision: Decision) -> _Case:
    node = fixed(node)  # pads that follow from open sizes: there are few of them
    types = representative_types(node, graph)
    return _Case(node, decision, types, node_key(node, graph, decision, types))


def _choices(
    cases: Mapping[str, _Case], graph: Graph, target: Target, accuracy: Accuracy
) -> Mapping[str, Choice]:
    """The choice of each case: this process's, else the disk's, else the model's."""
    known = _known(target, accuracy) if graph.open_axes else {}
    missing = {key: case for key, case in cases.items() if key not in known}
    if missing:
        key = _key(list(missing), target, accuracy)
        choices = _recall(key, [case.node for case in missing.values()])
        if choices is None:
            found = steps("choosing algorithms", missing.values(), len(missing))
            choices = [_modelled(case, graph, target, accuracy) for case in found]
            _store().put(key, json.dumps([str(choice) for choice in choices]).encode())
        if len(known) > _MOST_KNOWN:
            known.clear()
        known.update(zip(missing, choices, strict=True))
    return {key: known[key] for key in cases}


def _modelled(case: _Case, graph: Graph, target: Target, accuracy: Accuracy) -> Choice:
    """The cost model's choice."""
    sized = replace(graph, types={**graph.types, **case.types})
    context = case.decision.context(case.node, sized, target, accuracy)
    return operator_of(case.node).default_choice(context)


@functools.lru_cache(8)
def _known(target: Target, accuracy: Accuracy) -> dict[str, Choice]:
    """Choices of this process, by case, for shapes that networks of open extents still take."""
    del target, accuracy
    return {}


def _key(nodes: Sequence[str], target: Target, accuracy: Accuracy) -> str:
    return choice_key("\n".join(("choices", canonical_text(accuracy), *nodes)), target)


def _store() -> DiskCache:
    return entries_in("choices", _STORE_BYTES)


def _recall(key: str, nodes: Sequence[Node]) -> list[Choice] | None:
    """What was chosen for these nodes, None where that is not known."""
    body = _store().get(key)
    if body is None:
        return None
    try:
        found = json.loads(body)
        pairs = zip(nodes, found, strict=True)
        return [operator_of(node).choice_named(text) for node, text in pairs]
    except (ValueError, TypeError, AttributeError, RecursionError, SpecError):
        return None
