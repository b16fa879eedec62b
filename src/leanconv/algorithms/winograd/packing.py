"""Packed weights of Winograd: U = G g G^T, computed offline, in panels.

    U [panel][xi][channel][vectors·lanes]     of a fused kernel
    U [xi][panel][channel][vectors·lanes]     in stages

Channels of short phases are not stored at the points where their U is zero.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from leanconv.algorithms.common.panel_packing import in_pieces
from leanconv.algorithms.direct.packed import PackedConv
from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.algorithms.winograd.weight_points import POINTS, WeightPoints
from leanconv.codegen.lowered import PackCall
from leanconv.kernels.packing import numbers
from leanconv.spec.format import ceil_div


def weight_calls(
    shape: WinogradShape, w: np.ndarray, product: PackedConv | None = None
) -> list[PackCall]:
    """What transforms weights and packs them.

    Args:
        shape: of the convolution.
        w: weights (K, C/g, kh, kw), any view.
        product: what multiplies U in stages, point by point; None for a fused kernel.
    """
    points = ceil_div(shape.points, POINTS) * POINTS
    strides = [step // w.itemsize for step in w.strides]
    staged, vectors, point_size = False, shape.vectors, 0
    if product is not None:
        staged, vectors, point_size = True, product.panel_vectors, product.group_weights
    width = vectors * shape.lanes

    @cache
    def tables() -> tuple[np.ndarray, ...]:
        matrix = np.zeros((prod(shape.taps), points))
        matrix[:, : shape.points] = _transform_matrix(shape).T
        one = numbers((1, *w.shape[1:]), [0, *strides[1:]])
        sources = _taps_first(shape, one)[..., 0].T.astype(np.int64, order="C") - 1
        return matrix, sources, _places(shape, points, staged), np.arange(points) * point_size

    def panels(outputs: int) -> WeightPoints:
        count = ceil_div(outputs, width)
        panel_size = (shape.steps if staged else shape.all_steps) * width
        return WeightPoints(
            groups=shape.groups,
            outputs=outputs,
            row=strides[0],
            vectors=vectors,
            lanes=shape.lanes,
            dtype=shape.transformed,
            taps=prod(shape.taps),
            steps=shape.steps,
            panel_size=panel_size,
            group_size=shape.points * point_size if staged else count * panel_size,
            packed=ceil_div(outputs, shape.lanes) * shape.lanes if staged else count * width,
            ragged=staged,
            given=shape.precision.w,
            together=shape.dot_group,
            points=points,
        )

    return in_pieces(panels, shape.outputs, shape.outputs if staged else width, w, tables)


def _places(shape: WinogradShape, points: int, staged: bool) -> np.ndarray:
    """Where a panel has (step, point), counted in steps, -1 if it has not: int64."""
    places = np.full((points, shape.steps), -1, np.int64)
    if staged:  # a point is there where its offset says
        places[: shape.points] = np.arange(shape.steps)
        return np.ascontiguousarray(places.T)
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
