"""LSTM, GRU and RNN behind their input's product: one kernel, and R in panels.

A panel holds, for a vector of hidden units, the weights of all gates in the order in which a step
reads them. Constants are packed before the first run, others by a kernel in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from leanconv.codegen.emitter import Function
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered, PackCall, Packing
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.recurrent import GATES
from leanconv.kernels.recurrence_kernel import Recurrence
from leanconv.kernels.recurrence_rounds import RecurrenceInRounds
from leanconv.records import dataclass
from leanconv.spec.format import Format, ceil_div
from leanconv.symbolic import least
from leanconv.target import Target
from leanconv.types import DType

_GROUP = 16  # sequences of a chunk: their states stay in L1 beside a panel
# Of layers whose threads share each step: most steps, least weights where there is one direction,
# panels of a chunk.
_MOST_STEPS, _SHARED_BYTES, _PANELS = 512, 512 * 1024, 2


@dataclass(frozen=True)
class PackedPanels(Kernel):
    """R (directions, gates * H, H) as (directions, panels, H, gates, lanes), filled with zeros.

    Attributes:
        dtype: of the weights.
        lanes: elements of a vector.
        directions, gates, hidden: of the layer.
    """

    dtype: DType
    lanes: int
    directions: int
    gates: int
    hidden: int

    @property
    def operands(self) -> tuple[str, ...]:
        return ("r", "panels")

    @property
    def panels(self) -> int:
        """Of one direction."""
        return ceil_div(self.hidden, self.lanes)

    @property
    def chunks(self) -> int:
        return self.directions * self.panels

    @property
    def elements(self) -> int:
        """Of all panels."""
        return self.chunks * self.hidden * self.gates * self.lanes

    def emit(self, target: Target) -> str:
        del target
        e, hidden, lanes = Function(self.NAME), self.hidden, self.lanes
        source, made = (e.pointer(index, self.dtype.llvm) for index in range(2))
        with e.chunks(self.directions, self.panels) as (direction, panel):
            to = made.at((direction * self.panels + panel) * (hidden * self.gates * lanes))
            live = e.smin(e.i64(hidden) - panel * lanes, lanes)
            with e.loop("gate", self.gates) as gate:
                row = (direction * self.gates + gate) * hidden + panel * lanes
                with e.loop("lane", lanes) as lane, e.loop("k", hidden) as k:
                    value = [e.zero(self.dtype.llvm)]
                    with e.when(lane.compare("slt", live), [value]):
                        value[0] = e.load(source.at((row + lane) * hidden + k))
                    e.store(value[0], to.at((k * self.gates + gate) * lanes + lane))
        return e.finish()


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Never: sequences are no images."""
    del node, graph, block
    return False


def lower(node: Node, graph: Graph, formats: Mapping[str, Format], target: Target) -> Lowered:
    """One kernel, and one that packs R where it is no constant."""
    del formats
    x, r, *others = node.inputs
    steps, batch, _ = graph.types[x].shape
    directions, _, hidden = graph.types[r].shape
    cells, results = node.attributes["cells"], node.attributes["results"]
    dtype, key = graph.types[x].dtype, node.key
    lanes, gates = target.lanes(dtype), GATES[cells[0].kind]
    given = [(n, v) for n, v in zip(Recurrence.OPTIONAL, others, strict=False) if v]
    kernel = Recurrence(
        dtype,
        lanes,
        cells,
        hidden,
        steps,
        batch,
        least(batch, _GROUP),
        _rows(gates, target),
        tuple(name for name, _ in given),
        results,
    )
    panels = f"{key}.panels"
    values = [x, panels, *(value for _, value in given), *node.outputs]
    temporaries = {}
    call = Call(kernel, tuple(values))
    if _in_rounds(kernel, target):
        rounds, states = _made_of_rounds(kernel), f"{key}.states"
        temporaries[states] = rounds.states_bytes
        call = Call(rounds, (*values, states))
    packing, constants = PackedPanels(dtype, lanes, directions, gates, hidden), graph.constants
    size = packing.elements * dtype.bytes
    if r in constants:
        weights = constants[r]

        def calls() -> dict[str, list[PackCall]]:
            return {panels: [PackCall(packing, lambda: np.ascontiguousarray(weights), tuple, size)]}

        held = Packing({panels: size}, calls, ("panels of gates", gates, lanes), (weights,))
        return Lowered((call,), {}, temporaries, "recurrence", packings=(held,))
    temporaries[panels] = size
    return Lowered((Call(packing, (r, panels)), call), {}, temporaries, "recurrence")


def _in_rounds(kernel: Recurrence, target: Target) -> bool:
    """Whether threads share each step: few chunks, and more weights than one core keeps.

    They wait for each other at the end of each, about a microsecond.
    """
    weights = kernel.panels * kernel.panel_elements * kernel.dtype.bytes
    if kernel.batch > _GROUP or kernel.steps > _MOST_STEPS:
        return False
    kept = target.costs.l2_share * target.l2_bytes
    return weights > (kept if len(kernel.cells) > 1 else min(kept, _SHARED_BYTES))


def _made_of_rounds(kernel: Recurrence) -> RecurrenceInRounds:
    """The same layers, a step a round."""
    given = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
    return RecurrenceInRounds(**given | {"group": kernel.batch, "panels_of_chunk": _PANELS})


def _rows(gates: int, target: Target) -> int:
    """Most rows whose sums stay in registers beside their states and a vector of weights."""
    return next(n for n in (8, 4, 2, 1) if n * (gates + 1) + 1 <= target.usable_registers or n == 1)
