"""Control flow: what is known where the network is bound is decided there.

A branch is taken. A loop of few iterations is written out, one after the other; one of many becomes
a node that holds its body.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import NeedsValuesError, Value
from leanconv.graph.convert.rule import Call, FileGraph, Held, Rule
from leanconv.graph.ir import TensorType
from leanconv.graph.regions import Region
from leanconv.types import BOOL, INT64
from leanconv.units import counted

_MANY = 1 << 31
_FEW = 2  # iterations that are written out however large the body is
# Nodes of the file, all iterations together: so many are written out at once, so that passes and
# plans see them; more only where no node can hold the body, as each takes a load about 1 ms.
FEW_WRITTEN_OUT = 64
MOST_WRITTEN_OUT = 2048
MOST_ITERATIONS = (1 << 31) - 1  # of a loop that is held


def _condition(call: Call, index: int) -> bool:
    """A condition that is known; one on open sizes becomes a guard."""
    kind = call.value(index).type
    if kind.dtype != BOOL or kind.elements != 1:
        raise ModelError(f"the condition is {kind}; expected one bool")
    return bool(call.constant(index).reshape(-1)[0])


def _if(call: Call) -> list[Value]:
    """The outputs of the branch that is taken."""
    taken = "then_branch" if _condition(call, 0) else "else_branch"
    for name, graph in call.node.graphs.items():
        if graph.inputs:
            raise ModelError(f"{name} has {len(graph.inputs)} inputs; expected none")
        if len(graph.outputs) != len(call.node.outputs):
            raise ModelError(
                f"{name} has {len(graph.outputs)} outputs; expected {len(call.node.outputs)}, as "
                "many as the node"
            )
    return call.inline(taken)


def _loop(call: Call) -> list[Value]:
    """What is carried at the end, then what the iterations gave, stacked."""
    loop = _Loop(call)
    count = loop.count
    if count is not None and count < 1:
        return loop.never()
    if count is None or count <= loop.few or not call.builder.holds_graphs:
        return loop.written_out(count)
    try:
        body = loop.bound_once()
        goes_on = _goes_on(body.outputs[0])
    except UnsupportedError as error:  # what is carried may begin as constants, and may end it
        return loop.written_out(count, str(error).split(";", 1)[0])
    return loop.held(body, count) if goes_on else loop.written_out(1)


class _Loop:
    """A Loop of the file.

    Args:
        call: the node: how often at most, whether to begin at all, what is carried.

    Raises:
        ModelError: the body does not fit the node.
        UnsupportedError: how often it runs depends on data.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self.body: FileGraph = call.node.graphs["body"]
        self._states = [call.value(index) for index in range(2, len(call))]
        carried, body = len(self._states), self.body
        stacks = len(body.outputs) - 1 - carried
        if len(body.inputs) != carried + 2 or stacks < 0:
            raise ModelError(
                f"the body has {len(body.inputs)} inputs and {len(body.outputs)} outputs; expected "
                f"{carried + 2} inputs and at least {carried + 1} outputs for {carried} carried "
                "values"
            )
        if len(call.node.outputs) > carried + stacks:
            raise ModelError(
                f"the node has {len(call.node.outputs)} outputs; expected {carried + stacks}, as "
                "the body gives"
            )
        self._carried = carried

    @property
    def count(self) -> Any:
        """How often it runs at most, which may be a symbol; None for no limit."""
        call = self._call
        if call.optional(1) is not None and not _condition(call, 1):
            return 0
        if call.optional(0) is None:
            return None
        kind = call.value(0).type
        if kind.dtype != INT64 or kind.elements != 1:
            raise ModelError(f"the trip count is {kind}; expected one int64")
        return call.scalar(0)

    @property
    def few(self) -> int:
        """How many iterations are written out in any case."""
        return max(_FEW, FEW_WRITTEN_OUT // max(1, self.body.size))

    @property
    def most(self) -> int:
        """How many iterations are written out at most."""
        return max(_FEW, MOST_WRITTEN_OUT // max(1, self.body.size))

    def _constant(self, number: object) -> Value:
        return self._call.builder.constant(np.asarray(number))

    def never(self) -> list[Value]:
        """What there is where no iteration runs: stacks of nothing, of the body's types."""
        made = self._call.inline("body", self._given(0, self._states))[1 + self._carried :]
        empty = [TensorType((0, *value.shape), value.type.dtype) for value in made]
        arrays = [np.empty(kind.shape, kind.dtype) for kind in empty]
        return [*self._states, *map(Value, empty, arrays)]

    def _given(self, iteration: int, states: Sequence[Value]) -> list[Value]:
        """What the body reads in an iteration."""
        return [self._constant(np.int64(iteration)), self._constant(np.True_), *states]

    def written_out(self, count: Any, reason: str = "") -> list[Value]:
        """One iteration after the other, each as nodes of the network.

        Args:
            count: how many at most; None for as many as the body wants.
            reason: why the body is not held by a node instead.

        Raises:
            UnsupportedError: whether the body wants another one depends on data, or there are too
                many.
        """
        states = self._states
        stacks: list[list[Value]] = [[] for _ in self.body.outputs[1 + self._carried :]]
        most = self.most
        for iteration in range(most if count is None or count > most else int(count)):
            goes_on, *made = self._call.inline("body", self._given(iteration, states))
            states = made[: self._carried]
            for stack, value in zip(stacks, made[self._carried :], strict=True):
                stack.append(value)
            if not _goes_on(goes_on):
                break
        else:
            if count is None or count > most:
                wanted = "no trip count" if count is None else f"a trip count of {int(count)}"
                held = f"; a node cannot hold more: {reason}" if reason else ""
                raise UnsupportedError(
                    f"the loop has {wanted} and has not ended after {most} iterations; expected at "
                    f"most {most} of a body of {counted(self.body.size, 'node')}: each is written "
                    f"out as nodes of the network{held}; use fewer iterations or a smaller body"
                )
        return [*states, *map(self._stacked, stacks)]

    def bound_once(self) -> Held:
        """The body by itself, for any iteration: what it reads besides constants is data.

        Raises:
            LeanConvError: it cannot be bound that way.
        """
        number = Value(TensorType((), INT64))
        states = [Value(state.type) for state in self._states]
        return self._call.hold("body", [number, self._constant(np.True_), *states])

    def held(self, body: Held, count: Any) -> list[Value]:
        """A node that holds the body; all iterations where that is not possible.

        Args:
            body: bound by itself.
            count: how often it runs.

        Raises:
            UnsupportedError: it cannot be computed again and again, and there are too many.
        """
        (_, number), _, *states = body.inputs.items()
        made = body.outputs[1:]
        wrong = self._obstacle(body, number)
        if count > MOST_ITERATIONS:
            wrong = _said("it runs at most {} times", MOST_ITERATIONS)
        if wrong and count <= self.most:
            return self.written_out(count)
        if wrong:
            raise UnsupportedError(
                f"the loop has a trip count of {int(count)}; expected at most {self.most} where "
                f"its body of {counted(self.body.size, 'node')} is written out, and a node that "
                f"holds the body cannot compute it: {wrong()}; use fewer iterations"
            )
        carried = [n for n, (_, state) in enumerate(states) if made[n] is not state]
        fixed = [n for n in range(len(states)) if n not in carried]
        names = self._call.node.outputs
        kept = carried + [n for n in range(len(states), len(names)) if names[n]]
        needed = body.builder.read_by([made[n] for n in kept])
        captured = [(name, *pair) for name, pair in body.captured.items() if pair[1] in needed]
        inputs = dict(states[n] for n in (*carried, *fixed))
        inputs.update((name, inside) for name, _, inside in captured)
        outer = [self._states[n] for n in (*carried, *fixed)]
        outer += [value for _, value, _ in captured]
        found: Sequence[Value] = [self._repeated(made[n], count) for n in kept if not outer]
        if kept and outer:
            named = _named(
                [self.body.outputs[1 + n] for n in kept], [made[n] for n in kept], inputs
            )
            graph = body.builder.finish(inputs, named, body.names)
            held = {"body": Region(graph), "count": count, "states": len(carried)}
            found = self._call.builder.emit_all("Loop", outer, self._call.node.name, **held)
        results = [*self._states, *made[len(states) :]]  # what stays, and what nobody reads
        for n, value in zip(kept, found, strict=True):
            results[n] = value
        return results

    def _obstacle(self, body: Held, number: Value) -> Callable[[], str] | None:
        """Says why no node can hold the body; None where one can."""
        made = body.outputs[1:]
        if number in body.builder.read_by(made):
            return _said("it reads the iteration's number")
        for before, after in zip(self._states, made, strict=False):
            if before.type != after.type:
                return _said("it carries {} and makes {} of it", before.type, after.type)
        return None

    def _repeated(self, value: Value, count: Any) -> Value:
        """The rows of what each iteration computes alike."""
        row = self._call.reshape(value, (1, *value.shape))
        return self._call.emit("Expand", [row], shape=(count, *value.shape))

    def _stacked(self, values: Sequence[Value]) -> Value:
        rows = [self._call.reshape(value, (1, *value.shape)) for value in values]
        return self._call.emit("Concat", rows, axis=0)


def _said(text: str, *values: object) -> Callable[[], str]:
    """A message that is written when it is wanted: types of open sizes have no text."""
    return lambda: text.format(*values)


def _goes_on(condition: Value) -> bool:
    """Whether a body wants another iteration.

    Raises:
        ModelError: it says so by no bool.
        NeedsValuesError: that depends on data.
    """
    if condition.type.dtype != BOOL or condition.type.elements != 1:
        raise ModelError(f"the body's condition is {condition.type}; expected one bool")
    if condition.array is None:
        raise NeedsValuesError(
            "the body's condition depends on data, which is not supported yet; expected one that "
            "follows from shapes and constants"
        )
    return bool(condition.array.reshape(-1)[0])


def _named(
    names: Sequence[str], values: Sequence[Value], taken: Collection[str]
) -> dict[str, Value]:
    """Values by names of their own, where the file may have one for several."""
    result: dict[str, Value] = {}
    for name, value in zip(names, values, strict=True):
        while name in result or name in taken:
            name += "'"
        result[name] = value
    return result


RULES: dict[str, Rule] = {
    "If": Rule(_if, running=(), outputs=_MANY, graphs=("then_branch", "else_branch")),
    "Loop": Rule(_loop, {}, 2, _MANY, running=range(2, _MANY), outputs=_MANY, graphs=("body",)),
}
