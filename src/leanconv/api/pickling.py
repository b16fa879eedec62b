"""A model as it is pickled with its network."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from leanconv.graph.onnx_import import Model


def sent(model: Model) -> Model:
    """The model in plain dictionaries, which can be pickled; the arrays are those of the model."""
    nodes = tuple(replace(node, attributes=dict(node.attributes)) for node in model.nodes)
    constants, metadata = dict(model.constants), dict(model.metadata)
    return replace(model, nodes=nodes, constants=constants, metadata=metadata)


def received(model: Model) -> Model:
    """What `sent` was given: nothing in it can be changed."""
    nodes = tuple(
        replace(node, attributes=MappingProxyType(node.attributes)) for node in model.nodes
    )
    for array in model.constants.values():
        array.setflags(write=False)
    constants, metadata = MappingProxyType(model.constants), MappingProxyType(model.metadata)
    return replace(model, nodes=nodes, constants=constants, metadata=metadata)
