"""Whether a model bound with symbols gives the graph of binding it to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from leanconv.canonical import canonical_text
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import Model
from leanconv.graph.passes import run_passes
from leanconv.graph.template import Shape, Template, Templates
from support.interpret import interpret


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
        found = templates.graph(given)
        if graph_text(found) != graph_text(direct):
            # Of open channels none leave the network.
            assert _has_sized(templates) or direct.dropped
            _check_alike(found, direct)
    return templates


def _has_sized(templates: Templates) -> bool:
    """Whether data follows from sizes: it is simplified as data, and its numbers come later."""
    made = (each for memo in templates.memos for each in memo.entries)
    return any(isinstance(e, Template) and e.result.from_sizes is not None for e in made)


def _check_alike(found: Graph, direct: Graph) -> None:
    rng = np.random.default_rng(0)
    given = {
        name: rng.integers(0, 9, kind.shape).astype(kind.dtype.numpy)
        for name, kind in ((name, direct.types[name]) for name in direct.inputs)
    }
    wanted = interpret(direct, given)
    for name, array in interpret(found, given).items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6)
