"""The products of Winograd's gradient of weights: register tiles over the rows of V and U.

    M[xi][s, k] = sum over tiles b of V[xi][b, s] · U[xi][b, k]

They are summed in parts of at most `LENGTH` tiles, each from zero, added one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leanconv.algorithms.weight_gradient.winograd_tiles import WeightTiles, point_elements
from leanconv.algorithms.winograd.shape import Pair
from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, multiply_accumulate
from leanconv.codegen.partial_sums import LENGTH
from leanconv.codegen.tails import each_tile, tile_at
from leanconv.records import dataclass
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.symbolic import Count, least


@dataclass(frozen=True)
class Ahead:
    """Lines of x or dy that the next block of tiles reads, runs of them one stride apart.

    Attributes:
        first: elements from the start to the first of them.
        runs: their number; 0: nothing is read ahead.
        stride: elements from one run to the next.
        lines: cache lines of a run.
    """

    first: Count = 0
    runs: Count = 0
    stride: Count = 0
    lines: Count = 0


class Products:
    """Emits the sums of register tiles over all rows of V and U.

    While a register tile is summed, its share of what `ahead` says is prefetched, and, where V and
    U are `far`, of the next point's rows. In L2 that would cost a tenth of the products.

    Args:
        e: the function to append to.
        work: the weights and the register tile.
        sizes: rows that are summed, and rows that V and U have room for.
        pointers: addresses of V and U.
        group: number of the group.
        ahead: for each tensor its address and the lines that are prefetched by all chunks.
        adds: 1 where sums are added to what there is, else 0.
        far: 1 where V and U are larger than L2, else 0.
    """

    def __init__(
        self,
        e: Function,
        work: WeightTiles,
        sizes: tuple[int, int],
        pointers: Mapping[str, Pointer],
        group: Value,
        ahead: Sequence[tuple[Pointer, Ahead]],
        adds: int,
        far: int,
    ) -> None:
        self.e, self.work, self.ahead, self.group = e, work, ahead, group
        self.tiles, held = sizes
        self.adds = e.i64(adds).compare("ne", 0)
        self.far_tiles = self.tiles * far  # rows of the next point that are prefetched
        self.v_point = point_elements(held, work.v_row, work.dtype)
        self.u_point = point_elements(held, work.u_row, work.dtype)
        self.v = pointers["V"].at(group * (work.points * self.v_point))
        self.u = pointers["U"].at(group * (work.points * self.u_point))
        self.kind = vector(work.dtype.llvm, work.lanes)

    def panel(
        self,
        point: Value,
        panel: Value,
        steps: tuple[Value | int, int],
        out: Pointer,
        start: Pointer,
    ) -> None:
        """Sum some steps by one panel of output channels.

        Args:
            point, panel: their numbers.
            steps: where the first step lies in a row of V, and their number.
            out: where the sums of the first step go; those of the next one lie a panel further.
            start: to what they are added, if they are, which lies alike.
        """
        e, work = self.e, self.work
        first, count = steps
        a = self.v.at(point * self.v_point + first)
        b = self.u.at(point * self.u_point + panel * work.panel_lanes).frozen()
        for vectors in tile_at(e, panel, work.out_vectors, work.vectors):
            for index, rows in each_tile(e, "rows", count, work.rows):
                share = e.i64(index), ceil_div(count, work.rows)
                self._prefetch(a, b, panel, vectors, count, share)
                for source, lines in self.ahead:
                    self._read_ahead(source, lines, point, panel, share)
                to = index * (work.rows * work.panel_lanes)
                added = start.at(to).frozen()
                with e.when(self.adds):
                    for place in range(0, rows * work.panel_lanes, ALIGNMENT // work.dtype.bytes):
                        e.prefetch(added.at(place), write=True)
                at = a.at(index * work.rows).frozen()
                self._tile(at, b, out.at(to).frozen(), added, (rows, vectors))

    def _prefetch(
        self,
        a: Pointer,
        b: Pointer,
        panel: Value,
        vectors: int,
        count: int,
        share: tuple[Value, int],
    ) -> None:
        """Prefetch a share of the rows of the next point: of V by the first panel, of U by all."""
        e, work, (index, shares) = self.e, self.work, share
        line = ALIGNMENT // work.dtype.bytes
        some = index.compare("slt", self.far_tiles)
        with e.when(some), e.loop("ahead", self.far_tiles, start=index, step=shares) as t:
            row = b.at(self.u_point + t * work.u_row)
            for place in range(0, vectors * work.lanes, line):
                e.prefetch(row.at(place), locality=2)
        some = some & panel.compare("eq", 0)
        with e.when(some), e.loop("ahead", self.far_tiles, start=index, step=shares) as t:
            row = a.at(self.v_point + t * work.v_row)
            with e.loop("line", count, step=line) as at:
                e.prefetch(row.at(at), locality=2)

    def _read_ahead(
        self,
        source: Pointer,
        lines: Ahead,
        point: Value,
        panel: Value,
        share: tuple[Value, int],
    ) -> None:
        """Prefetch a share of the lines that the next block of tiles reads."""
        e, work, (index, shares) = self.e, self.work, share
        total = lines.runs * lines.lines
        each = ceil_div(total, work.groups * work.points * work.panels * shares)
        number = (self.group * work.points + point) * work.panels + panel
        begin = (number * shares + index) * each
        end = e.smin(begin + each, total)
        with e.when(begin.compare("slt", end)), e.loop("line", end, start=begin) as at:
            run, inside = at // lines.lines, at % lines.lines
            place = lines.first + run * lines.stride + inside * (ALIGNMENT // work.dtype.bytes)
            e.prefetch(source.at(place), locality=2)

    def _tile(self, a: Pointer, b: Pointer, out: Pointer, start: Pointer, size: Pair) -> None:
        """Sum one register tile of some rows and vectors, in parts of at most `LENGTH` tiles."""
        e, work = self.e, self.work
        acc = self._part(a, b, least(self.tiles, LENGTH), size)
        with e.when(self.adds, [acc]):
            acc[:] = self._added(acc, start, size)
        self._store(acc, out, size)
        parts = ceil_div(self.tiles, LENGTH)
        more = e.i64(parts).compare("ne", 1)
        with e.when(more), e.loop("part", parts, start=1) as part:
            a_next, b_next = a.at(part * (LENGTH * work.v_row)), b.at(part * (LENGTH * work.u_row))
            left = e.smin(e.i64(self.tiles) - part * LENGTH, LENGTH)
            acc = self._part(a_next, b_next, left, size)
            self._store(self._added(acc, out, size), out, size)

    def _part(self, a: Pointer, b: Pointer, tiles: Value | int, size: Pair) -> list[Value]:
        work, (rows, vectors) = self.work, size
        tile = RegisterTile(fma(work.dtype), work.lanes, vectors, 1)
        acc = [self.e.zero(self.kind)] * (rows * vectors)
        loop = ReductionLoop("tile", tiles, work.v_row, work.u_row)
        multiply_accumulate(self.e, tile, acc, range(rows), a, b, [loop])
        return acc

    def _places(self, size: Pair) -> list[int]:
        """Where the sums of a register tile lie, from the first."""
        rows, vectors = size
        lanes = self.work.lanes
        return [r * self.work.panel_lanes + j * lanes for r in range(rows) for j in range(vectors)]

    def _added(self, acc: list[Value], start: Pointer, size: Pair) -> list[Value]:
        pairs = zip(acc, self._places(size), strict=True)
        return [self.e.load(start.at(place), self.kind) + value for value, place in pairs]

    def _store(self, acc: list[Value], out: Pointer, size: Pair) -> None:
        for value, place in zip(acc, self._places(size), strict=True):
            self.e.store(value, out.at(place))
