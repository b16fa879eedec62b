"""From a graph to calls over values: formats, reorders, views.

A node of open extents is lowered once for all sizes, with symbols for them (`leanconv.symbolic`): a
new shape of a network fills in numbers. What comes out, with expressions in its kernels, is what
lowering gives for every other size that answers the guards alike; a size that does not is traced by
itself, and kept beside. Where a symbol will not do, the node is lowered for each shape as it comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from leanconv.codegen.lowered import Call, Lowered, Packing, Repeat
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node, in_rows
from leanconv.graph.ops import label
from leanconv.graph.regions import all_constants, region_of, regions_of
from leanconv.kernels.copy_plan import reorder_call
from leanconv.operators import Accuracy, operator_of
from leanconv.operators.loop import FAST, BodyPlan, BodyPlans
from leanconv.planner.decisions import (
    Decision,
    choice_with_aim,
    remembered,
    resolved_choices,
    with_costs,
)
from leanconv.planner.error_growth import closeness
from leanconv.planner.formats import default_decisions, format_rules
from leanconv.planner.lowered_graph import (
    ConstantPool,
    LoweredGraph,
    Step,
    all_repeats,
    packing_key,
)
from leanconv.planner.storage import ValuePlacer, place
from leanconv.records import cached_property, replace
from leanconv.runtime.native import MAX_STAGES
from leanconv.spec import PLAIN, Format
from leanconv.symbolic import Expressions, Holes, Made, Memo, NeedsNumberError, Trace
from leanconv.target import Target

# A small file whose nodes all read one large weight must not have it packed for each of them:
# packed constants may take this many bytes, and this many times what the graph's take.
_PACKED_BYTES = 256 * 2**20
_PACKED_FACTOR = 16


def usual_decisions(graph: Graph, target: Target, accuracy: Accuracy) -> list[Decision]:
    """Return the `default_decisions`, remembered for other shapes of the network."""
    return remembered(
        graph,
        ("formats", target, accuracy),
        lambda sized: default_decisions(format_rules(sized, target, accuracy)),
    )


def usual_choices(graph: Graph, target: Target, accuracy: Accuracy) -> list[Decision]:
    """The usual decisions with the cost model's choices, remembered for other shapes."""
    usual = usual_decisions(graph, target, accuracy)
    return remembered(
        graph,
        ("choices", target, accuracy),
        lambda sized: resolved_choices(sized, target, accuracy, usual),
    )


def lower_graph(
    graph: Graph,
    target: Target,
    accuracy: Accuracy,
    decisions: Sequence[Decision] | None = None,
) -> LoweredGraph:
    """Lower every node.

    Args:
        graph: after the passes.
        target: the processor to emit for.
        accuracy: required of the arithmetic.
        decisions: how each node is computed; the default ones if None.

    Raises:
        UnsupportedError: a node has no kernel, there are more calls than a program can hold, or
            packed constants would take many times the bytes that the graph's take.
    """
    plan_bodies(graph, target, accuracy)
    if decisions is None:
        decisions = usual_decisions(graph, target, accuracy)
    decisions = resolved_choices(graph, target, accuracy, decisions)
    return _Lowering(graph, target, accuracy).run(decisions)


def plan_bodies(graph: Graph, target: Target, accuracy: Accuracy) -> None:
    """Plan the graphs that nodes hold, where that is not done yet.

    Args:
        graph: after the passes.
        target, accuracy: of the plan.

    Raises:
        UnsupportedError: as `lower_graph`.
    """
    for region in regions_of(graph):
        if (target, accuracy) not in region.plans:
            plans: BodyPlans = cache(partial(_body_plan, region.graph, target, accuracy))
            region.plans[target, accuracy] = plans


def _body_plan(body: Graph, target: Target, accuracy: Accuracy, aim: str) -> BodyPlan:
    accuracy = accuracy.inside
    plan_bodies(body, target, accuracy)
    decisions = resolved_choices(body, target, accuracy, usual_decisions(body, target, accuracy))
    contexts = [
        decision.context(node, body, target, accuracy)
        for node, decision in zip(body.nodes, decisions, strict=True)
    ]
    if aim != FAST:
        decisions = [
            replace(decision, choice=choice_with_aim(context, aim))
            for context, decision in zip(contexts, decisions, strict=True)
        ]
    lowered = _Lowering(body, target, accuracy).run(decisions)
    storage = place(lowered)

    def cost() -> tuple[float, float]:
        found = [
            with_costs(context, decision.choice)
            for context, decision in zip(contexts, decisions, strict=True)
        ]
        errors = (choice.error * closeness(choice.algorithm) for choice in found)
        return sum(choice.cycles for choice in found), math.hypot(*errors)

    return BodyPlan(
        tuple(call for step in lowered.steps for call in step.calls),
        all_repeats(lowered.steps),
        lowered.bytes,
        {name: (slot.number, slot.offset) for name, slot in storage.slots.items()},
        storage.offsets,
        storage.arena_bytes,
        lowered.constants.arrays,
        tuple(lowered.constants.packings),
        tuple(decision.choice for decision in decisions),
        cost,
    )


class _Lowering(ValuePlacer):
    def __init__(self, graph: Graph, target: Target, accuracy: Accuracy) -> None:
        super().__init__(graph)
        self._lowered = TracedLowering(graph, target, accuracy)
        self._steps: list[Step] = []
        self._packings: list[Packing] = []
        self._alike: dict[Hashable, Packing] = {}
        self._packed: dict[str, int] = {}
        self._calls = 0
        held = sum(array.nbytes for array in all_constants(graph))
        self._allowance = _PACKED_BYTES + _PACKED_FACTOR * held

    def run(self, decisions: Sequence[Decision]) -> LoweredGraph:
        graph = self.graph
        for name in graph.inputs:
            self.define(name, PLAIN)
        for node, decision in zip(graph.nodes, decisions, strict=True):
            self._lower(node, decision)
        outputs = tuple(self.deliver(name) for name in graph.outputs)
        return LoweredGraph(
            tuple(self._steps),
            self.bytes,
            self.views,
            ConstantPool(self.constants, self._packings),
            graph.inputs,
            outputs,
        )

    def size(self, name: str, form: Format) -> int:
        kind = self.graph.types[name]
        return form.elements(kind.shape) * kind.dtype.bytes

    def is_used(self, name: str) -> bool:
        return super().is_used(name) or name in self._packed

    def _lower(self, node: Node, decision: Decision) -> None:
        wanted = decision.reads
        renamed = {name: self.read(name, wanted[name]) for name in wanted}
        lowered = self._lowered(node, decision)
        for output in node.outputs:
            self.define(output, decision.writes)
        for name, size in lowered.temporaries.items():
            renamed[name] = self.fresh(name)
            self.bytes[renamed[name]] = size
        for name, array in lowered.constants.items():
            renamed[name] = self.fresh(name)
            self.constants[renamed[name]] = array
        for packing in lowered.packings:
            renamed.update(self._pack(packing))
        for name, inside in lowered.inner.items():
            renamed[name] = self.fresh(name)
            self.bytes[renamed[name]] = 0  # never all of a buffer
            source = renamed.get(inside.source, inside.source)
            self.views.add(renamed[name], source, inside.offset)
        self._count(node, lowered)
        for output, view in lowered.views.items():
            self.views.add(output, renamed.get(view.source, view.source), view.offset)
            self._take_constant(view.source)
        if len(lowered.views) == len(node.outputs):
            return
        copies = self._place_parts(lowered, node.output, wanted) if lowered.parts else None
        if copies is not None and not copies:
            return
        calls = []
        for call in lowered.calls if copies is None else copies:
            values = tuple(renamed.get(v, v) for v in call.values)
            for value in values:
                self._take_constant(value)
            alive = tuple(renamed.get(v, v) for v in call.alive)
            calls.append(replace(call, values=values, alive=alive))
        label = node.name or node.key
        repeats = tuple(
            replace(each, strides={renamed[name]: by for name, by in each.strides.items()})
            for each in lowered.repeats
        )
        self._add_step(label, node.op, lowered.algorithm, tuple(calls), node.key, repeats)

    def _pack(self, packing: Packing) -> dict[str, str]:
        """The names of a packing's results; nodes that read the same constants share it."""
        key = packing_key(packing)
        found = None if key is None else self._alike.get(key)
        if found is not None:
            return dict(zip(packing.bytes, found.bytes, strict=True))
        names = {name: self.fresh(name) for name in packing.bytes}
        made = packing.renamed(names)
        if key is not None:
            self._alike[key] = made
        self._packings.append(made)
        self._packed.update(made.bytes)
        self._allowance -= sum(made.bytes.values())
        return names

    def _place_parts(
        self, lowered: Lowered, output: str, reads: Mapping[str, Format]
    ) -> list[Call] | None:
        """Let inputs be computed where the output has them; the copies that remain.

        None where no input can, so that the node's own calls are left.
        """
        parts = [
            self.read(part.source, reads.get(part.source, PLAIN))
            if part.source in self._places
            else None
            for part in lowered.parts
        ]
        ends = [self._places.get(name, {}).get(PLAIN) for name in self.graph.outputs]
        kept = {self.views.find(end)[0] for end in ends if end is not None}
        placed = self.views.place(
            [(name, part.offset) for name, part in zip(parts, lowered.parts, strict=True)],
            output,
            self.bytes.__getitem__,
            lambda root: root in kept or self.is_fixed(root),
        )
        if not any(placed):
            return None
        copies = []
        for name, part, done in zip(parts, lowered.parts, placed, strict=True):
            if not done:
                target = self.fresh(f"{output}/part")
                self.bytes[target] = part.bytes
                self.views.add(target, output, part.offset)
                copies.append(Call(part.copy, (name or part.source, target)))
        return copies

    def _count(self, node: Node, lowered: Lowered) -> None:
        self._calls += len(lowered.calls)
        self._allowance -= sum(array.nbytes for array in lowered.constants.values())
        if self._calls > MAX_STAGES:
            raise UnsupportedError(
                f"node {node.name!r} ({node.op}): the network needs over {MAX_STAGES} calls of "
                "kernels; expected at most that many; split it into several files"
            )
        if self._allowance < 0:
            raise UnsupportedError(
                f"node {node.name!r} ({node.op}): packed weights would take over "
                f"{_PACKED_FACTOR} times the bytes of the network's constants; expected nodes with "
                "weights of their own"
            )

    def _take_constant(self, name: str) -> None:
        if name in self.graph.constants and name not in self.constants:
            self.constants[name] = in_rows(self.graph.constants[name])

    def plain_constant(self, name: str) -> str:
        self._take_constant(name)
        return name

    def reorder(
        self, name: str, source: str, result: str, source_form: Format, form: Format
    ) -> None:
        kind = self.graph.types[name]
        shape = kind.shape if len(kind.shape) >= 2 else (1, kind.elements)
        calls: tuple[Call, ...] = ()
        if kind.elements:
            calls = (reorder_call(shape, kind.dtype, source, result, source_form, form),)
        self._add_step(result, "Reorder", f"{source_form} to {form}", calls, result)

    def _add_step(
        self,
        name: str,
        op: str,
        algorithm: str,
        calls: tuple[Call, ...],
        output: str,
        repeats: tuple[Repeat, ...] = (),
    ) -> None:
        read = {value for call in calls for value in call.values}
        written = {value for call in calls for value in call.results}
        weight_bytes = sum(
            self.constants[value].nbytes if value in self.constants else self._packed.get(value, 0)
            for value in read
        )
        output_bytes = sum(self.bytes.get(value, 0) for value in written)
        self._steps.append(
            Step(name, op, algorithm, calls, output, weight_bytes, output_bytes, repeats)
        )


# -- nodes lowered once for all sizes ------------------------------------------------------------
_MOST_KEPT = 8  # of one node: sizes that answer in more ways are lowered one by one


class TracedLowering:
    """Lowers the nodes of one graph.

    Args:
        graph: the network.
        target, accuracy: of the plan.
    """

    def __init__(self, graph: Graph, target: Target, accuracy: Accuracy) -> None:
        self._graph, self._target, self._accuracy = graph, target, accuracy
        self._origin = graph.origin
        self._memo: dict[Any, Memo[Lowered]] = {}
        if graph.origin is not None:
            self._memo = graph.origin.memo.setdefault((target, accuracy), {})
            self._table: Expressions = graph.origin.memo.setdefault("table", Expressions())

    def __call__(self, node: Node, decision: Decision) -> Lowered:
        position = self._origin.positions.get(node.wiring) if self._origin else None
        if self._origin is None or position is None or region_of(node) is not None:
            return self._plainly(node, decision)
        key = position, decision.choice, decision.writes, tuple(decision.reads.items())
        memo = self._memo.get(key)
        if memo is None:  # tracing takes longer, and there may never be another shape
            self._memo[key] = Memo(_MOST_KEPT)
            return self._plainly(node, decision)
        lowered = memo.at(self._origin.values)
        if lowered is None and not (memo.full or memo.refusals):
            made = memo.attempt(
                f"{label(node)} is lowered for this shape", lambda: self._traced(position, decision)
            )
            lowered = None if made is None else made.at(self._origin.values)
        if lowered is None:
            return self._plainly(node, decision)
        return _with_packings(lowered, lambda: self._plainly(node, decision))

    def _plainly(self, node: Node, decision: Decision) -> Lowered:
        context = decision.context(node, self._graph, self._target, self._accuracy)
        return operator_of(node).lower(context, decision.choice)

    @cached_property
    def _symbolic(self) -> tuple[Trace, Graph]:
        assert self._origin is not None
        trace = Trace(table=self._table)
        return trace, self._origin.symbolic(trace)

    def _traced(self, position: int, decision: Decision) -> Made[Lowered]:
        """A node lowered with symbols.

        Raises:
            NeedsNumberError: it needs numbers, a recipe of weights follows the sizes, or a table
                holds them.
        """
        trace, graph = self._symbolic
        trace.guards = {}
        node = graph.nodes[position]
        context = decision.context(node, graph, self._target, self._accuracy)
        lowered = operator_of(node).lower(context, decision.choice)
        holes = Holes()
        if any(holes.filler(packing.recipe) for packing in lowered.packings):
            raise NeedsNumberError("weights are packed in a way that follows the sizes")
        bare = tuple(replace(packing, calls=dict) for packing in lowered.packings)
        lowered = replace(lowered, packings=bare)
        fill = holes.filler(lowered)
        return Made(lowered, trace.guards, holes.symbols, fill)


def _with_packings(lowered: Lowered, plainly: Callable[[], Lowered]) -> Lowered:
    """A traced node whose weights are packed by the node lowered plainly."""
    if not lowered.packings:
        return lowered

    def packing(number: int, bare: Packing) -> Packing:
        @cache
        def plain() -> Packing:
            return plainly().packings[number]

        return replace(bare, calls=lambda: plain().calls())

    packings = tuple(packing(number, bare) for number, bare in enumerate(lowered.packings))
    return replace(lowered, packings=packings)
