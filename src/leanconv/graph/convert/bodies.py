"""A body that is computed again and again, and its iterations as nodes of the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import Builder
from leanconv.graph.convert.rule import Call, FileGraph
from leanconv.graph.ir import TensorType
from leanconv.graph.located import NeedsValuesError
from leanconv.graph.value import Value
from leanconv.symbolic import NeedsNumberError
from leanconv.types import BOOL
from leanconv.units import counted

_FEW = 2  # iterations that are written out however large the body is
# Nodes of the file, all iterations together: so many are written out at once, so that passes and
# plans see them; more only where no node can hold the body, as each takes a load about 1 ms.
FEW_WRITTEN_OUT = 64
MOST_WRITTEN_OUT = 2048
Inside = Callable[[Value], Value]  # what a value of the graph around a node is in the node's


class Repeated:
    """A body with what goes in and comes out.

    Args:
        call: the node.
        states: what is carried, at the beginning.
        leads_in, leads_out: inputs and outputs of the body before what is carried.
        slices: how many inputs of the body are slices, after what is carried.

    Raises:
        ModelError: the body does not fit the node.
    """

    def __init__(
        self, call: Call, states: Sequence[Value], leads_in: int, leads_out: int, slices: int = 0
    ) -> None:
        self.call, self.states = call, states
        self.body: FileGraph = call.node.graphs["body"]
        carried, body = len(states), self.body
        stacks = len(body.outputs) - leads_out - carried
        if len(body.inputs) != carried + leads_in + slices or stacks < 0:
            raise ModelError(
                f"the body has {len(body.inputs)} inputs and {len(body.outputs)} outputs; expected "
                f"{carried + leads_in + slices} inputs and at least {carried + leads_out} outputs "
                f"for {carried} carried values"
            )
        if len(call.node.outputs) > carried + stacks:
            raise ModelError(
                f"the node has {len(call.node.outputs)} outputs; expected {carried + stacks}, as "
                "the body gives"
            )
        self.carried, self.stacks = carried, stacks
        self.leads_in, self.leads_out = leads_in, leads_out

    # -- what Loop and Scan differ in --------------------------------------------------------
    @property
    def count(self) -> Any:
        """How often it runs at most, which may be a symbol; None for no limit."""
        raise NotImplementedError

    def slices(self, number: Value, builder: Builder, inside: Inside) -> list[Value]:
        """What the body reads of an iteration besides what is carried.

        Args:
            number: of the iteration.
            builder: of the graph that the body is in.
            inside: what a value of the graph around the node is in that one.
        """
        del number, builder, inside
        return []

    def stacked(self, values: Sequence[Value], index: int) -> Value:
        """What iterations gave, one after the other, as the result of that index."""
        del index
        rows = [self.call.reshape(value, (1, *value.shape)) for value in values]
        return self.call.emit("Concat", rows, axis=0)

    def arranged(self, stack: Value, index: int) -> Value:
        """Rows in the order of iterations as the result of that index."""
        del index
        return stack

    # -- iterations --------------------------------------------------------------------------
    @property
    def few(self) -> int:
        """How many iterations are written out in any case."""
        return max(_FEW, FEW_WRITTEN_OUT // max(1, self.body.size))

    @property
    def most(self) -> int:
        """How many iterations are written out at most; in a run its budget bounds them."""
        if self.call.builder.running:
            return 1 << 62
        return max(_FEW, MOST_WRITTEN_OUT // max(1, self.body.size))

    def known(self, number: object) -> Value:
        """A constant."""
        return self.call.builder.constant(np.asarray(number))

    def given(self, iteration: int, states: Sequence[Value]) -> list[Value]:
        """What the body reads in an iteration."""
        number = self.known(np.int64(iteration))
        lead = [number, self.known(np.True_)][: self.leads_in]
        return [*lead, *states, *self.slices(number, self.call.builder, lambda value: value)]

    def inlined(self, iteration: int, states: Sequence[Value]) -> tuple[bool, list[Value]]:
        """One iteration as nodes around it: whether another one follows, and what it gives."""
        found = self.call.inline("body", self.given(iteration, states))
        made = found[self.leads_out :]
        return not self.leads_out or goes_on(self.call.builder, found[0]), made

    def never(self) -> list[Value]:
        """What there is where no iteration runs: stacks of nothing, of the body's types.

        Of the body only what these need is looked at: it need not fit what is carried.
        """
        results: list[Value] = [*self.states, *(self.known(0) for _ in range(self.stacks))]
        names = enumerate(self.call.node.outputs[self.carried :])
        wanted = [index for index, name in names if name]
        for index, kind in zip(wanted, self._row_types(wanted), strict=True):
            stack = TensorType((0, *kind.shape), kind.dtype)
            empty = Value(stack, np.empty(stack.shape, stack.dtype))
            results[self.carried + index] = self.arranged(empty, index)
        return results

    def _row_types(self, wanted: Sequence[int]) -> list[TensorType]:
        """What the body would give in an iteration, as results that are stacked.

        Where it does not fit what is carried, or is not supported, that is what it declares.
        """
        if not wanted:
            return []
        first, body = self.leads_out + self.carried, self.body
        outputs = [body.outputs[first + index] for index in wanted]
        try:
            rows = self.call.inline("body", self.given(0, self.states), outputs)
        except (ModelError, UnsupportedError, NeedsNumberError) as error:  # of open sizes
            if isinstance(error, NeedsValuesError):
                raise
            if len(wanted) > 1:
                return [kind for index in wanted for kind in self._row_types([index])]
            declared = body.declared[first + wanted[0]]
            if declared is None:
                raise
            return [TensorType(declared.shape, self.call.builder.kept(declared.dtype))]
        return [row.type for row in rows]

    def written_out(self, count: Any, reason: str = "") -> list[Value]:
        """One iteration after the other, each as nodes of the network.

        Args:
            count: how many at most; None for as many as the body wants.
            reason: why the body is not held by a node instead.

        Raises:
            NeedsValuesError: whether the body wants another one depends on data.
            UnsupportedError: there are too many.
        """
        states = self.states
        stacks: list[list[Value]] = [[] for _ in range(self.stacks)]
        most = self.most
        for iteration in range(most if count is None or count > most else int(count)):
            again, made = self.inlined(iteration, states)
            states = made[: self.carried]
            for stack, value in zip(stacks, made[self.carried :], strict=True):
                stack.append(value)
            if not again:
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
        rows = (self.arranged(self.stacked(each, n), n) for n, each in enumerate(stacks))
        return [*states, *rows]


def goes_on(builder: Builder, wanted: Value) -> bool:
    """Whether a body wants another iteration.

    Raises:
        ModelError: it says so by no bool.
        NeedsValuesError: that depends on data.
    """
    if wanted.type.dtype != BOOL or wanted.type.elements != 1:
        raise ModelError(f"the body's condition is {wanted.type}; expected one bool")
    if wanted.array is None:
        raise builder.needs(
            wanted,
            "the body's condition depends on data, which is not supported yet; expected one that "
            "follows from shapes and constants",
        )
    return bool(wanted.array.reshape(-1)[0])
