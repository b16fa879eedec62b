"""The receptive field of every value of a graph, axis by axis, from the inputs on.

For each axis of each input that is followed, a value is one of:

- `Local`: one of its own axes reads it through a periodic map. Along that axis, an element of the
  value reads these indices of the input and no others, padding counted.
- `Whole`: it reads that axis as a whole, because of a node.
- neither: it reads nothing of the input.

A map says the first and the last index; what lies between them counts as read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from typing import TypeAlias

from leanconv.graph.fields.axis_map import IDENTITY, AxisMap, IrregularError
from leanconv.graph.fields.routes import Read, routes
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import label
from leanconv.records import dataclass

InputAxis: TypeAlias = tuple[str, int]
"""An input's name, and an axis of it."""


@dataclass(frozen=True)
class Local:
    """An axis of an input, as one axis of a value reads it."""

    axis: int
    map: AxisMap


@dataclass(frozen=True)
class Whole:
    """An axis of an input that a value reads as a whole, because of a node: its label."""

    because: str


State: TypeAlias = Local | Whole
States: TypeAlias = Mapping[InputAxis, State]


@dataclass(frozen=True)
class Field:
    """Receptive field of an output along one axis of one input.

    Attributes:
        output, input, axis: the output, the input, and the axis of that.
        state: `Local` or `Whole`.
    """

    output: str
    input: str
    axis: int
    state: State

    @property
    def stride(self) -> Fraction | None:
        """Indices of the input from one element of the output to the next; None if whole."""
        return self.state.map.stride if isinstance(self.state, Local) else None

    @property
    def extent(self) -> int | None:
        """The most indices that an element reads; None if whole."""
        return self.state.map.extent if isinstance(self.state, Local) else None

    @property
    def offset(self) -> int | None:
        """The first index that element 0 reads, negative in padding; None if whole."""
        return self.state.map.offset if isinstance(self.state, Local) else None


@dataclass(frozen=True, eq=False)
class Fields:
    """The receptive fields of a graph.

    Attributes:
        graph: the network for concrete shapes.
        axes: of the inputs, those that are followed.
        states: of each value.
    """

    graph: Graph
    axes: tuple[InputAxis, ...]
    states: Mapping[str, States]

    def of_outputs(self) -> Iterator[Field]:
        """The fields of all outputs that read an axis of an input."""
        for output in self.graph.outputs:
            for name, axis in self.axes:
                state = self.states[output].get((name, axis))
                if state is not None:
                    yield Field(output, name, axis, state)


def spatial_axes(graph: Graph) -> tuple[InputAxis, ...]:
    """The axes behind batch and channels of all inputs."""
    return tuple(
        (name, axis) for name in graph.inputs for axis in range(2, len(graph.types[name].shape))
    )


def receptive_fields(graph: Graph, axes: Collection[InputAxis] | None = None) -> Fields:
    """Follow axes of a graph's inputs to all its values.

    Args:
        graph: in normal form, for concrete shapes; chains of convolutions may be fused.
        axes: of inputs; all spatial ones if None.
    """
    followed = spatial_axes(graph) if axes is None else tuple(axes)
    states: dict[str, States] = {name: {} for name in graph.types}
    for name in graph.inputs:
        states[name] = {(of, axis): Local(axis, IDENTITY) for of, axis in followed if of == name}
    for node in graph.nodes:
        for result, output in enumerate(node.outputs):
            if output:
                states[output] = _result_states(node, result, graph, states)
    return Fields(graph, followed, states)


def reads_of(node: Node, result: int, graph: Graph) -> Iterator[tuple[str, Read]]:
    """The operands of a node, as one of its results reads them: each name with its `Read`."""
    kinds = [graph.types[name] if name else None for name in node.inputs]
    given = graph.types[node.outputs[result]]
    for operand, name in enumerate(node.inputs):
        if name:
            yield name, Read(node, operand, result, kinds, given)


def _result_states(node: Node, result: int, graph: Graph, states: Mapping[str, States]) -> States:
    found: dict[InputAxis, State] = {}
    for name, read in reads_of(node, result, graph):
        if not states[name]:
            continue
        to = routes(read)
        for key, state in states[name].items():
            moved = state
            if isinstance(state, Local):
                moved = Whole(label(node))
                if state.axis in to:
                    axis, made = to[state.axis]
                    moved = _composed(axis, made, state.map, node)
            found[key] = moved if key not in found else _both(found[key], moved, node)
    return found


def _composed(axis: int, outer: AxisMap, inner: AxisMap, node: Node) -> State:
    try:
        return Local(axis, outer.after(inner))
    except IrregularError:
        return Whole(label(node))


def _both(one: State, other: State, node: Node) -> State:
    """Combine the states of a node's two operands."""
    if isinstance(one, Whole) or isinstance(other, Whole):
        return one if isinstance(one, Whole) else other
    if one.axis != other.axis:
        return Whole(label(node))
    try:
        return Local(one.axis, one.map.joined(other.map))
    except IrregularError:
        return Whole(label(node))
