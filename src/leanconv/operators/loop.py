"""Loops: the calls of a body, which the planner has made, run once for each iteration.

A carried value has two buffers: an iteration reads one and writes the other, and the next one does
it the other way round, so that nothing is copied between iterations. The calls are therefore those
of two iterations, and where their number is odd, of the last one. A row of a stacked result is
computed where it belongs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from leanconv.algorithms.parameters import (
    AUTO,
    Choice,
    Parameters,
    one_of,
    parameter,
    parse_choice,
)
from leanconv.codegen.lowered import Call, Lowered, Packing, Repeat, View
from leanconv.graph.ir import Graph, Node, in_rows
from leanconv.graph.regions import Region
from leanconv.kernels.copy_plan import reorder_call
from leanconv.operators.operator import NodeContext, Operator
from leanconv.records import dataclass, replace
from leanconv.spec import PLAIN


@dataclass(frozen=True, eq=False)
class BodyPlan:
    """Calls, places of values, constants and costs of one iteration of a loop.

    Attributes:
        calls: in order.
        repeats: calls that run several times; outer repeats before inner ones.
        bytes: of every value that is no constant.
        places: of values outside the arena, the number of the input or output (inputs first)
            that they are in, and their first byte in it.
        offsets: of the other values, their first byte in the arena.
        arena_bytes: of the arena, without scratch.
        constants: arrays that the calls read, by name.
        packings: packed weights that the calls read.
        choices: of the body's nodes.
        cost: gives the estimated cycles of one core, and the expected relative error.
    """

    calls: tuple[Call, ...]
    repeats: tuple[Repeat, ...]
    bytes: Mapping[str, int]
    places: Mapping[str, tuple[int, int]]
    offsets: Mapping[str, int]
    arena_bytes: int
    constants: Mapping[str, np.ndarray]
    packings: tuple[Packing, ...]
    choices: tuple[Choice, ...]
    cost: Callable[[], tuple[float, float]]


FAST, ACCURATE, SMALL = AIMS = ("fast", "accurate", "small")


@dataclass(frozen=True)
class LoopParameters(Parameters):
    """Aim of the choices of a body's nodes, as `body=small` in a plan; `FAST` if open."""

    body: str | None = parameter(one_of(*AIMS))


# Gives the plan of a body whose nodes' choices have an aim: one of `Region.plans`, by target and
# accuracy.
BodyPlans = Callable[[str], BodyPlan]


class LoopOperator(Operator):
    """Bodies that are computed again and again; the planner plans them before (`BodyPlans`)."""

    ops = ("Loop",)

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """Whatever is carried or stacked is plain; inside the body any format may be used."""
        del node, graph, block
        return False

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """Return the fastest body, then more accurate or smaller ones, for plans within limits."""
        aims = AIMS if vary_parameters else (FAST,)
        plans = {aim: _plan_of(context, aim) for aim in aims}
        distinct = {plan.choices: aim for aim, plan in reversed(plans.items())}
        return [self._choice(context, aim) for aim in aims if aim in distinct.values()]

    def choice_named(self, text: str) -> Choice:
        """Return the choice that a text names; without an aim it is the fastest body."""
        return parse_choice(text, {"loop": LoopParameters}) if text else AUTO

    def _choice(self, context: NodeContext, aim: str) -> Choice:
        cycles, error = _plan_of(context, aim).cost()
        count = context.node.attributes["count"]
        return Choice("loop", LoopParameters(aim), count * cycles, math.sqrt(count) * error)

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """The calls of the body for two iterations, repeated."""
        parameters = choice.parameters
        aim = parameters.body if isinstance(parameters, LoopParameters) else None
        return _Iterations(context, _plan_of(context, aim or FAST)).lowered()


def _plan_of(context: NodeContext, aim: str) -> BodyPlan:
    region: Region = context.node.attributes["body"]
    plans: BodyPlans = region.plans[context.target, context.accuracy]
    return plans(aim)


@dataclass(frozen=True, eq=False)
class _Iteration:
    """The calls of one iteration.

    Attributes:
        calls: in order.
        repeats: calls that run several times in each iteration.
        moving: by how many bytes values move in two iterations, by name.
    """

    calls: Sequence[Call]
    repeats: Sequence[Repeat]
    moving: Mapping[str, int]

    def repeats_after(self, before: int) -> list[Repeat]:
        return [replace(each, first=before + each.first) for each in self.repeats]


class _Iterations:
    """The calls of a loop, made of the plan of its body."""

    def __init__(self, context: NodeContext, plan: BodyPlan) -> None:
        node, self._graph, self._plan = context.node, context.graph, plan
        self._count, carried = int(node.attributes["count"]), node.attributes["states"]
        self._initial = node.inputs[:carried]
        self._captured = node.inputs[carried:]
        self._results, self._stacks = node.outputs[:carried], node.outputs[carried:]
        prefix = node.key
        self._others = tuple(f"{name}/other" for name in self._results)
        self._arena, self._prefix = f"{prefix}/body", prefix
        self._inner: dict[str, View] = {}
        self._constants = {self._own(n): array for n, array in self._plan.constants.items()}

    def _own(self, name: str) -> str:
        """A constant of the body, as the node's calls name it."""
        return f"{self._prefix}/constant {name}"

    def lowered(self) -> Lowered:
        """Return the calls of all iterations, with constants and buffers."""
        plan, count = self._plan, self._count
        even, odd = self._results, self._others  # buffers before iterations 0, 2, …; and 1, 3, …
        if count % 2:
            even, odd = odd, even
        calls = list(self._begin(even))
        repeats: list[Repeat] = []
        if count > 1:
            both = [self._iteration(0, 0, even, odd), self._iteration(1, 1, odd, even)]
            strides = {name: by for each in both for name, by in each.moving.items()}
            length = sum(len(each.calls) for each in both)
            repeats.append(Repeat(len(calls), length, count // 2, strides))
            for each in both:
                repeats += each.repeats_after(len(calls))
                calls += each.calls
        if count % 2:
            last = self._iteration(2, count - 1, even, odd)
            repeats += last.repeats_after(len(calls))
            calls += last.calls
        temporaries = {
            name: self._graph.types[result].bytes
            for name, result in zip(self._others, self._results, strict=True)
        }
        if plan.arena_bytes:
            temporaries[self._arena] = plan.arena_bytes
        return Lowered(
            tuple(calls),
            self._constants,
            temporaries,
            "loop",
            packings=tuple(self._packing(packing) for packing in plan.packings),
            inner=self._inner,
            repeats=tuple(repeats),
        )

    def _begin(self, into: Sequence[str]) -> Iterator[Call]:
        """Copies of the carried values into the first iteration."""
        for source, result, end in zip(self._initial, into, self._results, strict=True):
            kind = self._graph.types[end]
            yield reorder_call((1, kind.elements), kind.dtype, source, result, PLAIN, PLAIN)

    def _iteration(
        self, number: int, row: int, reads: Sequence[str], writes: Sequence[str]
    ) -> _Iteration:
        """The calls of one iteration.

        Args:
            number: of these calls, for the names of values.
            row: of the stacked results.
            reads, writes: buffers of the carried values.
        """
        ends = (*reads, *self._captured, *writes, *self._stacks)
        first_row = len(ends) - len(self._stacks)
        moving: dict[str, int] = {}
        moving_inside = {name for each in self._plan.repeats for name in each.strides}

        def value(name: str) -> str:
            place = self._plan.places.get(name)
            if place is None and name in self._plan.offsets:
                return self._part(name, self._arena, self._plan.offsets[name], name)
            if place is None:
                return self._own(name)
            end, offset = place
            if end < first_row and not offset and name not in moving_inside:
                return ends[end]
            label = f"{name}/{number}"
            if end < first_row:
                return self._part(label, ends[end], offset, name)
            row_bytes = self._graph.types[ends[end]].bytes // self._count
            made = self._part(label, ends[end], row * row_bytes + offset, name)
            moving[made] = 2 * row_bytes
            return made

        alive = dict.fromkeys((*reads, *writes, *self._stacks, *self._variables()))
        if self._plan.arena_bytes:
            alive[self._arena] = None
        calls = [
            replace(call, values=tuple(map(value, call.values)), in_place=(), alive=tuple(alive))
            for call in self._plan.calls
        ]
        repeats = [
            replace(each, strides={value(name): by for name, by in each.strides.items()})
            for each in self._plan.repeats
        ]
        return _Iteration(calls, repeats, moving)

    def _variables(self) -> list[str]:
        return [name for name in self._captured if name not in self._graph.constants]

    def _part(self, label: str, source: str, offset: int, name: str) -> str:
        """The name of bytes of an input, an output or a temporary."""
        made = f"{self._prefix}/{label}"
        if source in self._graph.constants:  # nothing may be a view of a constant
            array = in_rows(self._graph.constants[source]).reshape(-1)
            first, size = offset // array.itemsize, self._plan.bytes[name] // array.itemsize
            self._constants[made] = array[first : first + size]
        else:
            self._inner[made] = View(source, offset)
        return made

    def _packing(self, packing: Packing) -> Packing:
        return packing.renamed({name: self._own(name) for name in packing.bytes})


LOOP = LoopOperator()
