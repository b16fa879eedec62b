"""How often a body is computed, and the node that holds it where that is often.

Few iterations are written out, one after the other. Many become a node that holds the body, where
this can be computed again and again: what is carried keeps its type. The number of an iteration
that the body reads is carried, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.graph.builder import Builder
from leanconv.graph.convert.bodies import Inside, Repeated, goes_on
from leanconv.graph.convert.rule import Held
from leanconv.graph.ir import TensorType
from leanconv.graph.regions import Region
from leanconv.graph.sequence import SequenceValue
from leanconv.graph.value import Value
from leanconv.types import INT64
from leanconv.units import counted

MOST_ITERATIONS = (1 << 31) - 1  # of a loop that is held


def repeated(loop: Repeated) -> list[Value]:
    """What is carried at the end, then what the iterations gave, stacked."""
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
        LeanConvError: it cannot be bound that way.
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
        UnsupportedError: it cannot be computed again and again, and there are too many.
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
    loop: Repeated,
    body: Held,
    number: Value,
    count: Any,
    fixed: Sequence[int],
    kept: Sequence[int],
) -> Sequence[Value]:
    """The results of iterations that are kept: of what is carried, then of the rows.

    Args:
        body, number, count: as of `_held`.
        fixed: the numbers of what is carried but stays as it is.
        kept: those of the results.
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
