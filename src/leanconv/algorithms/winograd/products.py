"""The products of fused Winograd: M[xi] = V[xi] · U[xi], summed in parts."""

from __future__ import annotations

from leanconv.algorithms.winograd.edge_tiles import RowRange, row_ranges
from leanconv.algorithms.winograd.reduction import AtInfinity, PartialSums, partial_sums
from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.codegen.dot import dot_of, way_of
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, multiply_accumulate
from leanconv.codegen.tiling import by_lane, fits
from leanconv.target import Target


class Products:
    """Emits the products of one block of tiles and one panel of output channels.

    Partial sums are added up in registers where these suffice, else in M. Rounding grows with the
    root of the length of a partial sum; in M each costs about one cycle for each accumulator.

    Args:
        e: the function to append to.
        conv: the convolution.
        target: the machine.
        v, m: addresses of V and M.
        live: tiles of the block; register tiles that hold none of them are not computed.
    """

    def __init__(
        self, e: Function, conv: WinogradShape, target: Target, v: Pointer, m: Pointer, live: Value
    ) -> None:
        self.e, self.conv, self.target, self.v, self.m, self.live = e, conv, target, v, m, live
        self.kind = vector(conv.precision.accumulate.llvm, conv.lanes)
        self.tile = RegisterTile(
            dot_of(conv.products, way_of(conv.products, target)),
            conv.lanes,
            conv.vectors,
            conv.lanes,
            b_prefetch_distance=_u_prefetch_distance(conv, target),
            by_lane=conv.dot_group == 1 and by_lane(target, conv.rows, conv.vectors),
        )

    def panel(self, u: Pointer) -> None:
        """Emit the loops over points and register tiles; `u` is the panel's address in U."""
        conv, e, reduction = self.conv, self.e, self.conv.reduction
        columns = reduction.regions(1)
        ranges = row_ranges(conv)
        for rows in reduction.regions(0):
            row_steps = reduction.steps_of_row(rows.at_infinity)
            begin = rows.first * reduction.steps_of_row(False)  # all before have the same length
            if rows.points > 1 and len(columns) == 1:
                # Nothing between the rows: one loop over all their points.
                count = rows.points * conv.alpha[1]
                at = rows.at_infinity, False
                with e.loop("xi", count) as xi:
                    row_range = ranges[rows.dropped, columns[0].dropped]
                    before = rows.first * conv.alpha[1]
                    self._point(u, xi + before, xi * reduction.steps_at(at) + begin, at, row_range)
                continue
            with e.loop("xi.row", rows.points) as i:
                for region in columns:
                    at = rows.at_infinity, region.at_infinity
                    steps = reduction.steps_at(at)
                    before = begin + region.first * reduction.steps_at((rows.at_infinity, False))
                    with e.loop("xi.column", region.points) as j:
                        xi = (i + rows.first) * conv.alpha[1] + j + region.first
                        done = i * row_steps + j * steps + before
                        self._point(u, xi, done, at, ranges[rows.dropped, region.dropped])

    def _point(
        self, u: Pointer, xi: Value, done: Value, at: AtInfinity, row_range: RowRange
    ) -> None:
        """Emit the products of one point; `done` steps of the panel belong to earlier points."""
        conv, e, width = self.conv, self.e, self.conv.panel_lanes
        a = self.v.at(xi * conv.point_stride)
        b = u.at(done * width).frozen()
        out = self.m.at(xi * conv.m_stride)
        several = row_range.many > 1 and row_range.many * row_range.rows == conv.tiles
        count = (self.live + (row_range.rows - 1)) // row_range.rows if several else row_range.many
        a = a.at(row_range.start * conv.lanes)
        out = out.at(row_range.start * width)
        with e.loop("rows", count) as r:
            apart = row_range.rows * (conv.channel_blocks if conv.v_rows == conv.rows else 1)
            rows = a.at(r * (apart * conv.lanes)).frozen()
            place = out.at(r * (row_range.rows * width)).frozen()
            self._sums(rows, b, place, at, row_range.rows)

    def _sums(self, a: Pointer, b: Pointer, out: Pointer, at: AtInfinity, rows: int) -> None:
        """Emit all partial sums of one register tile; `out` is its address in M."""
        conv, e, done = self.conv, self.e, 0
        block, total = conv.v_rows * conv.lanes, _Totals(self, rows, out)
        for number, sums in enumerate(partial_sums(conv.reduction.runs(at), conv.sums)):
            b_sums = b.at(done)
            done += sums.count * sums.steps * conv.panel_lanes
            first = int(number == 0)
            if first or sums.count == 1:
                total.add(self._partial_sum(sums, a, b_sums, rows))
            if sums.count > 1:
                a_step = sum(run.vectors for run in sums.runs) * block
                with e.loop("part", sums.count, [total.values], start=first) as index:
                    a_next = a.at(index * a_step)
                    b_next = b_sums.at(index * (sums.steps * conv.panel_lanes))
                    total.add(self._partial_sum(sums, a_next, b_next, rows))
        total.finish()

    def _partial_sum(self, sums: PartialSums, a: Pointer, b: Pointer, rows: int) -> list[Value]:
        """Emit one partial sum."""
        conv, e, tile, width = self.conv, self.e, self.tile, self.conv.panel_lanes
        step = conv.dot_group
        acc = [e.zero(self.kind)] * (rows * conv.vectors)
        done = 0
        for run in sums.runs:
            over = ReductionLoop("cb", run.vectors, conv.v_rows * conv.lanes, run.lanes * width)
            group = ReductionLoop("group", run.groups, run.group_lanes, run.kept * width)
            inside = ReductionLoop("c", run.kept // step, step, step * width)
            a_run = a.at(run.first * conv.v_rows * conv.lanes)
            b_run = b.at(done * width)
            extents = (run.vectors, run.groups, run.kept // step)
            every = zip((over, group, inside), extents, strict=True)
            loops = [loop for loop, extent in every if extent > 1] or [inside]
            multiply_accumulate(e, tile, acc, range(rows), a_run, b_run, loops)
            done += run.vectors * run.lanes
        return acc


class _Totals:
    """The sum of the partial sums of one register tile: in registers where they fit, else in M."""

    def __init__(self, products: Products, rows: int, out: Pointer) -> None:
        self.products, self.out = products, out
        self.held = totals_fit(products.target, rows, products.conv.vectors)
        self.begun = False
        self.values: list[Value] = []

    def add(self, acc: list[Value]) -> None:
        """Add a partial sum."""
        if not self.held:
            self._store(acc, add=self.begun)
        elif self.begun:
            self.values[:] = [total + value for total, value in zip(self.values, acc, strict=True)]
        else:
            self.values += acc
        self.begun = True

    def finish(self) -> None:
        """Leave the total in M."""
        if self.held:
            self._store(self.values, add=False)

    def _store(self, values: list[Value], add: bool) -> None:
        e, kind, conv = self.products.e, self.products.kind, self.products.conv
        for number, value in enumerate(values):
            i, j = divmod(number, conv.vectors)
            place = self.out.at(i * conv.panel_lanes + j * conv.lanes)
            e.store(e.load(place, kind) + value if add else value, place)


def totals_fit(target: Target, rows: int, vectors: int) -> bool:
    """Whether the registers hold two such tiles: a partial sum and the total."""
    return fits(target, 2 * rows, vectors)


def _u_prefetch_distance(conv: WinogradShape, target: Target) -> int:
    """Prefetch distance of U into L2 in elements, where U comes from L3; 0 elsewhere.

    That gains 3 to 8 % of cv11 and 0 to 5 % of cv5, cv6 and cv12 on Zen 4; a shorter distance, or
    prefetching into L1, loses up to 30 %.
    """
    from_l3 = conv.weight_bytes > target.costs.prefetch_from_l2s * target.l2_bytes
    return target.costs.prefetch_bytes // conv.transformed.bytes if from_l3 else 0
