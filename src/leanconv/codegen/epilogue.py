"""Both ends of a register tile's sums, in three verbs.

- `start_tile`: the first values of the accumulators, the bias.
- `finish`: what is applied to a sum: residual and activation.
- `store_tile`: finish all sums of a tile, and store them in the output's layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from leanconv.codegen.activations import finish
from leanconv.codegen.emitter import Function, Value, lanes_of, vector
from leanconv.codegen.geometry import Access, PhasedAccess
from leanconv.codegen.microkernel import RegisterTile
from leanconv.codegen.shuffles import interleave, transpose
from leanconv.records import dataclass
from leanconv.spec import Activation
from leanconv.target import Target
from leanconv.types import DType


@dataclass(frozen=True)
class Epilogue:
    """What happens to a sum before it is stored: + residual, and the activation.

    Attributes:
        bias: whether a bias is added (the kernels start their accumulators from it).
        residual: whether a tensor of the output's shape and layout is added.
        activation: applied to the sum with the residual, or before that is added; None for none.
    """

    bias: bool = False
    residual: bool = False
    activation: Activation | None = None

    @property
    def has_slope(self) -> bool:
        """Whether the activation reads one parameter for each channel."""
        return self.activation is not None and self.activation.kind == "prelu"

    @property
    def operands(self) -> tuple[str, ...]:
        """The optional operands, in the order in which every kernel takes them."""
        chosen = (("bias", self.bias), ("residual", self.residual), ("slope", self.has_slope))
        return tuple(name for name, there in chosen if there)

    def channel_bytes(self, dtype: DType, channels: int) -> dict[str, int]:
        """Bytes of bias and slopes, if they are read, of `channels` packed elements each."""
        names = (name for name in self.operands if name != "residual")
        return dict.fromkeys(names, channels * dtype.bytes)


@dataclass(frozen=True)
class TileOutput:
    """Where a register tile is stored and what is applied before.

    Attributes:
        epilogue: what to apply.
        access: layout of y and of the residual.
        y, residual: addresses of the tile's first column and channel.
        slope: address of the first channel's slope.
    """

    epilogue: Epilogue
    access: Access
    y: Value
    residual: Value | None
    slope: Value | None


def start_tile(e: Function, tile: RegisterTile, rows: int, bias: Value | None) -> list[Value]:
    """The first values of a tile's accumulators, `[i * vectors + j]`.

    Args:
        e: the function to append to.
        tile: types.
        rows: of the tile.
        bias: address of the first channel's bias, of the sums' type; None: zero.
    """
    if bias is None:
        return [e.zero(tile.kind)] * (rows * tile.vectors)
    vectors = range(tile.vectors)
    return [e.load(bias.at(j * tile.lanes, tile.element), tile.kind) for j in vectors] * rows


class Columns:
    """How many columns of a tile are stored, a value: made before the loops around `store_tile`.

    Args:
        e: the function to append to.
        count: columns, one at least.
        usual: most tiles have that many at least.
        kind: type of the tile's vectors.
        target: the machine.
    """

    def __init__(self, e: Function, count: Value, usual: int, kind: str, target: Target) -> None:
        self.e, self.count, self.usual = e, count, usual
        self._lanes = lanes_of(kind)
        self._bits: Value | None = None
        if target.masks_are_bits and self._lanes >= 8:
            # A comparison in a loop would come late: just before the stores.
            mask = e.first_lanes(count, self._lanes)
            self._bits = e.convert("bitcast", mask, f"i{self._lanes}")

    def mask(self, first: int) -> Value:
        """The lanes that columns `first` … fill."""
        if first == 0 and self._bits:
            return self.e.convert("bitcast", self._bits, vector("i1", self._lanes))
        return self.e.first_lanes(self.count - first, self._lanes)

    def beyond(self, column: int, known: int) -> AbstractContextManager[None]:
        """Emit the body if there is that column, of which `known` exist."""
        if column < known:
            return nullcontext()
        return self.e.when(self.count.compare("sgt", column))


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
        out: where they go.
        channels: channels to store, at most `vectors * lanes`.
        columns: how many rows are stored; None: all of them.
    """
    residual = out.residual.frozen() if out.residual else None
    out = replace(out, y=out.y.frozen(), residual=residual)
    contiguous, rows = out.access.lanes_contiguous, len(acc) // tile.vectors
    store = _store_vectors if contiguous else _store_transposed
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


def store_columns(
    e: Function,
    tile: RegisterTile,
    acc: Sequence[Value],
    out: TileOutput,
    channels: int,
    first: Value | int,
) -> None:
    """As `store_tile`, but only the tile's columns from `first` on, one at least."""
    element, vectors, lanes = tile.element, tile.vectors, tile.lanes
    held = e.local(element, len(acc) * lanes)
    for number, value in enumerate(acc):
        e.store(value, held.at(number * lanes, element))
    with e.loop("column", len(acc) // vectors, start=first) as column:
        one = held.at(column * (vectors * lanes), element)
        sums = [e.load(one.at(j * lanes, element), tile.kind) for j in range(vectors)]
        place = column * out.access.spatial[2]
        residual = out.residual.at(place, element) if out.residual else None
        there = replace(out, y=out.y.at(place, element), residual=residual)
        store_tile(e, tile, sums, there, channels)


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
    access, slope = out.access, out.slope
    for j in range(tile.vectors):
        first = j * tile.lanes
        live = tile.lanes if access.block > 1 else min(tile.lanes, channels - first)
        if live <= 0:
            continue
        slopes = e.load(slope.at(first, tile.element), tile.kind) if slope else None
        y = out.y.at(access.channel(first), tile.element)
        added = out.residual.at(access.channel(first), tile.element) if out.residual else None
        for i in range(len(acc) // tile.vectors):
            offset = i * access.spatial[2]
            value = acc[i * tile.vectors + j]
            with columns.beyond(i, known) if columns else nullcontext():
                other = None
                if added:
                    other = e.load_first(added.at(offset, tile.element), tile.kind, live)
                value = finish(e, value, out.epilogue.activation, slopes, other)
                e.store_first(value, y.at(offset, tile.element), live)


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
    y = out.y.at(start * step, tile.element)
    residual = out.residual.at(start * step, tile.element) if out.residual else None
    for channel, value in enumerate(square, first):
        offset = access.channel(channel)
        added, slopes = None, None
        if residual:
            added = _load_row(e, residual.at(offset, tile.element), tile, start, live, step)
        if out.slope:
            slopes = e.broadcast(out.slope.at(channel, tile.element), tile.kind)
        value = finish(e, value, out.epilogue.activation, slopes, added)
        _store_row(e, value, y.at(offset, tile.element), tile, start, live, step)


def _store_phases(
    e: Function,
    tile: RegisterTile,
    square: Sequence[Value],
    out: TileOutput,
    place: tuple[int, int],
    live: int,
) -> None:
    """As `_store_square`, where phases are channels: the columns of a row of phases interleave."""
    access, (start, first) = out.access, place
    assert isinstance(access, PhasedAccess)
    across = access.phases[1]
    for number in range(0, len(square), across):
        offset = access.channel(first + number) + start * access.spatial[2]
        slope, slopes = out.slope, None
        if slope:
            slopes = e.broadcast(slope.at(first + number, tile.element), tile.kind)
        row = interleave(e, list(square[number : number + across]))
        for index, value in enumerate(row):
            count = min(tile.lanes, live * across - index * tile.lanes)
            if count <= 0:
                break
            at, added = offset + index * tile.lanes, None
            if out.residual:
                there = out.residual.at(at, tile.element)
                added = e.load_first(there, tile.kind, count)
            value = finish(e, value, out.epilogue.activation, slopes, added)
            e.store_first(value, out.y.at(at, tile.element), count)


def _each_column(
    e: Function, tile: RegisterTile, start: int, live: Columns | int, carry: list[Value]
) -> Iterator[int]:
    """Emit the body for each lane of a row that begins at column `start`."""
    for i in range(live if isinstance(live, int) else tile.lanes):
        if isinstance(live, int):
            yield i
            continue
        with e.when(live.count.compare("sgt", start + i), [carry]):
            yield i


def _load_row(
    e: Function, address: Value, tile: RegisterTile, start: int, live: Columns | int, step: int
) -> Value:
    if step == 1:
        if isinstance(live, int):
            return e.load_first(address, tile.kind, live)
        return e.masked_load(address, tile.kind, live.mask(start))
    values = [e.zero(tile.kind)]
    for i in _each_column(e, tile, start, live, values):
        loaded = e.load(address.at(i * step, tile.element), tile.element)
        values[0] = e.insert(values[0], loaded, i)
    return values[0]


def _store_row(
    e: Function,
    value: Value,
    address: Value,
    tile: RegisterTile,
    start: int,
    live: Columns | int,
    step: int,
) -> None:
    if step > 1:
        for i in _each_column(e, tile, start, live, []):
            e.store(e.extract(value, i), address.at(i * step, tile.element))
        e.barrier()
    elif isinstance(live, int):
        e.store_first(value, address, live)
    else:
        e.masked_store(value, address, live.mask(start))
