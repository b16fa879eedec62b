"""Packing weights that every run gives anew: U = G g G^T in the type of the weights.

    U [panel][xi][channel][vectors·lanes]     of a fused kernel
    U [xi][panel][channel][vectors·lanes]     in stages

as `packing` makes them once in float64, but fast. Lanes are output channels: the weights of some
channels are brought into the scratch as vectors of outputs (`common.weight_runs`), then each pair
of channels is transformed along height and width as straight-line code, into the scratch, too, and
goes from there to U point by point. Phases of a stride have programs of their own taps; where U is
zero, at points at infinity of short phases, a fused kernel has no place for it.

Roundings of G g G^T add to those of the rest: `error_estimate` counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np

from leanconv.algorithms.common.linear_code import emit_values
from leanconv.algorithms.common.weight_packing import Panels
from leanconv.algorithms.common.weight_runs import RunReader, WeightRuns, runs_of
from leanconv.algorithms.decompose import phase_taps
from leanconv.algorithms.direct.shape import PackedConv
from leanconv.algorithms.winograd.packing import stored_steps
from leanconv.algorithms.winograd.reduction import Reduction
from leanconv.algorithms.winograd.shape import Pair, WinogradShape, transforms_of
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.lowered import PackCall
from leanconv.kernels.packing import lowest
from leanconv.records import cached_property, dataclass
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target
from leanconv.winograd.program import LinearProgram, compile_matrix

_Write: TypeAlias = Callable[[Value, Pointer], None]

_CHANNELS = 32  # of one chunk: their weights stay in L1


class _Phase(NamedTuple):
    """One phase of a stride: its number along each axis, and the taps that it has."""

    row: int
    column: int
    taps: Pair


class _Place(NamedTuple):
    """Where the points of some channels are made and where they go.

    Attributes:
        made: their place in the scratch.
        result: of their vectors in the panel.
        start, channels: the first one and how many.
        vectors: that fill a line.
        width: of the panel, in outputs.
    """

    made: Pointer
    result: Pointer
    start: Value
    channels: Value
    vectors: Value
    width: Value


@dataclass(frozen=True, kw_only=True)
class WeightTiles(Panels):
    """The panels of all groups.

    Attributes:
        runs: how the weights of a group lie in memory.
        order: which tap in memory each tap is.
        kernel, stride, m: along height and width.
        dropped: points along each axis that narrow tiles skip.
        planar: whether phases along the width are neighbours in the reduction.
        staged: whether panels of a point lie together, and the last has the vectors it needs.
        panel_size: packed elements from a panel to the next.
        group_size: of a group.
    """

    runs: WeightRuns
    order: tuple[int, ...]
    kernel: Pair
    stride: Pair
    m: Pair
    dropped: Pair
    planar: bool
    staged: bool
    panel_size: Count
    group_size: Count

    @property
    def operands(self) -> tuple[str, ...]:
        """Weights; i64: elements from a panel to each phase's points, -1 for no place; U."""
        return ("w", "points", "packed")

    @property
    def group_elements(self) -> int:
        return self.group_size

    @property
    def given_weights(self) -> int:
        """Those of all channels that are read."""
        return self.runs.channels * self.runs.taps

    def read_cycles(self, target: Target) -> float:
        """As the weights lie."""
        return self.runs.read_cycles(target)

    def made_cycles(self, target: Target) -> float:
        """As of a vector of V that goes to memory."""
        return target.costs.winograd_input + target.costs.winograd_far

    def is_streamed(self, target: Target) -> bool:
        """Return whether U is written past the caches: L3 does not hold it beside the weights.

        Of 512 x 512 weights, F(4x4, 3x3), Zen 5, one core: 1.7 to 2.0 ms, not 3.3.
        """
        weights = self.groups * self.outputs * self.given_weights
        both = (weights + self.groups * self.group_size) * self.dtype.bytes
        held = max(target.l2_bytes, target.l3_bytes)
        return bool(both > target.costs.l3_crowded_share * held)

    @property
    def grid(self) -> tuple[int, ...]:
        """Panels by blocks of channels, or these by panels: what lies together is read together."""
        blocks = ceil_div(self.runs.channels, _CHANNELS)
        return self.groups, *self.runs.in_order(self.panels, blocks)

    @cached_property
    def reduction(self) -> Reduction:
        """The phases of one channel."""
        form = self.planar, self.kernel, self.stride, self.m, self.dropped
        return Reduction(1, self.lanes, *form)

    @property
    def alpha(self) -> Pair:
        """Points along each axis."""
        height, width = (m + r - 1 for m, r in zip(self.m, self.reduction.taps, strict=True))
        return height, width

    @property
    def columns(self) -> int:
        """Phases along the width."""
        return self.stride[1] if self.planar else self.reduction.phases[1]

    @property
    def phases(self) -> list[_Phase]:
        """The phases in the order of the reduction; one that has no taps has places of zeros."""
        (kh, kw), (sh, sw) = self.kernel, self.stride
        return [
            _Phase(py, px, (phase_taps(kh, sh, py), max(0, phase_taps(kw, sw, px))))
            for py, px in product(range(self.reduction.phases[0]), range(self.columns))
        ]

    def first_step(self, phase: _Phase) -> int:
        """The step of the reduction that a phase's first channel is."""
        channels = self.runs.channels
        if self.planar:
            return phase.row * (channels * self.columns) + phase.column
        return (phase.row * self.columns + phase.column) * channels

    @property
    def _short_columns(self) -> int | None:
        """The phases along the width at the last point, where some have no place; else None."""
        whole, short = self.reduction.whole_phases[1], self.reduction.phases[1]
        return whole if self.planar and whole < short and not self.staged else None

    def has_place(self, phase: _Phase, point: int) -> bool:
        """Return whether U has a place for a phase at a point."""
        if self.staged:
            return True
        whole, phases = self.reduction.whole_phases, self.reduction.phases
        at = divmod(point, self.alpha[1])
        axes = zip((phase.row, phase.column), at, self.alpha, whole, phases, strict=True)
        return not any(p == a - 1 and full < n and one >= full for one, p, a, full, n in axes)

    # -- the scratch ---------------------------------------------------------------------------
    @property
    def _together(self) -> int:
        """Vectors of outputs that fill a cache line, so that it is written at once."""
        return max(1, ALIGNMENT // (self.lanes * self.dtype.bytes))

    @property
    def _run_columns(self) -> int:
        """Vectors of the scratch from a run of neighbours to the next."""
        return self.runs.taps if self.runs.by_channel else _CHANNELS + 2 * self.lanes

    @property
    def _kept_columns(self) -> int:
        """Vectors of the scratch for one vector of outputs, some beside the block's included."""
        if self.runs.way == "planes":
            return self.runs.taps * self._run_columns
        return _CHANNELS * self.runs.taps + 2 * self.lanes

    @property
    def _point_elements(self) -> int:
        """Elements of the scratch from a point to the next, no power of two apart."""
        return (_CHANNELS + 1) * self._together * self.lanes

    @property
    def scratch_bytes(self) -> int:
        """Weights and points of a block of channels, for vectors that fill a line."""
        kept = self._together * self._kept_columns * self.lanes
        return (kept + self.alpha[0] * self.alpha[1] * self._point_elements) * self.dtype.bytes

    # -- code ----------------------------------------------------------------------------------
    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, vectors that fill a line, phases, channels."""
        e, lanes, runs = Function(self.NAME), self.lanes, self.runs
        element = self.dtype.llvm
        pointers = e.pointers(self.operands, "i64", w=element, packed=element)
        reader = RunReader(e, runs, self.outputs, lanes, element)
        streamed = self.is_streamed(target)
        write = e.stream if streamed else e.store
        with e.chunks(*self.grid) as (g, *place):
            panel, block = runs.in_order(*place)
            w = pointers["w"].at(g * (self.outputs * self.row))
            result = pointers["packed"].at(g * self.group_size + panel * self.panel_size)
            first, vectors = panel * (self.vectors * lanes), e.i64(self.vectors)
            if self.staged:
                whole = ceil_div(self.outputs, lanes) * lanes
                vectors = e.smin((e.i64(whole) - first) // lanes, self.vectors)
            start = block * _CHANNELS
            stop = e.smin(start + _CHANNELS, runs.channels)
            with e.loop("line", vectors, step=self._together) as line:
                until = e.smin(line + self._together, vectors)
                with e.loop("vector", until, start=line) as number:
                    kept = self._kept(e, number - line)
                    self._gather(e, reader, w, first + number * lanes, start, stop, kept)
                made = e.scratch.of(element).at(self._together * self._kept_columns * lanes)
                line_at, width = result.at(line * lanes), vectors * lanes
                at = _Place(made, line_at, start, stop - start, until - line, width)
                for index, phase in enumerate(self.phases):
                    points = pointers["points"].at(index * (self.alpha[0] * self.alpha[1]))
                    with (
                        e.loop("channel", at.channels) as channel,
                        e.loop("vector", at.vectors) as number,
                    ):
                        taps = self._taps(e, phase, self._kept(e, number), channel)
                        vector_at = (channel * self._together + number) * lanes
                        self._transform(e, phase, taps, made.at(vector_at))
                    self._spread(e, phase, at, points, write)
        if streamed:
            e.fence()
        return e.finish()

    def _kept(self, e: Function, number: Value) -> Pointer:
        """Address of the scratch's columns for a vector of outputs."""
        return e.scratch.of(self.dtype.llvm).at(number * (self._kept_columns * self.lanes))

    def _gather(
        self,
        e: Function,
        reader: RunReader,
        w: Pointer,
        output: Value,
        start: Value,
        stop: Value,
        kept: Pointer,
    ) -> None:
        """Bring the weights of a vector of outputs and some channels into the scratch."""

        def keep(run: Value, column: Value, value: Value) -> None:
            place = run * self._run_columns + column + self.lanes
            e.store(value, kept.at(place * self.lanes))

        reader.read(w, output, start, stop, keep)

    def _taps(self, e: Function, phase: _Phase, kept: Pointer, channel: Value) -> list[list[Value]]:
        """Load the taps of a phase of a channel of the block, column by column."""
        (rows, columns), (sh, sw), planes = phase.taps, self.stride, self.runs.way == "planes"
        step = self._run_columns if planes else 1
        source = kept.at(
            ((channel if planes else channel * self.runs.taps) + self.lanes) * self.lanes
        )
        kind, row = vector(self.dtype.llvm, self.lanes), self.kernel[1]
        numbers = [
            [(i * sh + phase.row) * row + j * sw + phase.column for i in range(rows)]
            for j in range(columns)
        ]
        return [
            [e.load(source.at(self.order[n] * step * self.lanes), kind) for n in column]
            for column in numbers
        ]

    def _transform(
        self, e: Function, phase: _Phase, taps: list[list[Value]], made: Pointer
    ) -> None:
        """Transform the taps of a phase, column by column, and keep all points in the scratch."""
        along_h, along_w = self._programs(phase)
        between = [emit_values(e, along_h, column) for column in taps]
        zero = e.zero(vector(self.dtype.llvm, self.lanes))
        for i in range(self.alpha[0]):
            row, found = [column[i] for column in between], [zero] * self.alpha[1]
            if row and along_h.outputs[i] is not None:
                found = emit_values(e, along_w, row)
            for j, value in enumerate(found):
                e.store(value, made.at((i * self.alpha[1] + j) * self._point_elements))
            e.barrier()

    def _spread(
        self, e: Function, phase: _Phase, at: _Place, points: Pointer, write: _Write
    ) -> None:
        """Bring the points of a phase from the scratch to the panel, one after the other.

        So a point's channels are written one after the other: points are a power of two apart, and
        36 of them, a line each in turn, fit into no set of a cache.
        """
        step, kind = self.columns if self.planar else 1, vector(self.dtype.llvm, self.lanes)
        first = self.first_step(phase) if self.staged else 0
        with e.loop("point", self.alpha[0] * self.alpha[1]) as number:
            offset, apart = e.load_index(points.at(number)), e.i64(step)
            if self._short_columns is not None:
                last = (number % self.alpha[1]).compare("eq", self.alpha[1] - 1)
                apart = e.select(last, e.i64(self._short_columns), apart)
            source = at.made.at(number * self._point_elements)
            with (
                e.when(offset.compare("sge", 0)),
                e.loop("channel", at.channels) as channel,
                e.loop("vector", at.vectors) as index,
            ):
                place = (channel * self._together + index) * self.lanes
                into = ((at.start + channel) * apart + first) * at.width + index * self.lanes
                write(e.load(source.at(place), kind), at.result.at(offset + into))

    def _programs(self, phase: _Phase) -> tuple[LinearProgram, LinearProgram]:
        """G along both axes, of the taps that a phase has; of one where it has none."""
        transforms = transforms_of(self.m, self.reduction.taps, self.dropped)
        height, width = (
            compile_matrix(tuple(row[: max(1, taps)] for row in made.g))
            for made, taps in zip(transforms, phase.taps, strict=True)
        )
        return height, width


def weight_calls(
    shape: WinogradShape, w: np.ndarray, product: PackedConv | None
) -> list[PackCall] | None:
    """Return the calls that transform weights and pack them, as those of `packing`.

    Args:
        shape: of the convolution.
        w: weights (K, C/g, kh, kw), any view.
        product: kernel that multiplies U in stages, point by point; None for a fused kernel.

    Returns:
        None where weights lie otherwise, or are no floats as they are transformed.
    """
    conv, found = shape.conv, runs_of(w, shape.lanes)
    if found is None or shape.dot_group > 1 or conv.precision.w != shape.transformed:
        return None
    runs, order = found
    staged, vectors, point_size = product is not None, shape.vectors, 0
    if product is not None:
        vectors, point_size = product.panel_vectors, product.group_weights
    width = vectors * shape.lanes

    panel_size = (shape.steps if staged else shape.all_steps) * width
    group = shape.points * point_size if staged else ceil_div(conv.outputs, width) * panel_size
    kernel = WeightTiles(
        groups=conv.groups,
        outputs=conv.outputs,
        row=runs.output,
        vectors=vectors,
        lanes=shape.lanes,
        dtype=shape.transformed,
        runs=runs,
        order=tuple(map(int, order)),
        kernel=shape.kernel,
        stride=shape.stride,
        m=shape.m,
        dropped=shape.dropped_points,
        planar=shape.planar,
        staged=staged,
        panel_size=panel_size,
        group_size=group,
    )

    @cache
    def tables() -> tuple[np.ndarray, ...]:
        if staged:
            return (np.tile(np.arange(shape.points) * point_size, len(kernel.phases)),)
        steps = [kernel.first_step(phase) for phase in kernel.phases]
        numbers = range(shape.points)
        kept = [[kernel.has_place(phase, n) for n in numbers] for phase in kernel.phases]
        return (np.where(kept, stored_steps(shape)[steps] * width, -1),)

    packed = conv.groups * group * shape.transformed.bytes
    return [PackCall(kernel, lambda: w, tables, packed, lowest(w.shape, w.strides))]
