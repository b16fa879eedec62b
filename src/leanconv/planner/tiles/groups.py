"""Axes of inputs that are cut together, and where each value's axes lie along them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from leanconv.graph.fields.receptive_fields import Fields, InputAxis, Local, Whole
from leanconv.graph.ir import Graph
from leanconv.records import dataclass


@dataclass(frozen=True, eq=False)
class Group:
    """Axes of inputs that are cut together: an image's height, and that of an image half as large.

    Attributes:
        base: the axis in whose indices places are counted.
        ratios: of each axis, its indices for one of the base's.
    """

    base: InputAxis
    ratios: Mapping[InputAxis, Fraction]


@dataclass(frozen=True, eq=False)
class Place:
    """Where an axis of a value lies: in a group, with `density` elements for one of its base."""

    group: int
    density: Fraction


Places = Mapping[str, Mapping[int, Place]]
"""Of each value, its axes that are cut."""


@dataclass(frozen=True, eq=False)
class Cutting:
    """What of a network can be cut.

    Attributes:
        groups: axes that can be cut.
        whole: axes of inputs that cannot, each with the label of the node that reads all of them.
        places: of the values.
    """

    groups: tuple[Group, ...]
    whole: Mapping[InputAxis, str]
    places: Places

    def extents(self, graph: Graph) -> tuple[int, ...]:
        """The extents of the groups' bases, in the network for an image or for a window of it."""
        bases = (group.base for group in self.groups)
        return tuple(graph.types[name].shape[axis] for name, axis in bases)


def cutting(fields: Fields) -> Cutting:
    """Find the axes that are cut together, and those that cannot be."""
    edges = list(_edges(fields))
    groups: list[Group] = []
    whole: dict[InputAxis, str] = {}
    left = list(fields.axes)
    while left:
        ratios, because = _linked(left[0], edges)
        left = [key for key in left if key not in ratios]
        because = because or _whole_reason(fields, ratios)
        if because:
            whole.update(dict.fromkeys(ratios, because))
        else:
            groups.append(Group(next(iter(ratios)), ratios))
    return Cutting(tuple(groups), whole, _places(fields, groups))


def _edges(fields: Fields) -> Iterator[tuple[InputAxis, InputAxis, Fraction, str]]:
    """Pairs of axes that one axis of a value reads: indices of the second for one of the first."""
    for value, states in fields.states.items():
        seen: dict[int, tuple[InputAxis, Fraction]] = {}
        for key, state in states.items():
            if not isinstance(state, Local):
                continue
            first, stride = seen.setdefault(state.axis, (key, state.map.stride))
            if first != key:
                yield first, key, state.map.stride / stride, value


def _linked(
    base: InputAxis, edges: list[tuple[InputAxis, InputAxis, Fraction, str]]
) -> tuple[dict[InputAxis, Fraction], str]:
    """All axes linked to one, with their ratios; and why they cannot be cut, if they cannot."""
    ratios, queue, because = {base: Fraction(1)}, [base], ""
    while queue:
        here = queue.pop()
        for one, other, ratio, value in edges:
            if here == other:
                one, other, ratio = other, one, 1 / ratio
            if here != one:
                continue
            found = ratios[here] * ratio
            if other not in ratios:
                ratios[other] = found
                queue.append(other)
            elif ratios[other] != found:
                because = f"{value!r}, which mixes several scales"
    inputs = [name for name, _ in ratios]
    if len(set(inputs)) < len(inputs):
        because = because or f"a value that mixes several axes of {inputs[0]!r}"
    return ratios, because


def _whole_reason(fields: Fields, axes: Mapping[InputAxis, Fraction]) -> str:
    """The node because of which an output reads all of one of these axes; empty for none."""
    for output in fields.graph.outputs:
        for key in axes:
            state = fields.states[output].get(key)
            if isinstance(state, Whole):
                return state.because
    return ""


def _places(fields: Fields, groups: list[Group]) -> Places:
    found: dict[str, dict[int, Place]] = {}
    for value, states in fields.states.items():
        axes = found.setdefault(value, {})
        for number, group in enumerate(groups):
            for key, ratio in group.ratios.items():
                state = states.get(key)
                if isinstance(state, Local):
                    axes[state.axis] = Place(number, ratio / state.map.stride)
    return found
