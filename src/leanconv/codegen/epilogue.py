"""Both ends of a register tile's sums, in three verbs.

- *start*: the first values of the accumulators, the bias (`microkernel`).
- *finish*: what is applied to a sum: residual and activation in its own type (`finish` of
  `activations`), or what makes a code of it (`requantised`).
- *store*: the output's type, narrower integers saturated, and its layout (`store_tile`, which also
  finishes the sums of the tile).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from leanconv.codegen.activations import (
    Factors,
    Numbers,
    finish,
    load_numbers,
    requantised,
    requantised_columns,
)
from leanconv.codegen.dot import Way
from leanconv.codegen.emitter import Function, Pointer, Value, element_of, lanes_of, vector
from leanconv.codegen.geometry import Access, PhasedAccess, TapAccess
from leanconv.codegen.memory import loads_as, to_bits
from leanconv.codegen.microkernel import RegisterTile
from leanconv.codegen.shuffles import interleave, transpose
from leanconv.codegen.tails import Columns, load_row, store_row
from leanconv.records import dataclass, replace
from leanconv.spec import Activation
from leanconv.spec.activation import KINDS
from leanconv.spec.requantise import NUMBERS_BYTES, Requantise
from leanconv.types import FLOAT32, INT8, UINT8, DType

_PACKED = 4  # columns whose codes are stored together
_AT_ONCE = 4  # sums whose long activation is computed beside each other's, as it is a chain


@dataclass(frozen=True)
class Epilogue:
    """Operations on a sum before it is stored: + residual and the activation, or a code.

    Attributes:
        bias: whether a bias is added (the kernels start their accumulators from it).
        residual: whether a tensor of the output's shape and layout is added.
        activation: applied to the sum with the residual, or before that is added; None for none.
        requantise: how the sum becomes a code or a float; None: it stays as it is.
    """

    bias: bool = False
    residual: bool = False
    activation: Activation | None = None
    requantise: Requantise | None = None

    @property
    def has_slope(self) -> bool:
        """True if the activation reads one parameter for each channel."""
        return self.activation is not None and self.activation.kind == "prelu"

    @property
    def operands(self) -> tuple[str, ...]:
        """The optional operands, in the order in which every kernel takes them."""
        chosen = (("bias", self.bias), ("residual", self.residual), ("slope", self.has_slope))
        names = tuple(name for name, there in chosen if there)
        return (*names, "scale", "quantisation") if self.requantise else names

    @property
    def channel_factors(self) -> int:
        """Number of arrays of one number per channel that slopes or scales are, end to end."""
        return self.requantise.factors if self.requantise else 1

    def channel_bytes(self, dtype: DType, channels: int) -> dict[str, int]:
        """Bytes of the operands for `channels` packed channels, without the residual."""
        scales = self.channel_factors * channels * FLOAT32.bytes
        others = {"scale": scales, "quantisation": NUMBERS_BYTES, "residual": 0}
        names = (name for name in self.operands if name != "residual")
        return {name: others.get(name, channels * dtype.bytes) for name in names}


@dataclass(frozen=True)
class TileOutput:
    """Destination of a register tile, and the epilogue applied before.

    Attributes:
        epilogue: to apply.
        access: layout of y and of the residual.
        y, residual: addresses of the tile's first column and channel.
        factors: address of the first channel's slope, or of its scale.
        factor_step: from a channel's scale to its factor, and on to its summand.
        dtype: element type of y and of the residual; None: that of the sums.
        quantisation: address of the numbers of a requantisation.
        numbers: these numbers, each in all lanes.
    """

    epilogue: Epilogue
    access: Access
    y: Pointer
    residual: Pointer | None
    factors: Pointer | None
    dtype: DType | None = None
    quantisation: Pointer | None = None
    numbers: Numbers = ()
    factor_step: int = 0

    def factors_of(
        self, tile: RegisterTile, load: Callable[[Pointer, str], Value], at: int
    ) -> Factors:
        """Return the factors of the channels from `at` on; `load` loads a vector."""
        if self.factors is None:
            return ()
        kind, first = self.factor_kind(tile), self.factors.at(at)
        count = self.epilogue.channel_factors
        return tuple(load(first.at(n * self.factor_step), kind) for n in range(count))

    def factor_kind(self, tile: RegisterTile) -> str:
        """LLVM type of a vector of slopes or of scales."""
        return vector(FLOAT32.llvm, tile.lanes) if self.epilogue.requantise else tile.kind

    def kind(self, tile: RegisterTile) -> str:
        """LLVM type of a vector of the residual, with the lanes of one of sums."""
        if self.dtype is None or self.dtype.is_float:  # halves are loaded as floats
            return tile.kind
        return vector(self.dtype.llvm, tile.lanes)

    def finished(
        self,
        e: Function,
        tile: RegisterTile,
        value: Value,
        factors: Factors,
        added: Value | None,
    ) -> Value:
        """A vector of sums as it is stored; `added` is the residual as it was loaded."""
        if added and self.dtype and not self.dtype.is_float:
            added = widened(e, added, self.dtype, tile.dot.accumulate)
        if self.epilogue.requantise:
            assert factors, "codes have a scale"
            assert self.dtype, "codes have a type of their own"
            how = self.epilogue.requantise
            return requantised(e, value, how, self.dtype, factors, self.numbers, added)
        slope = factors[0] if factors else None
        value = finish(e, value, self.epilogue.activation, slope, added)
        return narrowed(e, value, tile.dot.accumulate, self.dtype) if self.dtype else value

    def packs_columns(self, tile: RegisterTile) -> bool:
        """Return whether four columns of codes become bytes at once, on x86."""
        return packs_columns(self.epilogue, self.access, tile.dot.way, self.dtype, tile.lanes)

    def store_columns(
        self,
        e: Function,
        tile: RegisterTile,
        values: Sequence[Value],
        factors: Factors,
        added: Sequence[Value],
        y: Pointer,
    ) -> None:
        """Finish two to four columns as `finished` does, in one vector, and store it."""
        how, dtype = self.epilogue.requantise, self.dtype
        assert factors, "codes have a scale"
        assert how, "columns are packed where they become codes"
        assert dtype, "codes have a type of their own"
        wide = [widened(e, each, dtype, tile.dot.accumulate) for each in added]
        found = requantised_columns(e, values, how, dtype, factors, self.numbers, wide)
        if len(values) == _PACKED:
            e.store(found, y)
            return
        pair, third = 2 * tile.lanes, 3 * tile.lanes
        e.store(e.shuffle(found, None, range(pair)), y)
        if len(values) > 2:
            e.store(e.shuffle(found, None, range(pair, third)), y.at(pair))


def packs_columns(
    epilogue: Epilogue, y: Access, way: Way | None, dtype: DType | None, lanes: int
) -> bool:
    """Return whether four columns of codes are neighbours that x86 makes bytes of at once."""
    x86, bytes_ = way in ("vnni", "bytes", "fours", "pairs"), dtype in (INT8, UINT8)
    beside = y.block == y.spatial[2] == lanes
    return bool(epilogue.requantise) and x86 and bytes_ and beside


def widened(e: Function, value: Value, dtype: DType, wider: DType) -> Value:
    """Integers of one type, in vectors or not, as those of one that holds them all."""
    if dtype == wider:
        return value
    kind = vector(wider.llvm, lanes_of(value.kind))
    return e.convert("sext" if dtype.kind == "int" else "zext", value, kind)


def narrowed(e: Function, value: Value, dtype: DType, narrower: DType) -> Value:
    """Numbers as those of a narrower type, its nearest: the last integer, or an infinite half."""
    if dtype == narrower:
        return value
    if narrower.is_float:  # as they lie in memory
        return to_bits(e, value, narrower.llvm)
    assert dtype.kind == "int", "only signed integers are narrowed"
    value = e.smin(e.smax(value, int(narrower.low)), int(narrower.high))
    return e.convert("trunc", value, vector(narrower.llvm, lanes_of(value.kind)))


def store_tile(
    e: Function,
    tile: RegisterTile,
    acc: Sequence[Value],
    out: TileOutput,
    channels: int,
    columns: Columns | None = None,
) -> None:
    """Finish and store a tile of rows (output columns) by vectors of output channels.

    Args:
        e: the function to append to.
        tile: types; `tile.row_stride` is not used.
        acc: the sums, `acc[i * vectors + j]`.
        out: their destination, and the epilogue.
        channels: channels to store, at most `vectors * lanes`.
        columns: number of rows to store; None: all of them.
    """
    stored = out.dtype.llvm if out.dtype else tile.element
    held = [p.element for p in (out.y, out.residual) if p]
    assert all(loads_as(each, stored) for each in held), "addresses of others"
    kind = element_of(out.factor_kind(tile))
    assert not out.factors or out.factors.element == kind, "factors of another type"
    residual = out.residual.frozen() if out.residual else None
    out = replace(with_numbers(e, tile, out), y=out.y.frozen(), residual=residual)
    contiguous, rows = out.access.lanes_contiguous, len(acc) // tile.vectors
    store = _store_vectors if contiguous else _store_transposed
    if rows > 1 and _is_long(out.epilogue):
        if contiguous and len(acc) > _AT_ONCE:
            stop = columns.count if columns else None
            store_columns(e, tile, acc, out, channels, 0, stop)
            return
        acc, out = (acc, out) if contiguous else _activated(e, tile, acc, out)
    if columns is None:
        store(e, tile, acc, out, channels)
    elif not contiguous and columns.usual < tile.lanes:
        store(e, tile, acc, out, channels, columns, 1)
    else:
        usual = columns.count.compare("sge", columns.usual)
        with e.when(usual):
            store(e, tile, acc, out, channels, columns, columns.usual)
        if columns.usual > 1:
            fewer = acc[: min(rows, columns.usual - 1) * tile.vectors]
            with e.when(usual ^ 1):
                store(e, tile, fewer, out, channels, columns, 1)


def with_numbers(e: Function, tile: RegisterTile, out: TileOutput) -> TileOutput:
    """An output with the numbers of its quantisation, loaded here unless they are already."""
    if out.numbers or not (out.epilogue.requantise and out.quantisation):
        return out
    numbers = load_numbers(e, out.quantisation, tile.lanes, out.residual is not None)
    return replace(out, numbers=numbers)


def store_columns(
    e: Function,
    tile: RegisterTile,
    acc: Sequence[Value],
    out: TileOutput,
    channels: int,
    first: Value | int,
    stop: Value | None = None,
    mostly_all: bool = False,
) -> None:
    """Store as `store_tile` does, but only the tile's columns first … stop - 1, one at least.

    In a loop over the columns, whose sums are in the function's frame meanwhile. Where `mostly_all`
    says that `first` is 0 of most tiles, these are stored as `store_tile` does.
    """
    vectors, lanes = tile.vectors, tile.lanes
    if not out.access.lanes_contiguous and _is_long(out.epilogue):
        acc, out = _activated(e, tile, acc, out)
    if mostly_all:
        some = e.i64(first).compare("ne", 0)
        with e.when(some, otherwise=lambda: store_tile(e, tile, acc, out, channels)):
            store_columns(e, tile, acc, out, channels, first, stop)
        return
    held, rows, step = _spilled(e, tile, acc), len(acc) // vectors, 1
    if stop is None and isinstance(first, int) and not first:
        step = _divisor(rows, _AT_ONCE // vectors)
    with e.loop("column", stop or rows, start=first, step=step) as column:
        one = held.at(column * (vectors * lanes))
        sums = [e.load(one.at(j * lanes), tile.kind) for j in range(step * vectors)]
        place = column * out.access.spatial[2]
        residual = out.residual.at(place) if out.residual else None
        there = replace(out, y=out.y.at(place), residual=residual)
        store_tile(e, tile, sums, there, channels)


def _divisor(count: int, most: int) -> int:
    """The largest number up to `most` by which `count` can be divided."""
    return next((n for n in range(most, 1, -1) if count % n == 0), 1)


def _is_long(epilogue: Epilogue) -> bool:
    """Return whether an activation takes so many instructions that it is emitted once."""
    activation = epilogue.activation
    return activation is not None and KINDS[activation.kind].series and not epilogue.requantise


def _spilled(e: Function, tile: RegisterTile, acc: Sequence[Value]) -> Pointer:
    held = e.local(tile.element, len(acc) * tile.lanes)
    for number, value in enumerate(acc):
        e.store(value, held.at(number * tile.lanes))
    return held


def _activated(
    e: Function, tile: RegisterTile, acc: Sequence[Value], out: TileOutput
) -> tuple[Sequence[Value], TileOutput]:
    """Apply the activation to sums in a loop, before they are transposed, if nothing comes first.

    Returns:
        The sums, and an output without an activation; else both as they are.
    """
    activation, lanes = out.epilogue.activation, tile.lanes
    assert activation, "there is one"
    if out.factors or (out.residual and not activation.before_residual):
        return acc, out
    held, step = _spilled(e, tile, acc), _divisor(len(acc), _AT_ONCE)
    with e.loop("sum", len(acc), step=step) as number:
        places = [held.at((number + j) * lanes) for j in range(step)]
        for place, value in [(place, e.load(place, tile.kind)) for place in places]:
            e.store(finish(e, value, activation), place)
    sums = [e.load(held.at(number * lanes), tile.kind) for number in range(len(acc))]
    return sums, replace(out, epilogue=replace(out.epilogue, activation=None))


def _store_vectors(
    e: Function,
    tile: RegisterTile,
    acc: Sequence[Value],
    out: TileOutput,
    channels: int,
    columns: Columns | None = None,
    known: int = 0,
) -> None:
    """Store vectors of channels; of `columns`, `known` are sure to exist."""
    access, kind = out.access, out.kind(tile)
    for j in range(tile.vectors):
        first = j * tile.lanes
        live = tile.lanes if access.block > 1 else min(tile.lanes, channels - first)
        if live <= 0:
            continue
        factors = out.factors_of(tile, e.load, first)
        y = out.y.at(access.channel(first))
        added = out.residual.at(access.channel(first)) if out.residual else None
        rows, packed = len(acc) // tile.vectors, 0
        if out.packs_columns(tile):
            # Columns that are sure to exist, four at a time; of the last ones two or three.
            packed = rows if columns is None else min(rows, known) // _PACKED * _PACKED
            packed -= packed % _PACKED == 1
        for i in range(0, packed, _PACKED):
            sums = [acc[n * tile.vectors + j] for n in range(i, min(i + _PACKED, packed))]
            offset = i * access.spatial[2]
            others = []
            if added:
                others = [e.load(added.at(offset + n * tile.lanes), kind) for n in range(len(sums))]
            out.store_columns(e, tile, sums, factors, others, y.at(offset))
        for i in range(packed, rows):
            offset = i * access.spatial[2]
            value = acc[i * tile.vectors + j]
            with columns.beyond(i, known) if columns else nullcontext():
                other = None
                if added:
                    other = e.load_first(added.at(offset), kind, live)
                value = out.finished(e, tile, value, factors, other)
                if isinstance(access, TapAccess):
                    for lane, count, shift in access.pieces(j):
                        e.store_lanes(value, y.at(offset).at(shift), lane, count)
                else:
                    e.store_first(value, y.at(offset), live)


def _store_transposed(
    e: Function,
    tile: RegisterTile,
    acc: Sequence[Value],
    out: TileOutput,
    channels: int,
    columns: Columns | None = None,
    known: int = 0,
) -> None:
    """Transpose the tile so that lanes run along output columns; store a row for each channel."""
    rows = len(acc) // tile.vectors
    for j in range(tile.vectors):
        for start in range(0, rows, tile.lanes):
            block = [acc[i * tile.vectors + j] for i in range(start, min(rows, start + tile.lanes))]
            live = len(block)
            block += [e.poison(tile.kind)] * (tile.lanes - live)
            masks = columns if start + live > known else None
            with columns.beyond(start, known) if columns else nullcontext():
                square = transpose(e, block)[: max(0, channels - j * tile.lanes)]
                _store_square(e, tile, square, out, (start, j * tile.lanes), masks or live)


def _store_square(
    e: Function,
    tile: RegisterTile,
    square: Sequence[Value],
    out: TileOutput,
    place: tuple[int, int],
    live: Columns | int,
) -> None:
    """Store a row for each channel of a square, whose first column and channel are `place`."""
    access, step, (start, first) = out.access, out.access.spatial[2], place
    if isinstance(access, PhasedAccess) and isinstance(live, int) and access.interleaves:
        _store_phases(e, tile, square, out, place, live)
        return
    kind = out.kind(tile)
    y = out.y.at(start * step)
    residual = out.residual.at(start * step) if out.residual else None
    for channel, value in enumerate(square, first):
        offset = access.channel(channel)
        added, factors = None, out.factors_of(tile, e.broadcast, channel)
        if residual:
            added = load_row(e, residual.at(offset), kind, start, live, step)
        value = out.finished(e, tile, value, factors, added)
        store_row(e, value, y.at(offset), start, live, step)


def _store_phases(
    e: Function,
    tile: RegisterTile,
    square: Sequence[Value],
    out: TileOutput,
    place: tuple[int, int],
    live: int,
) -> None:
    """Store as `_store_square` does, with phases' columns interleaved: phases are channels."""
    access, (start, first) = out.access, place
    assert isinstance(access, PhasedAccess)
    across = access.phases[1]
    for number in range(0, len(square), across):
        offset = access.channel(first + number) + start * access.spatial[2]
        factors = out.factors_of(tile, e.broadcast, first + number)
        row = interleave(e, list(square[number : number + across]))
        for index, value in enumerate(row):
            count = min(tile.lanes, live * across - index * tile.lanes)
            if count <= 0:
                break
            at, added = offset + index * tile.lanes, None
            if out.residual:
                added = e.load_first(out.residual.at(at), out.kind(tile), count)
            value = out.finished(e, tile, value, factors, added)
            e.store_first(value, out.y.at(at), count)
