"""The cost model's choices for nodes whose decisions leave them open, cached on disk.

Choosing for a network takes tenths of a second, and depends on shapes only: nodes that are equal
but for their weights share a choice, and later processes read those of the whole network from disk.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.compiler import generator_hash
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.operators import Accuracy, operator_of
from leanconv.planner.decision import Decision, node_key
from leanconv.progress import steps
from leanconv.settings import current_settings
from leanconv.target import Target

_STORE_BYTES = 16 * 2**20


def resolved_choices(
    graph: Graph, target: Target, accuracy: Accuracy, decisions: Sequence[Decision]
) -> list[Decision]:
    """Decisions with the cost model's choices where there are several and none is made.

    Args:
        graph: the network.
        target, accuracy: of the plan.
        decisions: one for each node.
    """
    texts = {
        number: node_key(node, graph, decision)
        for number, (node, decision) in enumerate(zip(graph.nodes, decisions, strict=True))
        if decision.choice == AUTO and operator_of(node).algorithms
    }
    numbers = {text: number for number, text in reversed(texts.items())}
    nodes = [graph.nodes[number] for number in numbers.values()]
    key = _key(list(numbers), target, accuracy)
    choices = _recall(key, nodes) if nodes else []
    if choices is None:
        choices = [
            operator_of(graph.nodes[number]).default_choice(
                decisions[number].context(graph.nodes[number], graph, target, accuracy)
            )
            for number in steps("choosing algorithms", numbers.values(), len(numbers))
        ]
        _store().put(key, json.dumps([str(choice) for choice in choices]).encode())
    choice_of = dict(zip(numbers, choices, strict=True))
    return [
        replace(decision, choice=choice_of[texts[number]]) if number in texts else decision
        for number, decision in enumerate(decisions)
    ]


def _key(nodes: Sequence[str], target: Target, accuracy: Accuracy) -> str:
    text = "\n".join((generator_hash(), canonical_text(target), canonical_text(accuracy), *nodes))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@functools.cache
def _store() -> DiskCache:
    settings = current_settings()
    folder = settings.cache_dir / "choices" if settings.cache_bytes else None
    return DiskCache(folder, min(settings.cache_bytes, _STORE_BYTES), ".json")


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
