"""Packed weights of Winograd: U = G g G^T in float64, rounded, in panels.

    U [panel][xi][channel][vectors·lanes]     of a fused kernel
    U [xi][panel][channel][vectors·lanes]     in stages

One code transforms the weights of all tiles, strides and channels: where a point of a step is
stored, if it is, is a table. Bytes become int16, exactly; two steps that one dot product multiplies
lie side by side in a lane.

Channels of short phases are not stored at the points where their U is zero.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from leanconv.algorithms.common.weight_packing import OneStep, WeightTransform, in_pieces
from leanconv.algorithms.direct.shape import PackedConv
from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.codegen.emitter import Function, Pointer, vector
from leanconv.codegen.lowered import PackCall
from leanconv.kernels.packing import numbers
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count

POINTS = 4  # computed together; tables have a multiple of them


@dataclass(frozen=True, kw_only=True)
class WeightPoints(WeightTransform):
    """The points of all taps.

    Attributes:
        points: of the transform, those included that fill up `POINTS`.
    """

    points: Count

    @property
    def operands(self) -> tuple[str, ...]:
        """Weights; matrix (taps, points) in float64; i64 tables; result.

        The tables are (steps, taps), which of a row's weights it is, and (steps, points), where it
        is stored, counted in vectors of the panel's width, both -1 where there is none; and the
        offsets of points in elements.
        """
        return ("w", "matrix", "sources", "places", "offsets", "packed")

    @property
    def types(self) -> dict[str, str]:
        return {"w": self.given.llvm, "matrix": "double", "packed": self.dtype.llvm}

    def transform(self, e: Function, pointers: dict[str, Pointer], at: OneStep) -> None:
        """Compute and store all points."""
        lanes, together, places = self.lanes, self.together, pointers["places"]
        doubles = vector("double", lanes)
        gathered = [self.gathered(e, number) for number in range(together)]
        with e.loop("point", self.points, step=POINTS) as point:
            sums = [e.zero(doubles) for _ in range(POINTS * together)]
            with e.loop("tap", self.taps, carry=[sums]) as tap:
                weights = [e.load(taps.at(tap * lanes), doubles) for taps in gathered]
                factors = pointers["matrix"].at(tap * self.points + point)
                for i in range(POINTS):
                    factor = e.broadcast(factors.at(i), doubles)
                    for j, weight in enumerate(weights, i * together):
                        sums[j] = e.fma(factor, weight, sums[j])
            for i in range(POINTS):
                totals = sums[i * together : (i + 1) * together]
                place = e.load_index(places.at(at.step * self.points + (point + i)))
                with e.when(place.compare("sge", 0)):
                    offset = e.load_index(pointers["offsets"].at(point + i)) + place * at.width
                    e.store(self.rounded(e, totals), at.result.at(offset))


def weight_calls(
    shape: WinogradShape, w: np.ndarray, product: PackedConv | None = None
) -> list[PackCall]:
    """Return the calls that transform weights and pack them.

    Args:
        shape: of the convolution.
        w: weights (K, C/g, kh, kw), any view.
        product: kernel that multiplies U in stages, point by point; None for a fused kernel.
    """
    conv = shape.conv
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
            groups=conv.groups,
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
            given=conv.precision.w,
            together=shape.dot_group,
            points=points,
        )

    return in_pieces(panels, conv.outputs, conv.outputs if staged else width, w, tables)


def _places(shape: WinogradShape, points: int, staged: bool) -> np.ndarray:
    """Return where a panel stores each (step, point), counted in steps, or -1: int64."""
    places = np.full((shape.steps, points), -1, np.int64)
    if staged:  # a point is there where its offset says
        places[:, : shape.points] = np.arange(shape.steps)[:, np.newaxis]
    else:
        places[:, : shape.points] = stored_steps(shape)
    return places


def stored_steps(shape: WinogradShape) -> np.ndarray:
    """Return where a fused kernel's panel has each (step, point), counted in steps, or -1."""
    places, kept = np.full(shape.points * shape.steps, -1, np.int64), _kept_steps(shape)
    places[slice(None) if kept is None else kept] = np.arange(shape.all_steps)
    return np.ascontiguousarray(places.reshape(shape.points, shape.steps).T)


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
