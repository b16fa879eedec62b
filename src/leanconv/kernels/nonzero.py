"""NonZero and Compress: the places of what is not 0 (`FindNonZero`), then what they are wanted for.

    NonZero:   y[:, k] = the index of the k-th element of x that is not 0
    Compress:  y[o, k] = x[o, p], p the k-th place of a flag that is set

The first kernel writes the places of each piece of its input where the piece begins, without
branches: a vector's places are brought together by one instruction where masks are bits, else by a
table of all masks of 8 lanes. The second (`AddCounts`) adds up the counts of the pieces: so the
third knows where the results of each begin. They follow each other, and memory for them may be had
once they are counted.

Elements are looked at as bits of their width. A float is 0 if none but its sign is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.shuffles import lane_bits
from leanconv.errors import UnsupportedError
from leanconv.kernels import PIECE, KernelContext
from leanconv.kernels.gather import copy_row
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count, Extent, Extents, least, most
from leanconv.target import Target
from leanconv.types import INT32, INT64

_MOST = 1 << 31  # elements; places have 32 bits
_LANES = 8  # of a mask that is looked up
_SLACK = 16  # places that a piece may write behind its own
_LEAST_PIECE = 128  # flags
_MOST_PIECES = 32  # to balance any number of threads; each adds up the counts of all


@dataclass(frozen=True)
class _OfPieces(Kernel):
    """Elements in all, those of a piece, and what kernels count in each piece."""

    VARIES = True

    count: Extent
    piece: Extent

    @property
    def pieces(self) -> int:
        return ceil_div(self.count, self.piece)

    @property
    def grid(self) -> tuple[int, ...]:
        return (self.pieces,)

    @property
    def stride(self) -> int:
        """Elements from the places of a piece to those of the next."""
        return self.piece + _SLACK

    @property
    def buffers(self) -> tuple[int, int, int]:
        """Bytes of the places, of the counts, and of what is before each piece."""
        counts = self.pieces * INT64.bytes
        return self.pieces * self.stride * INT32.bytes, counts, counts + INT64.bytes


@dataclass(frozen=True)
class FindNonZero(_OfPieces):
    """The places of numbers other than 0 in each piece, and how many there are.

    Attributes:
        item: bytes of an element.
        signed_zeros: whether the sign bit of a zero may be set.
        each: 0; or, if the operand `found` says how much of x is there, the elements of its unit.
    """

    result_count = 2

    item: int
    signed_zeros: bool
    each: Count = 0

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", *(("found",) if self.counted else ()), "places", "counts")

    @property
    def counted(self) -> bool:
        """True if the operand `found` says how much of x is there."""
        return bool(self.each != 0)

    @property
    def flops(self) -> int:
        return self.count

    def emit(self, target: Target) -> str:
        e, element = Function(self.NAME), f"i{8 * self.item}"
        append = _packed if target.masks_are_bits else _looked_up
        lanes = _SLACK if target.masks_are_bits else _LANES
        x, places = e.pointer(0, element), e.pointer(1 + self.counted, INT32.llvm)
        counts, count = e.pointer(2 + self.counted, INT64.llvm), e.i64(self.count)
        if self.counted:
            count = e.load_index(e.pointer(1, INT64.llvm)) * self.each
        with e.chunks(*self.grid) as (piece,):
            first = piece * self.piece
            stop = e.smin(first + self.piece, count)
            if self.counted:
                stop = e.smax(stop, first)
            out, found = places.at(piece * self.stride), [e.i64(0)]
            whole = (stop - first) // lanes
            with e.when(whole.compare("ne", 0), [found]), e.loop("v", whole, [found]) as number:
                at = first + number * lanes
                hits = self._hits(e.load(x.at(at), vector(element, lanes)))
                bits = lane_bits(e, hits)
                append(e, e.convert("trunc", at, INT32.llvm), hits, bits, out.at(found[0]))
                wide = e.convert("zext", bits, "i64")
                found[0] = found[0] + e.intrinsic("llvm.ctpop.i64", "i64", wide)
            tail = first + whole * lanes
            with (
                e.when(tail.compare("ult", stop), [found]),
                e.loop("one", stop, [found], start=tail) as at,
            ):
                e.store(e.convert("trunc", at, INT32.llvm), out.at(found[0]))
                found[0] = found[0] + e.convert("zext", self._hits(e.load(x.at(at))), "i64")
            e.store(found[0], counts.at(piece))
        return e.finish()

    def _hits(self, bits: Value) -> Value:
        return (bits << 1 if self.signed_zeros else bits).compare("ne", 0)


def _packed(e: Function, first: Value, hits: Value, bits: Value, out: Pointer) -> None:
    """Write the places of a vector's hits, and zeros behind them."""
    del bits
    kind = vector(INT32.llvm, _SLACK)
    places = e.const(kind, range(_SLACK)) + e.splat(first, _SLACK)
    name = f"llvm.x86.avx512.mask.compress.v{_SLACK}i32"
    e.store(e.intrinsic(name, kind, places, e.zero(kind), hits), out)


def _looked_up(e: Function, first: Value, hits: Value, bits: Value, out: Pointer) -> None:
    del hits
    row = e.convert("zext", bits, "i64")
    numbers = e.load(e.table(_table()).at(row * 2), vector("i8", _LANES))
    places = e.convert("zext", numbers, vector(INT32.llvm, _LANES)) + e.splat(first, _LANES)
    e.store(places, out)


def _table() -> Sequence[int]:
    """For each mask the numbers of its lanes, a byte each, as two words."""
    rows = [[lane for lane in range(_LANES) if mask >> lane & 1] for mask in range(1 << _LANES)]
    numbers = [sum(lane << 8 * place for place, lane in enumerate(row)) for row in rows]
    return [word for number in numbers for word in (number & (1 << 32) - 1, number >> 32)]


@dataclass(frozen=True)
class AddCounts(_OfPieces):
    """How many are found before each piece and in all pieces; the latter twice."""

    operands = ("counts", "before", "found")
    result_count = 2
    grid = (1,)

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        counts, before = e.pointer(0, INT64.llvm), e.pointer(1, INT64.llvm)
        with e.chunks(*self.grid):
            sums = [e.i64(0)]
            e.store(sums[0], before)
            with e.loop("piece", self.pieces, [sums]) as piece:
                sums[0] = sums[0] + e.load_index(counts.at(piece))
                e.store(sums[0], before.at(piece + 1))
            e.store(sums[0], e.pointer(2, INT64.llvm))
        return e.finish()


@dataclass(frozen=True)
class _OfFound(_OfPieces):
    """What is wanted of the places in each piece; it writes no more than is found."""

    measure = "found"

    def found(
        self, e: Function, places: Pointer, before: Pointer, piece: Value
    ) -> tuple[Value, Value, Pointer]:
        """Return how many are found before a piece, how many in it, and their places."""
        first = e.load_index(before.at(piece))
        own = e.load_index(before.at(piece + 1)) - first
        return first, own, places.at(piece * self.stride)


@dataclass(frozen=True)
class ListPlaces(_OfFound):
    """The index of each place along each axis.

    Attributes:
        shape: of the tensor in which places were found.
        rows: whether each place has a row of indices, not a column.
    """

    operands = ("places", "before", "found", "y")

    shape: Extents
    rows: bool

    def emit(self, target: Target) -> str:
        e, lanes = Function(self.NAME), target.lanes(INT32)
        places, before = e.pointer(0, INT32.llvm), e.pointer(1, INT64.llvm)
        total, y = e.load_index(e.pointer(2, INT64.llvm)), e.pointer(3, INT64.llvm)
        with e.chunks(*self.grid) as (piece,):
            start, own, listed = self.found(e, places, before, piece)
            axes = len(self.shape)
            step = axes if self.rows else 1
            first = start * step
            outs = [y.at(first + (axis if self.rows else total * axis)) for axis in range(axes)]
            lanes = lanes if step == 1 else 1
            whole = own // lanes
            with e.when(whole.compare("ne", 0)), e.loop("v", whole) as number:
                self._list(e, listed, outs, number * lanes, lanes)
            if lanes > 1:
                rest = whole * lanes
                with e.when(rest.compare("ult", own)), e.loop("one", own, start=rest) as at:
                    self._list(e, listed, outs, at, 1)
        return e.finish()

    def _list(
        self, e: Function, listed: Pointer, outs: Sequence[Pointer], at: Value, lanes: int
    ) -> None:
        """Some places, axis by axis from the last: quotients of doubles are exact below 2^53."""
        place = e.load(listed.at(at), vector(INT32.llvm, lanes))
        narrow, wide = place.kind, vector(INT64.llvm, lanes)
        real = vector("double", lanes)
        to = at * (len(self.shape) if self.rows else 1)
        for axis in range(len(self.shape) - 1, -1, -1):
            extent, index = self.shape[axis], place
            if any(not isinstance(n, int) or n != 1 for n in self.shape[:axis]):
                whole = e.convert("sitofp", place, real) / e.const(real, extent)
                place = e.convert("fptosi", whole, narrow)
                index = index - place * e.const(narrow, extent)
            else:  # all axes before it are of one element
                place = e.zero(narrow)
            e.store(e.convert("zext", index, wide), outs[axis].at(to))


@dataclass(frozen=True)
class TakeSlices(_OfFound):
    """The slices at the places, one after the other.

    Attributes:
        item: bytes of an element.
        outer: repetitions of the axis.
        extent: of the axis, at least `count`.
        inner: elements of a slice.
    """

    operands = ("x", "places", "before", "found", "y")

    item: int
    outer: Extent
    extent: Extent
    inner: Extent

    @property
    def group(self) -> int:
        """Repetitions of the axis for which a chunk takes its piece; several of small pieces."""
        return ceil_div(PIECE, self.count * self.inner)

    @property
    def grid(self) -> tuple[int, ...]:
        return ceil_div(self.outer, self.group), self.pieces

    def emit(self, target: Target) -> str:
        e, element = Function(self.NAME), f"i{8 * self.item}"
        lanes = target.vector_bytes // self.item
        x, places = e.pointer(0, element), e.pointer(1, INT32.llvm)
        before, y = e.pointer(2, INT64.llvm), e.pointer(4, element)
        total = e.load_index(e.pointer(3, INT64.llvm))
        with e.chunks(*self.grid) as (part, piece):
            start, own, listed = self.found(e, places, before, piece)
            first = part * self.group
            last = e.smin(first + self.group, self.outer)
            with e.when(own.compare("ne", 0)), e.loop("row", last, start=first) as row:
                source = x.at(row * (self.extent * self.inner))
                out = y.at((row * total + start) * self.inner)
                with e.loop("slice", own) as at:
                    self._take(e, source, out, listed, at, lanes)
        return e.finish()

    def _take(
        self, e: Function, x: Pointer, out: Pointer, listed: Pointer, at: Value, lanes: int
    ) -> None:
        place = e.index(e.convert("zext", e.load(listed.at(at)), "i64"))
        taken, to = x.at(place * self.inner), out.at(at * self.inner)
        if isinstance(self.inner, int) and self.inner == 1:
            e.store(e.load(taken), to)
        else:
            copy_row(e, taken, to, self.inner, lanes)


def lower(context: KernelContext) -> Lowered:
    """Three kernels, with the places and the counts of all pieces between them."""
    node, graph = context.node, context.graph
    names, found = [name for name in node.inputs if name], tuple[str, ...]()
    if len(names) > (1 if node.op == "NonZero" else 2):
        found = (names.pop(),)
    looked, x = graph.types[names[-1]], graph.types[names[0]]
    between = places, counts, before = [f"{node.key}.{n}" for n in ("places", "counts", "before")]
    y, number = node.outputs
    then: _OfFound
    if node.op == "NonZero":
        count = x.elements
        piece = most(PIECE, ceil_div(count, _MOST_PIECES))
        then = ListPlaces(count, piece, x.shape or (1,), node.attributes["rows"])
        each = x.elements // next((n for n in x.shape if n != 1), 1)
    else:
        axis = node.attributes["axis"]
        outer, extent, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
        count, each = least(looked.elements, extent), 1
        piece = most(_LEAST_PIECE, ceil_div(PIECE, inner), ceil_div(count, _MOST_PIECES))
        then = TakeSlices(count, piece, x.dtype.bytes, outer, extent, inner)
    if count >= _MOST:
        raise UnsupportedError(
            f"node {node.name or node.key!r}: {node.op} looks at {count} elements; expected fewer "
            f"than {_MOST}: cut them into parts"
        )
    each = each if found else 0
    find = FindNonZero(count, piece, looked.dtype.bytes, looked.dtype.is_float, each)
    calls = (
        Call(find, (names[-1], *found, places, counts)),
        Call(AddCounts(count, piece), (counts, before, number)),
        Call(then, (*names[:-1], places, before, number, y)),
    )
    return Lowered(calls, {}, dict(zip(between, find.buffers, strict=True)), "nonzero")
