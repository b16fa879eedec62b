"""Graphs for new input shapes without binding and simplifying the network anew.

A network whose inputs have open extents is bound and simplified with symbols for them
(`leanconv.symbolic`): the graph that comes out, with expressions in its shapes and attributes, is
that of every other shape whose extents answer the guards alike (an extent is even, two sizes of a
sum are equal, a map is larger than a window …). Where a symbol will not do, the network is bound to
each shape as it comes. An extent of 0 or 1 is no symbol: what is left out for it is worth a
template of its own.

All graphs of a template share its constants, which stay in memory with it; where that is much, the
network is bound to each shape anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from leanconv.graph.ir import Graph, Origin, number_of
from leanconv.graph.limits import SpentError
from leanconv.graph.network_inputs import NeedsInputsError
from leanconv.graph.onnx_import import Model
from leanconv.graph.open_sizes import SizedArray, graph_filler, sized_filler, tables_filler
from leanconv.symbolic import (
    Guards,
    Holes,
    Made,
    Memo,
    NeedsNumberError,
    Symbol,
    Trace,
    Values,
    attempted,
)

Shape = tuple[int, ...]
Known = Mapping[str, np.ndarray]
_Kept = TypeVar("_Kept")
Make = Callable[..., Graph]  # of shapes by name, and of known values where there are any

_MOST_KEPT_BYTES = 32 * 2**20  # of constants made at load: weights with folded factors
_MOST_TEMPLATES = 16  # of one pattern of open extents
_MOST_PATTERNS = 64  # each value that decides makes one


class Template(Made[Graph]):
    """A graph with symbols, and the guards that must hold for it.

    Args:
        graph: shapes, attributes and constants may hold symbols.
        guards: comparisons of symbols on which binding and simplifying depended.
        axes: of the inputs, along which each of the open extents is.

    Raises:
        NeedsNumberError, TypeError: as `graph_filler`.
    """

    def __init__(self, graph: Graph, guards: Guards, axes: Sequence[int]) -> None:
        self._axes = axes
        holes, sized = Holes(), graph.from_sizes
        self._fill_graph = graph_filler(graph, holes)
        self._tables = tables_filler(graph, holes)
        self._sized = None if sized is None else sized_filler(sized, holes)
        self._later = () if sized is None else sized.outputs
        self._positions = {node.wiring: number for number, node in enumerate(graph.nodes)}
        self.memo: dict[Any, Any] = {}
        super().__init__(graph, guards, holes.symbols, self._filled)

    def at(self, values: Values) -> Graph | None:
        """The graph for open extents of these values, None if a guard does not hold."""
        graph = super().at(values)
        if graph is None or graph.origin is None:
            return None
        extents = tuple((int(n), axis) for n, axis in zip(values, self._axes, strict=True))
        return replace(graph, origin=replace(graph.origin, extents=extents, at=self.at))

    def _filled(self, numbers: Sequence[Any]) -> Graph:
        """The graph with numbers for all symbols."""
        constants: dict[str, Any] = self._tables(numbers)
        if self._sized is not None:
            constants.update(self._sized(numbers))
        graph, values = self._with(numbers, constants), tuple(numbers)
        origin = Origin(self._positions, values, partial(self._symbolic, values), self.memo)
        return replace(graph, origin=origin)

    def _symbolic(self, numbers: Values, trace: Trace) -> Graph:
        """The graph with symbols of a trace, which have these numbers.

        Each expression is a variable: what is made of it is a short expression.
        """
        symbols = [trace.variable(place, number) for place, number in enumerate(numbers)]
        return self._with(symbols, {name: SizedArray() for name in self._later})

    def _with(self, extents: Sequence[Any], constants: Mapping[str, Any]) -> Graph:
        """The graph with other extents, and with further constants in place of its last inputs."""
        graph: Graph = self._fill_graph(extents) if self._fill_graph else self.result
        return replace(
            graph,
            inputs=graph.inputs[: len(graph.inputs) - len(self._later)],
            constants=MappingProxyType({**graph.constants, **constants}),
            from_sizes=None,
        )


class Templates:
    """The templates of a model.

    Args:
        model: the network as read from its file.
        make: binds the model to shapes, and to values of some inputs, and simplifies the graph.
    """

    def __init__(self, model: Model, make: Make) -> None:
        self._inputs, self._make = model.inputs, make
        self._templates: dict[tuple[object, ...], Memo[Graph]] = {}
        self._undecided: dict[tuple[object, ...], Memo[tuple[str, ...]]] = {}

    @property
    def memos(self) -> Sequence[Memo[Graph]]:
        """One memo of graphs for each pattern of open extents that was met."""
        return tuple(self._templates.values())

    def graph(self, shapes: Sequence[Shape], known: Known = MappingProxyType({})) -> Graph:
        """The simplified graph for the shapes of all inputs.

        Args:
            shapes: of the inputs.
            known: values of those that are constants of the graph.

        Raises:
            NeedsInputsError: values of other inputs decide, which is known without binding where
                it was found for sizes that answer alike.
            LeanConvError: as the model's `bind`.
        """
        trace = Trace()
        values: list[int] = []
        axes: list[int] = []
        names: list[str] = []
        symbolic: dict[str, Any] = {}
        for declared, shape in zip(self._inputs, shapes, strict=True):
            extents_known = declared.shape or (None,) * len(shape)
            extents: list[Any] = list(shape)
            symbolic[declared.name] = extents
            for axis, extent in enumerate(extents_known[: len(shape)]):
                fixed = isinstance(extent, int) or declared.name in known
                if not fixed and shape[axis] > 1:
                    extents[axis] = trace.variable(len(values), shape[axis])
                    values.append(shape[axis])
                    axes.append(axis)
                    names.append(extent if isinstance(extent, str) else f"{declared.name}[{axis}]")
        shown = (["open" if isinstance(n, Symbol) else n for n in e] for e in symbolic.values())
        pattern = (
            *((*extents, None) for extents in shown),
            *((name, array.tobytes()) for name, array in known.items()),
        )
        given = (known,) if known else ()
        concrete = {each.name: shape for each, shape in zip(self._inputs, shapes, strict=True)}
        if not values:
            return self._make(concrete, *given)
        templates = _of_pattern(self._templates, pattern, names)
        graph = templates.at(tuple(values))
        if graph is not None:
            return graph
        undecided = self._undecided.get(pattern)
        needed = None if undecided is None else undecided.at(tuple(values))
        if needed is not None:
            raise NeedsInputsError(needed)
        opened = {name: tuple(extents) for name, extents in symbolic.items()}
        made = attempted(lambda: self._made(opened, given, trace, values, axes))
        if isinstance(made, NeedsInputsError):
            undecided = _of_pattern(self._undecided, pattern, names)
            undecided.keep(Made(made.names, trace.guards))
            raise NeedsInputsError(made.names)
        if isinstance(made, Exception):
            graph = self._make(concrete, *given)  # or its error alone, if the shapes are at fault
            if isinstance(made, SpentError):  # what is computed of symbols costs more
                made = NeedsNumberError(str(made))
            templates.refuse("the network is bound to this shape", made)
            return graph
        template, graph = made
        if _is_kept(template.result):
            templates.keep(template)
        return graph

    def _made(
        self,
        opened: Mapping[str, Any],
        given: Sequence[Known],
        trace: Trace,
        values: Sequence[int],
        axes: Sequence[int],
    ) -> tuple[Template, Graph]:
        """The template of a graph with symbols, and its graph for their values."""
        graph = self._make(opened, *given)
        others = (made for memo in self._templates.values() for made in memo.entries)
        before = next(others, None)
        if isinstance(before, Template) and _is_kept(graph):  # else weights would be packed again
            graph = _sharing(graph, before.result)
        template = Template(graph, trace.guards, axes)
        filled = template.at(tuple(values))
        assert filled is not None, "the guards do not hold for what they come from"
        return template, filled


def _of_pattern(
    memos: dict[tuple[object, ...], Memo[_Kept]], pattern: tuple[object, ...], names: Sequence[str]
) -> Memo[_Kept]:
    """The memo of a pattern, a new one if need be, in place of the oldest of many."""
    if pattern not in memos and len(memos) >= _MOST_PATTERNS:
        memos.pop(next(iter(memos)))
    return memos.setdefault(pattern, Memo(_MOST_TEMPLATES, names))


def _sharing(graph: Graph, other: Graph) -> Graph:
    """The graph, with the other's arrays for those constants that are equal.

    Arrays that are two in the graph stay two, though their elements be equal: plans store each.
    """
    known: dict[Hashable, list[np.ndarray]] = {}
    for array in _distinct(other):
        known.setdefault(_content(array), []).append(array)
    found: dict[int, np.ndarray] = {}
    for array in _distinct(graph):
        alike = known.get(_content(array))
        found[number_of(array)] = alike.pop(0) if alike else array
    constants = {name: found[number_of(array)] for name, array in graph.constants.items()}
    return replace(graph, constants=MappingProxyType(constants))


def _distinct(graph: Graph) -> list[np.ndarray]:
    """The arrays of a graph's constants, each once."""
    return list({number_of(array): array for array in graph.constants.values()}.values())


def _is_kept(graph: Graph) -> bool:
    """Return whether the constants that are no views of the file have few enough bytes to stay."""
    owners = {}
    for array in graph.constants.values():
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if owner.base is None:
            owners[number_of(owner)] = owner.nbytes
    return sum(owners.values()) <= _MOST_KEPT_BYTES


def _content(array: np.ndarray) -> Hashable:
    """Return a key that only equal arrays share."""
    if array.dtype == object:
        return number_of(array)
    octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest = hashlib.blake2b(octets.data).digest()
    return array.dtype.str, array.shape, digest
