"""Control flow: what is known where the network is bound is decided there.

A branch is taken; the iterations of a loop are written out, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import Value
from leanconv.graph.convert.rule import Call, FileGraph, Rule
from leanconv.graph.ir import TensorType
from leanconv.types import BOOL, INT64
from leanconv.units import counted

_MANY = 1 << 31
_FEW = 2  # iterations that are written out however large the body is
MOST_WRITTEN_OUT = 2048  # nodes of the file, all iterations together


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
    return loop.never() if count is not None and count < 1 else loop.written_out(count)


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

    def written_out(self, count: Any) -> list[Value]:
        """One iteration after the other, each as nodes of the network.

        Args:
            count: how many at most; None for as many as the body wants.

        Raises:
            UnsupportedError: whether the body wants another one depends on data, or there are too
                many.
        """
        states = self._states
        stacks: list[list[Value]] = [[] for _ in self.body.outputs[1 + self._carried :]]
        most = max(_FEW, MOST_WRITTEN_OUT // max(1, self.body.size))
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
                raise UnsupportedError(
                    f"the loop has {wanted} and has not ended after {most} iterations; expected at "
                    f"most {most} of a body of {counted(self.body.size, 'node')}: each is written "
                    "out as nodes of the network; use fewer iterations or a smaller body"
                )
        return [*states, *map(self._stacked, stacks)]

    def _stacked(self, values: Sequence[Value]) -> Value:
        rows = [self._call.reshape(value, (1, *value.shape)) for value in values]
        return self._call.emit("Concat", rows, axis=0)


def _goes_on(condition: Value) -> bool:
    """Whether a body wants another iteration.

    Raises:
        ModelError: it says so by no bool.
        UnsupportedError: that depends on data.
    """
    if condition.type.dtype != BOOL or condition.type.elements != 1:
        raise ModelError(f"the body's condition is {condition.type}; expected one bool")
    if condition.array is None:
        raise UnsupportedError(
            "the body's condition depends on data, which is not supported yet; expected one that "
            "follows from shapes and constants"
        )
    return bool(condition.array.reshape(-1)[0])


RULES: dict[str, Rule] = {
    "If": Rule(_if, running=(), outputs=_MANY, graphs=("then_branch", "else_branch")),
    "Loop": Rule(_loop, {}, 2, _MANY, running=range(2, _MANY), outputs=_MANY, graphs=("body",)),
}
