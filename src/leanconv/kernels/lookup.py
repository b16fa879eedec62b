"""Functions of one byte as tables: y[i] = table[x[i]], any tensor in the order of its memory.

A table has 256 elements, and a byte has no sign here. How a vector of bytes is looked up in a table
of bytes, by what a target has; the table stays in registers where there are enough:

| way | instructions for a vector |
|---|---|
| permute: AVX-512 with VBMI | vpermi2b of each half of the table, the high bit chooses |
| shuffle: AVX2, AVX-512 | pshufb of each 16 elements: zero where the high four bits are others |
| lists: NEON | tbl of 64 elements, then tbx: what is out of range keeps the byte |
| gather: wider elements, others | loads of single elements |
"""

from __future__ import annotations

from typing import Literal

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.kernels import KernelContext, any_blocks
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent
from leanconv.target import Target
from leanconv.types import DType

PIECE = 32768  # elements of one chunk, some microseconds; whole vectors of every target
CODES_IN_BLOCKS = True

Way = Literal["permute", "shuffle", "lists", "gather"]
_ROW = 16  # bytes that one pshufb, or one register of NEON, has of a table
_ROWS = 256 // _ROW


def way_of(dtype: DType, target: Target) -> Way:
    """Return the kind of instruction by which a target looks up elements of a type."""
    if dtype.bytes > 1 or target.isa not in ("avx512", "avx2", "neon"):
        return "gather"
    if target.isa == "neon":
        return "lists"
    return "permute" if "vbmi" in target.extensions else "shuffle"


@dataclass(frozen=True)
class Lookup(Kernel):
    """One table applied to all elements.

    Attributes:
        dtype: of the table and of the result.
        count: elements in memory.
    """

    VARIES = True
    operands = ("x", "table", "y")

    dtype: DType
    count: Extent

    @property
    def grid(self) -> tuple[int, ...]:
        return (ceil_div(self.count, PIECE),)

    def emit(self, target: Target) -> str:
        e, way = Function(self.NAME), way_of(self.dtype, target)
        x, table, y = e.pointer(0), e.pointer(1, self.dtype.llvm), e.pointer(2, self.dtype.llvm)
        lanes = lookup_lanes(self.dtype, target)
        held = Table(e, table, way, lanes)
        with e.chunks(*self.grid) as (chunk,):
            start = chunk * PIECE
            stop = e.smin(start + PIECE, self.count)
            whole = stop & -lanes
            with e.when(start.compare("ult", whole)):
                with e.loop("v", whole, start=start, step=lanes) as i:
                    e.store(held.of(e.load(x.at(i), vector("i8", lanes))), y.at(i))
            with e.when(whole.compare("ult", stop)), e.loop("i", stop, start=whole) as i:
                place = e.index(e.convert("zext", e.load(x.at(i)), "i64"))
                e.store(e.load(table.at(place)), y.at(i))
        return e.finish()


def lookup_lanes(dtype: DType, target: Target) -> int:
    """Return the number of elements that are looked up together."""
    gathers = way_of(dtype, target) == "gather"
    return target.lanes(dtype) if gathers else target.vector_bytes


class Table:
    """A table while the code that reads it is written."""

    def __init__(self, e: Function, table: Pointer, way: Way, lanes: int) -> None:
        self.e, self.table, self.way, self.lanes = e, table, way, lanes
        self.kind = vector("i8", lanes)
        size = lanes if way == "permute" else _ROW
        row = vector("i8", size)
        self.rows: list[Value] = []
        if way != "gather":
            self.rows = [e.load(table.at(place), row) for place in range(0, 256, size)]
        if way == "shuffle" and lanes > _ROW:
            self.rows = [
                e.shuffle(each, None, [*range(_ROW)] * (lanes // _ROW)) for each in self.rows
            ]

    def of(self, x: Value) -> Value:
        """Return the elements at a vector of bytes."""
        ways = {"permute": self._permuted, "shuffle": self._shuffled, "lists": self._listed}
        return ways.get(self.way, self._gathered)(x)

    def _permuted(self, x: Value) -> Value:
        e, rows = self.e, self.rows
        name = "llvm.x86.avx512.vpermi2var.qi.512"
        halves = [e.intrinsic(name, self.kind, rows[i], x, rows[i + 1]) for i in (0, 2)]
        return e.select(x.compare("slt", 0), halves[1], halves[0])

    def _shuffled(self, x: Value) -> Value:
        """Bytes of other rows than a shuffle's get their high bit, which makes it give zero."""
        e, kind, found = self.e, self.kind, None
        name = {16: "ssse3.pshuf.b.128", 32: "avx2.pshuf.b", 64: "avx512.pshuf.b.512"}[self.lanes]
        for number, row in enumerate(self.rows):
            low = x ^ (number * _ROW - (256 if number * 2 >= _ROWS else 0))  # as an int8
            add = f"llvm.uadd.sat.v{self.lanes}i8"
            place = e.intrinsic(add, kind, low, e.const(kind, 0x70))
            part = e.intrinsic(f"llvm.x86.{name}", kind, row, place)
            found = part if found is None else found | part
        assert found is not None
        return found

    def _listed(self, x: Value) -> Value:
        e, kind, rows = self.e, self.kind, self.rows
        found = e.intrinsic("llvm.aarch64.neon.tbl4.v16i8", kind, *rows[:4], x)
        for first in range(4, _ROWS, 4):
            place = x + (256 - first * _ROW if first * 2 > _ROWS else -first * _ROW)
            name = "llvm.aarch64.neon.tbx4.v16i8"
            found = e.intrinsic(name, kind, found, *rows[first : first + 4], place)
        return found

    def _gathered(self, x: Value) -> Value:
        e = self.e
        places = e.convert("zext", x, vector("i32", self.lanes))
        mask = e.const(vector("i1", self.lanes), 1)
        return e.gather(self.table, places, mask)


accepts_blocked = any_blocks  # whatever the order of elements is, the result has it, too


def lower(context: KernelContext) -> Lowered:
    """One kernel over all elements in memory, in place where they stay as large as they are."""
    node, graph, formats = context.node, context.graph, context.formats
    (x, table), y = node.inputs, node.output
    kind = graph.types[y]
    kernel = Lookup(kind.dtype, formats[y].elements(kind.shape))
    in_place = (0,) if kind.dtype.bytes == 1 else ()
    call = Call(kernel, (x, f"{y}.table", y), in_place)
    return Lowered((call,), {f"{y}.table": graph.constants[table]}, algorithm="lookup")
