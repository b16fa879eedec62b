"""The one micro-kernel: acc[i][j] += broadcast(A[i, k]) * B[k, j] over nested reduction loops.

    for k1 < n1: for k2 < n2: for k3 < n3:                    any of them may be absent
        for j < vectors:  b[j]  = load(B + k·strides_B + j)                      a whole vector
        for i < rows:     a     = broadcast(A + i·row_stride + k·strides_A)      one group
            for j < vectors:  acc[i][j] = dot(a, b[j], acc[i][j])

Loop (k) is a GEMM, (kh, kw, ic) a direct convolution without a copy; the unfolding methods (im2col,
MEC, im2win) run the same loops over their unfolded tensors. rows·vectors accumulators, `vectors`
operands and one broadcast stay in registers. The product of a step is a `Dot`: elements
of float32 or float64, or groups of integers, over which the innermost loop then steps.

Where multiply-adds take one lane of a register as a factor (`by_lane`) and the innermost loop is
over a block of A's neighbours, each row's block is loaded once and its lanes are broadcast:

    for i < rows:           a[i] = load(A + i·row_stride)                        a whole vector
    for k < lanes: for j < vectors: for i < rows:  acc[i][j] = fma(a[i].k, b[j], acc[i][j])

Other inner loops are not unrolled: one step of 14x2 already fills the multiply-add units, and more
steps only let the scheduler hoist loads until registers spill.

Accumulators begin with the first verb of an epilogue, for every place that lanes can have:

- Lanes are channels: `start_vectors`, and `start_tile` for all rows of a register tile.
- Lanes are columns: `start_planes`, a channel's number in all lanes.
- Sums that no accumulator holds from the start, because a transform or another kernel gives them:
  `load_channels`, and `add_start` where they are first there. A method says why it is one of these.

Without a bias sums begin at zero, or at the first thing that would be added to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leanconv.codegen.dot import Dot, Parts
from leanconv.codegen.emitter import Carry, Function, Pointer, Value, element_of, lanes_of, vector
from leanconv.codegen.memory import loads_as
from leanconv.records import cached_property, dataclass

UNROLL_LIMIT = 4  # steps of a reduction that are unrolled instead of looped over


@dataclass(frozen=True)
class ReductionLoop:
    """One loop of the reduction.

    Attributes:
        label: name of the index in the emitted code: `"kh"`, `"ic"` …
        extent: iterations, at least one: a number, or a value computed by the kernel.
        a_stride, b_stride: elements by which A and B advance in each iteration, numbers or values,
            too.
        start: first index; A and B advance by `index * stride`.
    """

    label: str
    extent: Value | int
    a_stride: Value | int
    b_stride: Value | int
    start: Value | int = 0


@dataclass(frozen=True)
class RegisterTile:
    """The accumulators and the strides of their operands, in elements of each.

    Attributes:
        dot: product that a step adds to a sum.
        lanes: of a vector of sums.
        vectors: vectors side by side in B.
        row_stride: elements between the rows of A.
        row_offsets: elements from the first row of A to each, if they are known at run time only.
        by_lane: load vectors of A and multiply by their lanes, where its steps lie side by side.
        tail_lanes: lanes of the last vector that may be loaded from B, 0: all of them.
        b_prefetch_distance: elements from those of B that a step loads to those that it prefetches
            into L2; 0: none. For a B that is one stream from a shared L3.
        a_prefetch_offsets: elements from the first row of A of a step to others of A that the step
            prefetches. For an A whose steps lie in pages of their own.
        prefetch_offsets: elements from those of B that a step loads to other lines that it
            prefetches into L2: data that are read after B.
    """

    dot: Dot
    lanes: int
    vectors: int
    row_stride: int
    tail_lanes: int = 0
    b_prefetch_distance: Value | int = 0
    a_prefetch_offsets: tuple[int, ...] = ()
    prefetch_offsets: tuple[Value, ...] = ()
    row_offsets: tuple[Value | int, ...] = ()
    by_lane: bool = False

    @property
    def element(self) -> str:
        """LLVM type of a sum."""
        return self.dot.accumulate.llvm

    @cached_property
    def kind(self) -> str:
        """LLVM type of a vector of sums."""
        return vector(self.dot.accumulate.llvm, self.lanes)

    def row(self, a: Pointer, i: int) -> Pointer:
        """The address of a row of A."""
        to_row = self.row_offsets[i] if self.row_offsets else i * self.row_stride
        return a.at(to_row)


@dataclass(frozen=True)
class Fetch:
    """A prefetch stream beside the loops: one address for each step of the innermost loop.

    Outer loops advance it as they advance A; the innermost advances it by `stride`.

    Attributes:
        address: of the innermost loop's first step, at index zero of all outer loops.
        stride: elements from one step of the innermost loop to the next.
    """

    address: Pointer
    stride: int

    def at(self, index: Value | int) -> Pointer:
        """The address of a step of the innermost loop."""
        return self.address.at(index * self.stride)

    def moved(self, by: Value | int) -> Fetch:
        """Return the same stream, `by` elements further."""
        return Fetch(self.address.at(by), self.stride)


def multiply_accumulate(
    e: Function,
    tile: RegisterTile,
    acc: Carry,
    rows: Sequence[int],
    a: Pointer,
    b: Pointer,
    loops: Sequence[ReductionLoop],
    unroll: int = UNROLL_LIMIT,
    fetch: Fetch | None = None,
) -> None:
    """Emit the loops; `acc[i * vectors + j]` is replaced for each i in `rows`.

    Args:
        e: the function to append to.
        tile: types and strides.
        acc: all accumulators of the tile.
        rows: the rows that take part; the others keep their values.
        a, b: addresses at index zero of every loop, of elements of `tile.dot.a` and `tile.dot.b`.
        loops: outermost first.
        unroll: most steps that are unrolled instead of looped over.
        fetch: what to prefetch in the loops; ignored in unrolled loops.
    """
    dot = tile.dot
    taken = (a.element, dot.a.llvm), (b.element, dot.b.llvm)
    assert all(loads_as(*each) for each in taken), "addresses of other elements"
    if not loops:
        _step(e, tile, acc, rows, [(a, b)])
        return
    if tile.by_lane and not fetch:
        loops = _blocks_of_lanes(loops, tile.lanes)
    loop, inner = loops[0], loops[1:]
    steps = static_steps(loops)
    if steps is not None and steps <= unroll:
        assert isinstance(loop.extent, int)
        assert isinstance(loop.start, int)
        whole_block = (loop.start, loop.extent, loop.a_stride) == (0, tile.lanes, 1)
        if tile.by_lane and whole_block and not inner:
            _steps_by_lane(e, tile, acc, rows, a, b, loop.b_stride)
            return
        indices, together = range(loop.start, loop.extent), 1 if inner else dot.together
        for first in range(0, len(indices), together):
            some = indices[first : first + together]
            places = [(a.at(i * loop.a_stride), b.at(i * loop.b_stride)) for i in some]
            if inner:
                multiply_accumulate(e, tile, acc, rows, *places[0], inner, unroll)
            else:
                _step(e, tile, acc, rows, places)
        return
    with e.loop(loop.label, loop.extent, [acc], start=loop.start) as index:
        a_i = a.at(index * loop.a_stride)
        b_i = b.at(index * loop.b_stride)
        if fetch and inner:
            fetch = fetch.moved(index * loop.a_stride)
        elif fetch:
            e.prefetch(fetch.at(index))
        multiply_accumulate(e, tile, acc, rows, a_i, b_i, inner, unroll, fetch)


def static_steps(loops: Sequence[ReductionLoop]) -> int | None:
    """Steps of all loops together, None if one has bounds known only at run time."""
    steps = 1
    for loop in loops:
        if not (isinstance(loop.extent, int) and isinstance(loop.start, int)):
            return None
        steps *= loop.extent - loop.start
    return steps


def _blocks_of_lanes(loops: Sequence[ReductionLoop], lanes: int) -> Sequence[ReductionLoop]:
    """Take an innermost loop over neighbours of A apart into blocks, where these are whole."""
    *outer, last = loops
    if not isinstance(last.extent, int) or last.start != 0 or last.a_stride != 1:
        return loops
    blocks, rest = divmod(last.extent, lanes)
    if rest or blocks < 2:
        return loops
    over = ReductionLoop(last.label, blocks, lanes, lanes * last.b_stride)
    return [*outer, over, ReductionLoop(f"{last.label}_lane", lanes, 1, last.b_stride)]


def _step(
    e: Function,
    tile: RegisterTile,
    acc: Carry,
    rows: Sequence[int],
    places: Sequence[tuple[Pointer, Pointer]],
) -> None:
    """Emit a step, or several that one product takes together, of A and B at these addresses."""
    dot, kind, vectors = tile.dot, tile.kind, tile.vectors
    operands: list[Parts] = [()] * vectors
    for a, b in places:
        _prefetch(e, tile, a, b)
        operands = [(*parts, *_operand(e, tile, b, j)) for j, parts in enumerate(operands)]
    for i in rows:
        x = tuple(part for a, _ in places for part in dot.broadcast(e, tile.row(a, i), kind))
        for slot, operand in enumerate(operands, i * vectors):
            acc[slot] = dot.add(e, acc[slot], x, operand)


def _steps_by_lane(
    e: Function,
    tile: RegisterTile,
    acc: Carry,
    rows: Sequence[int],
    a: Pointer,
    b: Pointer,
    b_stride: Value | int,
) -> None:
    """Emit one step for each lane: sums are as those of `_step`, bit by bit.

    Vectors of B are in the outer loop: one of them is in a register at a time.
    """
    dot = tile.dot
    vectors = {i: e.load(tile.row(a, i), tile.kind) for i in rows}
    for lane in range(tile.lanes):
        b_lane = b.at(lane * b_stride)
        _prefetch(e, tile, a.at(lane), b_lane)
        for j in range(tile.vectors):
            operand = _operand(e, tile, b_lane, j)
            for i in rows:
                slot = i * tile.vectors + j
                x = e.shuffle(vectors[i], None, [lane] * tile.lanes)
                acc[slot] = dot.add(e, acc[slot], (x,), operand)


def _prefetch(e: Function, tile: RegisterTile, a: Pointer, b: Pointer) -> None:
    for distance in tile.a_prefetch_offsets:
        e.prefetch(a.at(distance))
    for offset in tile.prefetch_offsets:
        e.prefetch(b.at(offset), locality=2)


def _operand(e: Function, tile: RegisterTile, b: Pointer, j: int) -> Parts:
    """One vector of B, and a prefetch of a later one."""
    live = tile.tail_lanes if tile.tail_lanes and j == tile.vectors - 1 else tile.lanes
    dot, offset = tile.dot, j * tile.lanes * tile.dot.group
    operand = dot.load(e, b.at(offset), tile.kind, live)
    if tile.b_prefetch_distance:
        e.prefetch(b.at(offset + tile.b_prefetch_distance), locality=2)
    return operand


def channel_address(
    pointers: Mapping[str, Pointer], name: str, channel: Value | int
) -> Pointer | None:
    """Address of a channel's number in an operand such as bias or slope; None without it."""
    return pointers[name].at(channel) if name in pointers else None


def start_vectors(e: Function, kind: str, bias: Pointer | None, vectors: int = 1) -> list[Value]:
    """First values of sums whose lanes are channels.

    Args:
        e: the function to append to.
        kind: type of a vector of sums, or of one sum.
        bias: address of the first channel's bias, of the sums' type; None: zero.
        vectors: side by side.

    Returns:
        A value for each vector.
    """
    if bias is None:
        return [e.zero(kind)] * vectors
    _check(bias, kind)
    return [e.load(bias.at(j * lanes_of(kind)), kind) for j in range(vectors)]


def start_tile(e: Function, tile: RegisterTile, rows: int, bias: Pointer | None) -> list[Value]:
    """The first values of a tile's accumulators, `[i * vectors + j]`; as `start_vectors`."""
    return start_vectors(e, tile.kind, bias, tile.vectors) * rows


def start_planes(e: Function, kind: str, bias: Pointer | None, channels: int) -> list[Value]:
    """First values of sums whose lanes are columns: one for each channel, the same in all lanes."""
    if bias is None:
        return [e.zero(kind)] * channels
    return broadcast_channels(e, kind, bias, channels)


def add_start(value: Value, bias: Value | None) -> Value:
    """A sum that came from elsewhere, with its bias, if there is one."""
    return value if bias is None else value + bias


def load_channels(e: Function, kind: str, first: Pointer | None) -> Value | None:
    """The numbers of a vector of channels, such as biases or slopes; None if there are none."""
    if first is None:
        return None
    _check(first, kind)
    return e.load(first, kind)


def broadcast_channels(e: Function, kind: str, first: Pointer, count: int) -> list[Value]:
    """The numbers of `count` channels, each in all lanes of a vector."""
    _check(first, kind)
    return [e.broadcast(first.at(k), kind) for k in range(count)]


def _check(numbers: Pointer, kind: str) -> None:
    assert numbers.element == element_of(kind), "numbers of channels are of the sums' type"
