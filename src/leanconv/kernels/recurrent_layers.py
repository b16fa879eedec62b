"""What a kernel of recurrent layers is for, and what it takes: panels, states, groups."""

from __future__ import annotations

from leanconv.codegen.extents import Count, Extent
from leanconv.codegen.kernel import Kernel
from leanconv.graph.ops.recurrent import GATES, Cell
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.types import DType


@dataclass(frozen=True)
class RecurrentLayers(Kernel):
    """Recurrent layers of one or two directions over sequences.

    Attributes:
        dtype: of all but the lengths, which are int32.
        lanes: elements of a vector.
        cells: what each direction computes.
        hidden: units.
        steps, batch: of the sequences, and how many there are.
        group: sequences of a chunk.
        rows: most rows of a register tile, a power of two.
        given: the optional operands that there are, of `OPTIONAL`.
        results: of Y, Y_h and Y_c.
    """

    VARIES = True
    OPTIONAL = ("h0", "c0", "peepholes", "bias", "lengths")

    dtype: DType
    lanes: int
    cells: tuple[Cell, ...]
    hidden: int
    steps: Extent
    batch: Extent
    group: Count
    rows: int
    given: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "r", *self.given, *self.results)

    @property
    def result_count(self) -> int:
        return len(self.results)

    @property
    def gates(self) -> int:
        """Rows of weights for each hidden unit."""
        return GATES[self.cells[0].kind]

    @property
    def panels(self) -> int:
        """Vectors of hidden units."""
        return ceil_div(self.hidden, self.lanes)

    @property
    def width(self) -> int:
        """Elements of a row of states."""
        return self.panels * self.lanes

    @property
    def panel_elements(self) -> int:
        """Elements of a panel of R."""
        return self.hidden * self.gates * self.lanes

    @property
    def groups(self) -> int:
        """Groups of sequences."""
        return ceil_div(self.batch, self.group)

    @property
    def chunks(self) -> int:
        return len(self.cells) * self.groups

    @property
    def states(self) -> tuple[str, ...]:
        """What the scratch holds of each sequence."""
        kind = self.cells[0].kind
        return ("h", "next", *{"LSTM": ("c",), "GRU": ("z", "reset"), "RNN": ()}[kind])

    @property
    def state_bytes(self) -> int:
        """Bytes of one of them."""
        return aligned(self.group * (self.width * self.dtype.bytes))

    @property
    def scratch_bytes(self) -> int:
        return len(self.states) * self.state_bytes

    @property
    def flops(self) -> int:
        directions = len(self.cells)
        return 2 * self.steps * self.batch * directions * self.gates * self.hidden * self.hidden
