"""Which way is taken where a plan leaves it to the model: chosen once, and remembered.

Choosing for a network takes tenths of a second, and depends on shapes only: nodes that are equal
but for their weights share a choice, and later processes find those of the whole network on disk.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.compiler import generator_hash
from leanconv.graph.ir import Graph
from leanconv.operators import Accuracy, operator_of
from leanconv.planner.decision import Decision, node_key
from leanconv.progress import steps
from leanconv.settings import current_settings
from leanconv.target import Target

_STORE_BYTES = 16 * 2**20


def settled(
    graph: Graph, target: Target, accuracy: Accuracy, decisions: Sequence[Decision]
) -> list[Decision]:
    """Decisions with the model's ways filled in wherever there are several and none is named.

    Args:
        graph: the network.
        target, accuracy: of the plan.
        decisions: one for each node.
    """
    texts = {
        number: node_key(node, graph, decision)
        for number, (node, decision) in enumerate(zip(graph.nodes, decisions, strict=True))
        if decision.way is None and operator_of(node).has_choices
    }
    numbers = {text: number for number, text in reversed(texts.items())}
    key = _key(list(numbers), target, accuracy)
    ways = _recall(key, len(numbers)) if numbers else []
    if ways is None:
        ways = [
            operator_of(graph.nodes[number]).default_choice(
                decisions[number].context(graph.nodes[number], graph, target, accuracy)
            )
            for number in steps("choosing algorithms", numbers.values(), len(numbers))
        ]
        _store().put(key, json.dumps(ways).encode())
    way = dict(zip(numbers, ways, strict=True))
    return [
        replace(decision, way=way[texts[number]]) if number in texts else decision
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


def _recall(key: str, count: int) -> list[str | None] | None:
    body = _store().get(key)
    if body is None:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(way is None or isinstance(way, str) for way in found):
        return None
    return found if len(found) == count else None
