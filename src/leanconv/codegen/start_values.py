"""The first verb of an epilogue: how sums begin, for every place that lanes can have.

- Lanes are channels: `start_vectors`, and `start_tile` for all rows of a register tile.
- Lanes are columns: `start_planes`, a channel's number in all lanes.
- Sums that no accumulator holds from the start, because a transform or another kernel gives them:
  `load_channels`, and `add_start` where they are first there. A method says why it is one of these.

Without a bias sums begin at zero, or at the first thing that would be added to them.
"""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.codegen.emitter import Function, Pointer, Value, element_of, lanes_of
from leanconv.codegen.microkernel import RegisterTile


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
