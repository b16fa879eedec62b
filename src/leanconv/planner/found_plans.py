"""Decisions for a network: given by the user, chosen, or found by a search and kept.

A network that reorders some value is searched, and so is one that aims at an error: that takes a
second where there are many layers. Where sizes are open, the search is made for a size that stands
for a range (`decisions.usual_graph`): what is found serves the whole range, so that plans do
not depend on the sizes before them. What is kept on disk is untrusted: decisions that are not the
network's, or err by more than is allowed, are a miss.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache, entries_in
from leanconv.codegen.keys import choice_key
from leanconv.errors import BudgetError, SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.passes.fuse_blocks import fuse_all_blocks, fuse_blocks
from leanconv.operators import Accuracy, operator_of
from leanconv.planner.budget import Planner
from leanconv.planner.decisions import (
    Decision,
    fitting_pairs,
    resolved_choices,
    usual_extents,
    usual_graph,
)
from leanconv.planner.graph_planner import GraphPlanner
from leanconv.planner.lowering import usual_choices, usual_decisions
from leanconv.planner.plan_file import PlanFile, graph_digest
from leanconv.records import dataclass
from leanconv.spec import Format
from leanconv.target import Target

_STORE_BYTES = 16 * 2**20

Found = tuple[Sequence[Decision], bool]


@dataclass(frozen=True, eq=False)
class Decided:
    """The decisions for a network, and the planner that they are for.

    Attributes:
        budget: finds the plans for other limits.
        planner: of the graph that is computed, whose first blocks may be merged.
        decisions: of each of its nodes.
        exact: whether it is proved that no plan within the limits is predicted to be faster.
    """

    budget: Planner
    planner: GraphPlanner
    decisions: Sequence[Decision]
    exact: bool


def decide(
    graph: Graph,
    budget: Planner,
    memory_limit: int | None = None,
    pinned: PlanFile | None = None,
    decisions: Sequence[Decision] | None = None,
) -> Decided:
    """Find how a network is computed: see `compiled_network`.

    Raises:
        BudgetError: no plan keeps the limits.
        SpecError: the pinned plan names nodes, formats or choices that do not exist here.
    """
    planner, exact = budget.unmerged, True
    if pinned is not None:
        decisions, planner = pinned.decisions, budget.merging(pinned.merged_blocks)
        planner.check([node.output for node in pinned.nodes], decisions)
    elif decisions is None and memory_limit is not None:
        free = plan_within(budget, memory_limit)
        if free is not None:
            decisions, exact = free
        else:
            found = budget.within(memory_limit)
            decisions, planner = found.decisions, found.planner
            exact = found.path is None or found.path.exact
    elif decisions is None and is_searched(planner):
        decisions, exact = found_plan(budget)
    if decisions is None:
        merged, target = planner.merge(graph), planner.target
        if merged.open_axes:  # else the plan finds the same choices again
            decisions = usual_choices(merged, target, planner.accuracy)
        else:
            decisions = usual_decisions(merged, target, planner.accuracy)
    return Decided(budget, planner, decisions, exact)


def found_plan(budget: Planner) -> Found:
    """The decisions of the fastest plan, one for each node, and whether none can be faster.

    Args:
        budget: plans of the network.

    Raises:
        BudgetError: no plan keeps the error.
    """
    planner = budget.unmerged
    origin = planner.graph.origin
    if origin is not None and not (planner.growths or planner.streams):
        key = _memo_key(planner)
        if key not in origin.memo:
            origin.memo[key] = _of_range(planner)
        found: RangePlan = origin.memo[key]
        if found.decisions and _serves(planner, found):
            found.served += 1
            return found.decisions, found.exact
        found.unserved += 1
    return _kept_or_searched(budget)


def sparse_blocks(graph: Graph, target: Target) -> frozenset[str]:
    """The blocks, by their results, that a plan computes with some weights of 0 left out.

    Where those between them are fused, layouts change, and zeros of a block may be multiplied then:
    its neighbours stay as they are, too. It is fused where that does not help.

    Args:
        graph: in which no block with many zeros is one operation.
        target: of the plan; its threads and limits are none, so that they decide on no bits.
    """
    apart = _still_skipping(graph, target)
    # Few zeros: one pass may be faster still.
    few = apart & {node.key for node in fuse_blocks(graph).nodes if node.op == "ConvChain"}
    if not few or _planned_ns(graph, apart, target) < _planned_ns(graph, apart - few, target):
        return apart
    return apart - few


def _planned_ns(graph: Graph, apart: frozenset[str], target: Target) -> int:
    """Estimated time of a run with all blocks fused but for some."""
    fused = fuse_all_blocks(graph, apart)
    budget = Planner(fused, target, 1, Accuracy().of_network(fused, target))
    return sum(budget.within(None).step_estimates())


def _still_skipping(graph: Graph, target: Target) -> frozenset[str]:
    """The blocks in which zeros are left out, also where others are fused."""
    whole = fuse_all_blocks(graph)
    skipping = _skipping(graph, whole, target)
    lost = skipping - _skipping(fuse_all_blocks(graph, skipping), whole, target)
    if not lost:
        return skipping
    beside = {name for node in whole.nodes if node.key in lost for name in node.inputs}
    beside |= {node.key for node in whole.nodes if lost & {*node.inputs}}
    more = skipping | (beside & {node.key for node in whole.nodes if node.op == "ConvChain"})
    if skipping <= _skipping(fuse_all_blocks(graph, more), whole, target):
        return more
    return skipping - lost


def _skipping(graph: Graph, whole: Graph, target: Target) -> frozenset[str]:
    """The chains of `whole` of which some convolution of `graph` is planned without zeros."""
    accuracy = Accuracy().of_network(graph, target)
    budget = Planner(graph, target, 1, accuracy)
    planner = budget.unmerged
    searched = is_searched(planner)
    decisions = _kept_or_searched(budget)[0] if searched else planner.defaults
    resolved = resolved_choices(planner.graph, target, accuracy, decisions)
    pairs = zip(graph.nodes, resolved, strict=True)
    sparse = {node.key for node, each in pairs if each.choice.algorithm == "sparse"}
    before = {node.key: node.inputs[0] for node in graph.nodes if node.inputs}
    kept, found = {node.key for node in whole.nodes}, set[str]()
    for chain in (node.key for node in whole.nodes if node.op == "ConvChain"):
        inside, at = [chain], before[chain]
        while at in before and at not in kept:
            inside.append(at)
            at = before[at]
        if not sparse.isdisjoint(inside):
            found.add(chain)
    return frozenset(found)


def is_searched(planner: GraphPlanner) -> bool:
    """Return whether the plan of a network without a limit of bytes is found by a search."""
    return planner.max_error is not None or not planner.needs_no_reorder


def plan_within(budget: Planner, memory_limit: int) -> Found | None:
    """`found_plan` of a network of open sizes where it takes no more bytes than a limit."""
    planner = budget.unmerged
    if planner.graph.origin is None or planner.streams or not is_searched(planner):
        return None
    try:
        decisions, exact = found_plan(budget)
    except BudgetError:
        return None  # `within` says what would keep both limits
    fits = planner.place_plan(decisions, None).memory_bytes <= memory_limit
    return (decisions, exact) if fits else None


def range_graph(planner: GraphPlanner, decisions: Sequence[Decision]) -> Graph | None:
    """The network at the size that a plan was found for, and a range with it.

    None where that is its own size, or it was not found by a search.
    """
    origin = planner.graph.origin
    if origin is None or not is_searched(planner):
        return None
    found: RangePlan | None = origin.memo.get(_memo_key(planner))
    return usual_graph(planner.graph) if found and found.decisions == tuple(decisions) else None


def _memo_key(planner: GraphPlanner) -> tuple[object, ...]:
    origin = planner.graph.origin
    assert origin is not None
    given = planner.target, planner.threads, planner.accuracy, planner.max_error
    return "found plan", usual_extents(origin), *given


@dataclass
class RangePlan:
    """The decisions found for the size that stands for a range.

    Attributes:
        extents: of that size, those that are open.
        decisions, exact: as of `found_plan`; no decisions where the network has no such size, or no
            plan for it.
        units: of the errors of its convolutions, which are those of any size.
        served, unserved: how many sizes took them, and how many were searched by themselves.
    """

    extents: tuple[int, ...]
    decisions: tuple[Decision, ...] = ()
    exact: bool = False
    units: int = 0
    served: int = 0
    unserved: int = 0


def _of_range(planner: GraphPlanner) -> RangePlan:
    """Search decisions for the size that stands for a graph's."""
    origin, max_error = planner.graph.origin, planner.max_error
    assert origin is not None
    found = RangePlan(usual_extents(origin))
    usual = usual_graph(planner.graph)
    if usual is None:
        return found
    budget = Planner(usual, planner.target, planner.threads, planner.accuracy, max_error)
    with suppress(BudgetError):
        decisions, found.exact = _kept_or_searched(budget)
        found.decisions = tuple(decisions)
        if max_error is not None:
            found.units = budget.unmerged.error_units(decisions, lambda node: _is_chosen(node))
    return found


def _serves(planner: GraphPlanner, found: RangePlan) -> bool:
    """Return whether decisions for another size are valid here and keep the error."""
    try:
        planner.check([node.key for node in planner.graph.nodes], found.decisions)
    except (SpecError, ValueError):
        return False
    limit = planner.error_limit
    if limit is None:
        return True
    return found.units + planner.error_units(found.decisions, lambda n: not _is_chosen(n)) <= limit


def _is_chosen(node: Node) -> bool:
    """Return whether a node has algorithms: their errors do not follow from its size."""
    return bool(operator_of(node).algorithms)


def _kept_or_searched(budget: Planner) -> Found:
    """Return the decisions that an earlier process has kept on disk, or search them."""
    planner = budget.unmerged
    kept = not (planner.growths or planner.streams)
    key = _key(planner)
    known = _recall(key, planner) if kept else None
    if known is not None:
        return known
    decisions, exact = budget.fastest_decisions()
    if kept:
        texts = [_document(n, d) for n, d in zip(planner.graph.nodes, decisions, strict=True)]
        _store().put(key, json.dumps({"exact": exact, "decisions": texts}).encode())
    return decisions, exact


def _key(planner: GraphPlanner) -> str:
    parts = (
        "plans",
        canonical_text(planner.accuracy),
        str(planner.threads),
        "" if planner.max_error is None else planner.max_error.hex(),
        canonical_text(sorted(planner.graph.open_axes.items())),
        str(planner.saved_products),
        str([fitting_pairs(node, planner.graph, planner.target) for node in planner.graph.nodes]),
        graph_digest(planner.graph),
    )
    return choice_key("\n".join(parts), planner.target)


def _store() -> DiskCache:
    return entries_in("plans", _STORE_BYTES)


def _document(node: Node, decision: Decision) -> list[Any]:
    reads = {str(node.inputs.index(name)): str(form) for name, form in decision.reads.items()}
    return [reads, str(decision.writes), str(decision.choice)]


def _recall(key: str, planner: GraphPlanner) -> Found | None:
    """Return the decisions kept on disk for this network; None without valid ones."""
    body = _store().get(key)
    if body is None:
        return None
    try:
        kept = json.loads(body)
        pairs = zip(planner.graph.nodes, kept["decisions"], strict=True)
        decisions = [_decision(node, found) for node, found in pairs]
        planner.check([node.key for node in planner.graph.nodes], decisions)
        limit, exact = planner.error_limit, kept["exact"] is True
        if limit is not None and planner.error_units(decisions, lambda _: True) > limit:
            return None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, SpecError):
        return None
    return decisions, exact


def _decision(node: Node, found: list[Any]) -> Decision:
    reads, writes, choice = found
    formats = {node.inputs[int(index)]: Format.parse(form) for index, form in reads.items()}
    return Decision(formats, Format.parse(writes), operator_of(node).choice_named(choice))
