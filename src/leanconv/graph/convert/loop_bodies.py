"""Bodies of loops: their iterations as nodes of the network, or the node that holds the body.

Few iterations are written out, one after the other. Many become a node that holds the body, where
this can be computed again and again: what is carried keeps its type. The number of an iteration
that the body reads is carried, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import Builder
from leanconv.graph.convert.rule import Call, Held
from leanconv.graph.file_graph import FileGraph
from leanconv.graph.ir import TensorType
from leanconv.graph.regions import Region
from leanconv.graph.value import NeedsValuesError, SequenceValue, Value
from leanconv.symbolic import NeedsNumberError
from leanconv.types import BOOL, INT64
from leanconv.units import counted

_FEW = 2  # iterations that are written out however large the body is
# Nodes of the file, all iterations together: so many are written out at once, so that passes and
# plans see them; more only where no node can hold the body, as each takes a load about 1 ms.
FEW_WRITTEN_OUT = 64
MOST_WRITTEN_OUT = 2048
Inside = Callable[[Value], Value]  # what a value of the graph around a node is in the node's
MOST_ITERATIONS = (1 << 31) - 1  # of a loop that a node holds


class Repeated:
    """The body of a loop, with its inputs and outputs.

    Args:
        call: the node.
        states: the values that iterations hand on, at the beginning.
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
        """The most iterations, which may be a symbol; None for no limit."""
        raise NotImplementedError

    def slices(self, number: Value, builder: Builder, inside: Inside) -> list[Value]:
        """Return the values that the body reads of an iteration besides the states.

        Args:
            number: of the iteration.
            builder: of the graph that the body is in.
            inside: gives a value of the graph around the node in that one.
        """
        del number, builder, inside
        return []

    def stacked(self, values: Sequence[Value], index: int) -> Value:
        """Stack the iterations' values, as the result of that index."""
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
        """The number of iterations that are written out in any case."""
        return max(_FEW, FEW_WRITTEN_OUT // max(1, self.body.size))

    @property
    def most(self) -> int:
        """The most iterations that are written out; in a run its budget bounds them."""
        if self.call.builder.running:
            return 1 << 62
        return max(_FEW, MOST_WRITTEN_OUT // max(1, self.body.size))

    def known(self, number: object) -> Value:
        """A constant."""
        return self.call.builder.constant(np.asarray(number))

    def given(self, iteration: int, states: Sequence[Value]) -> list[Value]:
        """Return the inputs of the body in an iteration."""
        number = self.known(np.int64(iteration))
        lead = [number, self.known(np.True_)][: self.leads_in]
        return [*lead, *states, *self.slices(number, self.call.builder, lambda value: value)]

    def inlined(self, iteration: int, states: Sequence[Value]) -> tuple[bool, list[Value]]:
        """One iteration as nodes: whether another one follows, and its results."""
        found = self.call.inline("body", self.given(iteration, states))
        made = found[self.leads_out :]
        return not self.leads_out or goes_on(self.call.builder, found[0]), made

    def never(self) -> list[Value]:
        """Return the results without iterations: the states, and empty stacks of the body's types.

        Of the body only what these need is looked at: it need not fit the states.
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
        """Return the types of an iteration's results that are stacked.

        A body that does not fit the states, or is not supported, has the types that it declares.
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
    """Return whether a body wants another iteration.

    Raises:
        ModelError: the condition is not one bool.
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


def repeated(loop: Repeated) -> list[Value]:
    """Return the states at the end, then the iterations' results, stacked."""
    count = loop.count
    if count is not None and count < 1:
        return loop.never()
    lists = any(isinstance(state, SequenceValue) for state in loop.states)
    if count is None or count <= loop.few or lists or not loop.call.builder.holds_graphs:
        return loop.written_out(count)
    try:
        body, number = _bound_once(loop)
        again = not loop.leads_out or goes_on(body.builder, body.outputs[0])
    except UnsupportedError as error:  # what is carried may begin as constants, and may end it
        return loop.written_out(count, str(error).split(";", 1)[0])
    return _held(loop, body, number, count) if again else loop.written_out(1)


def _bound_once(loop: Repeated) -> tuple[Held, Value]:
    """The body by itself, for any iteration, and the number of that one.

    What it reads besides constants is data.

    Raises:
        LeanConvError: the body cannot be bound that way.
    """
    number = Value(TensorType((), INT64))
    states = [Value(state.type) for state in loop.states]
    lead = [number, loop.known(np.True_)][: loop.leads_in]

    def slices(builder: Builder, inside: Inside) -> list[Value]:
        return loop.slices(number, builder, inside)

    return loop.call.hold("body", [*lead, *states], slices), number


def _held(loop: Repeated, body: Held, number: Value, count: Any) -> list[Value]:
    """A node that holds the body; all iterations where that is not possible.

    Args:
        body: bound by itself.
        number: of an iteration, in it.
        count: how often it runs.

    Raises:
        UnsupportedError: no node can hold the body, and there are too many iterations.
    """
    wrong = _obstacle(loop, body, count)
    if wrong and count <= loop.most:
        return loop.written_out(count)
    if wrong:
        raise UnsupportedError(
            f"the loop has a trip count of {int(count)}; expected at most {loop.most} where "
            f"its body of {counted(loop.body.size, 'node')} is written out, and a node that "
            f"holds the body cannot compute it: {wrong()}; use fewer iterations"
        )
    states = list(body.inputs.items())[loop.leads_in : loop.leads_in + loop.carried]
    made = list(body.outputs[loop.leads_out :])
    carried = [n for n, (_, state) in enumerate(states) if made[n] is not state]
    fixed = [n for n in range(len(states)) if n not in carried]
    names = loop.call.node.outputs
    kept = carried + [n for n in range(len(states), len(names)) if names[n]]
    results = [*loop.states, *made[len(states) :]]  # what stays, and what nobody reads
    found = _emitted(loop, body, number, count, fixed, kept)
    for n, value in zip(kept, found, strict=True):
        stack = n >= len(states)
        results[n] = loop.arranged(value, n - len(states)) if stack else value
    return results


def _emitted(
    loop: Repeated, body: Held, number: Value, count: Any, fixed: Sequence[int], kept: Sequence[int]
) -> Sequence[Value]:
    """Emit the node that holds the body; return its results: states, then rows.

    Args:
        body, number, count: as of `_held`.
        fixed: the numbers of states that stay as they are.
        kept: the numbers of the other states, and of the rows that something reads.
    """
    states = list(body.inputs.items())[loop.leads_in : loop.leads_in + loop.carried]
    values = [body.outputs[loop.leads_out + n] for n in kept]
    names = [loop.body.outputs[loop.leads_out + n] for n in kept]
    needed = body.builder.read_by(values)
    carried = [n for n in kept if n < loop.carried]
    outer, inputs = [loop.states[n] for n in carried], [states[n] for n in carried]
    counts = number in needed
    if counts:  # it is carried first
        one = body.builder.constant(np.int64(1))
        values.insert(0, body.builder.emit("Add", [number, one]))
        names.insert(0, "iteration")
        outer.insert(0, loop.known(np.int64(0)))
        inputs.insert(0, (_free("iteration", [*body.inputs, *body.captured]), number))
    facts = {"count": count, "states": len(inputs)}
    outer += [loop.states[n] for n in fixed]
    inputs += [states[n] for n in fixed]
    captured = [(n, *pair) for n, pair in body.captured.items() if pair[1] in needed]
    outer += [value for _, value, _ in captured]
    inputs += [(name, inside) for name, _, inside in captured]
    if not (outer and values):
        return [_alike(loop, value, count) for value in values]
    given = dict(inputs)
    graph = body.builder.finish(given, _named(names, values, given), body.names)
    node = loop.call.node.name
    found = loop.call.builder.emit_all("Loop", outer, node, body=Region(graph), **facts)
    return found[1:] if counts else found


def _obstacle(loop: Repeated, body: Held, count: Any) -> Callable[[], str] | None:
    """Says why no node can hold the body; None where one can."""
    if count > MOST_ITERATIONS:
        return _said("it runs at most {} times", MOST_ITERATIONS)
    for before, after in zip(loop.states, body.outputs[loop.leads_out :], strict=False):
        if before.type != after.type:
            return _said("it carries {} and makes {} of it", before.type, after.type)
    return None


def _alike(loop: Repeated, value: Value, count: Any) -> Value:
    """The rows of what each iteration computes alike."""
    row = loop.call.reshape(value, (1, *value.shape))
    return loop.call.emit("Expand", [row], shape=(count, *value.shape))


def _said(text: str, *values: object) -> Callable[[], str]:
    """A message that is written when it is read: types of open sizes have no text."""
    return lambda: text.format(*values)


def _free(name: str, taken: Collection[str]) -> str:
    """The name, changed where it is taken."""
    while name in taken:
        name += "'"
    return name


def _named(
    names: Sequence[str], values: Sequence[Value], taken: Collection[str]
) -> Mapping[str, Value]:
    """Values by names of their own, where the file may have one for several."""
    result: dict[str, Value] = {}
    for name, value in zip(names, values, strict=True):
        result[_free(name, [*result, *taken])] = value
    return result
