"""Costs of a node's choices: all that the solver needs, without packing or emitting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph, Node
from leanconv.operators import Accuracy, operator_of
from leanconv.planner.arena import BufferUse
from leanconv.planner.decisions import Decision, node_key, saved_products
from leanconv.planner.error_growth import (
    ERROR_GROWTH,
    closeness,
    last_layers,
    magnified_errors,
)
from leanconv.planner.formats import FormatRules
from leanconv.planner.lowered_graph import Step
from leanconv.planner.storage import Views
from leanconv.records import cached_property, dataclass, replace
from leanconv.spec import PLAIN, Format
from leanconv.spec.format import aligned
from leanconv.target import Costs, Target
from leanconv.types import FLOAT16

# Errors above this are those of halves: operations that magnify them are counted in.
_COARSE = FLOAT16.roundoff / 4


def step_times(
    steps: Sequence[Step],
    nodes: Sequence[Node],
    node_costs: Sequence[NodeCost],
    costs: Costs,
    threads: int,
) -> tuple[int, ...]:
    """The estimated time of each step of a plan, of all threads."""
    times = {n.key: cost.estimated_ns for n, cost in zip(nodes, node_costs, strict=True)}
    times |= {s.output: costs.reorder_ns(s.output_bytes) for s in steps if s.op == "Reorder"}
    return tuple(costs.shared_ns(times[step.output], threads) for step in steps)


@dataclass(frozen=True)
class PartCost:
    """Bytes of an output that equal those of an input.

    Attributes:
        source: the number of the input; None for a constant of the node's own.
        offset: the byte of the output at which it begins.
        bytes: of it.
    """

    source: int | None
    offset: int
    bytes: int


@dataclass(frozen=True)
class Output:
    """One of the outputs of a node, by its number."""

    number: int


@dataclass(frozen=True)
class ViewCost:
    """An output that is bytes of an input.

    Attributes:
        output, source: the numbers of the output and of the input.
        offset: the byte of the input at which the output begins.
    """

    output: int
    source: int
    offset: int


@dataclass(frozen=True)
class NodeCost:
    """The costs of one choice for a node between given formats.

    Attributes:
        decision: formats and the choice.
        algorithm: for people.
        estimated_ns: time, of one thread alone: what is chosen must not depend on their number.
        time_ns: the time in the search: `estimated_ns`, or that of the choice of a plan
            without limits where this is less.
        error: expected relative error of what it computes.
        weight_bytes: constants of its own, each aligned.
        unpacked: the numbers of the inputs that are constants which it reads as they are.
        calls: in order; none for a view. A buffer is an input by its number, a temporary by its
            name.
        temporaries: bytes of each, aligned.
        views: the outputs that are bytes of inputs.
        parts: of the one output, where inputs could be computed in their place.
        growth: how much the error of a plain sum grows on its way to the outputs.
    """

    decision: Decision
    algorithm: str
    estimated_ns: int
    time_ns: int
    error: float
    weight_bytes: int
    unpacked: tuple[int, ...]
    calls: tuple[BufferUse[int | str | Output], ...]
    temporaries: Mapping[str, int]
    views: tuple[ViewCost, ...] = ()
    parts: tuple[PartCost, ...] = ()
    growth: float = ERROR_GROWTH

    def placed(self, placed: Sequence[bool]) -> NodeCost:
        """These costs with some parts computed in their place: only the others are copied."""
        if not any(placed):
            return self
        left = [part for part, done in zip(self.parts, placed, strict=True) if not done]
        share = sum(part.bytes for part in left) / sum(part.bytes for part in self.parts)
        return replace(
            self,
            algorithm=self.algorithm if left else "view",
            estimated_ns=round(self.estimated_ns * share),
            time_ns=round(self.time_ns * share),
            calls=tuple(BufferUse((part.source,), (Output(0),), (), 0) for part in left),
        )

    @property
    def passed_error(self) -> float:
        """The node's part of the network's error, which is the root of the summed squares."""
        return self.error * self.growth * closeness(self.algorithm)

    @property
    def scratch_bytes(self) -> int:
        """The most scratch of one thread."""
        return max((call.scratch_bytes for call in self.calls), default=0)


class NodeEvaluator:
    """Evaluates the choices of nodes; equal nodes once.

    Args:
        graph: the network.
        rules: the formats that its kernels take.
        target, accuracy: of the plan.
        growths: of nodes where it was measured, by their outputs; see `NodeCost.growth`.
        parts: of how many nodes one layer consists, by the outputs of these: squares of their
            errors are a share each of the layer's.
    """

    def __init__(
        self,
        graph: Graph,
        rules: FormatRules,
        target: Target,
        accuracy: Accuracy,
        growths: Mapping[str, float] = MappingProxyType({}),
        parts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._parts = parts
        self.rules, self._graph, self._growths = rules, graph, growths
        self._target, self._accuracy = target, accuracy
        self._known: dict[object, list[NodeCost]] = {}
        self._floors: Callable[[], Mapping[str, int]] = dict

    def follow(self, other: NodeEvaluator, floors: Callable[[], Mapping[str, int]]) -> None:
        """Share costs of equal nodes with the evaluator of another graph for the same target.

        Args:
            other: of a graph of which this one was made by merging nodes.
            floors: for each output of a merged node, the estimated time of its blocks one by one:
                a merged node never counts as faster, since it is there to save bytes.
        """
        self._known, self._floors = other._known, floors

    @property
    def costs(self) -> Costs:
        """The target's cost record."""
        return self._target.costs

    @property
    def fixed(self) -> bool:
        """True if no batch and no limit may change the bits, so that nothing is left to choose."""
        return self._accuracy.reproducible

    def node_costs(
        self, node: Node, default: Decision, others: list[Decision], vary_parameters: bool = True
    ) -> list[NodeCost]:
        """Return the costs of all choices of a node.

        Args:
            node: the node.
            default: its formats in a plan without limits; the first result is the choice there.
            others: other formats. No choice with these counts as faster than the first result: they
                are considered for the bytes that they save.
            vary_parameters: whether parameters of an algorithm are varied, too.
        """
        found = list(self._known_costs(node, default, vary_parameters))
        if self.fixed:  # the first choice is that of one image, whatever the batch and the limit
            found = found[:1]
        first = self.least_ns(node, default)
        if not found[0].views and not found[0].parts:
            for decision in others:
                found += [
                    cost
                    for cost in self._known_costs(node, decision, vary_parameters=False)
                    if not cost.views and not cost.parts
                ]
        return [self._grown(node, _at_least(first, node_cost)) for node_cost in found]

    def chosen(self, node: Node, default: Decision, decision: Decision) -> NodeCost:
        """Return the costs of a decision; with the choice `AUTO`, those of the first choice.

        Args:
            node: the node.
            default: its formats in a plan without limits; nothing counts as faster than these.
            decision: formats and choice.

        Raises:
            SpecError: there is no choice of that name.
        """
        least_ns = self.least_ns(node, default)
        return self._grown(node, _at_least(least_ns, self._chosen(node, decision)))

    def _grown(self, node: Node, node_cost: NodeCost) -> NodeCost:
        growth = self._growths.get(node.key)
        if growth is None and node_cost.error > _COARSE:
            more = self._magnified.get(node.key)
            growth = None if more is None else node_cost.growth * more
        if growth is None and self._is_last(node):
            growth = 1 / closeness(node_cost.algorithm)
        if parts := self._parts.get(node.key):
            growth = (growth or node_cost.growth) / math.sqrt(parts)
        return node_cost if growth is None else replace(node_cost, growth=growth)

    def _is_last(self, node: Node) -> bool:
        """Return whether what a node states is what the outputs err by."""
        whole = self._accuracy.last_error is not None
        return whole and node.key in last_layers(self._graph)

    @cached_property
    def _magnified(self) -> Mapping[str, float]:
        """By how much more the errors of nodes grow that are stored in halves, or rounded to them.

        Errors of float32 that are as large are seen the same.
        """
        half = max(self._graph.coarsest.roundoff, FLOAT16.roundoff)
        return magnified_errors(self._graph, half)

    def least_ns(self, node: Node, default: Decision) -> int:
        """The least time that any choice of a node counts with: that of a plan without limits.

        Where planes save products, there and beside it any format may take the least.
        """
        beside = self.rules.planes and default.writes == PLAIN
        if beside or saved_products(node, self._graph):
            return 0
        known = (node_key(node, self._graph, default, self._target), True) in self._known
        first = next(self._known_costs(node, default, vary_parameters=known)).time_ns
        return max(first, self._floors().get(node.key, 0))

    def _chosen(self, node: Node, decision: Decision) -> NodeCost:
        found = list(self._known_costs(node, decision, vary_parameters=False))
        if decision.choice == AUTO:
            return found[0]
        if not any(node_cost.decision.choice == decision.choice for node_cost in found):
            found = list(self._known_costs(node, decision, vary_parameters=True))
        for node_cost in found:
            if node_cost.decision.choice == decision.choice:
                return node_cost
        return self._requested(node, decision)

    def _requested(self, node: Node, decision: Decision) -> NodeCost:
        """The cost of a choice that is considered only if the user requests it."""
        context = decision.context(node, self._graph, self._target, self._accuracy)
        operator, choice = operator_of(node), decision.choice
        costed = operator.estimated(context, choice)
        return self._node_cost(node, decision, costed, operator.lower(context, choice))

    def _known_costs(
        self, node: Node, decision: Decision, vary_parameters: bool
    ) -> Iterator[NodeCost]:
        key = node_key(node, self._graph, decision, self._target), vary_parameters
        if key not in self._known:
            self._known[key] = list(self._evaluated(node, decision, vary_parameters))
        for known in self._known[key]:
            yield replace(known, decision=replace(decision, choice=known.decision.choice))

    def _evaluated(
        self, node: Node, decision: Decision, vary_parameters: bool
    ) -> Iterator[NodeCost]:
        context = decision.context(node, self._graph, self._target, self._accuracy)
        operator = operator_of(node)
        for choice in operator.choices(context, vary_parameters):
            own = replace(decision, choice=choice)
            yield self._node_cost(node, own, choice, operator.lower(context, choice))

    def _node_cost(
        self, node: Node, decision: Decision, choice: Choice, lowered: Lowered
    ) -> NodeCost:
        constants = self._graph.constants
        numbers: dict[str, int | str | Output] = {
            name: Output(number) for number, name in enumerate(node.outputs)
        }
        for number, name in enumerate(node.inputs):
            if name and name not in constants:
                numbers.setdefault(name, number)
        numbers.update({name: name for name in lowered.temporaries})
        inner = {name: view.source for name, view in lowered.inner.items()}
        numbers.update({name: numbers[of] for name, of in inner.items() if of in numbers})

        calls = tuple(
            BufferUse(
                tuple(numbers.get(name) for name in call.reads),
                tuple(numbers[name] for name in call.results),
                call.in_place,
                aligned(call.kernel.scratch_bytes),
                tuple(numbers[name] for name in call.alive),
            )
            for call in lowered.calls
        )

        def source_of(name: str) -> int | None:
            number = numbers.get(name)
            return number if isinstance(number, int) else None

        read = dict.fromkeys(name for call in lowered.calls for name in call.values)
        own = [array.nbytes for array in lowered.constants.values()]
        own += [size for packing in lowered.packings for size in packing.bytes.values()]
        # A view runs nothing. (Parts that are computed in their place are known later only.)
        estimated_ns = self.costs.ns(choice.cycles) if calls else 0
        return NodeCost(
            decision,
            lowered.algorithm,
            estimated_ns,
            estimated_ns,
            choice.error,
            sum(aligned(size) for size in own),
            tuple(node.inputs.index(n) for n in read if n in node.inputs and n in constants),
            calls,
            {name: aligned(size) for name, size in lowered.temporaries.items()},
            tuple(
                ViewCost(node.outputs.index(name), node.inputs.index(view.source), view.offset)
                for name, view in lowered.views.items()
            ),
            tuple(
                PartCost(source_of(part.source), part.offset, part.bytes) for part in lowered.parts
            ),
        )


def _at_least(time_ns: int, node_cost: NodeCost) -> NodeCost:
    return node_cost if node_cost.time_ns >= time_ns else replace(node_cost, time_ns=time_ns)


def other_decisions(
    node: Node, rules: FormatRules, default: Decision, allowed: Mapping[str, frozenset[Format]]
) -> list[Decision]:
    """Formats besides the default ones that a node's kernels take and that may save bytes.

    Args:
        node: the node.
        rules: formats that kernels accept.
        default: the formats of a plan without limits.
        allowed: the formats that each value may have.
    """
    found: list[Decision] = []
    for reads, writes in rules.possible(node):
        if writes != default.writes and any(writes not in allowed[n] for n in node.outputs):
            continue
        if any(f != default.reads.get(n) and f not in allowed[n] for n, f in reads.items()):
            continue
        if (dict(reads), writes) != default.layout:
            found.append(Decision(reads, writes))
    return found


# -- which values of a graph lie in others, as the search for plans sees them --------------------
Key = tuple[str, Format]  # a value in one format


class GraphViews:
    """Values that are bytes of others.

    Args:
        graph: after the passes.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._views: Views[Key] = Views()
        self._given = {(name, PLAIN) for name in (*graph.inputs, *graph.constants)}

    def root(self, key: Key) -> Key:
        """The value that a value lies in and that lies in no other."""
        return self._views.find(key)[0]

    def bytes(self, key: Key) -> int:
        """Return the bytes of a value."""
        kind = self._graph.types[key[0]]
        return key[1].elements(kind.shape) * kind.dtype.bytes

    def is_whole(self, key: Key) -> bool:
        """Return whether a value is all of a buffer."""
        root = self.root(key)
        return root == key or self.bytes(key) == self.bytes(root)

    def follow(self, node: Node, found: Sequence[NodeCost]) -> tuple[NodeCost, ...]:
        """Add the bytes that a node shares with its inputs; return costs without needless copies.

        Such a node is computed in one way, whatever is chosen elsewhere.

        Args:
            node: the next one.
            found: costs of its choices.
        """
        first = found[0]

        def key(number: int) -> Key:
            name = node.inputs[number]
            return name, first.decision.reads.get(name, PLAIN)

        for view in first.views:
            result = node.outputs[view.output], first.decision.writes
            self._views.add(result, key(view.source), view.offset)
        if not first.parts:
            return tuple(found)
        kept = {self.root((name, PLAIN)) for name in self._graph.outputs}
        placed = self._views.place(
            [(None if p.source is None else key(p.source), p.offset) for p in first.parts],
            (node.output, first.decision.writes),
            self.bytes,
            lambda root: root in kept or root in self._given,
        )
        return tuple(cost.placed(placed) for cost in found)

    def users_arrays(self) -> set[Key]:
        """Values that lie in the user's arrays, once all nodes were followed."""
        found = set(self._given)
        for name in self._graph.outputs:
            root = self.root((name, PLAIN))
            if self.bytes(root) <= self.bytes((name, PLAIN)):
                found.add(root)
        return found
