"""Sums and extremes over many values: in several accumulators, then across the lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Literal

from leanconv.codegen.emitter import Function, Pointer, Value, bytes_of, element_of, lanes_of
from leanconv.codegen.tails import tile_at
from leanconv.graph.ops.algebra import NEUTRAL
from leanconv.graph.ops.base import Combines
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Symbol
from leanconv.target import Target
from leanconv.types import DType

# Values taken by one set of accumulators before they go into the total, and their number.
RUN = 256
PARTIAL = 4
# Elements of a tile of columns: a multiple of every target's lanes, so that grids depend on shapes.
TILE = 64

# "largest" is the maximum of floats that may lose a NaN: one instruction where "max" has three.
ReduceOp = Combines | Literal["largest"]
_NEUTRAL: Mapping[str, float] = {**NEUTRAL, "mean": 0.0, "largest": -inf}


def neutral(e: Function, how: ReduceOp, kind: str) -> Value:
    """Return the value that changes no total; integers are signed."""
    number = _NEUTRAL[how]
    if element_of(kind)[0] == "i":
        most = (1 << (8 * bytes_of(element_of(kind)) - 1)) - 1
        number = int(min(max(number, -most - 1), most))
    return e.const(kind, number)


def combine(e: Function, how: ReduceOp, total: Value, x: Value) -> Value:
    """Take one more value into a total; NaN on either side stays, but in "largest"."""
    if how in ("mean", "sum"):
        return total + x
    if how == "prod":
        return total * x
    if how == "largest":
        return e.maximum(x, total)
    if not x.is_float:
        return e.smax(total, x) if how == "max" else e.smin(total, x)
    better = x.compare("ogt" if how == "max" else "olt", total)
    return e.select(x.compare("uno", x), x, e.select(better, x, total))


def each_across_lanes(e: Function, how: ReduceOp, rows: list[Value]) -> Value:
    """`across_lanes` of as many vectors as they have lanes, as one vector: the same pairs."""
    lanes = part = lanes_of(rows[0].kind)
    while part > 1:
        half = part // 2
        firsts = range(0, lanes, part)
        low = [i for first in firsts for at in (first, lanes + first) for i in range(at, at + half)]
        rows = [
            combine(e, how, e.shuffle(a, b, low), e.shuffle(a, b, [i + half for i in low]))
            for a, b in zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True)
        ]
        part = half
    return rows[0]


def across_lanes(e: Function, how: ReduceOp, x: Value, least: int = 1) -> Value:
    """Combine all lanes of a vector into a scalar, in halves; or until `least` lanes are left."""
    while (lanes := lanes_of(x.kind)) > max(2, least):
        half = lanes // 2
        low, high = e.shuffle(x, None, range(half)), e.shuffle(x, None, range(half, lanes))
        x = combine(e, how, low, high)
    if lanes_of(x.kind) == least:
        return x
    return combine(e, how, e.extract(x, 0), e.extract(x, 1))


def neutral_load(e: Function, how: ReduceOp, address: Pointer, kind: str, count: int) -> Value:
    """Load the first lanes; the others do not change a total."""
    lanes = lanes_of(kind)
    x = e.load_first(address, kind, count)
    if how in ("mean", "sum") or count >= lanes:
        return x
    return e.select(e.first_lanes(count, lanes), x, neutral(e, how, kind))


Leaf = Callable[[Value], list[Value]]


def run_of(
    e: Function,
    how: ReduceOp,
    leaf: Leaf,
    count: int,
    tile: Sequence[str],
    sets: int = PARTIAL,
) -> list[Value]:
    """Combine `leaf(i)` over `0 <= i < count`.

    Args:
        e: the function under construction.
        how: what a total is.
        leaf: loads, or computes, one tile of values.
        count: at least 1; one code serves all symbols.
        tile: the types of the tile's values.
        sets: accumulators at most, of a value each.

    Returns:
        One total for each value of a tile.
    """
    start = e.i64(0)
    if isinstance(count, Symbol):
        return _run_of_any_count(e, how, leaf, e.i64(count), tile, sets, start)

    def part(first: Value, count: int) -> list[Value]:
        return _one_run(e, how, leaf, count, tile, sets, first)

    return by_runs(e, how, part, count, tile, start)


def by_runs(
    e: Function,
    how: ReduceOp,
    part: Callable[[Value, int], list[Value]],
    count: int,
    tile: Sequence[str],
    start: Value,
) -> list[Value]:
    """Combine what `part(first, count)` makes of each run, the last of which may be shorter."""
    if count < 2 * RUN:
        return part(start, count)
    totals = [neutral(e, how, kind) for kind in tile]
    with e.loop("run", count // RUN, [totals]) as run:
        totals[:] = _combined(e, how, totals, part(run * RUN + start, RUN))
    if not count % RUN:
        return totals
    return _combined(e, how, totals, part(start + count // RUN * RUN, count % RUN))


def _one_run(
    e: Function,
    how: ReduceOp,
    leaf: Leaf,
    count: int,
    tile: Sequence[str],
    sets: int,
    start: Value,
) -> list[Value]:
    sets = min(count, max(1, sets // len(tile)))
    partial = [[neutral(e, how, kind) for kind in tile] for _ in range(sets)]
    groups = count // sets
    with e.loop("group", groups, partial) as group:
        index = group * sets + start
        for u, sums in enumerate(partial):
            sums[:] = _combined(e, how, sums, leaf(index + u))
    for u in range(count % sets):
        partial[u] = _combined(e, how, partial[u], leaf(start + (groups * sets + u)))
    return _total(e, how, partial)


def _run_of_any_count(
    e: Function,
    how: ReduceOp,
    leaf: Leaf,
    count: Value,
    tile: Sequence[str],
    sets: int,
    start: Value,
) -> list[Value]:
    """`run_of` for a count that is known at run time: the same values in the same order.

    Sets that a smaller count would not have are neutral, and change no bit.
    """
    sets = max(1, sets // len(tile))
    one_run = count.compare("ult", 2 * RUN)
    most = e.select(one_run, count, e.i64(RUN))
    runs = e.select(one_run, e.i64(1), (count + (RUN - 1)) // RUN)
    totals = [neutral(e, how, kind) for kind in tile]
    with e.loop("run", runs, [totals]) as run:
        first = run * RUN
        left = e.smin(count - first, most)
        partial = [[neutral(e, how, kind) for kind in tile] for _ in range(sets)]
        groups, first = left // sets, first + start
        with e.when(groups.compare("ugt", 0), partial), e.loop("group", groups, partial) as group:
            index = group * sets + first
            for u, sums in enumerate(partial):
                sums[:] = _combined(e, how, sums, leaf(index + u))
        done = groups * sets
        for u in range(sets - 1):
            with e.when((done + u).compare("ult", left), [partial[u]]):
                partial[u][:] = _combined(e, how, partial[u], leaf(first + done + u))
        totals[:] = _combined(e, how, totals, _total(e, how, partial))
    return totals


def _total(e: Function, how: ReduceOp, partial: list[list[Value]]) -> list[Value]:
    """Combine sets of accumulators, in halves."""
    while len(partial) > 1:
        half = ceil_div(len(partial), 2)
        pairs = zip(partial, partial[half:], strict=False)
        partial = [_combined(e, how, a, b) for a, b in pairs] + partial[len(partial) - half : half]
    return partial[0]


def _combined(e: Function, how: ReduceOp, totals: list[Value], more: list[Value]) -> list[Value]:
    return [combine(e, how, t, m) for t, m in zip(totals, more, strict=True)]


def each_column(
    e: Function,
    tile: Value,
    extent: int,
    dtype: DType,
    target: Target,
    body: Callable[[Value, Value | int], None],
    width: int = TILE,
) -> None:
    """Run `body(offset, count)` for each vector of a tile of columns.

    Args:
        e: the function under construction.
        tile: which `width` columns of the axis.
        extent: of the axis; one code serves all symbols.
        dtype, target: decide the lanes of a vector.
        body: emits the work on the `count` columns (all lanes, or the rest) from `offset` on.
        width: columns of a tile, whole vectors on every target.
    """
    lanes, first = target.lanes(dtype), tile * width
    if isinstance(extent, Symbol) and target.runtime_masks:
        columns = e.smin(e.i64(extent) - first, width)
        whole, left = columns // lanes, columns % lanes
        with e.when(whole.compare("ne", 0)), e.loop("column", whole) as v:
            body(first + v * lanes, lanes)
        with e.when(left.compare("ne", 0)):
            body(first + whole * lanes, left)
        return
    for count in tile_at(e, tile, extent, width, is_tail="eq"):
        tail = count % lanes
        if count >= lanes:
            with e.loop("column", count - tail, step=lanes) as v:
                body(first + v, lanes)
        if tail:
            body(first + (count - tail), target.lanes_of_tail(tail))
