"""Graphs whose extents are symbols: which are open, and the same graph with numbers for them.

A network that is bound with symbols for its open extents has a graph (`Graph.from_sizes`) of the
constants that follow from open sizes alone: the anchors of a detector, a mask, positions. Where
numbers are filled in, NumPy computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from leanconv.graph.ir import Graph
from leanconv.graph.ops import evaluate
from leanconv.graph.ops.base import Array
from leanconv.symbolic import Fill, Holes, NeedsNumberError, Symbol


def graph_filler(graph: Graph, holes: Holes) -> Fill | None:
    """Return a function that fills numbers into types and attributes; None if none is open.

    Constants stay as they are.

    Raises:
        TypeError: an extent is no integer, or an attribute may hide symbols.
    """
    known = len(holes.symbols)
    types = holes.filler(graph.types)
    extents = list(holes.symbols.values())[known:]
    odd = [symbol for symbol in extents if not isinstance(symbol.value, int)]
    if odd:
        raise TypeError(f"a shape holds {odd[0]!r}, which is no integer")
    nodes = holes.filler(graph.nodes)
    if types is None and nodes is None:
        return None
    axes = _open_axes(graph)

    def filled(numbers: Sequence[Any]) -> Graph:
        return replace(
            graph,
            types=types(numbers) if types else graph.types,
            nodes=nodes(numbers) if nodes else graph.nodes,
            open_axes=axes,
        )

    return filled


def tables_filler(graph: Graph, holes: Holes) -> Callable[[Sequence[Any]], dict[str, Array]]:
    """Return a function that fills numbers into the constants that hold symbols."""
    tables = {name: array for name, array in graph.constants.items() if array.dtype == object}
    items = {name: tuple(array.reshape(-1)) for name, array in tables.items()}
    fill = holes.filler(items)

    def filled(numbers: Sequence[Any]) -> dict[str, Array]:
        held = fill(numbers) if fill else items
        return {
            name: np.array(held[name], np.int64)
            .reshape(array.shape)
            .astype(graph.types[name].dtype)
            for name, array in tables.items()
        }

    return filled


def _open_axes(graph: Graph) -> Mapping[str, tuple[int, ...]]:
    """The axes of each value whose extents are symbols."""
    found = {
        name: tuple(axis for axis, n in enumerate(kind.shape) if isinstance(n, Symbol))
        for name, kind in graph.types.items()
    }
    return MappingProxyType({name: axes for name, axes in found.items() if axes})


class SizedArray:
    """Stands for such a constant in a graph with symbols, where it has no numbers."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NeedsNumberError(f"{name} of a constant that follows from sizes")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise NeedsNumberError("the numbers of a constant that follows from sizes")


def sized_filler(graph: Graph, holes: Holes) -> Callable[[Sequence[Any]], Mapping[str, Array]]:
    """Return a function that computes a graph without inputs, with numbers for its symbols."""
    fill, tables = graph_filler(graph, holes), tables_filler(graph, holes)

    def filled(numbers: Sequence[Any]) -> Mapping[str, Array]:
        made = fill(numbers) if fill else graph
        return _computed(made, {**graph.constants, **tables(numbers)})

    return filled


def _computed(graph: Graph, constants: Mapping[str, Array]) -> Mapping[str, Array]:
    """The outputs of a graph of numbers, without inputs."""
    values: dict[str, Any] = dict(constants)
    for node in graph.nodes:
        read = [values[name] if name else None for name in node.inputs]
        made = evaluate(node.op, read, node.attributes)
        for name, each in zip(node.outputs, made, strict=True):
            values[name] = np.asarray(each, graph.types[name].dtype.numpy)
    found = {name: np.ascontiguousarray(values[name]) for name in graph.outputs}
    for each in found.values():
        each.flags.writeable = False
    return found
