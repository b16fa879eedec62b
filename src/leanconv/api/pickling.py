"""A model as it is pickled with its network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from leanconv.graph.convert import FileGraph, FileNode
from leanconv.graph.onnx_import import Model

_Wrap = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def sent(model: Model) -> Model:
    """The model in plain dictionaries, which can be pickled; the arrays are those of the model."""
    constants, metadata = dict(model.constants), dict(model.metadata)
    return replace(model, nodes=_nodes(model.nodes, dict), constants=constants, metadata=metadata)


def received(model: Model) -> Model:
    """What `sent` was given: nothing in it can be changed."""
    constants, metadata = _read_only(model.constants), MappingProxyType(model.metadata)
    nodes = _nodes(model.nodes, MappingProxyType)
    return replace(model, nodes=nodes, constants=constants, metadata=metadata)


def _nodes(nodes: Iterable[FileNode], wrap: _Wrap) -> tuple[FileNode, ...]:
    """The nodes with their dictionaries as `wrap` makes them, in the graphs that they hold, too."""
    return tuple(
        replace(
            node,
            attributes=wrap(node.attributes),
            graphs=wrap({name: _graph(graph, wrap) for name, graph in node.graphs.items()}),
        )
        for node in nodes
    )


def _graph(graph: FileGraph, wrap: _Wrap) -> FileGraph:
    return replace(
        graph,
        nodes=_nodes(graph.nodes, wrap),
        constants=dict(graph.constants) if wrap is dict else _read_only(graph.constants),
        captured=wrap(graph.captured),
    )


def _read_only(constants: Mapping[str, Any]) -> Mapping[str, Any]:
    for array in constants.values():
        array.setflags(write=False)
    return MappingProxyType(constants)
