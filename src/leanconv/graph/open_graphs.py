"""Graphs whose extents are symbols: which are open, and the same graph with numbers for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.graph.ir import Graph
from leanconv.graph.ops.base import Array
from leanconv.symbolic import Fill, Holes, Symbol


def graph_filler(graph: Graph, holes: Holes) -> Fill | None:
    """What makes a graph with other extents in its types and attributes; None if none is open.

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
    """What makes those constants of a graph that hold symbols, by name, with numbers for them."""
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
