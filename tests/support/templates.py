"""Whether a model bound with symbols gives the graph of binding it to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from leanconv.canonical import canonical_text
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import Model
from leanconv.graph.passes import run_passes
from leanconv.graph.template import Shape, Templates


def graph_text(graph: Graph) -> str:
    """Everything that a graph says, its constants' bytes included."""
    nodes = [(n.op, n.inputs, n.outputs, dict(n.attributes), n.name) for n in graph.nodes]
    types = {name: str(graph.types[name]) for name in sorted(graph.types)}
    constants = {
        name: (array.shape, array.dtype.name, np.ascontiguousarray(array).tobytes())
        for name, array in sorted(graph.constants.items())
    }
    return canonical_text((graph.inputs, graph.outputs, nodes, types, constants))


def templates_of(model: Model) -> Templates:
    """Templates of a model whose inputs' extents are all open."""
    inputs = tuple(replace(each, shape=(None,) * len(each.shape or ())) for each in model.inputs)
    opened = replace(model, inputs=inputs)
    return Templates(opened, lambda shapes: run_passes(opened.bind(shapes)))


def check_template(model: Model, shapes: Mapping[str, Shape]) -> Templates:
    """Bind with symbols and compare with binding to numbers."""
    templates = templates_of(model)
    given = [shapes[each.name] for each in model.inputs]
    direct = run_passes(model.bind(dict(shapes)))
    for _ in range(2):  # made, then found
        assert graph_text(templates.graph(given)) == graph_text(direct)
    return templates
