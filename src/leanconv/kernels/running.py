"""Running sums and products along an axis.

    y[o, i, c] = R over j <= i of x[o, j, c]          R one of +, *; j < i where it is exclusive

In reverse j runs from the end. Lanes run along the axes behind (c), in strips of columns; a chunk
is as many strips as read about `PIECE` elements. Totals are added one by one, as others do.

A strip is read row by row, so that what is read and written lies side by side. Its totals are in
the scratch, in L1, and in registers for `_ROWS` rows. Where a row is a vector at most, its total
stays in a register.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.extents import Extents
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tails import each_tile_of_any
from leanconv.graph.ir import Graph, Node
from leanconv.kernels.lane_reduce import ReduceOp, combine, each_column, neutral
from leanconv.kernels.pieces import InPieces
from leanconv.records import dataclass
from leanconv.spec.format import Format, ceil_div
from leanconv.target import Target
from leanconv.types import DType

_STRIP = 512  # columns: rows of 2 KiB of float32
_ROWS = 4  # that take a total from the scratch once
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
        """Strips of columns."""
        outer, _, inner = self.extents
        return outer * ceil_div(inner, _STRIP)

    @property
    def elements(self) -> int:
        return max(1, prod(self.extents))

    @property
    def flops(self) -> int:
        return prod(self.extents)

    @property
    def scratch_bytes(self) -> int:
        """Totals of a strip."""
        return _STRIP * self.dtype.bytes

    def emit(self, target: Target) -> str:
        e, (_, extent, inner) = Function(self.NAME), self.extents
        streams = _Streams(self, e, target)
        columns = ceil_div(inner, _STRIP)
        with e.chunks(self.chunks) as (chunk,):
            first = chunk * self.group
            with e.loop("item", e.smin(first + self.group, self.items), start=first) as item:
                streams.move_to(item // columns * (extent * inner), item % columns)
                if inner <= target.lanes(self.dtype):
                    streams.column()
                else:
                    streams.strip()
        return e.finish()


class _Streams:
    """The loops over one strip while they are written."""

    def __init__(self, kernel: RunningTotal, e: Function, target: Target) -> None:
        self.k, self.e, self.target = kernel, e, target
        self.x, self.y = e.pointer(0, kernel.dtype.llvm), e.pointer(1, kernel.dtype.llvm)
        self.kind = vector(kernel.dtype.llvm, target.lanes(kernel.dtype))
        self.totals = e.scratch.of(kernel.dtype.llvm)

    def move_to(self, start: Value, strip: Value) -> None:
        """Go to a strip: the element at which its outer index starts, and which one it is."""
        self.source, self.result, self.number = self.x.at(start), self.y.at(start), strip

    def column(self) -> None:
        """The only vector of each row."""
        total = [neutral(self.e, self.k.how, self.kind)]
        count = self.target.lanes_of_tail(self.k.extents[2])
        with self.e.loop("i", self.k.extents[1], [total]) as i:
            total[0] = self._row(i, 0, count, total[0])

    def strip(self) -> None:
        """Some rows at a time."""
        e, extent = self.e, self.k.extents[1]
        start = neutral(e, self.k.how, self.kind)
        columns = e.smin(e.i64(self.k.extents[2]) - self.number * _STRIP, _STRIP)
        with e.loop("total", columns, step=self.target.lanes(self.k.dtype)) as at:
            e.store(start, self.totals.at(at))
        for first, rows in each_tile_of_any(e, "rows", extent, _ROWS):

            def body(
                offset: Value, count: Value | int, first: Value = first, n: int = rows
            ) -> None:
                held = self.totals.at(offset - self.number * _STRIP)
                total = e.load(held, self.kind)
                for i in range(n):
                    total = self._row(first + i, offset, count, total)
                e.store(total, held)

            each_column(e, self.number, self.k.extents[2], self.k.dtype, self.target, body, _STRIP)

    def _row(self, i: Value, offset: Value | int, count: Value | int, total: Value) -> Value:
        """Write one vector of a row; gives the total with its elements."""
        e, (_, extent, inner) = self.e, self.k.extents
        at = (e.i64(extent - 1) - i if self.k.reverse else i) * inner + offset
        taken = combine(e, self.k.how, total, e.load_first(self.source.at(at), self.kind, count))
        e.store_first(total if self.k.exclusive else taken, self.result.at(at), count)
        return taken


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
