"""All plans of a network, as a layered graph of states of its memory.

A state says which values lie in the arena and in which formats. A transition computes one node by
one choice: it reads values in the formats that the choice needs (it reorders a copy of a value that
is in another format), then frees what no later node reads. The peak of a transition is what
`storage.place` will find for these calls: both follow the same rules of lifetimes, views and
in-place results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from leanconv.graph.ir import Graph, Node
from leanconv.planner.arena import BufferUse, peak_bytes
from leanconv.planner.decisions import Decision, saved_products
from leanconv.planner.error_growth import error_units
from leanconv.planner.formats import FormatRules, default_decisions
from leanconv.planner.node_costs import (
    GraphViews,
    Key,
    NodeCost,
    NodeEvaluator,
    Output,
    other_decisions,
)
from leanconv.planner.solver import Level, undominated
from leanconv.planner.weight_streaming import STAYS_BYTES
from leanconv.records import dataclass
from leanconv.spec import PLAIN, Format
from leanconv.spec.format import aligned
from leanconv.target import Costs

_MOST_STATES = 128  # before a node; beyond, the formats of the plan without limits are kept


@dataclass(frozen=True)
class Live:
    """A value that a later node reads.

    Attributes:
        produced: the format in which it was computed.
        held: the formats in which the arena has it.
        dropped: formats in which the arena had it, which are not made again.
    """

    produced: Format
    held: frozenset[Format]
    dropped: frozenset[Format] = frozenset()


State = tuple[tuple[str, Live], ...]


@dataclass(frozen=True, eq=False)
class SearchGraph:
    """The plans of a network.

    Attributes:
        levels: for the solver: one level for each node and one for the delivery.
        node_costs: the choices of each node; the first is that of a plan without limits.
        chosen: for each level, the index in `node_costs` of each of its transitions.
        base_bytes: weights that every plan has.
    """

    levels: tuple[Level, ...]
    node_costs: tuple[tuple[NodeCost, ...], ...]
    chosen: tuple[tuple[int, ...], ...]
    base_bytes: int

    def decisions(self, transitions: Sequence[int]) -> list[Decision]:
        """The decisions of a path through the levels."""
        return [
            self.node_costs[number][self.chosen[number][transition]].decision
            for number, transition in enumerate(transitions[: len(self.node_costs)])
        ]


def make_search_graph(
    evaluator: NodeEvaluator, threads: int, vary_parameters: bool = True, streams: bool = False
) -> SearchGraph:
    """Find the choices of every node, and the transitions between all states that they lead to.

    Args:
        evaluator: of the nodes' choices.
        threads: how many need scratch.
        vary_parameters: whether to add choices that are no faster, but save bytes or error.
        streams: whether weights are read in each run: see `weight_streaming`.
    """
    rules = evaluator.rules
    defaults = default_decisions(rules)
    allowed = _allowed_formats(rules, defaults)
    node_costs = []
    for node, default in zip(rules.graph.nodes, defaults, strict=True):
        others = [] if evaluator.fixed else other_decisions(node, rules, default, allowed)
        node_costs.append(tuple(evaluator.node_costs(node, default, others, vary_parameters)))
    try:
        return _Builder(rules, node_costs, threads, evaluator.costs, streams).build()
    except _ManyStatesError:
        kept = [
            tuple(cost for cost in found if cost.decision.layout == default.layout)
            for found, default in zip(node_costs, defaults, strict=True)
        ]
    try:
        return _Builder(rules, kept, threads, evaluator.costs, streams).build()
    except _ManyStatesError:  # many values that are read in two formats
        return _Builder(rules, kept, threads, evaluator.costs, streams, drops=False).build()


def _allowed_formats(
    rules: FormatRules, defaults: Sequence[Decision]
) -> dict[str, frozenset[Format]]:
    """The formats that each value may have: the default one, and any that is smaller.

    What the user gives and takes is plain in any case: a layer beside it may be, too. Where planes
    alone save products, all images may be plain, or in blocks.
    """
    graph = rules.graph
    planes = any(saved_products(node, graph) for node in graph.nodes)
    allowed: dict[str, set[Format]] = {name: set() for name in graph.types}
    for name in (*graph.inputs, *graph.outputs):
        allowed[name].add(PLAIN)
    for node, decision in zip(graph.nodes, defaults, strict=True):
        for name in node.outputs:
            allowed[name].add(decision.writes)
        for name, form in decision.reads.items():
            allowed[name].add(form)
    for name, forms in allowed.items():
        if not rules.is_image(name):
            continue
        if planes:
            forms.update((PLAIN, rules.blocked))
        elif _bytes(graph, name, PLAIN) < _bytes(graph, name, rules.blocked):
            forms.add(PLAIN)
    return {name: frozenset(forms) for name, forms in allowed.items()}


def _bytes(graph: Graph, name: str, form: Format) -> int:
    kind = graph.types[name]
    return aligned(form.elements(kind.shape) * kind.dtype.bytes)


class _ManyStatesError(Exception):
    """There are too many states before a node to search them."""


@dataclass(frozen=True)
class _Transition:
    after: State
    peak: int
    reorder_ns: int


class _Row(NamedTuple):
    """A transition of a level: the columns of `Level`, and the index of the node's choice."""

    source: int
    target: int
    time: int
    weights: int
    error: int
    peak: int
    choice: int


class _Builder:
    """A builder of the search graph's levels.

    Args:
        rules, threads: as of `make_search_graph`.
        node_costs: the choices of each node.
        costs: of memory traffic.
        streams: whether weights are read in each run: those of a node and of the one before it are
            in the arena, but for small ones. (Which choices these have is not known: the peak
            counts the least of the next node's. Plans that are placed count what they need.)
        drops: whether one format of a value may be given up while another one is still read. If
            not, there are no states but those that the nodes' choices make.
    """

    def __init__(
        self,
        rules: FormatRules,
        node_costs: Sequence[tuple[NodeCost, ...]],
        threads: int,
        costs: Costs,
        streams: bool = False,
        drops: bool = True,
    ) -> None:
        graph = rules.graph
        self._graph, self._threads = graph, threads
        self._costs, self._drops, self._streams = costs, drops, streams
        self._dtype = graph.coarsest
        self._readers = Counter(graph.outputs)  # how often each value is still to be read
        for node in graph.nodes:
            self._readers.update(set(node.inputs))
        self._views = GraphViews(graph)
        pairs = zip(graph.nodes, node_costs, strict=True)
        self._node_costs = [self._views.follow(*pair) for pair in pairs]
        self._free = self._views.users_arrays()
        self._root = self._views.root
        self._sizes: dict[Key, int] = {}

    # -- facts that no choice changes ------------------------------------------------------
    def _size(self, key: Key) -> int:
        if key not in self._sizes:
            self._sizes[key] = 0 if key in self._free else _bytes(self._graph, *key)
        return self._sizes[key]

    def _constant_bytes(self, names: Iterable[str]) -> int:
        return sum(aligned(self._graph.constants[name].nbytes) for name in names)

    # -- levels ----------------------------------------------------------------------------
    def build(self) -> SearchGraph:
        """The levels of all nodes, and that of the delivery of the outputs."""
        states = {self._start(): 0}
        levels, chosen = [], []
        stored: set[str] = set()  # constants of the graph that every plan stores as they are
        streamed = [*map(self._least_streamed, self._graph.nodes, self._node_costs), 0]
        for number, node in enumerate(self._graph.nodes):
            node_costs = self._node_costs[number]
            self._readers.subtract(set(node.inputs))
            stored.update(node.inputs[number] for number in node_costs[0].unpacked)
            rows, states = self._rows(node, node_costs, states, stored, streamed[number + 1])
            if len(states) > _MOST_STATES:
                raise _ManyStatesError
            assert rows, f"no choice for node {node.name!r}"
            level, transitions = _level(rows, len(states))
            levels.append(level)
            chosen.append(transitions)
        ends = [(number, self._delivery(state)) for state, number in states.items()]
        rows = [_Row(number, 0, time, 0, 0, peak, 0) for number, (time, peak) in ends]
        level, transitions = _level(rows, 1)
        base = self._constant_bytes(stored)
        return SearchGraph((*levels, level), tuple(self._node_costs), (*chosen, transitions), base)

    def _rows(
        self,
        node: Node,
        node_costs: Sequence[NodeCost],
        states: Mapping[State, int],
        stored: Set[str],
        following: int,
    ) -> tuple[list[_Row], dict[State, int]]:
        """The transitions of a node from the states before it, and the states after it.

        Args:
            node, node_costs: the node and its choices.
            states: the states before the node.
            stored: constants that every plan has.
            following: bytes of the next node's weights that are read during this one.
        """
        weights = [
            cost.weight_bytes
            + self._constant_bytes({node.inputs[n] for n in cost.unpacked} - stored)
            for cost in node_costs
        ]
        streamed = [self._streamed(node, cost) for cost in node_costs]
        weights = [each - apart for each, apart in zip(weights, streamed, strict=True)]
        errors = [error_units(cost.passed_error, self._dtype) for cost in node_costs]
        rows: list[_Row] = []
        after: dict[State, int] = {}
        for state, source in states.items():
            for index, cost in enumerate(node_costs):
                for transition in self._transitions(state, node, cost):
                    target = after.setdefault(transition.after, len(after))
                    time = cost.time_ns + transition.reorder_ns
                    peak = transition.peak + streamed[index] + following
                    costs = time, weights[index], errors[index], peak
                    rows.append(_Row(source, target, *costs, index))
        return rows, after

    def _streamed(self, node: Node, cost: NodeCost) -> int:
        """Bytes of a choice's own weights that are read in each run."""
        reads = self._streams and node.op != "Loop" and cost.weight_bytes > STAYS_BYTES
        return cost.weight_bytes if reads else 0

    def _least_streamed(self, node: Node, node_costs: Sequence[NodeCost]) -> int:
        return min(self._streamed(node, cost) for cost in node_costs)

    def _start(self) -> State:
        live = Live(PLAIN, frozenset({PLAIN}))
        return tuple((name, live) for name in self._graph.inputs if self._readers[name])

    def _delivery(self, state: State) -> tuple[int, int]:
        """Time and peak of bringing the outputs to the user's arrays, if they are not there."""
        moved = [
            name
            for name, live in state
            if name in self._graph.outputs and not self._is_delivered(name, live)
        ]
        time = sum(self._reorder_ns((name, PLAIN)) for name in moved)
        return time, self._held(state) if moved else 0

    def _is_delivered(self, name: str, live: Live) -> bool:
        """Return whether an output lies in the user's array as soon as it is computed."""
        made = PLAIN in live.held or PLAIN in live.dropped
        return made and self._root((name, PLAIN)) in self._free

    def _reorder_ns(self, result: Key) -> int:
        return self._costs.reorder_ns(self._views.bytes(result))

    def _held(self, state: State) -> int:
        roots = {self._root((name, form)) for name, live in state for form in live.held}
        return sum(self._size(root) for root in roots)

    def _transitions(self, state: State, node: Node, node_cost: NodeCost) -> Iterator[_Transition]:
        """The transitions by a choice; none if it needs a format that cannot be made any more."""
        live = dict(state)
        wanted = {name: PLAIN for name in node.inputs if name and name in live}
        wanted.update(node_cost.decision.reads)
        reorders: list[tuple[Key, Key]] = []
        for name, form in wanted.items():
            entry = live[name]
            if form in entry.held:
                continue
            if form in entry.dropped or entry.produced not in entry.held:
                return
            reorders.append(((name, entry.produced), (name, form)))
            live[name] = Live(entry.produced, entry.held | {form}, entry.dropped)
        writes = node_cost.decision.writes
        keeps = [(name, list(self._keeps(name, live[name], form))) for name, form in wanted.items()]
        for choice in product(*(options for _, options in keeps)):
            after = dict(live)
            for (name, _), kept in zip(keeps, choice, strict=True):
                if kept is None:
                    del after[name]
                else:
                    after[name] = kept
            for output in node.outputs:
                if self._readers[output]:
                    after[output] = Live(writes, frozenset({writes}))
            following = tuple(sorted(after.items(), key=lambda item: item[0]))
            peak = self._peak(state, following, node, node_cost, wanted, reorders)
            nanoseconds = sum(self._reorder_ns(new) for _, new in reorders)
            yield _Transition(following, peak, nanoseconds)

    def _keeps(self, name: str, live: Live, form: Format) -> Iterator[Live | None]:
        """Yield what may remain of a value read in a format; None if nothing reads it again."""
        if not self._readers[name]:
            yield None
            return
        used = {form, live.produced} & live.held
        if name in self._graph.outputs:
            used.discard(PLAIN)  # it lies in the user's array
        if name in self._graph.inputs or not self._drops:
            used.clear()
        for count in range(min(len(used), len(live.held) - 1) + 1):
            for some in combinations(sorted(used, key=lambda f: f.block), count):
                yield Live(live.produced, live.held - set(some), live.dropped | set(some))

    # -- peaks -----------------------------------------------------------------------------
    def _peak(
        self,
        before: State,
        after: State,
        node: Node,
        node_cost: NodeCost,
        wanted: Mapping[str, Format],
        reorders: Sequence[tuple[Key, Key]],
    ) -> int:
        """Bytes of the arena that the calls of a transition need at once."""
        begin, end = (
            dict.fromkeys(self._root((name, form)) for name, live in state for form in live.held)
            for state in (before, after)
        )
        sizes: dict[object, int] = {root: self._size(root) for root in (*begin, *end)}
        results = [(name, node_cost.decision.writes) for name in node.outputs]
        for result in results:
            root = self._root(result)
            sizes[root] = self._size(root)
        sizes.update(node_cost.temporaries)
        uses: list[BufferUse[object]] = []
        for source, result in reorders:
            sizes[result] = self._size(result)
            uses.append(BufferUse((self._root(source),), (result,), (), 0))

        def buffer(value: int | str | Output) -> object:
            """A value of the node's calls as the search names it."""
            if isinstance(value, Output):
                return self._root(results[value.number])
            if isinstance(value, int):
                name = node.inputs[value]
                return self._root((name, wanted[name]))
            return value

        def is_whole(value: int | str | Output | None) -> bool:
            if isinstance(value, Output):
                key = results[value.number]
            elif isinstance(value, int):
                key = node.inputs[value], wanted[node.inputs[value]]
            else:
                return value is not None
            return self._views.is_whole(key)

        for call in node_cost.calls:
            reads = tuple(None if value is None else buffer(value) for value in call.reads)
            in_place = tuple(i for i in call.in_place if is_whole(call.reads[i]))
            if not is_whole(call.results[0]):
                in_place = ()
            written = tuple(map(buffer, call.results))
            alive = tuple(map(buffer, call.alive))
            uses.append(BufferUse(reads, written, in_place, call.scratch_bytes, alive))
        bytes_of = {name: size for name, size in sizes.items() if size}  # 0: a user's array
        return peak_bytes(uses, bytes_of, self._threads, set(begin), set(end))


def _level(rows: Sequence[_Row], states: int) -> tuple[Level, tuple[int, ...]]:
    """The transitions as arrays, without those that another one between the same states beats."""
    table = np.array(rows, np.int64)
    kept: list[int] = []
    pairs: dict[tuple[int, int], list[int]] = {}
    for index, row in enumerate(rows):
        pairs.setdefault((row.source, row.target), []).append(index)
    for members in pairs.values():
        best = undominated(table[members][:, 2:6])
        kept += [members[int(i)] for i in best]
    kept.sort(key=lambda i: (rows[i].source, i))
    *columns, choices = np.ascontiguousarray(table[kept].T)
    return Level(states, *columns), tuple(int(n) for n in choices)
