"""Fused Winograd convolution: transform a block of tiles, multiply, transform back, store.

One chunk is a block of `tiles` tiles and a part of the output channels. Its V and M stay in the
thread's scratch, sized for L2; threads share nothing.

    V  [xi][channel block][tile][lane]      broadcasts walk along lanes, stores along tiles; large
                                            ones [xi][tiles / rows][channel block][row][lane], so
                                            that reads of a register tile are contiguous
    U  [panel][xi][channel][vectors·lanes]  contiguous; channels of short phases are left
                                            out at the points where they are zero
    M  [xi][tile][vectors·lanes]            of one panel of output channels

A stride is decomposed into phases (polyphase): the stride-1 convolutions of x[p::sh, q::sw] with
w[p::sh, q::sw] add up to the result. Phases are therefore more input channels, and all share one
output transform.

The products are M[xi] = V[xi] · U[xi], summed in parts.
"""

from __future__ import annotations

from collections.abc import Hashable

from leanconv.algorithms.winograd.edge_tiles import RowRange, order_of, row_ranges
from leanconv.algorithms.winograd.input import InputTransform
from leanconv.algorithms.winograd.output import OutputTransform
from leanconv.algorithms.winograd.reduction import AtInfinity, PartialSums, partial_sums
from leanconv.algorithms.winograd.shape import WinogradShape, operand_pointers
from leanconv.codegen.dot import dot_of, way_of
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, multiply_accumulate
from leanconv.codegen.tiling import by_lane, fits
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import INT64


class Products:
    """Emits the products of one block of tiles and one panel of output channels.

    Partial sums are added up in registers where these suffice, else in M. Rounding grows with the
    root of the length of a partial sum; in M each costs about one cycle for each accumulator.

    Args:
        e: the function to append to.
        shape: the convolution.
        target: the machine.
        v, m: addresses of V and M.
        live: tiles of the block; register tiles that hold none of them are not computed.
    """

    def __init__(
        self, e: Function, shape: WinogradShape, target: Target, v: Pointer, m: Pointer, live: Value
    ) -> None:
        self.e, self.shape, self.target, self.v, self.m, self.live = e, shape, target, v, m, live
        self.kind = vector(shape.conv.precision.accumulate.llvm, shape.lanes)
        self.tile = RegisterTile(
            dot_of(shape.products, way_of(shape.products, target)),
            shape.lanes,
            shape.vectors,
            shape.lanes,
            b_prefetch_distance=_u_prefetch_distance(shape, target),
            by_lane=shape.dot_group == 1 and by_lane(target, shape.rows, shape.vectors),
        )

    def panel(self, u: Pointer) -> None:
        """Emit the loops over points and register tiles; `u` is the panel's address in U."""
        shape, e, reduction = self.shape, self.e, self.shape.reduction
        columns = reduction.regions(1)
        ranges = row_ranges(shape)
        for rows in reduction.regions(0):
            row_steps = reduction.steps_of_row(rows.at_infinity)
            begin = rows.first * reduction.steps_of_row(False)  # all before have the same length
            if rows.points > 1 and len(columns) == 1:
                # Nothing between the rows: one loop over all their points.
                count = rows.points * shape.alpha[1]
                at = rows.at_infinity, False
                with e.loop("xi", count) as xi:
                    row_range = ranges[rows.dropped, columns[0].dropped]
                    before = rows.first * shape.alpha[1]
                    self._point(u, xi + before, xi * reduction.steps_at(at) + begin, at, row_range)
                continue
            with e.loop("xi.row", rows.points) as i:
                for region in columns:
                    at = rows.at_infinity, region.at_infinity
                    steps = reduction.steps_at(at)
                    before = begin + region.first * reduction.steps_at((rows.at_infinity, False))
                    with e.loop("xi.column", region.points) as j:
                        xi = (i + rows.first) * shape.alpha[1] + j + region.first
                        done = i * row_steps + j * steps + before
                        self._point(u, xi, done, at, ranges[rows.dropped, region.dropped])

    def _point(
        self, u: Pointer, xi: Value, done: Value, at: AtInfinity, row_range: RowRange
    ) -> None:
        """Emit the products of one point; `done` steps of the panel belong to earlier points."""
        shape, e, width = self.shape, self.e, self.shape.panel_lanes
        a = self.v.at(xi * shape.point_stride)
        b = u.at(done * width).frozen()
        out = self.m.at(xi * shape.m_stride)
        several = row_range.many > 1 and row_range.many * row_range.rows == shape.tiles
        count = (self.live + (row_range.rows - 1)) // row_range.rows if several else row_range.many
        a = a.at(row_range.start * shape.lanes)
        out = out.at(row_range.start * width)
        with e.loop("rows", count) as r:
            apart = row_range.rows * (shape.channel_blocks if shape.v_rows == shape.rows else 1)
            rows = a.at(r * (apart * shape.lanes)).frozen()
            place = out.at(r * (row_range.rows * width)).frozen()
            self._sums(rows, b, place, at, row_range.rows)

    def _sums(self, a: Pointer, b: Pointer, out: Pointer, at: AtInfinity, rows: int) -> None:
        """Emit all partial sums of one register tile; `out` is its address in M."""
        shape, e, done = self.shape, self.e, 0
        block, total = shape.v_rows * shape.lanes, _Totals(self, rows, out)
        for number, sums in enumerate(partial_sums(shape.reduction.runs(at), shape.sums)):
            b_sums = b.at(done)
            done += sums.count * sums.steps * shape.panel_lanes
            apart = int(number == 0 and total.held)  # which saves an addition
            if apart or sums.count == 1:
                total.add(self._partial_sum(sums, a, b_sums, rows), number == 0)
            if sums.count > 1:
                a_step = sum(run.vectors for run in sums.runs) * block
                with e.loop("part", sums.count, [total.values], start=apart) as index:
                    a_next = a.at(index * a_step)
                    b_next = b_sums.at(index * (sums.steps * shape.panel_lanes))
                    first = number == 0 and not apart and index.compare("eq", 0)
                    total.add(self._partial_sum(sums, a_next, b_next, rows), first)
        total.finish()

    def _partial_sum(self, sums: PartialSums, a: Pointer, b: Pointer, rows: int) -> list[Value]:
        shape, e, tile, width = self.shape, self.e, self.tile, self.shape.panel_lanes
        step = shape.dot_group
        acc = [e.zero(self.kind)] * (rows * shape.vectors)
        done = 0
        for run in sums.runs:
            over = ReductionLoop("cb", run.vectors, shape.v_rows * shape.lanes, run.lanes * width)
            group = ReductionLoop("group", run.groups, run.group_lanes, run.kept * width)
            inside = ReductionLoop("c", run.kept // step, step, step * width)
            a_run = a.at(run.first * shape.v_rows * shape.lanes)
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
        self.held = totals_fit(products.target, rows, products.shape.vectors)
        self.values: list[Value] = []

    def add(self, acc: list[Value], first: Value | bool) -> None:
        """Add a partial sum; `first` says whether it is the first one."""
        e = self.products.e
        if self.held and first is True:
            self.values += acc
        elif self.held:
            self.values[:] = [total + value for total, value in zip(self.values, acc, strict=True)]
        elif isinstance(first, bool):
            self._store(acc, not first)
        else:
            with e.when(first, otherwise=lambda: self._store(acc, add=True)):
                self._store(acc, add=False)

    def finish(self) -> None:
        """Leave the total in M."""
        if self.held:
            self._store(self.values, add=False)

    def _store(self, values: list[Value], add: bool) -> None:
        e, kind, shape = self.products.e, self.products.kind, self.products.shape
        for number, value in enumerate(values):
            i, j = divmod(number, shape.vectors)
            place = self.out.at(i * shape.panel_lanes + j * shape.lanes)
            e.store(e.load(place, kind) + value if add else value, place)


def totals_fit(target: Target, rows: int, vectors: int) -> bool:
    """Return whether the registers hold two such tiles: a partial sum and the total."""
    return fits(target, 2 * rows, vectors)


def _u_prefetch_distance(shape: WinogradShape, target: Target) -> int:
    """Prefetch distance of U into L2 in elements, where U comes from L3; 0 elsewhere.

    That gains 3 to 8 % of cv11 and 0 to 5 % of cv5, cv6 and cv12 on Zen 4; a shorter distance, or
    prefetching into L1, loses up to 30 %.
    """
    from_l3 = shape.weight_bytes > target.costs.prefetch_from_l2s * target.l2_bytes
    return target.costs.prefetch_bytes // shape.transformed.bytes if from_l3 else 0


_MOST_ROTATED = 4  # blocks of tiles, up to which threads work on neighbouring blocks at one time


@dataclass(frozen=True)
class WinogradConv(Kernel):
    """The code of one convolution.

    Attributes:
        shape: its sizes, tiles, blocks and register tile.
    """

    VARIES = True

    shape: WinogradShape

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, transformed weights, what the epilogue needs, offsets, output."""
        offsets = ("offsets",) * (self.shape.residues > 1)
        return ("x", "w", *self.shape.conv.epilogue.operands, *offsets, "y")

    @property
    def grid(self) -> tuple[int, ...]:
        """Residues, if several, by groups by parts of the output channels by blocks of tiles."""
        shape = self.shape
        residues = (shape.residues,) * (shape.residues > 1)
        return *residues, shape.conv.groups, shape.parts, shape.blocks

    @property
    def scratch_bytes(self) -> int:
        """V, M and the transforms' own scratch of one thread."""
        return sum(self.shape.areas())

    @property
    def flops(self) -> int:
        """Operations of the plain sum that this replaces, padding counted."""
        return self.shape.flops

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Transformed weights, bias and slopes in whole panels, offsets of input and output."""
        shape = self.shape
        sizes = {"w": shape.weight_bytes}
        sizes |= shape.conv.epilogue.channel_bytes(
            shape.conv.precision.accumulate, shape.packed_channels
        )
        return sizes | ({"offsets": 2 * shape.residues * INT64.bytes} if shape.residues > 1 else {})

    @property
    def packing(self) -> Hashable:
        """Channels, panels, the transform and the order of its sums; offsets follow the sizes."""
        conv, shape = self.shape.conv, self.shape
        if shape.residues > 1:
            return self
        channels = conv.groups, conv.outputs, shape.vectors, conv.epilogue.operands
        return WinogradConv, channels, shape.reduction, shape.products

    def _rotated_panel(
        self,
        e: Function,
        target: Target,
        block: Value,
        index: Value,
        start: Value,
        stop: Value,
    ) -> Value:
        """The panel of an iteration: where blocks are few, every other block starts in the middle.

        Two threads on neighbouring blocks then neither write the same lines at the same time nor
        load the same weights from DRAM: 2 to 6 % of cv5, cv9 and cv10. With many blocks it gains
        nothing. Weights beyond half of L3 are better walked in the same order, so that each thread
        reads what the other has loaded into L3.
        """
        shape = self.shape
        if 2 * shape.weight_bytes > target.l3_bytes:
            return index
        if not shape.any_size and not 1 < shape.blocks <= _MOST_ROTATED:
            return index
        count = stop - start
        return start + (index - start + self._every_other(e, block) * (count // 2)) % count

    def _every_other(self, e: Function, block: Value) -> Value:
        """1 for every other block where these are few, else 0."""
        if not self.shape.any_size:
            return block % 2
        few = e.i64(self.shape.blocks).compare("sle", _MOST_ROTATED)
        return e.select(few, block % 2, e.i64(0))

    def _with_offsets(
        self, e: Function, pointers: dict[str, Pointer], index: Value | None = None
    ) -> dict[str, Pointer]:
        """The operands' addresses for the residue of this index; None if there is only one."""
        if index is None:
            return pointers
        pair = pointers["offsets"].at(index * 2)
        x, y = (e.load_index(pair.at(i)) for i in (0, 1))
        moved = {"x": x, "y": y, **({"residual": y} if "residual" in pointers else {})}
        return pointers | {role: pointers[role].at(by) for role, by in moved.items()}

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks; input transform; panels of products and output transform."""
        conv, e, shape = self.shape.conv, Function(self.NAME), self.shape
        pointers = operand_pointers(e, shape, self.operands)
        v_bytes, m_bytes, _ = shape.areas()
        v = e.scratch.of(shape.transformed.llvm)
        m = e.scratch.at(v_bytes).of(conv.precision.accumulate.llvm)
        between = e.scratch.at(v_bytes + m_bytes)
        numbers = order_of(shape)
        order = e.table(numbers) if numbers else None
        per_part = ceil_div(shape.panels, shape.parts)
        stream = shape.all_steps * shape.panel_lanes
        with e.chunks(*self.grid) as (*at, g, part, block):
            here = self._with_offsets(e, pointers, *at)
            x = here["x"].at(g * conv.x.channel(conv.inputs) + conv.x_offset)
            far = shape.planar and (shape.any_size or shape.conv.input_bytes > target.l2_bytes)
            into = InputTransform(e, shape, x, v, between, order=order, prefetch=far)
            back = OutputTransform(e, shape, target, here, g, m, between, order=order)
            u = pointers["w"].at(g * (shape.panels * stream))
            first = block * shape.tiles
            live = e.smin(e.i64(shape.tile_count) - first, shape.tiles)
            into.block(first, live)
            products = Products(e, shape, target, v, m, live)
            start = part * per_part
            stop = e.smin(start + per_part, shape.panels)
            with e.when(start.compare("slt", stop)), e.loop("panel", stop, start=start) as index:
                panel = self._rotated_panel(e, target, block, index, start, stop)
                products.panel(u.at(panel * stream))
                back.block(first, live, panel)
        return e.finish()
