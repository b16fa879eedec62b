"""Bodies that are computed again and again: Loop, and Scan over the slices of tensors.

Few iterations are written out, one after the other. Many become a node that holds the body, where
this can be computed again and again: what is carried keeps its type. The number of an iteration
that the body reads is carried, too, and the slices of a Scan are gathered by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import Builder, Value
from leanconv.graph.convert.rule import Call, FileGraph, Held
from leanconv.graph.convert.shapes import part_of
from leanconv.graph.ir import TensorType
from leanconv.graph.regions import Region
from leanconv.graph.sequence import SequenceValue
from leanconv.types import BOOL, INT64
from leanconv.units import counted

_FEW = 2  # iterations that are written out however large the body is
# Nodes of the file, all iterations together: so many are written out at once, so that passes and
# plans see them; more only where no node can hold the body, as each takes a load about 1 ms.
FEW_WRITTEN_OUT = 64
MOST_WRITTEN_OUT = 2048
MOST_ITERATIONS = (1 << 31) - 1  # of a loop that is held
_Inside = Callable[[Value], Value]


def condition(call: Call, index: int) -> bool:
    """A condition that is known; one on open sizes becomes a guard."""
    kind = call.value(index).type
    if kind.dtype != BOOL or kind.elements != 1:
        raise ModelError(f"the condition is {kind}; expected one bool")
    return bool(call.constant(index).reshape(-1)[0])


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

    def slices(self, number: Value, builder: Builder, inside: _Inside) -> list[Value]:
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
        if not wanted:
            return results
        outputs = [self.body.outputs[self.leads_out + self.carried + index] for index in wanted]
        rows = self.call.inline("body", self.given(0, self.states), outputs)
        for index, row in zip(wanted, rows, strict=True):
            kind = TensorType((0, *row.shape), row.type.dtype)
            empty = Value(kind, np.empty(kind.shape, kind.dtype))
            results[self.carried + index] = self.arranged(empty, index)
        return results

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

    # -- a node that holds the body ----------------------------------------------------------
    def bound_once(self) -> tuple[Held, Value]:
        """The body by itself, for any iteration, and the number of that one.

        What it reads besides constants is data.

        Raises:
            LeanConvError: it cannot be bound that way.
        """
        number = Value(TensorType((), INT64))
        states = [Value(state.type) for state in self.states]
        lead = [number, self.known(np.True_)][: self.leads_in]

        def slices(builder: Builder, inside: _Inside) -> list[Value]:
            return self.slices(number, builder, inside)

        return self.call.hold("body", [*lead, *states], slices), number

    def held(self, body: Held, number: Value, count: Any) -> list[Value]:
        """A node that holds the body; all iterations where that is not possible.

        Args:
            body: bound by itself.
            number: of an iteration, in it.
            count: how often it runs.

        Raises:
            UnsupportedError: it cannot be computed again and again, and there are too many.
        """
        wrong = self._obstacle(body, count)
        if wrong and count <= self.most:
            return self.written_out(count)
        if wrong:
            raise UnsupportedError(
                f"the loop has a trip count of {int(count)}; expected at most {self.most} where "
                f"its body of {counted(self.body.size, 'node')} is written out, and a node that "
                f"holds the body cannot compute it: {wrong()}; use fewer iterations"
            )
        states = list(body.inputs.items())[self.leads_in : self.leads_in + self.carried]
        made = list(body.outputs[self.leads_out :])
        carried = [n for n, (_, state) in enumerate(states) if made[n] is not state]
        fixed = [n for n in range(len(states)) if n not in carried]
        names = self.call.node.outputs
        kept = carried + [n for n in range(len(states), len(names)) if names[n]]
        results = [*self.states, *made[len(states) :]]  # what stays, and what nobody reads
        found = self._emitted(body, number, count, fixed, kept)
        for n, value in zip(kept, found, strict=True):
            stack = n >= len(states)
            results[n] = self.arranged(value, n - len(states)) if stack else value
        return results

    def _emitted(
        self,
        body: Held,
        number: Value,
        count: Any,
        fixed: Sequence[int],
        kept: Sequence[int],
    ) -> Sequence[Value]:
        """The results of iterations that are kept: of what is carried, then of the rows.

        Args:
            body, number, count: as of `held`.
            fixed: the numbers of what is carried but stays as it is.
            kept: those of the results.
        """
        states = list(body.inputs.items())[self.leads_in : self.leads_in + self.carried]
        values = [body.outputs[self.leads_out + n] for n in kept]
        names = [self.body.outputs[self.leads_out + n] for n in kept]
        needed = body.builder.read_by(values)
        carried = [n for n in kept if n < self.carried]
        outer, inputs = [self.states[n] for n in carried], [states[n] for n in carried]
        counts = number in needed
        if counts:  # it is carried first
            one = body.builder.constant(np.int64(1))
            values.insert(0, body.builder.emit("Add", [number, one]))
            names.insert(0, "iteration")
            outer.insert(0, self.known(np.int64(0)))
            inputs.insert(0, (_free("iteration", [*body.inputs, *body.captured]), number))
        held = {"count": count, "states": len(inputs)}
        outer += [self.states[n] for n in fixed]
        inputs += [states[n] for n in fixed]
        captured = [(n, *pair) for n, pair in body.captured.items() if pair[1] in needed]
        outer += [value for _, value, _ in captured]
        inputs += [(name, inside) for name, _, inside in captured]
        if not (outer and values):
            return [self._alike(value, count) for value in values]
        given = dict(inputs)
        graph = body.builder.finish(given, _named(names, values, given), body.names)
        node = self.call.node.name
        found = self.call.builder.emit_all("Loop", outer, node, body=Region(graph), **held)
        return found[1:] if counts else found

    def _obstacle(self, body: Held, count: Any) -> Callable[[], str] | None:
        """Says why no node can hold the body; None where one can."""
        if count > MOST_ITERATIONS:
            return _said("it runs at most {} times", MOST_ITERATIONS)
        for before, after in zip(self.states, body.outputs[self.leads_out :], strict=False):
            if before.type != after.type:
                return _said("it carries {} and makes {} of it", before.type, after.type)
        return None

    def _alike(self, value: Value, count: Any) -> Value:
        """The rows of what each iteration computes alike."""
        row = self.call.reshape(value, (1, *value.shape))
        return self.call.emit("Expand", [row], shape=(count, *value.shape))


class Loop(Repeated):
    """A Loop: how often at most, whether to begin at all, what is carried."""

    def __init__(self, call: Call) -> None:
        states = [call.anything(index) for index in range(2, len(call))]
        if None in states:
            raise ModelError("a carried value is absent; expected all of them")
        super().__init__(call, [state for state in states if state is not None], 2, 1)

    @property
    def count(self) -> Any:
        """How often it runs at most."""
        call = self.call
        if call.optional(1) is not None and not condition(call, 1):
            return 0
        if call.optional(0) is None:
            return None
        kind = call.value(0).type
        if kind.dtype != INT64 or kind.elements != 1:
            raise ModelError(f"the trip count is {kind}; expected one int64")
        return call.scalar(0)


class Scan(Repeated):
    """A Scan: what is carried, then tensors of which each iteration reads a slice.

    Args:
        call: the node.
        inputs: its operands; None for all that the node has.

    Raises:
        ModelError: axes do not fit, or the tensors have different extents along them.
    """

    def __init__(self, call: Call, inputs: Sequence[Value] | None = None) -> None:
        given = [call.value(n) for n in range(len(call))] if inputs is None else list(inputs)
        slices = call.attribute("num_scan_inputs", None)
        if slices is None or not 0 < slices <= len(given):
            raise ModelError(f"num_scan_inputs is {slices}; expected 1 to {len(given)}")
        first = len(given) - slices
        super().__init__(call, given[:first], 0, 0, slices)
        self._whole = given[first:]
        axes = self._listed("scan_input_axes", slices)
        pairs = zip(axes, self._whole, strict=True)
        self._axes = [call.axis(a, len(x.shape), "a scan input's axis") for a, x in pairs]
        before_9 = "directions" if call.opset < 9 else "scan_input_directions"
        self._backwards = self._listed(before_9, slices)
        self._out_axes = self._listed("scan_output_axes", self.stacks)
        self._out_backwards = self._listed("scan_output_directions", self.stacks)
        extents = [x.shape[axis] for axis, x in zip(self._axes, self._whole, strict=True)]
        if any(extent != extents[0] for extent in extents):
            raise ModelError(f"scans extents {extents}; expected equal ones")
        self._extent = extents[0]

    @classmethod
    def of_batch(cls, call: Call) -> list[Value]:
        """The Scan of opset 8: the first axis of all operands and results is a batch."""
        given = [call.value(index) for index in range(1, len(call))]
        if any(not x.shape or x.shape[0] != given[0].shape[0] or not x.shape[0] for x in given):
            raise ModelError("operands differ in their first axis; expected one batch for all")
        images = []
        for image in range(given[0].shape[0]):
            parts = [part_of(call, x, 0, image, 1, 1) for x in given]
            alone = [call.reshape(part, part.shape[1:]) for part in parts]
            images.append(repeated(cls(call, alone)))
        rows = [[call.reshape(x, (1, *x.shape)) for x in each] for each in images]
        return [call.emit("Concat", list(each), axis=0) for each in zip(*rows, strict=True)]

    def _listed(self, name: str, count: int) -> Sequence[int]:
        numbers: Sequence[int] = self.call.attribute(name, (0,) * count)
        if len(numbers) != count:
            raise ModelError(f"attribute {name} has {len(numbers)} numbers; expected {count}")
        return numbers

    @property
    def count(self) -> Any:
        """How often it runs: the extent of what is scanned."""
        return self._extent

    def slices(self, number: Value, builder: Builder, inside: _Inside) -> list[Value]:
        """The slice of each tensor that an iteration reads."""
        rows = []
        for x, axis, backwards in zip(self._whole, self._axes, self._backwards, strict=True):
            shape = (*x.shape[:axis], *x.shape[axis + 1 :])
            if number.array is not None:
                place = int(number.array)
                place = self._extent - 1 - place if backwards else place
                if not self._extent:  # no iteration runs: any slice will do
                    empty = TensorType(shape, x.type.dtype)
                    rows.append(Value(empty, np.zeros(shape, x.type.dtype)))
                    continue
                rows.append(self.call.reshape(part_of(self.call, x, axis, place, 1, 1), shape))
                continue
            if backwards:
                x = part_of(self.call, x, axis, self._extent - 1, -1, self._extent)
            rows.append(builder.emit("Gather", [inside(x), number], axis=axis))
        return rows

    def arranged(self, stack: Value, index: int) -> Value:
        """Rows along the result's axis, in its direction."""
        rank, call = len(stack.shape), self.call
        axis = call.axis(self._out_axes[index], rank, "a scan output's axis")
        if self._out_backwards[index] and stack.shape[0]:
            stack = part_of(call, stack, 0, stack.shape[0] - 1, -1, stack.shape[0])
        order = list(range(1, rank))
        order.insert(axis, 0)
        return call.emit("Transpose", [stack], perm=tuple(order))


def repeated(loop: Repeated) -> list[Value]:
    """What is carried at the end, then what the iterations gave, stacked."""
    count = loop.count
    if count is not None and count < 1:
        return loop.never()
    lists = any(isinstance(state, SequenceValue) for state in loop.states)
    if count is None or count <= loop.few or lists or not loop.call.builder.holds_graphs:
        return loop.written_out(count)
    try:
        body, number = loop.bound_once()
        again = not loop.leads_out or goes_on(body.builder, body.outputs[0])
    except UnsupportedError as error:  # what is carried may begin as constants, and may end it
        return loop.written_out(count, str(error).split(";", 1)[0])
    return loop.held(body, number, count) if again else loop.written_out(1)


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


def _said(text: str, *values: object) -> Callable[[], str]:
    """A message that is written when it is wanted: types of open sizes have no text."""
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
