"""The products of Winograd's gradient of weights, and the way back to taps.

    M[xi][s, k] = sum over tiles b of V[xi][b, s] · U[xi][b, k]
    dw[k, c]    = A^T M[·][s, k] A                              for each phase s of channel c

Tiles that do not fit a cache come block by block: `PointSums` adds a block to M; `WeightSums` sums
the last block, or the only one, and transforms back what lies in the thread's scratch, so that a
single block has no M in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from math import prod

from leanconv.algorithms.common.linear_code import emit_values
from leanconv.algorithms.decompose import phase_taps
from leanconv.algorithms.weight_gradient.winograd_products import Ahead, Products
from leanconv.algorithms.weight_gradient.winograd_tiles import WeightTiles
from leanconv.algorithms.winograd.shape import Pair
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.shuffles import transpose
from leanconv.codegen.tails import each_tile, tile_at
from leanconv.records import dataclass
from leanconv.spec.format import ALIGNMENT, aligned, ceil_div
from leanconv.symbolic import Count, Extent
from leanconv.target import Target
from leanconv.winograd.program import compile_matrix


@dataclass(frozen=True)
class _Sums(Kernel):
    """A kernel that sums products of V and U.

    Attributes:
        work: the weights and the register tile.
        tiles: rows of V and U that are summed.
        held: rows that V and U have room for.
        adds: 1 where sums of blocks before are in M, else 0.
        plain_flops: operations of the plain sum that the rows are a share of.
        far: 1 where V and U are larger than L2, else 0.
    """

    VARIES = True

    work: WeightTiles
    tiles: Count
    held: Count
    adds: Count
    plain_flops: Extent
    far: Count

    @property
    def flops(self) -> int:
        """Operations of the plain sum that this replaces, padding counted."""
        return self.plain_flops

    def _products(
        self,
        e: Function,
        pointers: Mapping[str, Pointer],
        group: Value,
        ahead: Sequence[tuple[Pointer, Ahead]] = (),
    ) -> Products:
        sizes = self.tiles, self.held
        return Products(e, self.work, sizes, pointers, group, ahead, self.adds, self.far)

    def _runs(self, e: Function, point: Value) -> Iterator[Value]:
        """Emit the loop over the runs that take products at a point."""
        runs, _ = self.work.v_runs
        if runs == 1:
            yield e.i64(0)
            return
        with e.loop("run", runs) as run:
            takes = self._takes(point, run)
            with nullcontext() if takes is None else e.when(takes):
                yield run

    def _takes(self, point: Value, run: Value) -> Value | None:
        """Whether a phase takes products at a point; None: all phases do at all points."""
        work, found = self.work, None
        (_, width), (_, across) = work.alpha, work.phases
        numbers = (point // width, run // across), (point % width, run % across)
        axes = zip(numbers, work.alpha, work.phases, work.whole, strict=True)
        for (xi, phase), alpha, phases, whole in axes:
            if whole < phases:
                takes = xi.compare("ne", alpha - 1) | phase.compare("ult", whole)
                found = takes if found is None else found & takes
        return found


@dataclass(frozen=True)
class PointSums(_Sums):
    """M = V · U at each point, or M + V · U.

    Attributes:
        parts: into which the panels of output channels are cut.
        x, dy: lines that are prefetched for the next block.
    """

    parts: Extent = 1
    x: Ahead = Ahead()
    dy: Ahead = Ahead()

    @property
    def operands(self) -> tuple[str, ...]:
        """V, U, the sums so far, x and dy, M."""
        return ("V", "U", "sums", "x", "dy", "M")

    @property
    def grid(self) -> tuple[int, ...]:
        """Groups by points by parts of the panels."""
        return self.work.groups, self.work.points, self.parts

    def emit(self, target: Target) -> str:
        """Emit the loops over chunks and panels."""
        del target
        e, work = Function(self.NAME), self.work
        pointers = e.pointers(self.operands, work.dtype.llvm)
        per_part = ceil_div(work.panels, self.parts)
        with e.chunks(*self.grid) as (g, point, part):
            ahead = (pointers["x"], self.x), (pointers["dy"], self.dy)
            products = self._products(e, pointers, g, ahead)
            start = part * per_part
            stop = e.smin(start + per_part, work.panels)
            with e.when(start.compare("slt", stop)), e.loop("panel", stop, start=start) as panel:
                at = ((g * work.points + point) * work.panels + panel) * work.steps
                _, count = work.v_runs
                for run in self._runs(e, point):
                    out = pointers["M"].at((at + run * count) * work.panel_lanes)
                    products.panel(point, panel, (run * work.run_lanes, count), out, out)
        return e.finish()


@dataclass(frozen=True)
class WeightSums(_Sums):
    """dw = A^T (V · U) A, or A^T (M + V · U) A: a block of channels by panels at all points.

    Attributes:
        channels: input channels of a chunk, whole vectors of them or all.
        panels: panels of output channels of a chunk.
    """

    channels: int = 1
    panels: int = 1

    @property
    def operands(self) -> tuple[str, ...]:
        """V, U, the sums so far, dw."""
        return ("V", "U", "sums", "dw")

    @property
    def grid(self) -> tuple[int, ...]:
        """Groups by blocks of input channels by blocks of panels."""
        work = self.work
        blocks = ceil_div(work.inputs, self.channels), ceil_div(work.panels, self.panels)
        return work.groups, *blocks

    @property
    def run_elements(self) -> int:
        """Elements of the scratch's M of one panel and run: [channel][lanes]."""
        return self.channels * self.work.panel_lanes

    @property
    def point_step(self) -> int:
        """Elements from one point of the scratch's M to the next."""
        line = ALIGNMENT // self.work.dtype.bytes
        return self.panels * self.work.runs * self.run_elements + line

    @property
    def scratch_bytes(self) -> int:
        """M of a chunk, and the weights of a vector of output channels by one of input channels."""
        work = self.work
        return aligned(self._m_bytes + prod(work.extent) * work.lanes**2 * work.dtype.bytes)

    @property
    def _m_bytes(self) -> int:
        return aligned(self.work.points * self.point_step * self.work.dtype.bytes)

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks; products of all points; back to taps."""
        del target
        e, work = Function(self.NAME), self.work
        pointers = e.pointers(self.operands, work.dtype.llvm)
        m = e.scratch.of(work.dtype.llvm)
        with e.chunks(*self.grid) as (g, cb, kb):
            products = self._products(e, pointers, g)
            sums = pointers["sums"].at(g * (work.points * work.m_point))
            first = cb * self.channels
            start = kb * self.panels
            stop = e.smin(start + self.panels, work.panels)
            for channels in tile_at(e, cb, work.inputs, self.channels):
                with e.loop("point", work.points) as point, e.loop("panel", stop, start=start) as p:
                    at = m.at(
                        point * self.point_step + (p - start) * (work.runs * self.run_elements)
                    )
                    before = sums.at(point * work.m_point + p * (work.steps * work.panel_lanes))
                    for run in self._runs(e, point):
                        step = run * work.inputs + first
                        added = before.at(step * work.panel_lanes)
                        out = at.at(run * self.run_elements)
                        count = work.steps if work.together else channels
                        steps = run * work.run_lanes + first, count
                        products.panel(point, p, steps, out, added)
            self._back(e, m, pointers["dw"], (g, first, start, stop))
        return e.finish()

    def _back(
        self, e: Function, m: Pointer, dw: Pointer, chunk: tuple[Value, Value, Value, Value]
    ) -> None:
        """Transform a chunk back, a vector of output channels by one of input channels."""
        work, (g, first, start, stop) = self.work, chunk
        lanes, taps = work.lanes, prod(work.kernel)
        squares = m.at(self._m_bytes // work.dtype.bytes)
        begin = start * work.vectors
        end = e.smin(stop * work.vectors, work.out_vectors)
        with e.loop("vector", end, start=begin) as number:
            panel, j = number // work.vectors, number % work.vectors
            source = m.at((panel - start) * (work.runs * self.run_elements) + j * lanes)
            row = (g * work.outputs + number * lanes) * (work.inputs * taps)
            for live in tile_at(e, number, work.outputs, lanes):
                for c, channels in self._blocks(e, first):
                    at = source.at(c * work.panel_lanes)
                    self._inverse(e, at, squares, channels)
                    to = dw.at(row + (first + c) * taps)
                    self._store(e, squares, to, channels, live)

    def _blocks(self, e: Function, first: Value) -> Iterator[tuple[Value, int]]:
        """Blocks of a vector of input channels from `first` on, and the tail of all channels."""
        work = self.work
        whole, tail = divmod(work.inputs, work.lanes)
        left = e.smin(e.i64(whole * work.lanes) - first, self.channels // work.lanes * work.lanes)
        if whole:
            with e.when(left.compare("sgt", 0)), e.loop("block", left, step=work.lanes) as c:
                yield c, work.lanes
        if tail:
            with e.when((first + self.channels).compare("sge", work.inputs)):
                yield e.i64(whole * work.lanes) - first, tail

    def _inverse(self, e: Function, m: Pointer, squares: Pointer, channels: int) -> None:
        """Transform some channels back into [channel][tap][lanes]."""
        work, kind = self.work, vector(self.work.dtype.llvm, self.work.lanes)
        with e.loop("channel", channels) as c:
            to = squares.at(c * (prod(work.extent) * work.lanes))
            at = m.at(c * work.panel_lanes)
            for phase in [(y, x) for y in range(work.phases[0]) for x in range(work.phases[1])]:
                step = self._offset(phase)
                points = [
                    e.load(at.at(step + number * self.point_step), kind)
                    for number in range(work.points)
                ]
                for (u, v), value in self._taps(e, points, phase):
                    e.store(value, to.at((u * work.extent[1] + v) * work.lanes))

    def _offset(self, phase: Pair) -> int:
        """Where the sums of a phase of the first channel lie."""
        return (phase[0] * self.work.phases[1] + phase[1]) * self.run_elements

    def _taps(
        self, e: Function, points: Sequence[Value], phase: Pair
    ) -> Iterator[tuple[Pair, Value]]:
        """The taps of a phase, from its points."""
        work, (height, width) = self.work, self.work.transforms
        axes = zip(work.extent, work.stride, phase, strict=True)
        rh, rw = (phase_taps(k, s, p) for k, s, p in axes)
        down, across = compile_matrix(height.at[:rh]), compile_matrix(width.at[:rw])
        columns = [emit_values(e, down, points[q :: width.alpha]) for q in range(width.alpha)]
        for i in range(rh):
            row = emit_values(e, across, [column[i] for column in columns])
            for j, value in enumerate(row):
                yield (phase[0] + i * work.stride[0], phase[1] + j * work.stride[1]), value

    def _store(self, e: Function, squares: Pointer, dw: Pointer, channels: int, live: int) -> None:
        """Store [channel][tap][lanes] as rows of dw, one for each of `live` lanes."""
        work = self.work
        lanes, kind, row = (
            work.lanes,
            vector(work.dtype.llvm, work.lanes),
            work.inputs * prod(work.kernel),
        )
        if work.extent != work.kernel:
            self._scatter(e, squares, dw, channels, live)
            return
        for index, count in each_tile(e, "square", channels * prod(work.kernel), lanes):
            source = squares.at(index * lanes**2)
            lines = [e.load(source.at(i * lanes), kind) for i in range(count)]
            lines += [e.zero(kind)] * (lanes - count)
            for lane, value in enumerate(transpose(e, lines)[:live]):
                e.store_first(value, dw.at(index * lanes + lane * row), count)

    def _scatter(
        self, e: Function, squares: Pointer, dw: Pointer, channels: int, live: int
    ) -> None:
        """Store some of the taps, one by one."""
        work, kind = self.work, vector(self.work.dtype.llvm, self.work.lanes)
        (top, _), (left, _) = work.taps
        (height, width), (_, whole) = work.extent, work.kernel
        row = work.inputs * prod(work.kernel)
        with e.loop("c", channels) as c, e.loop("u", height) as u, e.loop("v", width) as v:
            value = e.load(squares.at(((c * height + u) * width + v) * work.lanes), kind)
            to = dw.at(c * prod(work.kernel) + (u + top) * whole + v + left)
            for lane in range(live):
                e.store(e.extract(value, lane), to.at(lane * row))
