"""Weights as they lie in memory, read as vectors of output channels, whatever view they are.

What a kernel multiplies are vectors of neighbouring outputs; in memory weights of one output are
neighbours, or those of one input channel are. `WeightRuns` knows four ways in which they lie:

    rows      [output][channel][tap]    row-major
    planes    [output][tap][channel]    channels last
    turned    [channel][output][tap]    row-major, outputs and channels exchanged
    lanes     [channel][tap][output]    outputs are neighbours already

In the first three a run of neighbours of each of some outputs is a square, which is transposed in
registers: no element is loaded by itself. Taps may be in any order, and some of those in memory no
taps of the view, as where a phase of a stride has every other one.

`RunPacking` packs panels of such weights as they are, with places of runs and of their columns,
negative where the view has none:

    packed[group][panel][run_places[run] + places[column]][lane] = w[output][run][column]
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from leanconv.algorithms.common.weight_packing import Panels
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.shuffles import transpose_rectangle
from leanconv.kernels.packing import lowest, numbers
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target
from leanconv.types import as_dtype

Way: TypeAlias = Literal["rows", "planes", "turned", "lanes"]
# Takes the run, a column of it, both counted from the block's first channel, and the vector.
Sink: TypeAlias = Callable[[Value, Value, Value], None]
_Place = TypeVar("_Place")


@dataclass(frozen=True)
class WeightRuns:
    """How the weights of a group lie in memory: steps in elements, from the lowest one on.

    Attributes:
        way: which one of the four.
        channels: input channels of a group.
        taps: in memory, of a pair of channels.
        output: from one output to the next.
        channel: from one channel to the next.
        tap: from one tap in memory to the next.
        length: elements of an output from its first to its last, of the way `rows`.
    """

    way: Way
    channels: Count
    taps: int
    output: Count
    channel: Count
    tap: Count
    length: Count

    @property
    def by_channel(self) -> bool:
        """Whether runs are of channels: their columns are taps."""
        return self.way in ("turned", "lanes")

    def in_order(self, panel: _Place, block: _Place) -> tuple[_Place, _Place]:
        """Return a panel of outputs and a block of channels in the order in which they lie."""
        return (block, panel) if self.by_channel else (panel, block)

    def read_cycles(self, target: Target) -> float:
        """Cycles of a vector of outputs."""
        neighbours, costs = self.way == "lanes", target.costs
        return costs.vector_move if neighbours else costs.transposed_vector


def runs_of(w: np.ndarray, lanes: int, rows: bool = True) -> tuple[WeightRuns, np.ndarray] | None:
    """Return how weights (K, C/g, kernel…) lie, and which tap in memory each tap is.

    Args:
        w: any view.
        lanes: of vectors: rows of fewer neighbours are read as runs of taps.
        rows: whether rows may be read as such.

    Returns:
        None if they lie in no such way.
    """
    (_, channels, *kernel), item = w.shape, w.itemsize
    if w.size == 0 or any(step % item for step in w.strides):
        return None
    output, channel, *steps = (step // item for step in w.strides)
    distances = numbers(kernel, steps).reshape(-1).astype(np.int64) - 1
    beside = output == 1 or channel == 1  # else taps are read with those between them
    tap = int(min((n for n in distances if n), default=1)) if beside else 1
    if (distances % tap).any():
        return None
    order = distances // tap
    taps = int(order.max()) + 1
    channel = taps * tap if channels == 1 else channel
    if min(output, channel) <= 0 or taps > max(_TAPS, _SPARSE * order.size):
        return None
    length = (channels - 1) * channel + taps
    if output == 1:
        way: Way = "lanes"
    elif rows and tap == 1 and taps <= channel <= _SPARSE * taps and length >= lanes:
        way, taps = "rows", channel
    elif tap == 1:
        way = "turned"
    elif channel == 1 and channels >= lanes:
        way = "planes"
    else:
        return None
    return WeightRuns(way, channels, taps, output, channel, tap, length), order


_TAPS, _SPARSE = 32, 4  # so many in memory, or so many times those of the view, are read
# Vectors of outputs by which taps are prefetched: channels lie far apart, and each has few lines.
# dx of 512 x 512 x 3 x 3 on Zen 5: 0.28 ms and not 1.4 to pack them, 0.75 and not 1.4 for F(2x2).
_AHEAD = 2


class RunReader:
    """Emits the reading of vectors of outputs.

    Args:
        e: the function to append to.
        runs: how the weights lie.
        outputs: of a group.
        lanes: of a vector.
        element: LLVM's type.
    """

    def __init__(
        self, e: Function, runs: WeightRuns, outputs: int, lanes: int, element: str
    ) -> None:
        self._e, self._runs, self._outputs = e, runs, outputs
        self._lanes, self._kind = lanes, vector(element, lanes)

    def read(self, w: Pointer, output: Value, start: Value, stop: Value, sink: Sink) -> None:
        """Read all weights of a vector of outputs and of some channels.

        Args:
            w: the weights of the group.
            output: the vector's first one.
            start, stop: the channels.
            sink: takes each vector, zero past the last output; of the way `rows` and `planes` also
                vectors of up to `lanes` - 1 columns before the first channel.
        """
        e, runs, taps = self._e, self._runs, self._runs.taps
        if runs.way == "rows":
            zero = e.i64(0)
            with e.loop("column", stop * taps, start=start * taps, step=self._lanes) as column:
                at = e.smin(column, runs.length - self._lanes)
                self._square(w.at(at), output, lambda i, v: sink(zero, at - start * taps + i, v))
        elif runs.way == "planes":
            with (
                e.loop("run", taps) as run,
                e.loop("column", stop, start=start, step=self._lanes) as column,
            ):
                at = e.smin(column, runs.channels - self._lanes)
                source = w.at(run * runs.tap + at)
                self._square(source, output, lambda i, v: sink(run, at - start + i, v))
        else:
            with e.loop("run", stop, start=start) as run:
                self._taps(w.at(run * runs.channel), output, run - start, sink)

    def _taps(self, w: Pointer, output: Value, run: Value, sink: Sink) -> None:
        """Read the taps of a channel."""
        e, runs, lanes = self._e, self._runs, self._lanes
        if runs.way == "lanes":
            with e.loop("column", runs.taps) as column:
                sink(run, column, self._neighbours(w.at(column * runs.tap), output))
        elif runs.taps < lanes:
            later = w.at((output + _AHEAD * lanes) * runs.output)
            for lane in range(lanes):
                e.prefetch(later.at(lane * runs.output), locality=2)
            self._square(w, output, lambda i, v: sink(run, e.i64(i), v), runs.taps)
        else:
            with e.loop("column", runs.taps, step=lanes) as column:
                at = e.smin(column, runs.taps - lanes)
                self._square(w.at(at), output, lambda i, v: sink(run, at + i, v))

    def _square(
        self,
        source: Pointer,
        output: Value,
        store: Callable[[int, Value], None],
        columns: int | None = None,
    ) -> None:
        """Transpose neighbours at `source`: as many as there are lanes, or the first `columns`."""
        e, lanes, kind = self._e, self._lanes, self._kind
        columns, last = columns or lanes, self._outputs - 1
        rows = [source.at(e.smin(output + lane, last) * self._runs.output) for lane in range(lanes)]
        mask = e.first_lanes(columns, lanes)
        lines = [
            e.load(row, kind, align=1) if columns == lanes else e.masked_load(row, kind, mask, 1)
            for row in rows
        ]
        live = e.first_lanes(e.i64(self._outputs) - output, lanes)
        for number, column in enumerate(transpose_rectangle(e, lines, columns)):
            store(number, e.select(live, column, e.zero(kind)))

    def _neighbours(self, source: Pointer, output: Value) -> Value:
        """Load outputs that are neighbours; those past the last one are zero."""
        e, lanes = self._e, self._lanes
        left = e.i64(self._outputs) - output
        values = [e.zero(self._kind)]
        with e.when(left.compare("sge", lanes), [values]):
            values[0] = e.load(source.at(output), self._kind, align=1)
        with e.when(left.compare("slt", lanes), [values]):
            for lane in range(lanes - 1):
                with e.when(left.compare("sgt", lane), [values]):
                    one = e.load(source.at(output + lane), align=1)
                    values[0] = e.insert(values[0], one, lane)
        return values[0]


_CHANNELS = 32  # of one chunk


@dataclass(frozen=True, kw_only=True)
class RunPacking(Panels):
    """Weights as they are; the last panel has the vectors it needs.

    Attributes:
        runs: how they lie, in any way but `rows`.
        steps: weights of an output.
    """

    runs: WeightRuns
    steps: Count

    @property
    def operands(self) -> tuple[str, ...]:
        """Weights, steps of a panel by run and by column as i64, the result."""
        return ("w", "run_places", "places", "packed")

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks of channels by panels, or the reverse: what lies together is read together."""
        blocks = ceil_div(self.runs.channels, _CHANNELS)
        return self.groups, *self.runs.in_order(self.panels, blocks)

    @property
    def given_weights(self) -> int:
        """All that are packed."""
        return self.steps

    def read_cycles(self, target: Target) -> float:
        """As the weights lie."""
        return self.runs.read_cycles(target)

    @property
    def group_elements(self) -> int:
        """Whole vectors of outputs."""
        return self.steps * ceil_div(self.outputs, self.lanes) * self.lanes

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, vectors of the panel, channels."""
        e, runs, lanes = Function(self.NAME), self.runs, self.lanes
        element = self.dtype.llvm
        pointers = e.pointers(self.operands, "i64", w=element, packed=element)
        reader = RunReader(e, runs, self.outputs, lanes, element)
        with e.chunks(*self.grid) as (group, *place):
            panel, block = runs.in_order(*place)
            first = panel * (self.vectors * lanes)
            vectors = e.smin((e.i64(self.outputs + (lanes - 1)) - first) // lanes, self.vectors)
            width = vectors * lanes
            result = pointers["packed"].at(group * self.group_elements + first * self.steps)
            w = pointers["w"].at(group * (self.outputs * self.row))
            start = block * _CHANNELS
            stop = e.smin(start + _CHANNELS, runs.channels)
            by_run, by_column = pointers["run_places"], pointers["places"]
            if runs.by_channel:
                by_run = by_run.at(start)
            else:
                by_column = by_column.at(start)
            with e.loop("vector", vectors) as number:
                there = result.at(number * lanes)

                def store(run: Value, column: Value, value: Value) -> None:
                    places = e.load_index(by_run.at(run)), e.load_index(by_column.at(column))
                    with e.when(e.smin(*places).compare("sge", 0)):
                        e.store(value, there.at((places[0] + places[1]) * width))

                reader.read(w, first + number * lanes, start, stop, store)
        return e.finish()


def packing_call(w: np.ndarray, groups: int, vectors: int, lanes: int) -> PackCall | None:
    """Return the call that packs weights in panels [tap][channel][vectors·lanes].

    Args:
        w: (K, C/g, kernel…), floats, any view.
        groups: of the outputs.
        vectors: of a whole panel.
        lanes: of a vector.

    Returns:
        None where weights lie otherwise than `RunPacking` takes them.
    """
    found = runs_of(w, lanes, rows=False)
    if found is None:
        return None
    (runs, order), steps = found, prod(w.shape[1:])
    kernel = RunPacking(
        groups=groups,
        outputs=len(w) // groups,
        row=runs.output,
        vectors=vectors,
        lanes=lanes,
        dtype=as_dtype(w.dtype),
        runs=runs,
        steps=steps,
    )
    size = groups * kernel.group_elements * w.itemsize
    return PackCall(
        kernel, lambda: w, lambda: _run_places(runs, order), size, lowest(w.shape, w.strides)
    )


def _run_places(runs: WeightRuns, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of a panel [tap][channel], by run and by column: int64, -1 for no tap.

    Args:
        runs: how the weights lie, in any way but `rows`.
        order: which tap in memory each tap is.
    """
    channels, taps = np.arange(runs.channels), np.full(runs.taps, -1, np.int64)
    taps[order] = np.arange(order.size) * runs.channels
    return (channels, taps) if runs.by_channel else (taps, channels)
