"""Running sums and products along an axis.

    y[o, i, c] = R over j <= i of x[o, j, c]          R one of +, *; j < i where it is exclusive

In reverse j runs from the end. Lanes run along the axes behind (c), in strips of columns; a chunk
is as many strips as read about `PIECE` elements. Totals are added one by one, as others do.

A strip is read row by row, so that what is read and written lies side by side. Its totals are in
registers for `_ROWS` rows; those that follow take them from the row that was written last, which is
in L1. Totals of a row of few vectors stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tails import each_tile_of_any, where_any
from leanconv.kernels import InPieces, KernelContext
from leanconv.kernels.lane_reduce import ReduceOp, combine, each_column, neutral
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extents, fixed
from leanconv.target import Target
from leanconv.types import DType

_STRIP_BYTES = 8192  # of a row of a strip
_ROWS = 4  # between two loads of a total
_HELD = 8  # vectors of totals in registers
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
    operands = ("x", "y")

    dtype: DType
    how: ReduceOp
    extents: Extents
    exclusive: bool
    reverse: bool

    @property
    def width(self) -> int:
        """Columns of a strip."""
        return _STRIP_BYTES // self.dtype.bytes

    @property
    def items(self) -> int:
        """Strips of columns."""
        outer, _, inner = self.extents
        return outer * ceil_div(inner, self.width)

    @property
    def elements(self) -> int:
        return max(1, prod(self.extents))

    @property
    def flops(self) -> int:
        return prod(self.extents)

    def emit(self, target: Target) -> str:
        e, (_, extent, inner) = Function(self.NAME), self.extents
        streams = _Streams(self, e, target)
        columns = ceil_div(inner, self.width)
        with self.each_item(e) as item:
            streams.move_to(item // columns * (extent * inner), item % columns)
            if inner <= _HELD * target.lanes(self.dtype):
                streams.narrow()
            else:
                streams.strip()
        return e.finish()


class _Streams:
    """The loops over one strip while they are written."""

    def __init__(self, kernel: RunningTotal, e: Function, target: Target) -> None:
        self.k, self.e, self.target = kernel, e, target
        self.x, self.y = e.pointer(0, kernel.dtype.llvm), e.pointer(1, kernel.dtype.llvm)
        self.kind = vector(kernel.dtype.llvm, target.lanes(kernel.dtype))

    def move_to(self, start: Value, strip: Value) -> None:
        """Go to a strip: the element at which its outer index starts, and which one it is."""
        self.source, self.result, self.number = self.x.at(start), self.y.at(start), strip

    def narrow(self) -> None:
        """Rows of a few vectors, of which the last may be less than one."""
        e, (_, extent, inner), lanes = self.e, self.k.extents, self.target.lanes(self.k.dtype)
        count = fixed(ceil_div(inner, lanes))
        totals = [neutral(e, self.k.how, self.kind) for _ in range(count)]
        counts = [*[lanes] * (count - 1), self.target.lanes_of_tail(inner - (count - 1) * lanes)]
        with e.loop("i", extent, [totals]) as i:
            for j, total in enumerate(totals):
                totals[j] = self._row(i, j * lanes, counts[j], total)

    def strip(self) -> None:
        e, k, extent = self.e, self.k, self.k.extents[1]
        for _ in where_any(e, extent):
            self._columns(e.i64(0), 1, lambda *_: neutral(e, k.how, self.kind))
        for before, rows in each_tile_of_any(e, "rows", extent - 1, _ROWS):

            def total(offset: Value, count: Value | int, row: Value = before) -> Value:
                at = self._place(row, offset)
                found = e.load_first(self.result.at(at), self.kind, count)
                if not k.exclusive:
                    return found
                return combine(e, k.how, found, e.load_first(self.source.at(at), self.kind, count))

            self._columns(before + 1, rows, total)

    def _columns(self, first: Value, rows: int, start: Callable[..., Value]) -> None:
        """Some rows of a strip, whose totals before them `start(offset, count)` gives."""

        def body(offset: Value, count: Value | int) -> None:
            total = start(offset, count)
            for i in range(rows):
                total = self._row(first + i, offset, count, total)

        k = self.k
        each_column(self.e, self.number, k.extents[2], k.dtype, self.target, body, k.width)

    def _row(self, i: Value, offset: Value | int, count: Value | int, total: Value) -> Value:
        """Write one vector of a row; gives the total with its elements."""
        e, at = self.e, self._place(i, offset)
        taken = combine(e, self.k.how, total, e.load_first(self.source.at(at), self.kind, count))
        e.store_first(total if self.k.exclusive else taken, self.result.at(at), count)
        return taken

    def _place(self, i: Value, offset: Value | int) -> Value:
        """Return the index of an element of the i-th row, in the order of the sum."""
        _, extent, inner = self.k.extents
        return (self.e.i64(extent - 1) - i if self.k.reverse else i) * inner + offset


def lower(context: KernelContext) -> Lowered:
    """One kernel; its result may take over the memory of an input that is read once."""
    node, graph = context.node, context.graph
    (x,), y, axis = node.inputs, node.output, node.attributes["axis"]
    kind = graph.types[x]
    extents = (prod(kind.shape[:axis]), kind.shape[axis], prod(kind.shape[axis + 1 :]))
    exclusive, reverse = node.attributes["exclusive"], node.attributes["reverse"]
    kernel = RunningTotal(kind.dtype, _HOW[node.op], extents, exclusive, reverse)
    return Lowered((Call(kernel, (x, y), () if exclusive else (0,)),), algorithm="running total")
