"""What packed constants are to be, by NumPy: an oracle for the compiled code that packs them.

It is written from the order in which each kernel reads its weights, with the numbers themselves,
where the code that packs has tables of their places.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from leanconv.algorithms.amx.shape import TileShape
from leanconv.algorithms.col2im.kernel import Col2Im
from leanconv.algorithms.col2im.layout import run_table
from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.depthwise.kernel import DepthwiseConv
from leanconv.algorithms.depthwise.quads import QUAD, DepthwiseCodes
from leanconv.algorithms.direct.shape import PackedConv
from leanconv.algorithms.fft.kernel import FftConv
from leanconv.algorithms.fft.layout import FftLayout, PlaneLayout
from leanconv.algorithms.fft.plane_kernel import FftPlanes
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.planar.pointwise import PlanarPointwise
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.winograd.shape import WinogradShape
from leanconv.codegen.half_stored import HalfStored
from leanconv.codegen.kernel import Kernel
from leanconv.half_arrays import as_float32, in_memory
from leanconv.types import FLOAT32, HALVES

_TILE = 16  # rows of a matrix tile, and columns of sums, of groups of 4 bytes
_GROUP_BYTES = 4

Channels = Mapping[str, np.ndarray]


def constants(
    candidate: Candidate, problem: Problem, w: np.ndarray, channels: Channels
) -> dict[str, np.ndarray]:
    """The packed constants of a candidate, by role."""
    made_of = _made_of(candidate.packing)
    if "candidate" in made_of:  # stored as halves
        wide = w if w.dtype == FLOAT32 else as_float32(w, problem.conv.precision.w)
        found = constants(made_of["candidate"], problem, wide, channels)
        kept = next(filter(None, (_half_of_weights(use.kernel) for use in candidate.kernels)), None)
        return {**found, "w": in_memory(found["w"], kept)} if kept else found
    if "pieces" in made_of:
        return _winograd(made_of, problem, w, channels)
    if "order" in made_of:
        return {"w": problem.weights_3d(w).transpose(made_of["order"]).reshape(-1), **channels}
    if "own" in made_of:  # image by image
        images = (role for use in candidate.kernels for role in use.roles)
        tables = {role: np.array([int(role[5:])]) for role in images if role.startswith("image")}
        return {**_over_unfolded(_made_of(made_of["own"]), problem, w, channels), **tables}
    if "view" in made_of:
        return _over_unfolded(made_of, problem, w, channels)
    kernel, tables = made_of["kernel"], {}
    if isinstance(kernel, Col2Im):
        window, y = kernel.window, kernel.y
        runs = run_table(window.kernel, window.dilation, y.block, kernel.unit, kernel.width)
        tables["runs"] = np.concatenate([each.reshape(-1) for each in runs])
    return {"w": packed_weights(kernel, problem, w), **_each(channels, kernel), **tables}


def _made_of(packing: Callable[..., Any]) -> dict[str, Any]:
    """What the packing of a candidate is a function of, by name."""
    return dict(inspect.getclosurevars(packing).nonlocals)


def _over_unfolded(
    made_of: Mapping[str, Any], problem: Problem, w: np.ndarray, channels: Channels
) -> dict[str, np.ndarray]:
    kernel, view, w = made_of["kernel"], made_of["view"], problem.weights_3d(w)
    return {"w": packed_panels(kernel, view.weights(w) if view else w), **_each(channels, kernel)}


def _half_of_weights(kernel: Kernel) -> Any:
    if not isinstance(kernel, HalfStored):
        return None
    half = dict(zip(kernel.operands, kernel.halves, strict=True)).get("w", "")
    return next((each for each in HALVES if str(each) == half), None)


# -- numbers for each output channel ---------------------------------------------------------
def _each(channels: Channels, kernel: Any) -> dict[str, np.ndarray]:
    packer = channel_packer(kernel)
    return {n: v.reshape(-1) if n == "quantisation" else packer(v) for n, v in channels.items()}


def channel_packer(kernel: Any) -> Callable[[np.ndarray], np.ndarray]:
    """What packs numbers for each output channel as a kernel reads them."""
    if isinstance(kernel, DepthwiseConv):
        return lambda values: in_groups(values, kernel.width, kernel.lanes)
    if isinstance(kernel, TileShape):
        return lambda values: in_groups(values, kernel.conv.outputs, kernel.group_outputs)
    if isinstance(kernel, PackedConv):
        return lambda values: in_groups(
            values, kernel.conv.outputs, kernel.panels * kernel.panel_lanes
        )
    if isinstance(kernel, Col2Im):
        width = kernel.units * kernel.unit * kernel.y.block
        return lambda values: in_groups(values, values.shape[-1] // kernel.groups, width)
    if isinstance(kernel, FftConv):
        layout = kernel.layout
        if layout.depthwise:
            return lambda values: in_groups(values, values.shape[-1], layout.outer * layout.lanes)
        return lambda values: in_groups(
            values, layout.conv.outputs, layout.group_vectors * layout.lanes
        )
    return lambda values: values.reshape(-1)


def in_groups(values: np.ndarray, each: int, width: int) -> np.ndarray:
    """Numbers (K,), or (n, K) end to end, `width` of each group of `each`, zero past its last."""
    rows = np.atleast_2d(values)
    groups = -(-rows.shape[1] // each)
    filled = np.pad(rows, [(0, 0), (0, groups * each - rows.shape[1])])
    split = filled.reshape(len(rows), groups, each)
    return np.pad(split, [(0, 0), (0, 0), (0, width - each)]).reshape(-1)


# -- weights -----------------------------------------------------------------------------------
def packed_weights(kernel: Kernel, problem: Problem, w: np.ndarray) -> np.ndarray:
    """Weights as a kernel of one convolution reads them."""
    if isinstance(kernel, Col2Im):
        return _col2im(kernel, w)
    if isinstance(kernel, FftConv | FftPlanes):
        return spectra(kernel.layout, w.reshape(*w.shape[:2], *problem.conv.window.kernel[1:]))
    w = problem.weights_3d(w)
    if isinstance(kernel, DepthwiseCodes):
        return _quads(kernel, w)
    if isinstance(kernel, DepthwiseConv):
        return _depthwise(kernel, w)
    if isinstance(kernel, PlanarPointwise):
        return _pointwise(kernel, w)
    if isinstance(kernel, PackedConv):
        return packed_panels(kernel, w)
    if isinstance(kernel, TileShape):
        return _matrix_tiles(kernel, w)
    return np.ascontiguousarray(w).reshape(-1)


def packed_panels(kernel: PackedConv, w: np.ndarray) -> np.ndarray:
    """[group][panel][kd][kh][kw][c / dot][lane][dot] of weights (K, C/g, kd, kh, kw)."""
    grouped = w.reshape(
        kernel.conv.groups, kernel.conv.outputs, kernel.conv.inputs, *kernel.conv.window.kernel
    )
    taps = in_memory(grouped.transpose(0, 3, 4, 5, 2, 1), kernel.conv.precision.w)
    panels, width, dot = [], kernel.panel_lanes, kernel.dot_group
    for first in range(0, kernel.conv.outputs, width):
        some = taps[..., first : first + width]
        packed = np.zeros(
            (
                *taps.shape[:4],
                kernel.packed_inputs,
                -(-some.shape[-1] // kernel.lanes) * kernel.lanes,
            ),
            kernel.conv.precision.w.numpy,
        )
        packed[..., : kernel.conv.inputs, : some.shape[-1]] = some
        steps = packed.reshape(*taps.shape[:4], -1, dot, packed.shape[-1]).swapaxes(-1, -2)
        panels.append(steps.reshape(kernel.conv.groups, -1))
    return np.concatenate(panels, axis=1).reshape(-1)


def _pointwise(kernel: PlanarPointwise, w: np.ndarray) -> np.ndarray:
    """[group][panel][c][channel of the panel], no zeros."""
    grouped, width = (
        w.reshape(kernel.conv.groups, kernel.conv.outputs, kernel.conv.inputs),
        kernel.tile.rows,
    )
    panels = [
        group[first : first + width].T.reshape(-1)
        for group in grouped
        for first in range(0, kernel.conv.outputs, width)
    ]
    return np.concatenate(panels)


def _depthwise(kernel: DepthwiseConv, w: np.ndarray) -> np.ndarray:
    """[vector][kd][kh][kw][ig][lane] of weights (K, ig, kd, kh, kw)."""
    padded = np.zeros((kernel.blocks * kernel.width, *w.shape[1:]), w.dtype)
    padded[: len(w)] = w
    split = padded.reshape(kernel.blocks, kernel.width, *w.shape[1:]).transpose(0, 3, 4, 5, 2, 1)
    packed = np.zeros((*split.shape[:-1], kernel.lanes), w.dtype)
    packed[..., : kernel.width] = split
    return packed.reshape(-1)


def _quads(kernel: DepthwiseCodes, w: np.ndarray) -> np.ndarray:
    """[vector][kd][kh][form][lane][pixel of the quad] of weights (K, 1, kd, kh, kw)."""
    depth, height, width = kernel.conv.window.kernel
    padded = np.zeros((kernel.blocks * kernel.lanes, depth, height, width), w.dtype)
    padded[: len(w)] = w[:, 0]
    rows = padded.reshape(kernel.blocks, kernel.lanes, depth, height, width)
    rows = rows.transpose(0, 2, 3, 1, 4)
    packed = np.zeros((*rows.shape[:3], len(kernel.forms), kernel.lanes, QUAD), w.dtype)
    for number, (shift, quad) in enumerate(kernel.forms):
        for pixel in range(QUAD):
            tap = QUAD * quad + pixel - shift
            if 0 <= tap < width:
                packed[..., number, :, pixel] = rows[..., tap]
    return packed.reshape(-1)


def _matrix_tiles(kernel: TileShape, w: np.ndarray) -> np.ndarray:
    """[group][pair of panels][part][row group][tap group][panel], tiles in groups of 4 bytes."""
    grouped = w.reshape(
        kernel.conv.groups, kernel.conv.outputs, kernel.conv.inputs, *kernel.conv.window.kernel[1:]
    )
    width, pairs = kernel.panels * _TILE, []
    for group in grouped:
        for first in range(0, kernel.conv.outputs, width):
            pairs.append(_pair_of_panels(kernel, group[first : first + width]))
    return np.concatenate(pairs)


def _pair_of_panels(kernel: TileShape, outputs: np.ndarray) -> np.ndarray:
    _, _, height, width = outputs.shape
    if kernel.factor.is_float:
        outputs = in_memory(outputs, kernel.factor)
    down, across = (kernel.row_groups, kernel.tap_rows), (kernel.tap_groups, kernel.taps)
    shape = kernel.panels * _TILE, kernel.parts * kernel.pixel, prod(down), prod(across)
    padded = np.zeros(shape, outputs.dtype)
    padded[: len(outputs), : kernel.conv.inputs, :height, :width] = outputs
    split = padded.reshape(kernel.panels, _TILE, kernel.parts, kernel.pixel, *down, *across)
    filled = kernel.tap_rows * kernel.taps * kernel.pixel
    rows = split.transpose(2, 4, 6, 0, 5, 7, 3, 1).reshape(-1, filled, _TILE)
    together = _GROUP_BYTES // outputs.itemsize
    tiles = np.zeros((kernel.steps * kernel.panels, _TILE * together, _TILE), outputs.dtype)
    tiles[:, :filled] = rows
    return tiles.reshape(-1, _TILE, together, _TILE).swapaxes(-1, -2).reshape(-1)


def _col2im(kernel: Col2Im, w: np.ndarray) -> np.ndarray:
    """[group][unit][panel][c][column] of weights (C, K / groups, taps...)."""
    block, each, width = kernel.y.block, kernel.unit * kernel.y.block, kernel.width
    taps = w.reshape(kernel.groups, kernel.inputs, w.shape[1], -1)
    filled = np.zeros((*taps.shape[:2], kernel.units * each, taps.shape[3]), w.dtype)
    filled[:, :, : w.shape[1]] = taps
    units = filled.reshape(*taps.shape[:2], kernel.units, kernel.unit, block, -1).swapaxes(-1, -2)
    columns = units.reshape(*taps.shape[:2], kernel.units, -1)
    padded = np.zeros((*columns.shape[:3], kernel.panels * width), w.dtype)
    padded[..., : columns.shape[3]] = columns
    panels = padded.reshape(*columns.shape[:3], kernel.panels, width)
    return panels.transpose(0, 2, 3, 1, 4).reshape(-1)


def matrix_panels(matrices: np.ndarray, width: int) -> np.ndarray:
    """[matrix][panel of n][k][width] of matrices (n, k), zeros past n."""
    count, n, k = matrices.shape
    filled = np.zeros((count, -(-n // width) * width, k), matrices.dtype)
    filled[:, :n] = matrices
    return filled.reshape(count, -1, width, k).swapaxes(-1, -2).reshape(-1)


def gate_panels(r: np.ndarray, parts: Sequence[Sequence[int]], lanes: int) -> np.ndarray:
    """[direction][vector][part][column][gate][lane] of weights (directions, gates x hidden, …).

    Args:
        r: the weights.
        parts: numbers of gates that lie side by side, in order.
        lanes: of a vector.
    """
    directions, _, hidden = r.shape
    gates = sum(map(len, parts))
    width = -(-hidden // lanes) * lanes
    wide = np.zeros((directions, gates, width, hidden), r.dtype)
    wide[:, :, :hidden] = r.reshape(directions, gates, hidden, hidden)
    split = wide.reshape(directions, gates, width // lanes, lanes, hidden)
    panels = split.transpose(0, 2, 4, 1, 3)
    apart = [panels[..., list(part), :].reshape(*panels.shape[:2], -1) for part in parts]
    return np.concatenate(apart, axis=-1).reshape(-1)


# -- spectra -----------------------------------------------------------------------------------
def spectra(layout: FftLayout | PlaneLayout, w: np.ndarray) -> np.ndarray:
    """Spectra of the parts and phases of weights (K, C/g, kh, kw).

    Dense: [group][slice][bin][panel][pass][p][q][phase][c][vectors x lanes].
    Depthwise: [vector of channels][bin][p][q][phase][re, im][lane].
    Planes: [channel][bin][p][q][phase][re, im].
    """
    height, width = layout.height, layout.width
    phases = height.phases * width.phases
    # (bins, re and im, p, q, phase, c, k)
    v = np.zeros((layout.bins, 2, *layout.parts, phases, w.shape[1], len(w)))
    for p, q, a, b in np.ndindex(*layout.parts, height.phases, width.phases):
        taps = w[:, :, height.positions(a, p), width.positions(b, q)].transpose(2, 3, 1, 0)
        v[:, :, p, q, a * width.phases + b] = _spectrum(layout.length, taps.astype(np.float64))
    if isinstance(layout, PlaneLayout):
        return v[:, :, :, :, :, 0].transpose(5, 0, 2, 3, 4, 1).astype(w.dtype).reshape(-1)
    if layout.depthwise:
        v = v[:, :, :, :, :, 0].transpose(0, 2, 3, 4, 1, 5)
        filled = np.zeros((*v.shape[:-1], layout.outer * layout.lanes), w.dtype)
        filled[..., : len(w)] = v
        split = filled.reshape(*v.shape[:-1], layout.outer, layout.lanes)
        return np.moveaxis(split, -2, 0).reshape(-1)
    return _dense_spectra(layout, v, w)


def _spectrum(length: int, taps: np.ndarray) -> np.ndarray:
    """Bins of taps (rows, columns, ...), as the inverse transform adds them up: (bins, 2, ...)."""
    half = length // 2
    whole = np.fft.fft2(taps, (length, length), axes=(0, 1)).conj() / length**2
    once = np.where(np.arange(half + 1) % half, 2.0, 1.0).reshape(-1, *[1] * (taps.ndim - 2))
    edges = [whole[: half + 1, column] * once for column in (0, half)]
    inner = 2.0 * whole[:, 1:half].swapaxes(0, 1).reshape(-1, *taps.shape[2:])
    bins = np.concatenate([*edges, inner])
    return np.stack([bins.real, bins.imag], 1)


def _dense_spectra(layout: FftLayout, v: np.ndarray, w: np.ndarray) -> np.ndarray:
    real, imaginary = v[:, 0], v[:, 1]
    factors = [imaginary, real]
    if layout.products == 3:
        factors = [real, imaginary - real, -(real + imaginary)]
    stacked = np.stack(factors, 1).astype(w.dtype)  # (bins, pass, p, q, phase, c, k)
    packed = np.zeros((layout.conv.groups, layout.splits, layout.bins, layout.bin_weights), w.dtype)
    lanes_of_slice = layout.output_vectors * layout.lanes
    lanes_of_panel = layout.tile.vectors * layout.lanes
    for group, split in np.ndindex(layout.conv.groups, layout.splits):
        of_group = stacked[..., group * layout.conv.outputs : (group + 1) * layout.conv.outputs]
        outputs, place = of_group[..., split * lanes_of_slice : (split + 1) * lanes_of_slice], 0
        for first in range(0, lanes_of_slice, lanes_of_panel):
            width = min(lanes_of_panel, lanes_of_slice - first)
            some = outputs[..., first : first + width]
            panel = np.zeros((*some.shape[:-1], width), w.dtype)
            panel[..., : some.shape[-1]] = some
            flat = panel.reshape(layout.bins, -1)
            packed[group, split, :, place : place + flat.shape[1]] = flat
            place += flat.shape[1]
    return packed.reshape(-1)


# -- Winograd ----------------------------------------------------------------------------------
def _winograd(
    made_of: Mapping[str, Any], problem: Problem, w: np.ndarray, channels: Channels
) -> dict[str, np.ndarray]:
    shapes, flat, found = made_of["shapes"], problem.weights_3d(w)[:, :, 0], {}
    for piece, shape, product in zip(made_of["pieces"], shapes, made_of["products"], strict=True):
        rows, columns = (slice(*taps) for taps in piece.taps)
        part = flat[:, :, rows, columns]
        made = winograd_stream(shape, part) if product is None else _points(shape, product, part)
        found[piece.weights] = made
    first = shapes[0]
    for name, values in channels.items():
        width = first.panels * first.panel_lanes
        many = name == "quantisation"
        found[name] = values.reshape(-1) if many else in_groups(values, first.conv.outputs, width)
    return found | {name: table.reshape(-1) for name, table in made_of["offsets"].items()}


def winograd_stream(shape: WinogradShape, w: np.ndarray) -> np.ndarray:
    """U as a fused kernel reads it: [group][panel][what is kept of (point, step)][lane]."""
    u, width = winograd_points(shape, w), shape.panel_lanes
    padded = np.zeros((*u.shape[:3], shape.panels * width))
    padded[..., : shape.conv.outputs] = u
    rows = padded.reshape(shape.conv.groups, -1, shape.panels, width)[:, _kept(shape)]
    dot = shape.dot_group
    steps = rows.reshape(shape.conv.groups, -1, dot, shape.panels, width).transpose(0, 3, 1, 4, 2)
    return steps.astype(shape.transformed.numpy).reshape(-1)


def _points(shape: WinogradShape, product: PackedConv, w: np.ndarray) -> np.ndarray:
    """U as products in stages read it: [group][point], each as panels of a 1x1 convolution."""
    u = winograd_points(shape, w).astype(shape.transformed.numpy)
    u = u.reshape(-1, *u.shape[2:])
    flat = u.swapaxes(1, 2).reshape(-1, u.shape[1], 1, 1, 1)
    return packed_panels(with_conv(product, groups=len(u)), flat)


def winograd_points(shape: WinogradShape, w: np.ndarray) -> np.ndarray:
    """U = G g G^T of weights (K, C/g, kh, kw): (g, points, steps, K/g), float64."""
    g_h, g_w = (np.array(t.g, float) for t in shape.transforms())
    matrix = np.kron(g_h, g_w)
    u = [
        matrix @ _taps_first(shape, group).reshape(matrix.shape[1], -1)
        for group in w.reshape(shape.conv.groups, shape.conv.outputs, *w.shape[1:])
    ]
    return np.stack(u).reshape(shape.conv.groups, shape.points, shape.steps, shape.conv.outputs)


def _taps_first(shape: WinogradShape, w: np.ndarray) -> np.ndarray:
    """Weights (K, C, kh, kw) of a group as (taps of a phase, steps, K), float64."""
    (rh, rw), (ph, pw) = shape.taps, shape.stride
    channels = shape.reduction.inputs, len(w)
    padded = np.zeros((rh * ph, rw * pw, *channels))
    padded[: shape.kernel[0], : shape.kernel[1], : w.shape[1]] = w.transpose(2, 3, 1, 0)
    phased = padded.reshape(rh, ph, rw, pw, *channels)
    columns = shape.reduction.columns_per_group if shape.planar else shape.phases[1]
    phased = phased[:, : shape.phases[0], :, :columns]
    order = (0, 2, 1, 4, 3, 5) if shape.planar else (0, 2, 1, 3, 4, 5)
    return phased.transpose(order).reshape(rh * rw, shape.steps, len(w))


def _kept(shape: WinogradShape) -> np.ndarray:
    """Numbers of the (point, step) that U stores."""
    if shape.all_steps == shape.points * shape.steps:
        return np.arange(shape.all_steps)
    kept = [
        shape.reduction.kept_steps((rows.at_infinity, columns.at_infinity))
        + (i * shape.alpha[1] + j) * shape.steps
        for rows in shape.reduction.regions(0)
        for i in range(rows.first, rows.first + rows.points)
        for columns in shape.reduction.regions(1)
        for j in range(columns.first, columns.first + columns.points)
    ]
    return np.concatenate(kept)
