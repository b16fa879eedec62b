"""Single nodes on a device, each lowered as a network of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.gpu.compiled_network import CompiledDeviceNetwork
from leanconv.gpu.lowering import HANDLERS
from leanconv.graph.ops import evaluate
from leanconv.types import FLOAT32
from support import single_nodes
from support.errors import relative_error
from support.gpu.stand import Case, Row, Stand
from support.nodes import one_node


def node(
    stand: Stand,
    op: str,
    inputs: Sequence[np.ndarray],
    constants: Mapping[str, np.ndarray],
    order: Sequence[str],
    attributes: Mapping[str, Any],
) -> Row:
    """Lower one node as a network of its own, and compare it with NumPy in float64."""
    given = {f"x{number}": array for number, array in enumerate(inputs)}
    names = tuple(order) or (*given, *constants)
    made, graph = one_node(op, given, constants, names, attributes)
    del made
    network = CompiledDeviceNetwork(graph, stand.driver, FLOAT32, compile_code=stand.compile_code)
    (found,) = network.run(list(inputs))
    stand.check_guards()
    wide = [{**given, **constants}[name].astype(np.float64) for name in names]
    return {"error": relative_error(found, *evaluate(op, wide, attributes)), "allowed": 2e-6}


def nodes(stand: Stand) -> Iterator[Case]:
    rows = [row for row in single_nodes.nodes() if row[0] in HANDLERS]
    for number, (op, inputs, attributes, *rest) in enumerate(rows):
        constants, order = (*rest, {}, ())[:2] if len(rest) < 2 else rest
        yield (
            f"{number} {op}",
            lambda o=op, i=inputs, c=constants, r=order, a=attributes: node(stand, o, i, c, r, a),
        )
