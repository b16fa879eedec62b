"""Packed weights of the products: the spectrum of each part of the kernel.

V is the conjugate of the transform of the kernel's part, in float64, divided by T*T, and doubled
where the inverse transform needs it (see `real_inverse`); then rounded to the dtype of w.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from leanconv.algorithms.fft.layout import FftLayout
from leanconv.algorithms.fft.plane_layout import PlaneLayout

_Layout = FftLayout | PlaneLayout


@lru_cache(maxsize=64)
def _columns_matrix(length: int, taps: int) -> np.ndarray:
    """Real and imaginary parts of bins 0 … length/2 of `taps` real numbers: (bins · 2, taps)."""
    bins = length // 2 + 1
    twiddles = _twiddle_factors(length, bins, taps)
    return np.stack([twiddles.real, twiddles.imag], 1).reshape(bins * 2, taps)


@lru_cache(maxsize=64)
def _rows_matrix(length: int, bins: int, taps: int) -> np.ndarray:
    """The same of complex numbers, real parts first: (bins · 2, 2 · taps)."""
    twiddles = _twiddle_factors(length, bins, taps)
    real = np.concatenate([twiddles.real, -twiddles.imag], 1)
    imaginary = np.concatenate([twiddles.imag, twiddles.real], 1)
    return np.stack([real, imaginary], 1).reshape(bins * 2, 2 * taps)


def _twiddle_factors(length: int, bins: int, taps: int) -> np.ndarray:
    """e^(+2 pi i j t / length), (bins, taps)."""
    steps = np.outer(np.arange(bins), np.arange(taps)) % length
    return np.asarray(np.exp(2j * np.pi * steps / length))


def _spectrum(layout: _Layout, taps: np.ndarray) -> np.ndarray:
    """V of one part of the kernel, taps (rows, columns, n) in float64: (bins, 2, n).

    Most of the T x T inputs are zero, and there are many filters: two matrix products are several
    times faster than transforms of padded filters, and give the bins in their order.
    """
    rows, columns, count = taps.shape
    length, half = layout.length, layout.length // 2
    first = _columns_matrix(length, columns) @ taps.swapaxes(0, 1).reshape(columns, rows * count)
    lines = first.reshape(half + 1, 2 * rows, count)
    found = np.empty((layout.bins, 2, count))
    doubled = np.ones(half + 1)
    doubled[1:half] = 2.0
    edge = np.repeat(doubled / length**2, 2)[:, None] * _rows_matrix(length, half + 1, rows)
    found[: half + 1] = (edge @ lines[0]).reshape(half + 1, 2, count)
    found[half + 1 : length + 2] = (edge @ lines[half]).reshape(half + 1, 2, count)
    inner = 2.0 / length**2 * _rows_matrix(length, length, rows)
    between = np.matmul(inner, lines[1:half])
    found[length + 2 :] = between.reshape(-1, 2, count)
    return found


def _spectra(layout: _Layout, w: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """(p, q, phase) and V as (bins, 2, C · K) of every part and phase of weights (K, C, kh, kw)."""
    height, width = layout.height, layout.width
    taps = np.ascontiguousarray(w.transpose(2, 3, 1, 0), np.float64)
    taps = taps.reshape(*taps.shape[:2], -1)
    for p, q, a, b in np.ndindex(*layout.parts, height.phases, width.phases):
        rows, columns = height.positions(a, p), width.positions(b, q)
        yield (p, q, a * width.phases + b), _spectrum(layout, taps[rows, columns])


def _factors(layout: FftLayout, v: np.ndarray) -> list[np.ndarray]:
    """The factors of the passes of the reduction, in their order, from V (bins, 2, …)."""
    real, imaginary = v[:, 0], v[:, 1]
    if layout.products == 3:
        return [real, imaginary - real, -(real + imaginary)]
    return [imaginary, real]


def pack_weights(layout: FftLayout, w: np.ndarray) -> np.ndarray:
    """Pack weights (K, C/g, kh, kw).

    Dense: [group][slice][bin][panel][pass][p][q][phase][c][vectors · lanes].
    Depthwise: [vector of channels][bin][p][q][phase][re, im][lane].
    """
    if layout.depthwise:
        return _pack_depthwise(layout, w)
    grouped = w.reshape(layout.groups, layout.outputs, *w.shape[1:])
    packed = np.zeros((layout.groups, layout.splits, layout.bins, layout.bin_weights), w.dtype)
    slice_lanes = layout.output_vectors * layout.lanes
    panel_lanes = layout.tile.vectors * layout.lanes
    for g, split in np.ndindex(layout.groups, layout.splits):
        outputs = grouped[g, split * slice_lanes : (split + 1) * slice_lanes]
        place = 0
        for first in range(0, slice_lanes, panel_lanes):
            width = min(panel_lanes, slice_lanes - first)
            panel = _pack_panel(layout, outputs[first : first + width], width)
            packed[g, split, :, place : place + panel.shape[1]] = panel
            place += panel.shape[1]
    return packed.reshape(-1)


def _pack_panel(layout: FftLayout, w: np.ndarray, width: int) -> np.ndarray:
    """The weights (k, C, kh, kw) of at most `width` outputs as (bins, …)."""
    outputs, inputs = w.shape[:2]
    shape = (layout.bins, layout.passes, *layout.parts, layout.phases, inputs, width)
    panel = np.zeros(shape, w.dtype)
    # A vector of outputs at a time, so that no bit depends on the width of panels.
    for k in range(0, outputs, layout.lanes):
        some = w[k : k + layout.lanes]
        for (p, q, phase), v in _spectra(layout, some):
            for number, factor in enumerate(_factors(layout, v)):
                place = panel[:, number, p, q, phase, :, k : k + some.shape[0]]
                place[...] = factor.reshape(layout.bins, inputs, -1)
    return panel.reshape(layout.bins, -1)


def _pack_depthwise(layout: FftLayout, w: np.ndarray) -> np.ndarray:
    lanes, channels = layout.lanes, w.shape[0]
    packed = np.zeros((layout.outer, layout.bins, *layout.parts, layout.phases, 2, lanes), w.dtype)
    for (p, q, phase), v in _spectra(layout, w):
        for block in range(layout.outer):
            some = v[:, :, block * lanes : (block + 1) * lanes]
            packed[block, :, p, q, phase, :, : min(lanes, channels - block * lanes)] = some
    return packed.reshape(-1)


def pack_planes(layout: PlaneLayout, w: np.ndarray) -> np.ndarray:
    """Pack weights (C, 1, kh, kw): [channel][bin][p][q][phase][re, im]."""
    phases = layout.height.phases * layout.width.phases
    packed = np.zeros((layout.groups, layout.bins, *layout.parts, phases, 2), w.dtype)
    for (p, q, phase), v in _spectra(layout, w):
        packed[:, :, p, q, phase] = v.transpose(2, 0, 1)
    return packed.reshape(-1)
