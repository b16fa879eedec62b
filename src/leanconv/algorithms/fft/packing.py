"""Packed weights of the products: the spectrum of each part of the kernel.

V is the conjugate of the transform of the kernel's part, in float64, divided by T*T, and doubled
where the inverse transform needs it (see `real_inverse`); then rounded to the dtype of w. Most of
the T x T inputs are zero: two sums over the taps, along rows and then along columns, are several
times faster than transforms of padded filters, and give the bins in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial

import numpy as np

from leanconv.algorithms.common.weight_packing import OneStep, WeightTransform, in_pieces
from leanconv.algorithms.fft.layout import FftLayout, PlaneLayout
from leanconv.algorithms.fft.overlap_save import Axis
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.lowered import PackCall
from leanconv.kernels.packing import lowest, numbers
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count
from leanconv.types import FLOAT64, as_dtype

_Layout = FftLayout | PlaneLayout
_Tables = Callable[[], tuple[np.ndarray, ...]]


@dataclass(frozen=True, kw_only=True)
class Spectrum(WeightTransform):
    """The bins of all taps, of a step's rows by columns.

    Attributes:
        rows: of the taps of a step.
        half: T / 2.
        bin_size: packed elements from a bin to the next.
        step_size, factor_size: distances to the next step and to the next factor, in vectors
            of the panel's width.
        factors: the stored parts of V: "im re", "re im", or "three", of products of three factors.
        spread: whether a panel is one output, each lane stored a panel apart.
    """

    rows: Count
    half: Count
    bin_size: Count
    step_size: Count
    factor_size: Count
    factors: str
    spread: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """Weights; which of a row's is a tap of a step, i64; matrices in float64; result.

        Of columns (taps, T / 2 + 1, 2); of rows (bins, 2, 2 rows), for the first and the last
        column of the spectrum, and for those between them.
        """
        return ("w", "sources", "columns", "edge", "inner", "packed")

    @property
    def types(self) -> dict[str, str]:
        given, made = self.given.llvm, self.dtype.llvm
        tables = dict.fromkeys(("columns", "edge", "inner"), "double")
        return {"w": given, "packed": made, **tables}

    @property
    def scratch_bytes(self) -> int:
        """The taps, and all rows of half-transformed ones."""
        lines = 2 * self.rows * (self.half + 1) * self.lanes
        return super().scratch_bytes + lines * FLOAT64.bytes

    @property
    def panel_step(self) -> int:
        return self.panel_size * (self.vectors * self.lanes if self.spread else 1)

    def lane_place(self, lane: Value) -> Value:
        return lane * self.panel_size if self.spread else lane

    def transform(self, e: Function, pointers: dict[str, Pointer], at: OneStep) -> None:
        """Transform rows, then columns."""
        lanes, half = self.lanes, self.half
        kind = vector("double", lanes)
        lines = self.gathered(e).at(e.i64(self.gathered_elements))
        columns = self.taps // self.rows
        with e.loop("row", self.rows) as row:
            taps = self.gathered(e).at(row * (columns * lanes))
            with e.loop("column", half + 1) as bin_:
                sums = [e.zero(kind), e.zero(kind)]
                with e.loop("tap", columns, carry=[sums]) as tap:
                    weight = e.load(taps.at(tap * lanes), kind)
                    factors = pointers["columns"].at((tap * (half + 1) + bin_) * 2)
                    for i in range(2):
                        sums[i] = e.fma(e.broadcast(factors.at(i), kind), weight, sums[i])
                line = lines.at((row * (half + 1) + bin_) * (2 * lanes))
                for i in range(2):
                    e.store(sums[i], line.at(i * lanes))
        width = e.i64(1) if self.spread else at.width
        there = at.result.at(at.step * self.step_size * width)
        live = e.i64(self.outputs) - at.output
        length = half * 2
        with e.loop("column", half + 1) as column:
            is_edge = column.compare("eq", 0) | column.compare("eq", half)
            line = lines.at(column * (2 * lanes))
            last = column.compare("eq", half)
            first = e.select(last, e.i64(half + 1), column * length + 2)
            first = e.select(column.compare("eq", 0), e.i64(0), first)
            matrix = e.select(is_edge, pointers["edge"], pointers["inner"])
            count = e.select(is_edge, e.i64(half + 1), e.i64(length))
            with e.loop("bin", count) as number:
                made = self._bin(e, matrix.at(number * (4 * self.rows)), line)
                place = there.at((first + number) * self.bin_size)
                for i, total in enumerate(self._factors(*made)):
                    self._store(e, total, place.at(width * (self.factor_size * i)), live)

    def _bin(self, e: Function, matrix: Pointer, line: Pointer) -> list[Value]:
        """Real and imaginary part of one bin."""
        kind = vector("double", self.lanes)
        sums = [e.zero(kind), e.zero(kind)]
        for part in range(2):
            with e.loop("row", self.rows, carry=[sums]) as row:
                at = (row * (self.half + 1)) * (2 * self.lanes)
                half_made = e.load(line.at(at + part * self.lanes), kind)
                factor = matrix.at(row + part * self.rows)
                for i in range(2):
                    there = factor.at(e.i64(2 * self.rows) * i)
                    sums[i] = e.fma(e.broadcast(there, kind), half_made, sums[i])
        return sums

    def _factors(self, real: Value, imaginary: Value) -> list[Value]:
        """The factors of the passes of the reduction, in their order."""
        if self.factors == "three":
            return [real, imaginary - real, -1.0 * (real + imaginary)]
        return [imaginary, real] if self.factors == "im re" else [real, imaginary]

    def _store(self, e: Function, total: Value, place: Pointer, live: Value) -> None:
        """Store a vector of outputs, or each of those that there are by itself."""
        value = self.rounded(e, [total])
        if not self.spread:
            e.store(value, place)
            return
        for lane in range(self.lanes):
            with e.when(live.compare("sgt", lane)):
                e.store(e.extract(value, lane), place.at(e.i64(self.panel_size) * lane))


@lru_cache(maxsize=64)
def _columns_matrix(length: int, taps: int) -> np.ndarray:
    """Real and imaginary parts of bins 0 … length/2 of `taps` real numbers: (taps, bins, 2)."""
    twiddles = _twiddle_factors(length, length // 2 + 1, taps).T
    return np.ascontiguousarray(np.stack([twiddles.real, twiddles.imag], 2))


@lru_cache(maxsize=64)
def _rows_matrix(length: int, taps: int, edge: bool) -> np.ndarray:
    """The same of complex numbers, real parts first, scaled: (bins, 2, 2 · taps).

    An edge is the first or the last column, which have bins 0 … T/2 alone.
    """
    bins, half = (length // 2 + 1 if edge else length), length // 2
    twiddles = _twiddle_factors(length, bins, taps)
    real = np.concatenate([twiddles.real, -twiddles.imag], 1)
    imaginary = np.concatenate([twiddles.imag, twiddles.real], 1)
    scale = np.full(bins, 2.0)
    if edge:
        scale[0] = scale[half] = 1.0
    return np.stack([real, imaginary], 1) * (scale / length**2)[:, np.newaxis, np.newaxis]


def _twiddle_factors(length: int, bins: int, taps: int) -> np.ndarray:
    """e^(+2 pi i j t / length), (bins, taps)."""
    steps = np.outer(np.arange(bins), np.arange(taps)) % length
    return np.asarray(np.exp(2j * np.pi * steps / length))


def weight_calls(layout: _Layout, w: np.ndarray) -> list[PackCall]:
    """Return the calls that transform weights (K, C/g, kh, kw), any view, and pack them.

    Dense: [group][slice][bin][panel][pass][p][q][phase][c][vectors · lanes].
    Depthwise: [vector of channels][bin][p][q][phase][re, im][lane].
    Planes: [channel][bin][p][q][phase][re, im].
    """
    height, width = layout.height, layout.width
    rows, columns = _longest(height), _longest(width)
    spectrum = partial(
        Spectrum,
        row=w.strides[0] // w.itemsize,
        lanes=layout.lanes,
        dtype=as_dtype(w.dtype),
        taps=rows * columns,
        steps=layout.reduction_steps,
        given=as_dtype(w.dtype),
        rows=rows,
        half=layout.length // 2,
    )

    @cache
    def tables() -> tuple[np.ndarray, ...]:
        one = numbers(w.shape[1:], [step // w.itemsize for step in w.strides[1:]])
        shape = *layout.parts, height.phases, width.phases, len(one), rows, columns
        sources = np.zeros(shape, np.int64)
        for p, q, a, b in np.ndindex(*shape[:4]):
            taps = one[:, height.positions(a, p), width.positions(b, q)]
            sources[p, q, a, b, :, : taps.shape[1], : taps.shape[2]] = taps
        length = layout.length
        edge, inner = (_rows_matrix(length, rows, edge) for edge in (True, False))
        return sources - 1, _columns_matrix(length, columns), edge, inner

    if isinstance(layout, FftLayout) and not layout.depthwise:
        return _dense(layout, w, spectrum, tables)
    return _of_channels(layout, w, spectrum, tables)


def _longest(axis: Axis) -> int:
    """The most taps of a part of a phase."""
    parts = (axis.positions(*each) for each in np.ndindex(axis.phases, axis.parts))
    return max(len(range(*part.indices(axis.kernel))) for part in parts)


def _dense(
    layout: FftLayout, w: np.ndarray, spectrum: Callable[..., Spectrum], tables: _Tables
) -> list[PackCall]:
    """One call for all groups; where their outputs are cut into slices, one for each slice."""
    conv = layout.conv
    steps, width = layout.reduction_steps, layout.tile.vectors * layout.lanes
    packed = layout.output_vectors * layout.lanes
    size = layout.bins * layout.bin_weights
    kernel = partial(
        spectrum,
        vectors=layout.tile.vectors,
        panel_size=layout.passes * steps * width,
        group_size=size,
        packed=packed,
        ragged=True,
        bin_size=layout.bin_weights,
        step_size=1,
        factor_size=steps,
        factors="three" if layout.products == 3 else "im re",
    )
    lowest_bytes = lowest(w.shape[1:], w.strides[1:])

    def call(groups: int, first: int, outputs: int) -> PackCall:
        made = kernel(groups=groups, outputs=outputs)
        begin = first * w.strides[0] + lowest_bytes
        return PackCall(made, lambda: w, tables, groups * size * layout.item, begin)

    if layout.splits == 1:
        return [call(conv.groups, 0, conv.outputs)]
    slices = range(0, layout.splits * packed, packed)  # the last ones may be empty
    left = [max(0, min(packed, conv.outputs - first)) for first in slices]
    return [
        call(1, group * conv.outputs + (first if outputs else 0), outputs)
        for group in range(conv.groups)
        for first, outputs in zip(slices, left, strict=True)
    ]


def _of_channels(
    layout: _Layout, w: np.ndarray, spectrum: Callable[..., Spectrum], tables: _Tables
) -> list[PackCall]:
    """Return the calls for depthwise layers and planes, each of whose channels is by itself."""
    spread, lanes = isinstance(layout, PlaneLayout), layout.lanes
    bin_size = 2 * layout.reduction_steps * (1 if spread else lanes)
    size = layout.bins * bin_size

    def kernel(channels: int) -> Spectrum:
        vectors = ceil_div(channels, lanes)
        return spectrum(
            groups=1,
            outputs=channels,
            vectors=1,
            panel_size=size,
            group_size=size * (channels if spread else vectors),
            packed=vectors * lanes,
            bin_size=bin_size,
            step_size=2,
            factor_size=1,
            factors="re im",
            spread=spread,
        )

    return in_pieces(kernel, len(w), lanes, w, tables)
