"""Running sums and products along an axis.

    y[o, i, c] = R over j <= i of x[o, j, c]          R one of +, *; j < i where it is exclusive

In reverse j runs from the end. Lanes run along the axes behind (c), in tiles of 64 columns; a chunk
is as many tiles as read about `PIECE` elements. Totals are added one by one, as others do.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.extents import Extents
from leanconv.codegen.lowered import Call, Lowered
from leanconv.graph.ir import Graph, Node
from leanconv.kernels.lane_reduce import TILE, ReduceOp, combine, each_column, neutral
from leanconv.kernels.pieces import InPieces
from leanconv.records import dataclass
from leanconv.spec.format import Format, ceil_div
from leanconv.target import Target
from leanconv.types import DType

_HOW: dict[str, ReduceOp] = {"CumSum": "sum", "CumProd": "prod"}


@dataclass(frozen=True)
class RunningTotal(InPieces):
    """Totals up to each element.

    Attributes:
        dtype: of all values: float32, float64, int32 or int64.
        how: `sum` or `prod`.
        extents: of the axes before, the axis, and those behind.
        exclusive: whether the element itself does not count.
        reverse: whether it begins at the end.
    """

    VARIES = True

    dtype: DType
    how: ReduceOp
    extents: Extents
    exclusive: bool
    reverse: bool

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def items(self) -> int:
        """Tiles of columns."""
        outer, _, inner = self.extents
        return outer * ceil_div(inner, TILE)

    @property
    def elements(self) -> int:
        return max(1, prod(self.extents))

    @property
    def flops(self) -> int:
        return prod(self.extents)

    def emit(self, target: Target) -> str:
        e, (_, extent, inner) = Function(self.NAME), self.extents
        x, y = e.pointer(0, self.dtype.llvm), e.pointer(1, self.dtype.llvm)
        columns = ceil_div(inner, TILE)
        with e.chunks(self.chunks) as (chunk,):
            first = chunk * self.group
            with e.loop("item", e.smin(first + self.group, self.items), start=first) as item:
                row, tile = item // columns * (extent * inner), item % columns

                def body(offset: Value, count: Value | int) -> None:
                    at = row + offset
                    self._column(e, target, x.at(at), y.at(at), count)

                each_column(e, tile, inner, self.dtype, target, body)
        return e.finish()

    def _column(
        self, e: Function, target: Target, source: Pointer, result: Pointer, count: Value | int
    ) -> None:
        """The first `count` lanes from one place on."""
        _, extent, inner = self.extents
        kind = vector(self.dtype.llvm, target.lanes(self.dtype))
        total = [neutral(e, self.how, kind)]
        with e.loop("i", extent, [total]) as i:
            at = (e.i64(extent - 1) - i if self.reverse else i) * inner
            taken = combine(e, self.how, total[0], e.load_first(source.at(at), kind, count))
            e.store_first(total[0] if self.exclusive else taken, result.at(at), count)
            total[0] = taken


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """False: an axis may be that of the channels."""
    del node, graph, block
    return False


def lower(node: Node, graph: Graph, formats: Mapping[str, Format], target: Target) -> Lowered:
    """One kernel, whose result may take over the memory of its input."""
    del formats, target
    (x,), y, axis = node.inputs, node.output, node.attributes["axis"]
    kind = graph.types[x]
    extents = (prod(kind.shape[:axis]), kind.shape[axis], prod(kind.shape[axis + 1 :]))
    exclusive, reverse = node.attributes["exclusive"], node.attributes["reverse"]
    kernel = RunningTotal(kind.dtype, _HOW[node.op], extents, exclusive, reverse)
    return Lowered((Call(kernel, (x, y), (0,)),), algorithm="running total")
