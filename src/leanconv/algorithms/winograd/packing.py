"""Packed weights of fused Winograd: U = G g G^T, computed offline, in panels.

    U [panel][xi][channel][vectors·lanes]

Channels of short phases are not stored at the points where their U is zero.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.algorithms.winograd.weight_transform import POINTS, WeightTransform
from leanconv.codegen.lowered import PackCall
from leanconv.spec.format import ceil_div


def pack_weights(shape: WinogradShape, w: np.ndarray) -> np.ndarray:
    """Transform weights (K, C/g, kh, kw) in float64 and pack them as the kernel reads them."""
    width, matrix = shape.panel_lanes, _transform_matrix(shape)
    packed = np.empty((shape.groups, shape.panels, shape.all_steps * width), shape.transformed)
    taps = np.zeros((matrix.shape[1], shape.steps, width))
    kept = _kept_steps(shape)
    for g, group in enumerate(w.reshape(shape.groups, shape.outputs, *w.shape[1:])):
        for panel in range(shape.panels):
            part = group[panel * width : (panel + 1) * width]
            taps[..., len(part) :] = 0.0
            taps[..., : len(part)] = _taps_first(shape, part)
            u = (matrix @ taps.reshape(len(taps), -1)).reshape(-1, width)
            packed[g, panel] = _grouped(shape, u if kept is None else u[kept])
    return packed.reshape(-1)


def _grouped(shape: WinogradShape, u: np.ndarray) -> np.ndarray:
    """Rows of U, one for each step, with the steps of a dot product side by side."""
    groups = u.reshape(-1, shape.dot_group, u.shape[1])
    return np.asarray(groups.swapaxes(1, 2).reshape(-1))


def weight_calls(shape: WinogradShape, w: np.ndarray) -> list[PackCall]:
    """Compiled code that packs what `pack_weights` does, of row-major weights."""
    points = ceil_div(shape.points, POINTS) * POINTS
    kernel = WeightTransform(
        groups=shape.groups,
        outputs=shape.outputs,
        row=prod(w.shape[1:]),
        taps=prod(shape.taps),
        points=points,
        steps=shape.steps,
        stored=shape.all_steps,
        vectors=shape.vectors,
        lanes=shape.lanes,
        dtype=shape.transformed,
        given=shape.precision.w,
        together=shape.dot_group,
    )

    @cache
    def tables() -> tuple[np.ndarray, ...]:
        matrix = np.zeros((kernel.taps, points))
        matrix[:, : shape.points] = _transform_matrix(shape).T
        numbers = np.arange(1, kernel.row + 1).reshape(1, *w.shape[1:])
        sources = _taps_first(shape, numbers)[..., 0].T.astype(np.int64, order="C") - 1
        return matrix, sources, _places(shape, points)

    return kernel.calls(w, tables)


def _places(shape: WinogradShape, points: int) -> np.ndarray:
    """Where a panel has (step, point), counted in steps, -1 if it has not: int64."""
    places = np.full((points, shape.steps), -1, np.int64)
    kept = _kept_steps(shape)
    whole = places[: shape.points].reshape(-1)
    whole[slice(None) if kept is None else kept] = np.arange(shape.all_steps)
    return np.ascontiguousarray(places.T)


def _kept_steps(shape: WinogradShape) -> np.ndarray | None:
    """Indices into (points, steps), flattened, that U stores; None if it stores all."""
    if shape.all_steps == shape.points * shape.steps:
        return None
    reduction = shape.reduction
    kept = [
        reduction.kept_steps((rows.at_infinity, columns.at_infinity))
        + (i * shape.alpha[1] + j) * shape.steps
        for rows in reduction.regions(0)
        for i in range(rows.first, rows.first + rows.points)
        for columns in reduction.regions(1)
        for j in range(columns.first, columns.first + columns.points)
    ]
    return np.concatenate(kept)


def transformed_weights(shape: WinogradShape, w: np.ndarray) -> np.ndarray:
    """U of weights (K, C/g, kh, kw): (g, points, steps, K/g), float64."""
    matrix = _transform_matrix(shape)
    u = [
        matrix @ _taps_first(shape, group).reshape(matrix.shape[1], -1)
        for group in w.reshape(shape.groups, shape.outputs, *w.shape[1:])
    ]
    return np.stack(u).reshape(shape.groups, shape.points, shape.steps, shape.outputs)


def _transform_matrix(shape: WinogradShape) -> np.ndarray:
    """G of both axes as one matrix (points, taps of a phase)."""
    g_h, g_w = (np.array(t.g, float) for t in shape.transforms())
    return np.asarray(np.kron(g_h, g_w))


def _taps_first(shape: WinogradShape, w: np.ndarray) -> np.ndarray:
    """Weights (K, C, kh, kw) of a group as (taps of a phase, steps, K), float64."""
    (rh, rw), (ph, pw) = shape.taps, shape.stride
    channels = shape.reduction.inputs, w.shape[0]
    padded = np.zeros((rh * ph, rw * pw, *channels))
    padded[: shape.kernel[0], : shape.kernel[1], : w.shape[1]] = w.transpose(2, 3, 1, 0)
    # (i, p, j, q, C, K) -> (i, j, (p, q, C in the order of the reduction), K)
    phased = padded.reshape(rh, ph, rw, pw, *channels)
    columns = shape.reduction.columns_per_group if shape.planar else shape.phases[1]
    phased = phased[:, : shape.phases[0], :, :columns]
    order = (0, 2, 1, 4, 3, 5) if shape.planar else (0, 2, 1, 3, 4, 5)
    return np.asarray(phased.transpose(order).reshape(rh * rw, shape.steps, w.shape[0]))
