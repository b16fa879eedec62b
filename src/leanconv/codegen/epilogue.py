"""From accumulators to the output: residual, activation, and the store in the output's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leanconv.codegen.activations import apply
from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.geometry import Access
from leanconv.codegen.microkernel import RegisterTile
from leanconv.codegen.shuffles import transpose
from leanconv.dtypes import ITEMSIZE
from leanconv.spec import Activation


@dataclass(frozen=True)
class Epilogue:
    """What happens to a sum before it is stored: + residual, then the activation.

    Attributes:
        bias: whether a bias is added (the kernels start their accumulators from it).
        residual: whether a tensor of the output's shape and layout is added.
        activation: applied last, or None.
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

    def channel_bytes(self, dtype: str, channels: int) -> dict[str, int]:
        """Bytes of bias and slopes, if they are read, of `channels` packed elements each."""
        names = (name for name in self.operands if name != "residual")
        return dict.fromkeys(names, channels * ITEMSIZE[dtype])


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


def store_tile(
    e: Function, tile: RegisterTile, acc: Sequence[Value], out: TileOutput, channels: int
) -> None:
    """Finish and store a tile of rows (output columns) by vectors of output channels.

    Args:
        e: the function to append to.
        tile: types; `tile.row_stride` is not used.
        acc: the sums, `acc[i * vectors + j]`.
        out: where they go.
        channels: channels to store, at most `vectors * lanes`.
    """
    store = _store_vectors if out.access.lanes_contiguous else _store_transposed
    store(e, tile, acc, out, channels)


def _store_vectors(
    e: Function, tile: RegisterTile, acc: Sequence[Value], out: TileOutput, channels: int
) -> None:
    access, residual, slope = out.access, out.residual, out.slope
    for j in range(tile.vectors):
        first = j * tile.lanes
        live = tile.lanes if access.block > 1 else min(tile.lanes, channels - first)
        if live <= 0:
            continue
        slopes = e.load(slope.at(first, tile.element), tile.kind) if slope else None
        for i in range(len(acc) // tile.vectors):
            offset = access.channel(first) + i * access.spatial[2]
            value = acc[i * tile.vectors + j]
            if residual:
                value = value + e.load_first(residual.at(offset, tile.element), tile.kind, live)
            value = apply(e, value, out.epilogue.activation, slopes)
            e.store_first(value, out.y.at(offset, tile.element), live)


def _store_transposed(
    e: Function, tile: RegisterTile, acc: Sequence[Value], out: TileOutput, channels: int
) -> None:
    """Transpose the tile so that lanes run along output columns; store a row for each channel."""
    access, residual, slope = out.access, out.residual, out.slope
    rows = len(acc) // tile.vectors
    step = access.spatial[2]
    for j in range(tile.vectors):
        for start in range(0, rows, tile.lanes):
            block = [acc[i * tile.vectors + j] for i in range(start, min(rows, start + tile.lanes))]
            live = len(block)
            block += [e.poison(tile.kind)] * (tile.lanes - live)
            for lane, value in enumerate(transpose(e, block)):
                channel = j * tile.lanes + lane
                if channel >= channels:
                    break
                offset = access.channel(channel) + start * step
                if residual:
                    value = value + _load_row(
                        e, residual.at(offset, tile.element), tile, live, step
                    )
                slopes = None
                if slope:
                    slopes = e.broadcast(slope.at(channel, tile.element), tile.kind)
                value = apply(e, value, out.epilogue.activation, slopes)
                _store_row(e, value, out.y.at(offset, tile.element), tile, live, step)


def _load_row(e: Function, address: Value, tile: RegisterTile, live: int, step: int) -> Value:
    if step == 1:
        return e.load_first(address, tile.kind, live)
    value = e.zero(tile.kind)
    for i in range(live):
        value = e.insert(value, e.load(address.at(i * step, tile.element), tile.element), i)
    return value


def _store_row(
    e: Function, value: Value, address: Value, tile: RegisterTile, live: int, step: int
) -> None:
    if step == 1:
        e.store_first(value, address, live)
        return
    for i in range(live):
        e.store(e.extract(value, i), address.at(i * step, tile.element))
    e.barrier()
