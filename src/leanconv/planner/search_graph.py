"""All plans of a network, as layers of moves between states of its memory.

A state says which values stand in the arena and in which formats. A move computes one node in one
way: it reads values in the formats that the way wants (reordering a copy of those that do not stand
in them), then frees what is not read again. The peak of a move and the arena of `storage.place`
come from the same function, `lifetimes.lifetimes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from leanconv.graph.ir import Graph, Node
from leanconv.planner.decision import Decision
from leanconv.planner.formats import FormatRules
from leanconv.planner.lifetimes import BufferUse, peak_bytes
from leanconv.planner.lowering import default_decisions
from leanconv.planner.node_costs import (
    Outline,
    Outliner,
    error_units,
    other_decisions,
    reorder_ns,
)
from leanconv.planner.solver import Layer, undominated
from leanconv.spec import Format
from leanconv.spec.format import aligned
from leanconv.target import Costs

Key = tuple[str, Format]  # a value as it stands in memory

_MOST_STATES = 128  # before a node; beyond, the formats of the plan without limits are kept


@dataclass(frozen=True)
class Live:
    """A value that is still to be read.

    Attributes:
        produced: the format in which it was computed.
        held: the formats in which it stands.
        gone: those in which it stood, and may not be made again.
    """

    produced: Format
    held: frozenset[Format]
    gone: frozenset[Format] = frozenset()


State = tuple[tuple[str, Live], ...]


@dataclass(frozen=True, eq=False)
class Space:
    """The plans of a network.

    Attributes:
        layers: what the solver is given: one layer for each node and one for the delivery.
        outlines: the ways of each node; the first is that of a plan without limits.
        chosen: for each layer, the number of the outline of each of its moves.
        base_bytes: weights that every plan has.
    """

    layers: tuple[Layer, ...]
    outlines: tuple[tuple[Outline, ...], ...]
    chosen: tuple[tuple[int, ...], ...]
    base_bytes: int

    def decisions(self, moves: Sequence[int]) -> list[Decision]:
        """The decisions of a way through the layers."""
        return [
            self.outlines[number][self.chosen[number][move]].decision
            for number, move in enumerate(moves[: len(self.outlines)])
        ]


def make_space(outliner: Outliner, threads: int, every: bool = True) -> Space:
    """Find the ways of every node, and the moves between all states that they lead to.

    Args:
        outliner: knows the nodes' ways.
        threads: how many need scratch.
        every: whether ways are varied that are no faster, but save bytes or are more accurate.
    """
    rules = outliner.rules
    defaults = default_decisions(rules)
    allowed = _allowed_formats(rules, defaults)
    outlines = []
    for node, default in zip(rules.graph.nodes, defaults, strict=True):
        others = [] if outliner.fixed else other_decisions(node, rules, default, allowed)
        outlines.append(tuple(outliner.outlines(node, default, others, every)))
    try:
        return _Builder(rules, outlines, threads, outliner.costs).build()
    except _ManyStatesError:
        kept = [
            tuple(o for o in found if _same_formats(o.decision, default))
            for found, default in zip(outlines, defaults, strict=True)
        ]
        return _Builder(rules, kept, threads, outliner.costs).build()


def _same_formats(a: Decision, b: Decision) -> bool:
    return a.writes == b.writes and dict(a.reads) == dict(b.reads)


def _allowed_formats(
    rules: FormatRules, defaults: Sequence[Decision]
) -> dict[str, frozenset[Format]]:
    """The formats in which each value may stand: the default one, and any that is smaller."""
    graph = rules.graph
    allowed: dict[str, set[Format]] = {}
    for name in graph.types:
        allowed[name] = set()
    for node, decision in zip(graph.nodes, defaults, strict=True):
        allowed[node.outputs[0]].add(decision.writes)
        for name, form in decision.reads.items():
            allowed[name].add(form)
    for name, forms in allowed.items():
        if rules.is_image(name) and name not in graph.constants:
            plain = Format()
            sizes = [_bytes(graph, name, form) for form in (plain, rules.blocked)]
            if sizes[0] < sizes[1]:
                forms.add(plain)
    return {name: frozenset(forms) for name, forms in allowed.items()}


def _unpadded(graph: Graph, name: str, form: Format) -> int:
    kind = graph.types[name]
    return form.elements(kind.shape) * int(np.dtype(kind.dtype).itemsize)


def _bytes(graph: Graph, name: str, form: Format) -> int:
    return aligned(_unpadded(graph, name, form))


class _ManyStatesError(Exception):
    """The states before a node are too many to be followed."""


@dataclass(frozen=True)
class _Step:
    """What happens to one state in one move."""

    after: State
    peak: int
    reorder_ns: int


class _Builder:
    def __init__(
        self,
        rules: FormatRules,
        outlines: Sequence[tuple[Outline, ...]],
        threads: int,
        costs: Costs,
    ) -> None:
        graph = rules.graph
        self._graph, self._outlines, self._threads = graph, outlines, threads
        self._costs = costs
        self._uses = dict.fromkeys(graph.types, 0)
        for node in graph.nodes:
            for name in set(node.inputs):
                if name:
                    self._uses[name] += 1
        for name in graph.outputs:
            self._uses[name] += 1
        self._aliases = self._find_aliases()
        self._free = self._users_arrays()
        self._sizes: dict[Key, int] = {}

    # -- facts that no choice changes ------------------------------------------------------
    def _find_aliases(self) -> dict[Key, Key]:
        """Results that are the bytes of an input, whatever is chosen elsewhere."""
        aliases: dict[Key, Key] = {}
        for node, found in zip(self._graph.nodes, self._outlines, strict=True):
            number = found[0].alias
            if number is None:
                continue
            name, decision = node.inputs[number], found[0].decision
            form = decision.reads.get(name, Format())
            aliases[node.outputs[0], decision.writes] = (name, form)
        return aliases

    def _users_arrays(self) -> set[Key]:
        """Values that stand in the user's arrays, not in the arena."""
        free: set[Key] = set()
        for name in self._graph.inputs:
            free.add((name, Format()))
        for name in self._graph.outputs:
            free.add(self._root((name, Format())))
        for name in self._graph.constants:
            free.add((name, Format()))
        return free

    def _root(self, key: Key) -> Key:
        while key in self._aliases:
            key = self._aliases[key]
        return key

    def _size(self, key: Key) -> int:
        """Bytes in the arena."""
        if key not in self._sizes:
            size = 0 if key in self._free else _bytes(self._graph, *key)
            self._sizes[key] = size
        return self._sizes[key]

    # -- layers ----------------------------------------------------------------------------
    def build(self) -> Space:
        states = {self._start(): 0}
        uses = dict(self._uses)
        layers, chosen = [], []
        shared: set[str] = set()
        base = 0
        dtype = next(iter({self._graph.types[n].dtype for n in self._graph.inputs}), "float32")
        for node, outlines in zip(self._graph.nodes, self._outlines, strict=True):
            for name in set(node.inputs):
                if name:
                    uses[name] -= 1
            taken = [n for o in outlines[:1] for n in o.shared if n not in shared]
            base += sum(aligned(self._graph.constants[name].nbytes) for name in set(taken))
            shared.update(taken)
            rows: list[tuple[int, ...]] = []
            after: dict[State, int] = {}
            for state, number in states.items():
                for index, outline in enumerate(outlines):
                    extra = [n for n in outline.shared if n not in shared]
                    weights = outline.weight_bytes + sum(
                        aligned(self._graph.constants[name].nbytes) for name in extra
                    )
                    error = error_units(outline.passed_error, dtype)
                    for step in self._steps(state, node, outline, uses):
                        place = after.setdefault(step.after, len(after))
                        time = outline.time_ns + step.reorder_ns
                        rows.append((number, place, time, weights, error, step.peak, index))
            if len(after) > _MOST_STATES:
                raise _ManyStatesError
            assert rows, f"no way to compute node {node.name!r}"
            layer, moves = _layer(rows, len(after))
            layers.append(layer)
            chosen.append(moves)
            states = after
        ends = [(number, self._delivery(state)) for state, number in states.items()]
        rows = [(number, 0, time, 0, 0, peak, 0) for number, (time, peak) in ends]
        layer, moves = _layer(rows, 1)
        return Space((*layers, layer), tuple(self._outlines), (*chosen, moves), base)

    def _start(self) -> State:
        plain = Format()
        return tuple(
            (name, Live(plain, frozenset({plain})))
            for name in self._graph.inputs
            if self._uses[name]
        )

    def _delivery(self, state: State) -> tuple[int, int]:
        """Time and peak of bringing the outputs to the user's arrays, if they are not there."""
        moved = [
            name
            for name, live in state
            if name in self._graph.outputs and Format() not in live.held | live.gone
        ]
        time = sum(self._reorder_ns((name, Format())) for name in moved)
        return time, self._held(state) if moved else 0

    def _reorder_ns(self, result: Key) -> int:
        return reorder_ns(_unpadded(self._graph, *result), self._costs)

    def _held(self, state: State) -> int:
        roots = {self._root((name, form)) for name, live in state for form in live.held}
        return sum(self._size(root) for root in roots)

    def _steps(
        self, state: State, node: Node, outline: Outline, uses: Mapping[str, int]
    ) -> Iterator[_Step]:
        """What a way does to a state: nothing if a format that it wants cannot be had."""
        live = dict(state)
        wanted = {name: Format() for name in node.inputs if name and name in live}
        wanted.update(outline.decision.reads)
        reorders: list[tuple[Key, Key]] = []
        for name, form in wanted.items():
            entry = live[name]
            if form in entry.held:
                continue
            if form in entry.gone or entry.produced not in entry.held:
                return
            reorders.append(((name, entry.produced), (name, form)))
            live[name] = Live(entry.produced, entry.held | {form}, entry.gone)
        output, writes = node.outputs[0], outline.decision.writes
        keeps = [(name, list(self._keeps(name, live[name], wanted, uses))) for name in wanted]
        for choice in product(*(options for _, options in keeps)):
            after = dict(live)
            for (name, _), kept in zip(keeps, choice, strict=True):
                if kept is None:
                    del after[name]
                else:
                    after[name] = kept
            if uses[output]:
                after[output] = Live(writes, frozenset({writes}))
            following = tuple(sorted(after.items(), key=lambda item: item[0]))
            peak = self._peak(state, following, node, outline, wanted, reorders)
            nanoseconds = sum(self._reorder_ns(new) for _, new in reorders)
            yield _Step(following, peak, nanoseconds)

    def _keeps(
        self, name: str, live: Live, wanted: Mapping[str, Format], uses: Mapping[str, int]
    ) -> Iterator[Live | None]:
        """What may remain of a value that was read; None if nothing reads it again."""
        if not uses[name]:
            yield None
            return
        used = {wanted[name], live.produced} & live.held
        if name in self._graph.outputs:
            used.discard(Format())  # it stands in the user's array
        if name in self._graph.inputs:
            used.clear()
        for count in range(min(len(used), len(live.held) - 1) + 1):
            for dropped in combinations(sorted(used, key=lambda f: f.block), count):
                yield Live(live.produced, live.held - set(dropped), live.gone | set(dropped))

    # -- peaks -----------------------------------------------------------------------------
    def _peak(
        self,
        before: State,
        after: State,
        node: Node,
        outline: Outline,
        wanted: Mapping[str, Format],
        reorders: Sequence[tuple[Key, Key]],
    ) -> int:
        """Bytes of the arena that the calls of a move need at once."""
        sizes: dict[object, int] = {}
        for name, live in (*before, *after):
            for form in live.held:
                root = self._root((name, form))
                sizes[root] = self._size(root)
        output = self._root((node.outputs[0], outline.decision.writes))
        sizes[output] = self._size(output)
        sizes.update(outline.temporaries)
        uses: list[BufferUse[object]] = []
        for source, result in reorders:
            sizes[result] = self._size(result)
            uses.append(BufferUse((self._root(source),), result, (), 0))

        def buffer(value: int | str) -> object:
            """A value of the node's calls as the search names it."""
            if value == "y":
                return output
            if isinstance(value, int):
                name = node.inputs[value]
                return self._root((name, wanted[name]))
            return value

        for call in outline.calls:
            reads = tuple(None if value is None else buffer(value) for value in call.reads)
            uses.append(BufferUse(reads, buffer(call.result), call.in_place, call.scratch))
        begin = {self._root((name, form)) for name, live in before for form in live.held}
        end = {self._root((name, form)) for name, live in after for form in live.held}
        bytes_of = {name: size for name, size in sizes.items() if size}  # 0: a user's array
        return peak_bytes(uses, bytes_of, self._threads, begin, end)


def _layer(rows: Sequence[tuple[int, ...]], states: int) -> tuple[Layer, tuple[int, ...]]:
    """The moves as arrays, those left out that another one between the same states betters."""
    table = np.array(rows, np.int64).reshape(len(rows), 7)
    kept: list[int] = []
    pairs: dict[tuple[int, int], list[int]] = {}
    for index, row in enumerate(rows):
        pairs.setdefault((row[0], row[1]), []).append(index)
    for members in pairs.values():
        best = undominated(table[members][:, 2:6])
        kept += [members[int(i)] for i in best]
    kept.sort(key=lambda i: (rows[i][0], i))
    table = table[kept]
    columns = [np.ascontiguousarray(table[:, column]) for column in range(6)]
    layer = Layer(columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], states)
    return layer, tuple(int(n) for n in table[:, 6])
