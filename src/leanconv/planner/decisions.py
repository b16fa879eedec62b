"""Decisions of a plan for nodes, the cost model's choices where these leave them open, and sizes.

Choosing for a network takes tenths of a second, and depends on shapes and on whether weights are
too small to be transformed, many of them 0, or separable: nodes that are equal but for their
weights share a choice, and later processes read those of the whole network from disk.

How a node of open extents is computed is chosen as for the representative of its sizes: a new shape
of the network chooses nothing and needs hardly any new code, and what a shape's bits are does not
depend on the shapes before it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import TypeVar
from weakref import WeakKeyDictionary

from leanconv.algorithms.magnitudes import are_small, factors_in
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache, entries_in
from leanconv.codegen.dot import fitting_lanes
from leanconv.codegen.keys import choice_key
from leanconv.errors import LeanConvError, SpecError
from leanconv.graph.ir import Graph, Node, Origin, TensorType
from leanconv.graph.ops import OPS as OPERATIONS
from leanconv.graph.ops import infer_node
from leanconv.graph.zeros import zeros_of
from leanconv.operators import Accuracy, NodeContext, operator_of
from leanconv.operators.conv_node import of_codes, pairs_in, sums_have
from leanconv.operators.convolution import OPS
from leanconv.operators.loop import ACCURATE
from leanconv.planner.error_growth import last_layers
from leanconv.progress import steps
from leanconv.records import dataclass, replace
from leanconv.spec import PLAIN, Format
from leanconv.spec.typical import input_side, representative
from leanconv.symbolic import Made, Memo, Trace, fixed
from leanconv.target import Target

_STORE_BYTES = 16 * 2**20
_MOST_KNOWN = 4096  # cases of one target and accuracy


@dataclass(frozen=True)
class Decision:
    """Formats and a choice for one node.

    Attributes:
        reads: the format wanted of each image that it reads.
        writes: the format of its outputs, all alike.
        choice: one of its operator's choices; `AUTO` leaves it to the cost model.
    """

    reads: Mapping[str, Format]
    writes: Format
    choice: Choice = AUTO

    def formats(self, node: Node) -> dict[str, Format]:
        """The format in which each value of the node is stored."""
        formats = {name: PLAIN for name in node.inputs if name}
        formats.update(self.reads)
        formats.update(dict.fromkeys(node.outputs, self.writes))
        return formats

    @property
    def layout(self) -> tuple[dict[str, Format], Format]:
        """The formats of its inputs and its outputs, as `FormatRules.possible` gives them."""
        return dict(self.reads), self.writes

    def context(self, node: Node, graph: Graph, target: Target, accuracy: Accuracy) -> NodeContext:
        """Return the context that the methods of the node's operator take."""
        if accuracy.last_error is not None and node.key in last_layers(graph):
            accuracy = accuracy.of_last
        return NodeContext(node, graph, self.formats(node), target, accuracy)


def saved_products(node: Node, graph: Graph) -> tuple[float, ...]:
    """What is known of a convolution's weights by which it takes fewer products in planes.

    That is how many are not 0, where many are, and how its filters are separable; empty for others.
    Of one that is transposed nothing is known: its phases have other zeros and filters each.
    """
    w = graph.constants.get(node.inputs[1]) if node.op == "Conv" else None
    if w is None:
        return ()
    zeros, factors = zeros_of(w), factors_in(w)
    found: tuple[float, ...] = zeros.counts if zeros else ()
    if factors is not None and factors.pays:
        found += (-factors.rank, factors.error)  # no counts, which are not negative
    return found


def node_key(
    node: Node,
    graph: Graph,
    decision: Decision,
    target: Target,
    types: Mapping[str, TensorType] | None = None,
) -> str:
    """All that a node's choices depend on besides target and accuracy: not names.

    Of weights it says whether they are so small that transforms would lose them, and what saves
    products, or how many bits the sums of products of codes have, and whether those of two fit 16.
    Which axes are open decides, too: kernels of any size.

    Args:
        node, graph, decision, target: for which an algorithm is chosen.
        types: of its values, if others than the graph's.
    """
    names = (*node.inputs, *node.outputs)
    held = graph.types if types is None else types
    kinds = tuple(held.get(name) for name in names)
    constant: tuple[float, ...] = tuple(name in graph.constants for name in names)
    if node.op in OPS:
        small = are_small(graph.constants[node.inputs[1]])
        last = node.key in last_layers(graph)
        constant += (small, last, *saved_products(node, graph))
    elif of_codes(node):
        constant += (sums_have(node, graph),)
    constant += fitting_pairs(node, graph, target)
    reads = tuple(decision.reads.get(name) for name in names)
    open_axes = tuple(graph.open_axes.get(name, ()) for name in names)
    known = _texts.setdefault(node, {})
    case = kinds, constant, open_axes, reads, decision.writes
    if case not in known:
        if len(known) >= _MOST_TEXTS:
            known.clear()
        parts = node.op, sorted(node.attributes.items()), list(kinds), list(constant)
        opened = [list(open_axes)] if any(open_axes) else []
        places = [names.index(name) for name in names]
        known[case] = canonical_text((*parts, *opened, places, list(reads), decision.writes))
    return known[case]


# By node: shapes of one network share most nodes.
_texts: WeakKeyDictionary[Node, dict[object, str]] = WeakKeyDictionary()
_MOST_TEXTS = 32


def fitting_pairs(node: Node, graph: Graph, target: Target) -> tuple[int, ...]:
    """What is known of pairs of the weights of a node's convolutions of codes; else empty."""
    if fitting_lanes(target) is None:
        return ()
    held = (graph.constants.get(name) for name in operator_of(node).packed_inputs(node))
    found = (pairs_in(array, target) for array in held if array is not None)
    facts: list[int] = []
    for each in found:
        if each:
            fours = -1 if each.excess.fours is None else each.excess.fours
            facts += each.excess.twos, fours, each.neighbours, each.narrow
    return tuple(facts)


def resolved_choices(
    graph: Graph, target: Target, accuracy: Accuracy, decisions: Sequence[Decision]
) -> list[Decision]:
    """Decisions with the cost model's choices where there are several and none is made.

    Args:
        graph: the network.
        target, accuracy: of the plan.
        decisions: one for each node.
    """
    given = list(zip(graph.nodes, decisions, strict=True))
    missing = [
        number
        for number, (node, decision) in enumerate(given)
        if decision.choice == AUTO and operator_of(node).algorithms
    ]
    found = choices_of(graph, target, accuracy, [given[number] for number in missing])
    result = list(decisions)
    for number, choice in zip(missing, found, strict=True):
        result[number] = replace(result[number], choice=choice)
    return result


def choices_of(
    graph: Graph, target: Target, accuracy: Accuracy, given: Sequence[tuple[Node, Decision]]
) -> list[Choice]:
    """The cost model's choices for some nodes in the formats of decisions."""
    cases = [_case(node, graph, decision, target) for node, decision in given]
    choice_of = _choices({case.key: case for case in cases}, graph, target, accuracy)
    found = []
    for (node, decision), case in zip(given, cases, strict=True):
        choice = choice_of[case.key]
        if graph.open_axes and max(node.attributes.get("dilations", (1,))) > 1:
            context = decision.context(node, graph, target, accuracy)
            try:  # a dilation may be larger than this image, but not than the representative
                operator_of(node).estimated(context, choice)
            except SpecError:
                choice = operator_of(node).default_choice(context)
        found.append(choice)
    return found


def estimated_cycles(
    node: Node,
    graph: Graph,
    decision: Decision,
    target: Target,
    accuracy: Accuracy,
    now: Decision | None = None,
) -> float:
    """Estimated cycles of a convolution by the cost model's choice, of one thread.

    Args:
        node, graph: sizes that are open have their representatives; a batch has one image where it
            is to change no bits.
        decision: its formats.
        target, accuracy: of the plan.
        now: the formats in which its images are; reorders from these are added.

    Raises:
        SpecError: no algorithm computes the node in these formats.
    """
    case, costs = _case(node, graph, decision, target), target.costs
    if accuracy.reproducible:
        images = [name for name in (*node.inputs, *node.outputs) if name not in graph.constants]
        alone = {name: _alone(case.types[name]) for name in images if name}
        case = replace(case, types={**case.types, **alone})
    context = case.context(graph, target, accuracy)
    moved = 0.0
    if now is not None:
        wanted, given = decision.formats(node), now.formats(node)
        names = [name for name in wanted if wanted[name] != given[name]]
        moved = sum(costs.reorder_cycles(case.types[name].bytes) for name in names)
    return operator_of(node).estimated(context, AUTO).cycles + moved


def _alone(kind: TensorType) -> TensorType:
    return TensorType((1, *kind.shape[1:]), kind.dtype)


@dataclass(frozen=True)
class _Case:
    """A node to choose for, and the types of its values to choose for."""

    node: Node
    decision: Decision
    types: Mapping[str, TensorType]
    key: str

    def context(self, graph: Graph, target: Target, accuracy: Accuracy) -> NodeContext:
        """What the node's operator takes, with these types."""
        sized = replace(graph, types={**graph.types, **self.types})
        return self.decision.context(self.node, sized, target, accuracy)


def _case(node: Node, graph: Graph, decision: Decision, target: Target) -> _Case:
    node = fixed(node)  # pads that follow from open sizes: there are few of them
    types = representative_types(node, graph)
    return _Case(node, decision, types, node_key(node, graph, decision, target, types))


def _choices(
    cases: Mapping[str, _Case], graph: Graph, target: Target, accuracy: Accuracy
) -> Mapping[str, Choice]:
    """The choice of each case: this process's, else the disk's, else the model's."""
    known = _known(target, accuracy) if graph.open_axes else {}
    found = {key: choice for key in cases if (choice := known.get(key)) is not None}
    missing = {key: case for key, case in cases.items() if key not in found}
    if missing:
        key = _key(list(missing), target, accuracy)
        choices = _recall(key, [case.node for case in missing.values()])
        if choices is None:
            made = steps("choosing algorithms", missing.values(), len(missing))
            choices = [_modelled(case, graph, target, accuracy) for case in made]
            _store().put(key, json.dumps([str(choice) for choice in choices]).encode())
        if len(known) > _MOST_KNOWN:
            known.clear()
        known.update(zip(missing, choices, strict=True))
        found.update(zip(missing, choices, strict=True))
    return found


def _modelled(case: _Case, graph: Graph, target: Target, accuracy: Accuracy) -> Choice:
    return operator_of(case.node).default_choice(case.context(graph, target, accuracy))


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
    """Return the choices for these nodes that are kept on disk; None if there are none."""
    body = _store().get(key)
    if body is None:
        return None
    try:
        found = json.loads(body)
        pairs = zip(nodes, found, strict=True)
        return [operator_of(node).choice_named(text) for node, text in pairs]
    except (ValueError, TypeError, AttributeError, RecursionError, SpecError):
        return None


# -- choices for the nodes of a loop's body, which no search sees --------------------------------
def choice_with_aim(context: NodeContext, aim: str) -> Choice:
    """The most accurate choice for a node of a body, or the smallest; the fastest of equal ones."""
    operator = operator_of(context.node)
    choices = operator.choices(context)
    if aim == ACCURATE:
        return min(choices, key=lambda choice: (choice.error, choice.cycles))

    def held(choice: Choice) -> int:
        lowered = operator.lower(context, choice)
        arrays = (array.nbytes for array in lowered.constants.values())
        packed = (size for packing in lowered.packings for size in packing.bytes.values())
        scratch = max((call.kernel.scratch_bytes for call in lowered.calls), default=0)
        return sum(arrays) + sum(packed) + sum(lowered.temporaries.values()) + scratch

    return min(choices, key=lambda choice: (held(choice), choice.cycles))


def with_costs(context: NodeContext, choice: Choice) -> Choice:
    """A choice with its costs for a node of a body."""
    operator = operator_of(context.node)
    for vary in (False, True):
        for each in operator.choices(context, vary_parameters=vary):
            if choice in (each, AUTO):
                return each
    return operator.estimated(context, choice)


# -- sizes that stand for a range of sizes -------------------------------------------------------
_TIMES = (1, 16)  # as many, where windows are longer than a representative


def usual_graph(graph: Graph) -> Graph | None:
    """The network at a size that stands for all of a range, this one among them.

    None where that is unknown: sizes are fixed, or the network does not take the other size.
    """
    origin = graph.origin
    if origin is None or not origin.is_whole:
        return None
    return origin.at(usual_extents(origin))


def usual_extents(origin: Origin) -> tuple[int, ...]:
    """Return the representative sizes of the open extents of a network's inputs.

    One size for all but batches: how a layer is computed best depends on its pixels more than on
    their shape, and few sizes mean few searches.
    """
    sides = [extent for extent, axis in origin.extents if axis]
    usual = input_side(prod(sides), len(sides))
    return tuple(usual if axis else representative(n, axis) for n, axis in origin.extents)


def representative_types(node: Node, graph: Graph) -> Mapping[str, TensorType]:
    """The types of a node's values with representatives for open extents.

    Those of the graph where no input has any, or where the node computes no such sizes.
    """
    own = {name: graph.types[name] for name in (*node.inputs, *node.outputs) if name}
    if not any(name in graph.open_axes for name in node.inputs):
        return own
    x, before = node.inputs[0], own[node.key]
    # A residual is as large as the output, which the representative of the input decides.
    added = {name for name in node.inputs[1:] if name not in ("", x) and own[name] == before}
    alone = replace(node, inputs=tuple("" if name in added else name for name in node.inputs))
    for times in _TIMES:
        types = {
            name: _of(kind, graph.open_axes.get(name, ()), times) for name, kind in own.items()
        }
        try:
            fitting = OPERATIONS[node.op].fitting
            if fitting is not None:
                fit = fitting([types[name] for name in node.inputs], node.attributes)
                pairs = zip(node.inputs, fit, strict=True)
                types.update((name, kind) for name, kind in pairs if kind is not None)
            for name, kind in zip(node.outputs, infer_node(alone, types), strict=True):
                types[name] = replace(kind, dtype=own[name].dtype)  # it may be stored in halves
        except LeanConvError:
            continue
        types.update(dict.fromkeys(added, types[node.key]))
        return fixed(types)
    return fixed(own)  # nothing else fits, such as channels that a file leaves open


def _of(kind: TensorType, axes: tuple[int, ...], times: int) -> TensorType:
    extents = list(kind.shape)
    for axis in axes:
        extents[axis] = representative(extents[axis] * times, axis)
    return TensorType(tuple(extents), kind.dtype)


# -- what planning finds, remembered for all shapes that answer alike ----------------------------
_Result = TypeVar("_Result")
_MOST_KEPT = 16  # results of one key; sizes with further results are computed one by one


def remembered(graph: Graph, key: Hashable, make: Callable[[Graph], _Result]) -> _Result:
    """`make(graph)`, or its result for a graph that was filled in from the same one with symbols.

    Args:
        graph: the network for one shape.
        key: of the function, and of all that its result depends on besides the graph.
        make: its result must have no extents; it is called with the graph of symbols, too.
    """
    origin = graph.origin
    if origin is None or not origin.is_whole:
        return make(graph)
    memo: Memo[tuple[_Result]] = origin.memo.setdefault(key, Memo(_MOST_KEPT))
    known = memo.at(origin.values)
    if known is not None:
        return known[0]
    found = make(graph)
    if not memo.full:
        trace = Trace()

        def alike() -> Made[tuple[_Result]] | None:
            same = make(origin.symbolic(trace)) == found
            return Made((found,), trace.guards) if same else None

        memo.attempt("what is chosen for this shape is found", alike)
    return found
