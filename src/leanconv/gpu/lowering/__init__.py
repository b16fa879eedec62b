"""From operations to launches: which kernels, with which tiles, on which buffers. Data only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.gpu.lowering import arithmetic_nodes, conv, data_movement_nodes, transposed
from leanconv.gpu.lowering.lowering_context import DeviceStep, Handler, LoweringContext
from leanconv.gpu.machine import Arithmetic, Machine
from leanconv.graph.ir import Graph
from leanconv.graph.ops import label
from leanconv.planner.storage import Views
from leanconv.records import dataclass
from leanconv.spec import PLAIN
from leanconv.types import DType

HANDLERS: Mapping[str, Handler] = {
    **conv.HANDLERS,
    **data_movement_nodes.HANDLERS,
    **arithmetic_nodes.HANDLERS,
    **transposed.HANDLERS,
}


@dataclass(frozen=True, eq=False)
class DeviceGraph:
    """A network as launches over buffers.

    Attributes:
        steps: in order.
        bytes: size of every buffer that is computed or given.
        views: buffers that are bytes of another one.
        constants: arrays by the names that launches use.
        inputs, outputs: names of what the user gives and gets, row-major.
    """

    steps: tuple[DeviceStep, ...]
    bytes: Mapping[str, int]
    views: Views[str]
    constants: Mapping[str, np.ndarray]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def lower_graph(
    graph: Graph,
    machine: Machine,
    dtype: DType,
    arithmetics: tuple[Arithmetic, ...],
    lean: bool = False,
) -> DeviceGraph:
    """Lower every node.

    Args:
        graph: after the passes.
        machine: the GPU to choose for.
        dtype: that values are kept in; narrower than the graph's own for float16.
        arithmetics: allowed for convolutions.
        lean: whether to take what needs least memory, not what is fastest.

    Raises:
        UnsupportedError: a node has no kernel on this device.
    """
    context = LoweringContext(graph, machine, dtype, arithmetics, lean)
    for name in graph.inputs:
        context.define(name, PLAIN)
    for node in graph.nodes:
        handler = HANDLERS.get(node.op)
        if handler is None:
            raise UnsupportedError(
                f"{label(node)} has no kernel on a GPU; expected one of "
                f"{', '.join(sorted(HANDLERS))}; use device='cpu'"
            )
        kinds = [graph.types[name] for name in node.outputs]
        for kind in kinds:
            if kind.dtype != graph.dtype:
                raise UnsupportedError(
                    f"{label(node)} computes {kind}; expected {graph.dtype} throughout on a GPU; "
                    "use device='cpu'"
                )
        if not any(kind.elements for kind in kinds):
            for name in node.outputs:
                context.define(name, PLAIN)
            continue
        handler(context, node)
    outputs = tuple(context.deliver(name) for name in graph.outputs)
    return DeviceGraph(
        tuple(context.steps),
        context.bytes,
        context.views,
        context.constants,
        graph.inputs,
        outputs,
    )
