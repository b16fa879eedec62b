"""The decisions that a search without limits has found, kept on disk for later processes.

A network that reorders some value is searched, which takes a second where there are many layers.
What is kept is untrusted: decisions that are not the network's are a miss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache, entries_in
from leanconv.codegen.keys import choice_key
from leanconv.errors import SpecError
from leanconv.graph.ir import Node
from leanconv.operators import operator_of
from leanconv.planner.decision import Decision
from leanconv.planner.graph_planner import GraphPlanner
from leanconv.planner.plan_file import graph_digest
from leanconv.spec import PLAIN, Format

_STORE_BYTES = 16 * 2**20

Found = tuple[Sequence[Decision] | None, bool]


def kept_or_found(planner: GraphPlanner, search: Callable[[], Found]) -> Found:
    """What `search` returns, from disk where an earlier process has kept it.

    Args:
        planner: of the network, without limits.
        search: decisions, one for each node, and whether they are proved to be the fastest.
    """
    key = _key(planner)
    kept = _recall(key, planner)
    if kept is not None:
        return kept
    decisions, exact = search()
    if decisions is not None:
        found = [_document(n, d) for n, d in zip(planner.graph.nodes, decisions, strict=True)]
        _store().put(key, json.dumps({"exact": exact, "decisions": found}).encode())
    return decisions, exact


def _key(planner: GraphPlanner) -> str:
    parts = (
        "plans",
        canonical_text(planner.accuracy),
        str(planner.threads),
        canonical_text(sorted(planner.graph.open_axes.items())),
        graph_digest(planner.graph),
    )
    return choice_key("\n".join(parts), planner.target)


def _store() -> DiskCache:
    return entries_in("plans", _STORE_BYTES)


def _document(node: Node, decision: Decision) -> list[Any]:
    reads = {str(node.inputs.index(name)): form.block for name, form in decision.reads.items()}
    return [reads, decision.writes.block, str(decision.choice)]


def _recall(key: str, planner: GraphPlanner) -> Found | None:
    """What was kept for this network, None where that is nothing, or is for another one."""
    body = _store().get(key)
    if body is None:
        return None
    try:
        kept = json.loads(body)
        pairs = zip(planner.graph.nodes, kept["decisions"], strict=True)
        decisions = [_decision(node, found) for node, found in pairs]
        planner.check([node.key for node in planner.graph.nodes], decisions)
        return decisions, kept["exact"] is True
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, SpecError):
        return None


def _decision(node: Node, found: list[Any]) -> Decision:
    reads, writes, choice = found
    formats = {node.inputs[int(index)]: _format(block) for index, block in reads.items()}
    return Decision(formats, _format(writes), operator_of(node).choice_named(choice))


def _format(block: object) -> Format:
    if not isinstance(block, int) or not 0 <= block <= 64:
        raise ValueError(f"a block is {block!r}, expected 0 to 64 channels")
    return Format(block) if block else PLAIN
