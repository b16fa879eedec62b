"""The copy kernel: boxes of elements moved from strided places to strided places.

    y[result_offset + i . result_strides] = x[source_offset + i . source_strides]

for every index `i` of a box. A kernel is a list of such tasks, each with chunks of its own, so
that one stage does a whole concatenation, or the middle and the borders of a padded tensor.

A task's last extents are its body, which is one of
- `run`: one extent, contiguous in the result; read forwards, backwards or with stride 0;
- `fill`: the same, of a constant;
- `tile`: two extents, the first contiguous in the result and the second in the source, as squares
  transposed in registers;
- `lanes`: no extent: one vector, its lanes gathered from some vectors of the sources;
- `scalar`: one extent, element by element.
No mask is needed anywhere: the last vector of a run overlaps the one before it.

Elements are bits: the code is that of their width, one for all types of four bytes. Only a kernel
that writes a number other than zero has that of their type.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Literal

from leanconv.codegen.emitter import Function, Pointer, Value, bytes_of, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.shuffles import power_below, transpose_rectangle
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Counts, Extents, Symbol
from leanconv.target import Target
from leanconv.types import DType

_UNROLL = 4
_BLOCKS = (16, 8, 4, 2)
_MOVED = {1: "i8", 2: "i16", 4: "float", 8: "double"}  # LLVM's type of elements, by their bytes
Body = Literal["run", "fill", "tile", "lanes", "scalar"]
BODY_EXTENTS: dict[Body, int] = {"run": 1, "fill": 1, "tile": 2, "lanes": 0, "scalar": 1}


@dataclass(frozen=True)
class CopyTask:
    """A box of elements and how its innermost extents are moved.

    Attributes:
        body: a kind of body, see above.
        extents: of the box; the last ones belong to the body.
        operands: index of the source of each stream; the result is the last stream.
        strides: per stream, in elements, one for each extent.
        offsets: per stream, in elements.
        value: what a fill writes, and lanes that no stream gives.
        picks: for `lanes`, per source and result lane: the lane to take, or -1.
        slack: for `tile`: elements that may be read past the end of the last extent.
        zeros: for `tile`: zeros to write past the end of the last extent but one.
        parts: how much of each extent one chunk has. The last part of the body's extents overlaps
            the one before it, that of others is shorter, where parts do not divide an extent.
    """

    body: Body
    extents: Extents
    operands: tuple[int, ...]
    strides: tuple[Extents, ...]
    offsets: Extents
    value: float = 0.0
    picks: tuple[tuple[int, ...], ...] = ()
    slack: int = 0
    zeros: int = 0
    parts: Counts = ()

    @property
    def pieces(self) -> tuple[int, ...]:
        """Number of parts of each extent."""
        return tuple(ceil_div(n, part) for n, part in zip(self.extents, self.parts, strict=True))

    @property
    def chunks(self) -> int:
        """Independent parts of the box."""
        return prod(self.pieces)


@dataclass(frozen=True)
class Copy(Kernel):
    """All tasks of one result.

    Attributes:
        dtype: of the elements.
        sources: number of source operands; the result is the last operand.
        tasks: boxes that do not overlap in the result.
    """

    VARIES = True

    dtype: DType
    sources: int
    tasks: tuple[CopyTask, ...]

    @property
    def element(self) -> str:
        """LLVM's type of an element of the code."""
        numbers = any(task.value != 0.0 for task in self.tasks)
        return self.dtype.llvm if numbers else _MOVED[self.dtype.bytes]

    @property
    def operands(self) -> tuple[str, ...]:
        return (*(f"x{i}" for i in range(self.sources)), "y")

    @property
    def chunks(self) -> int:
        return sum(task.chunks for task in self.tasks)

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        base = 0
        for task in self.tasks:
            _emit_task(e, task, base, self.sources, self.element, target)
            base += task.chunks
        return e.finish()


def _emit_task(
    e: Function, task: CopyTask, base: int, sources: int, element: str, target: Target
) -> None:
    """Run those chunks of a task that lie within the kernel's range."""
    first = e.smax(e.lo - base, 0)
    last = e.smin(e.hi - base, task.chunks)
    with e.when(first.compare("slt", last)):
        streams = [e.pointer(operand, element) for operand in (*task.operands, sources)]
        streams = [p.at(offset) for p, offset in zip(streams, task.offsets, strict=True)]
        with e.loop("chunk", last, start=first) as chunk:
            places, counts = _part_of_chunk(e, task, chunk, streams)
            _emit_nest(e, task, counts, places, target)


def _part_of_chunk(
    e: Function, task: CopyTask, chunk: Value, places: list[Pointer]
) -> tuple[list[Pointer], list[Value | int]]:
    """Return a chunk's first element in each stream, and counts of the extents before the body's.

    Parts of the last extent follow each other.
    """
    before = len(task.extents) - BODY_EXTENTS[task.body]
    counts: list[Value | int] = [1] * before
    for axis in reversed(range(len(task.extents))):
        extent, part, pieces = task.extents[axis], task.parts[axis], task.pieces[axis]
        if isinstance(extent, int) and (extent == 1 or pieces == 1):
            if axis < before:
                counts[axis] = extent
            continue
        first = (chunk % pieces if axis else chunk) * part
        chunk = chunk // pieces if axis else chunk
        if axis < before:
            counts[axis] = e.smin(e.i64(extent) - first, part)
        else:
            first = e.smin(first, extent - part)
        places = _advance(places, task, axis, first)
    return places, counts


def _advance(places: list[Pointer], task: CopyTask, axis: int, index: Value | int) -> list[Pointer]:
    strides = (s[axis] for s in task.strides)
    return [p.at(index * s) if s else p for p, s in zip(places, strides, strict=True)]


def _emit_nest(
    e: Function,
    task: CopyTask,
    counts: list[Value | int],
    places: list[Pointer],
    target: Target,
    axis: int = 0,
) -> None:
    if axis == len(counts):
        # Squares of narrow elements are no larger: a block of channels has a lane of sums for each.
        least = 4 if task.body == "tile" else 1
        lanes = target.vector_bytes // max(least, bytes_of(places[-1].element))
        _BODIES[task.body](e, task, places, lanes)
        return
    with e.loop(f"i{axis}", counts[axis]) as index:
        inner = _advance(places, task, axis, index)
        _emit_nest(e, task, counts, inner, target, axis + 1)


def cover(
    e: Function,
    length: int,
    lanes: int,
    body: Callable[[Value | int, int], None],
    unroll: int = _UNROLL,
) -> None:
    """Call `body(first, width)` so that all of `length` is covered by vectors of the widths.

    The last vector may overlap the one before it; below one vector the width is the largest power
    of two that fits. A long extent is covered by groups of vectors, the last of which overlaps.
    """
    whole_vectors = isinstance(length, Symbol) and length >= lanes
    lanes = power_below(length, lanes)
    if whole_vectors or (isinstance(length, Symbol) and length > lanes):
        _cover_extent(e, length, lanes, body, unroll)
        return
    whole = length // lanes
    done = 0
    if whole > unroll:
        done = whole - whole % unroll
        with e.loop("at", done * lanes, step=unroll * lanes) as at:
            for u in range(unroll):
                body(at + u * lanes, lanes)
    for k in range(done, whole):
        body(k * lanes, lanes)
    if length % lanes:
        body(length - lanes, lanes)


def _cover_extent(
    e: Function, length: int, lanes: int, body: Callable[[Value | int, int], None], unroll: int
) -> None:
    """Cover a vector or more: one code for all lengths of several groups of vectors."""
    if unroll > 1 and length <= 4 * lanes:
        for k in range(ceil_div(length, lanes) - 1):
            body(k * lanes, lanes)
        body(e.i64(length - lanes), lanes)
        return
    if unroll > 2 and length <= 4 * unroll * lanes:
        unroll = 2  # fewer vectors twice
    group = unroll * lanes
    with e.loop("group", ceil_div(length, group)) as index:
        at = e.smin(index * group, e.i64(length - group))  # the last one may overlap
        for u in range(unroll):
            body(at + u * lanes, lanes)


def _emit_run(e: Function, task: CopyTask, places: list[Pointer], lanes: int) -> None:
    x, y = places
    step = task.strides[0][-1]

    def body(at: Value | int, width: int) -> None:
        kind = vector(y.element, width)
        if step == 0:
            moved = e.broadcast(x, kind)
        elif step == 1:
            moved = e.load(x.at(at), kind)
        else:
            backwards = at * -1 - (width - 1) if isinstance(at, Value) else -at - (width - 1)
            moved = e.load(x.at(backwards), kind)
            if width > 1:
                moved = e.shuffle(moved, None, range(width - 1, -1, -1))
        e.store(moved, y.at(at))

    cover(e, task.parts[-1], lanes, body)


def _emit_fill(e: Function, task: CopyTask, places: list[Pointer], lanes: int) -> None:
    def body(at: Value | int, width: int) -> None:
        e.store(e.const(vector(places[0].element, width), task.value), places[0].at(at))

    cover(e, task.parts[-1], lanes, body)


def _emit_scalar(e: Function, task: CopyTask, places: list[Pointer], _lanes: int) -> None:
    def body(at: Value | int, _width: int) -> None:
        x, y = _advance(places, task, -1, at)
        e.store(e.load(x), y)

    cover(e, task.parts[-1], 1, body)


def _emit_lanes(e: Function, task: CopyTask, places: list[Pointer], _lanes: int) -> None:
    width = len(task.picks[0])
    kind = vector(places[-1].element, width)
    given = [any(picks[i] >= 0 for picks in task.picks) for i in range(width)]
    moved = e.const(kind, task.value)
    for number, picks in enumerate(task.picks):
        # Lanes that another source gives are left undefined at first: fewer shuffles.
        others = [-1 if number == 0 and given[i] else width + i for i in range(width)]
        chosen = [o if p < 0 else p for o, p in zip(others, picks, strict=True)]
        moved = e.shuffle(e.load(places[number], kind), moved, chosen)
    e.store(moved, places[-1])


def _step(stride: int) -> int:
    """A stride as a constant of the code if it is that of a block of channels."""
    return next((block for block in _BLOCKS if stride == block), stride)


def _emit_tile(e: Function, task: CopyTask, places: list[Pointer], lanes: int) -> None:
    across, along = task.parts[-2:]
    assert not task.zeros or across + task.zeros <= lanes, "zeros end the only row of tiles"
    x, y = places
    source_step, result_step = _step(task.strides[0][-2]), _step(task.strides[1][-1])

    def tile(j: Value | int, i: Value | int, rows: int, width: int) -> None:
        kind = vector(y.element, width)
        x0 = x.at(j * source_step).at(i)
        y0 = y.at(i * result_step).at(j)
        given = min(rows, across) if task.zeros else rows
        loaded = [e.load(x0.at(r * source_step), kind) for r in range(given)]
        loaded += [e.zero(kind)] * (rows - given)
        made = min(width, along) if task.slack else width
        for c, column in enumerate(transpose_rectangle(e, loaded, made)):
            e.store(column, y0.at(c * result_step))

    def columns(j: Value | int, rows: int) -> None:
        length = along if along >= width else width
        cover(e, length, lanes, lambda i, w: tile(j, i, rows, w), unroll=1)

    width = power_below(along + task.slack, lanes) if along < lanes else lanes
    cover(e, across + task.zeros, lanes, columns, unroll=1)


_BODIES: dict[Body, Callable[[Function, CopyTask, list[Pointer], int], None]] = {
    "run": _emit_run,
    "fill": _emit_fill,
    "tile": _emit_tile,
    "lanes": _emit_lanes,
    "scalar": _emit_scalar,
}
