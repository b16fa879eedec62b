"""The codes of a layer's weights: the nearest, or those by which its result errs least.

Rounding every weight to the nearest code makes errors that add up where the inputs of a sum go up
and down together. Here the codes of an output channel are chosen one weight after the other; what
the rounding of one leaves is taken over by those that are still free:

    minimise |(Q - W) X|^2,    X X^T = H from the samples

by the elimination of "GPTQ" (Frantar et al., 2022, algorithm 1), which follows "Optimal brain
surgeon" (Hassibi and Stork, 1993): with U the upper Cholesky factor of H^-1, the error of weight i,
(w_i - q_i) / U_ii, is passed on to the later ones by row i of U. Weights of largest H_ii go first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from leanconv.errors import ModelError, shown
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.graph.onnx_nodes import attribute
from leanconv.graph.ops.base import Array
from leanconv.progress import steps
from leanconv.quantizer.codes import (
    MOST,
    Codes,
    WeightCodes,
    scales_for_bias,
    weight_codes,
    weight_scales,
)
from leanconv.quantizer.float_network import network_of
from leanconv.quantizer.layers import Layer
from leanconv.quantizer.samples import Samples
from leanconv.records import dataclass
from leanconv.types import MOST_OF_TWO

_DAMPING = 0.01  # of the mean of H's diagonal, added to it
_MOST_INPUTS = 2304  # weights of an output channel; beyond, the elimination takes too long
_READ = 1 << 20  # numbers of a sample that a layer's moments are made of, about
_FEWEST, _MOST_PLACES = 32, 1024  # places that these are of


def layer_codes(
    layer: Layer, values: Mapping[str, Codes], least_error: bool, order: Array | None
) -> WeightCodes:
    """The nearest codes of a layer's weights.

    Args:
        layer: with its weights.
        values: codes of what layers read, by the values' names.
        least_error, order: as of `weight_scales`.

    Raises:
        ModelError: a weight is not finite.
    """
    weights = layer.by_channel()
    bias = layer.bias
    if not np.isfinite(weights).all() or not (bias is None or np.isfinite(bias).all()):
        raise ModelError(
            f"node {shown(layer.name)!r} has weights that are NaN or infinite; expected finite ones"
        )
    read = values[layer.node.inputs[0]]
    scales = scales_for_bias(weight_scales(weights, least_error, order), bias, read.scale)
    return weight_codes(weights, scales, order)


@dataclass(frozen=True)
class Windows:
    """The inputs of a layer's sums, as columns, one for each place of the output.

    Attributes:
        groups: their number; channels of each are summed by themselves.
        channels: of the input.
        taps, strides, dilations, pads: of a convolution (pads: before and behind, for each axis);
            None for a product with a matrix.
    """

    groups: int
    channels: int
    taps: tuple[int, ...] | None = None
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, layer: Layer) -> Windows | None:
        """Return the windows of a layer; None if transposed, or if padding follows from sizes."""
        node, channels = layer.node, layer.input_channels
        if node.op != "Conv":
            return None if layer.transposed else cls(1, channels)
        taps = tuple(layer.weights.shape[2:])
        rank = len(taps)
        ones = (1,) * rank
        pads = attribute(node, "pads", ()) or (0,) * (2 * rank)
        padding = attribute(node, "auto_pad", "NOTSET")
        if padding not in ("NOTSET", "VALID") or len(pads) != 2 * rank:
            return None
        strides = attribute(node, "strides", ()) or ones
        dilations = attribute(node, "dilations", ()) or ones
        if len(strides) != rank or len(dilations) != rank or min(pads) < 0:
            return None
        both = tuple((pads[axis], pads[axis + rank]) for axis in range(rank))
        return cls(layer.groups, channels, taps, strides, dilations, both)

    def patches(self, values: Array, most: int) -> Array:
        """Return the inputs of the sums at some places, float32 `(groups, n, places)`.

        Args:
            values: the layer's input.
            most: how many places, spread evenly.
        """
        if self.taps is None:
            rows = values.reshape(-1, values.shape[-1])
            some = rows[:: max(1, len(rows) // most)][:most]
            return np.ascontiguousarray(some.T)[None]
        rank = len(self.taps)
        padded = np.pad(values, ((0, 0), (0, 0), *self.pads))
        reach = tuple((t - 1) * d + 1 for t, d in zip(self.taps, self.dilations, strict=True))
        windows = sliding_window_view(padded, reach, tuple(range(2, 2 + rank)))
        steps = tuple(slice(None, None, stride) for stride in self.strides)
        holes = tuple(slice(None, None, dilation) for dilation in self.dilations)
        strided: Any = (slice(None), slice(None), *steps, *holes)
        windows = windows[strided]
        shape = windows.shape[2 : 2 + rank]
        count = len(values) * int(np.prod(shape))
        places = np.arange(count)[:: max(1, count // most)][:most]
        image, *where = np.unravel_index(places, (len(values), *shape))
        chosen: Any = (image, slice(None), *where)
        found = windows[chosen]  # (places, channels, *taps)
        grouped = found.reshape(len(places), self.groups, -1)
        return np.ascontiguousarray(np.moveaxis(grouped, 0, 2), np.float32)


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of the inputs of a layer's sums on samples.

    Attributes:
        products: H, `(groups, n, n)`, the mean over places.
        mean, rounded_mean: of the inputs, and of the numbers that their codes stand for,
            `(groups, n)`.
    """

    products: Array
    mean: Array
    rounded_mean: Array

    @classmethod
    def zeros(cls, groups: int, count: int) -> Moments:
        """Return the moments of no samples."""
        return cls(
            np.zeros((groups, count, count)), np.zeros((groups, count)), np.zeros((groups, count))
        )

    def add(self, rows: Array, rounded: Array, share: float) -> None:
        """Add a sample `(groups, n, places)` that counts by a share."""
        with np.errstate(all="ignore"):  # samples may be large: such layers are not rounded
            products = np.matmul(rows, np.swapaxes(rows, 1, 2))
            np.add(self.products, products * (share / max(1, rows.shape[2])), out=self.products)
            np.add(self.mean, rows.mean(axis=2) * share, out=self.mean)
            np.add(self.rounded_mean, rounded.mean(axis=2) * share, out=self.rounded_mean)


def moments(
    graph: OnnxGraph,
    layers: Mapping[str, Layer],
    codes: Mapping[str, Codes],
    samples: Samples,
    threads: int | None,
) -> dict[str, Moments]:
    """Return the moments of each layer by its name, from its inputs in a network in float32.

    Args:
        graph: the network that is run.
        layers: by name; ones whose sums are too long, or that read in a way that is not known, are
            left out.
        codes: of the values that they read.
        samples: on which it is run.
        threads: of runs.
    """
    found: dict[str, Moments] = {}
    readers: dict[str, list[tuple[str, Windows]]] = {}
    for name, layer in layers.items():
        window = Windows.of(layer)
        count = layer.by_channel().shape[1]
        if window is not None and count <= _MOST_INPUTS:
            found[name] = Moments.zeros(window.groups, count)
            readers.setdefault(layer.node.inputs[0], []).append((name, window))
    inner = [name for name in readers if name not in graph.inputs]
    network = network_of(graph, inner, threads) if inner else None
    for sample in steps("looking at inputs of layers", samples, len(samples)):
        values = {**sample, **(network.run(sample) if network else {})}
        for value, several in readers.items():
            for name, window in several:
                seen = found[name]
                places = min(max(_FEWEST, _READ // seen.mean.size), _MOST_PLACES)
                rows = window.patches(values[value], places)
                seen.add(rows, codes[value].rounded(rows), 1.0 / len(samples))
    return found


def corrected_bias(layer: Layer, made: WeightCodes, seen: Moments) -> Array:
    """A bias that makes the mean of each output channel that of float32, float32 `(channels,)`.

    The mean of the outputs of exact weights and inputs, less that of the codes': "bias correction"
    (Nagel et al., 2019, section 4.2), with means from samples.
    """
    groups, count = seen.mean.shape
    exact = layer.by_channel().astype(np.float64).reshape(groups, -1, count)
    codes = made.values.astype(np.float64).reshape(groups, -1, count)
    shift = np.einsum("gkn,gn->gk", exact, seen.mean) - np.einsum(
        "gkn,gn->gk", codes, seen.rounded_mean
    )
    bias = np.zeros(layer.channels) if layer.bias is None else layer.bias
    return np.asarray(bias + shift.reshape(-1), np.float32)


def rounded_codes(
    layer: Layer, scales: Array, moment: Array, order: Array | None = None
) -> WeightCodes:
    """Codes of a layer's weights.

    Args:
        layer: with its weights.
        scales: of its output channels.
        moment: of its inputs, `(groups, n, n)`.
        order: of weights of a channel, where codes beside each other are `limited`.
    """
    rows = layer.by_channel().astype(np.float64)
    groups = len(moment)
    parts = rows.reshape(groups, -1, rows.shape[1])
    steps_of = scales.astype(np.float64).reshape(groups, -1)
    codes = np.empty(parts.shape, np.int8)
    for group in range(groups):
        codes[group] = _eliminated(parts[group], steps_of[group], moment[group], order)
    return WeightCodes(codes.reshape(rows.shape), scales)


def _eliminated(weights: Array, scales: Array, moment: Array, limited: Array | None) -> Array:
    """Codes int8 `(k, n)` of weights `(k, n)`."""
    count = weights.shape[1]
    diagonal = np.diag(moment).copy()
    mean = diagonal.mean()
    nearest = weight_codes(weights, scales, limited).codes
    if not (mean > 0 and np.isfinite(mean)):
        return nearest
    order = np.argsort(-diagonal, kind="stable")
    damped = moment[np.ix_(order, order)] + np.eye(count) * (_DAMPING * mean)
    try:
        upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    except np.linalg.LinAlgError:
        return nearest
    left = weights[:, order].copy()
    chosen = _Chosen(len(weights), count, limited)
    for i in range(count):
        codes = chosen.choose(int(order[i]), left[:, i] / scales)
        error = (left[:, i] - codes * scales) / upper[i, i]
        left[:, i + 1 :] -= error[:, None] * upper[i, i + 1 :]
    result = chosen.codes
    before, after = (_loss(each, weights, scales, moment) for each in (nearest, result))
    better = after < before
    return np.where(better[:, None], result, nearest).astype(np.int8)


class _Chosen:
    """Codes chosen one place after the other, in an order, each within what neighbours leave."""

    def __init__(self, rows: int, count: int, order: Array | None) -> None:
        self._order = np.arange(count) if order is None else order
        self._free = order is None
        self._place = np.argsort(self._order) + 1
        self._found = np.zeros((rows, count + 2))  # in that order, between zeros

    def choose(self, place: int, wanted: Array) -> Array:
        """Choose the codes of a place, the nearest ones to some numbers."""
        at = int(self._place[place])
        codes = np.clip(np.rint(wanted), -MOST, MOST)
        if not self._free:
            beside = self._found[:, [at - 1, at + 1]]
            low, high = beside.min(axis=1), beside.max(axis=1)
            codes = np.clip(
                codes, -MOST_OF_TWO - np.minimum(low, 0), MOST_OF_TWO - np.maximum(high, 0)
            )
        self._found[:, at] = codes
        return codes

    @property
    def codes(self) -> Array:
        return np.asarray(self._found[:, self._place])


def _loss(codes: Array, weights: Array, scales: Array, moment: Array) -> Array:
    """Return the squared error of each output channel, `(k,)`: d H d^T."""
    difference = codes * scales[:, None] - weights
    return np.asarray(((difference @ moment) * difference).sum(axis=1))
