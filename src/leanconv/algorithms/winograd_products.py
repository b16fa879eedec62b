"""The products of fused Winograd: M[xi] = V[xi] · U[xi], summed in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, multiply_accumulate
from leanconv.codegen.types import ELEMENT

if TYPE_CHECKING:
    from leanconv.algorithms.winograd_kernel import WinogradConv

Run = tuple[int, int, int]  # first channel block, blocks, lanes that hold channels


@dataclass(frozen=True)
class SumPart:
    """Some equal partial sums, one after the other.

    Attributes:
        count: how many.
        runs: of the first one; those of each next one begin where these end.
    """

    count: int
    runs: tuple[Run, ...]

    @property
    def steps(self) -> int:
        """Products of one of the sums."""
        return sum(blocks * lanes for _, blocks, lanes in self.runs)


def sum_parts(runs: list[Run], length: int) -> list[SumPart]:
    """Cut a reduction into partial sums of at most `length` products (one block's at least)."""
    parts: list[SumPart] = []
    waiting: list[Run] = []
    room = length
    for start, blocks, lanes in runs:
        if blocks * lanes <= room:
            waiting.append((start, blocks, lanes))
            room -= blocks * lanes
            continue
        if waiting:
            parts.append(SumPart(1, tuple(waiting)))
        each = max(1, length // lanes)
        whole, rest = divmod(blocks, each)
        if whole:
            parts.append(SumPart(whole, ((start, each, lanes),)))
        waiting = [(start + whole * each, rest, lanes)] if rest else []
        room = length - rest * lanes
    return [*parts, SumPart(1, tuple(waiting))] if waiting else parts


class Products:
    """Emits the products of one block of tiles and one panel of output channels.

    The first partial sum is stored in M, the others are added to it. Rounding grows with the root
    of the length of a part, and moving the accumulators costs about one cycle for each and part.
    """

    def __init__(self, e: Function, conv: WinogradConv, v: Value, u: Value, m: Value) -> None:
        self.e, self.conv, self.v, self.u, self.m = e, conv, v, u, m
        self.element = ELEMENT[conv.dtype]
        self.kind = vector(self.element, conv.lanes)
        self.tile = RegisterTile(self.element, self.kind, conv.lanes, conv.vectors, conv.lanes)

    def emit(self) -> None:
        """Emit the loops over points and over panels of tiles."""
        conv, e, width = self.conv, self.e, self.conv.panel_lanes
        with e.loop("xi", conv.points) as xi:
            a = self.v.at(xi * conv.point_stride, self.element)
            b = self.u.at(xi * (conv.steps * width), self.element)
            out = self.m.at(xi * (conv.tiles * width), self.element)
            with e.loop("rows", conv.tiles // conv.rows) as r:
                rows = a.at(r * (conv.rows * conv.lanes), self.element)
                self._sums(rows, b, out.at(r * (conv.rows * width), self.element))

    def _sums(self, a: Value, b: Value, out: Value) -> None:
        """Emit all partial sums of one register tile."""
        conv, e, done = self.conv, self.e, 0
        block = conv.tiles * conv.lanes
        for number, part in enumerate(sum_parts(conv.reduction_runs(), conv.sums)):
            ahead = part.count * part.steps * conv.panel_lanes
            b_part = b.at(done, self.element)
            done += ahead
            first = int(number == 0)
            if first or part.count == 1:
                self._part(part, a, b_part, out, add=not first)
            if part.count > 1:
                a_step = sum(blocks for _, blocks, _ in part.runs) * block
                with e.loop("part", part.count, start=first) as index:
                    a_next = a.at(index * a_step, self.element)
                    b_next = b_part.at(index * (part.steps * conv.panel_lanes), self.element)
                    self._part(part, a_next, b_next, out, add=True)

    def _part(self, part: SumPart, a: Value, b: Value, out: Value, add: bool) -> None:
        """Emit one partial sum; `out` is the register tile's place in M."""
        conv, e, tile, width = self.conv, self.e, self.tile, self.conv.panel_lanes
        acc = [e.zero(self.kind)] * (conv.rows * conv.vectors)
        done = 0
        for start, blocks, lanes in part.runs:
            over = ReductionLoop("cb", blocks, conv.tiles * conv.lanes, lanes * width)
            inside = ReductionLoop("c", lanes, 1, width)
            a_run = a.at(start * conv.tiles * conv.lanes, self.element)
            b_run = b.at(done * width, self.element)
            loops = [over, inside] if blocks > 1 else [inside]
            multiply_accumulate(e, tile, acc, range(conv.rows), a_run, b_run, loops)
            done += blocks * lanes
        for i in range(conv.rows):
            for j in range(conv.vectors):
                place = out.at(i * width + j * conv.lanes, self.element)
                value = acc[i * conv.vectors + j]
                e.store(e.load(place, self.kind) + value if add else value, place)
