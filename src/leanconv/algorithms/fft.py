"""Convolution by tiled Fourier transforms: overlap-save, for large kernels.

    Y[tile, k, f] = sum over c of X[tile, c, f] · V[c, k, f]        for every frequency f

with X the T x T transform of a tile of the input, V that of the kernel (conjugated, computed once,
in float64), and the outputs a part of Y's inverse transform: a circular correlation is the wanted
one wherever the kernel does not wrap around. T is 16 or 32; a kernel that is too long for T is cut
into parts, each input tile still being transformed once (`fft_tiles`).

A chunk takes a block of tiles all the way: transform, products by the micro-kernel, transform
back, epilogue. Its workspace belongs to the thread and does not grow with the image. (Zlateski and
others, ICS 2019, arXiv 1809.07851, and its follow-up on fusing tiles, arXiv 1912.02165; a kernel
in parts is the uniformly partitioned convolution of audio.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from leanconv.algorithms.fft_layout import FftLayout
from leanconv.algorithms.fft_multiply import (
    bin_weights,
    multiply,
    pack_weights,
    reduction_steps,
    weight_elements,
)
from leanconv.algorithms.fft_tiles import Axis, axes_of, obstacle
from leanconv.algorithms.fft_transform import Transforms
from leanconv.algorithms.problem import Algorithm, Candidate, Parameters, Problem, single
from leanconv.codegen.emitter import Function
from leanconv.codegen.fft import (
    Network,
    complex_forward,
    complex_inverse,
    real_forward,
    real_inverse,
)
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tiling import Tile, rank_tiles
from leanconv.codegen.types import ELEMENT, ROUNDOFF
from leanconv.errors import SpecError
from leanconv.spec.format import ceil_div
from leanconv.target import Target

LENGTHS = (16, 32)
_MOVE = 0.7  # cycles of a vector that a transform loads or stores
_TURN = 5.0  # cycles of a vector that is turned between planes and lanes
_BYTES_A_CYCLE = (32.0, 12.0, 5.0)  # from the second cache, the third, memory
_MOST_TILES = 32  # tiles of one block
_MOST_BYTES = 8 * 1024 * 1024  # workspace of one thread, unless a single tile needs more
_CHUNKS = 4  # chunks wanted at least, so that threads have work


@dataclass(frozen=True)
class FftConv(Kernel):
    """One convolution's code: a chunk is a block of tiles of one group."""

    layout: FftLayout

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, transformed weights, what the epilogue needs, output."""
        return ("x", "w", *self.layout.epilogue.operands, "y")

    @property
    def chunks(self) -> int:
        """Groups (or vectors of channels) by blocks of tiles."""
        return self.layout.outer * prod(self.layout.blocks)

    @property
    def scratch_bytes(self) -> int:
        """The bins of a block, one half-transformed tile, one row."""
        return self.layout.places[2] * self.layout.item

    @property
    def flops(self) -> int:
        """Operations of the plain sum, padding counted, as for every algorithm."""
        layout = self.layout
        taps = layout.height.kernel * layout.width.kernel * layout.inputs
        outputs = layout.batch * layout.groups * layout.outputs
        return 2 * outputs * layout.height.out * layout.width.out * taps

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """Pack one number for each output channel (bias, slope), zero past a group's last."""
        layout = self.layout
        if layout.depthwise:
            packed = np.zeros(layout.outer * layout.lanes, values.dtype)
            packed[: layout.groups] = values
            return packed
        grouped = np.zeros((layout.groups, layout.output_vectors * layout.lanes), values.dtype)
        grouped[:, : layout.outputs] = values.reshape(layout.groups, layout.outputs)
        return grouped.reshape(-1)

    def emit(self, target: Target) -> str:
        """Emit: for each chunk transform, multiply, transform back."""
        layout = self.layout
        e = Function(self.NAME)
        pointers = {name: e.pointer(i) for i, name in enumerate(self.operands)}
        with e.chunks(layout.outer, *layout.blocks) as (outer, image, down, right):
            transforms = Transforms(e, layout, pointers, outer, (image, down, right))
            transforms.forward()
            weights = outer * (layout.bins * bin_weights(layout))
            multiply(e, layout, pointers["w"].at(weights, ELEMENT[layout.dtype]))
            transforms.inverse()
        return e.finish()


# -- choice ------------------------------------------------------------------------------------
def _blocks(height: Axis, width: Axis, images: int) -> Iterator[tuple[int, int]]:
    """Blocks of tiles worth considering."""
    if (height.parts, width.parts) == (1, 1):
        total = images * height.tiles * width.tiles
        sizes = {ceil_div(total, ceil_div(total, r)) for r in range(1, _MOST_TILES + 1)}
        yield from ((1, r) for r in sorted(sizes))
        return
    downs = {ceil_div(height.tiles, n) for n in range(1, height.tiles + 1)}
    acrosses = {ceil_div(width.tiles, n) for n in range(1, width.tiles + 1)}
    for down in sorted(downs):
        yield from ((down, a) for a in sorted(acrosses) if down * a <= _MOST_TILES)


def _layouts(
    problem: Problem, target: Target, lengths: tuple[int, ...], products: tuple[int, ...]
) -> Iterator[FftLayout]:
    """Every choice of tile, parts, block and products for a problem."""
    spec, window = problem.spec, problem.window
    depthwise = problem.group_inputs == problem.group_outputs == 1 and spec.groups > 1
    for length in lengths:
        for height in axes_of(window, 1, length):
            for width in axes_of(window, 2, length):
                images = spec.batch * height.classes * width.classes
                for down, across in _blocks(height, width, images):
                    for count in (4,) if depthwise else products:
                        layout = FftLayout(
                            batch=spec.batch,
                            groups=spec.groups,
                            inputs=problem.group_inputs,
                            outputs=problem.group_outputs,
                            depthwise=depthwise,
                            height=height,
                            width=width,
                            x=problem.x,
                            y=problem.y,
                            dtype=spec.dtype,
                            lanes=target.lanes(spec.dtype),
                            block_height=down,
                            block_width=across,
                            products=count,
                            tile=Tile(1, 1),
                            epilogue=problem.epilogue,
                        )
                        yield replace(layout, tile=_tile(layout, target)[1])


def _tile(layout: FftLayout, target: Target) -> tuple[float, Tile]:
    """Cycles of one reduction over a line of tiles, and the register tile for it."""
    if layout.depthwise:
        return 0.0, Tile(1, 1)
    rows_each = 2 if layout.products == 4 else 1
    steps = reduction_steps(layout) * (2 if layout.products == 4 else 3)
    rows = layout.block_width * rows_each
    ranked = rank_tiles(target, rows, layout.output_vectors, steps)
    return next((c, tile) for c, tile in ranked if tile.rows % rows_each == 0)


def _network_cycles(target: Target, network: Network) -> float:
    moved = network.inputs + len(network.outputs)
    return network.operations / target.fma_units + _MOVE * moved


def _transform_cycles(layout: FftLayout, target: Target) -> tuple[float, float]:
    """Estimated cycles of one vector of channels of one tile, forwards and back."""
    length, half = layout.length, layout.length // 2
    kept, step = layout.height.step, layout.width.step
    forward = (length + 2) * _network_cycles(target, real_forward(length))
    forward += (half - 1) * _network_cycles(target, complex_forward(length))
    back = 2 * _network_cycles(target, real_inverse(length, kept))
    back += (half - 1) * _network_cycles(target, complex_inverse(length, kept))
    back += kept * _network_cycles(target, real_inverse(length, step))
    if not layout.x.lanes_contiguous:
        forward += _TURN * length * length
    if not layout.y.lanes_contiguous:
        back += _TURN * kept * step
    return forward, back


def _cycles(layout: FftLayout, target: Target) -> float:
    """Estimated cycles of one core."""
    forward, back = _transform_cycles(layout, target)
    one = layout.input_tiles * layout.phases * layout.input_vectors * forward
    one += layout.output_tiles * layout.output_vectors * back
    if layout.depthwise:
        terms = layout.phases * prod(layout.parts)
        products = layout.output_tiles * (4.0 * terms / target.fma_units + 4.0)
    else:
        products = layout.block_height * _tile(layout, target)[0]
    weights = bin_weights(layout) * layout.item
    everything = weight_elements(layout) * layout.item
    in_l2, in_l3, in_memory = _BYTES_A_CYCLE
    speed = in_l2 if everything < target.l2_bytes / 2 else in_l3
    speed = in_memory if everything > max(target.l3_bytes, target.l2_bytes) else speed
    one += layout.bins * max(products, weights / speed)
    buffer = layout.bins * layout.slot * layout.item
    if buffer > 0.75 * target.l2_bytes:
        one += 4.0 * buffer / in_l3  # written and read twice, beyond the second cache
    return one * layout.outer * prod(layout.blocks)


def _best(
    problem: Problem, target: Target, lengths: tuple[int, ...], products: tuple[int, ...]
) -> tuple[float, FftLayout]:
    """The cheapest choice; blocks too few for several threads, or too large, count as dearer."""

    def rank(choice: tuple[float, FftLayout]) -> float:
        cycles, layout = choice
        chunks = layout.outer * prod(layout.blocks)
        rounds = ceil_div(chunks, _CHUNKS) * _CHUNKS / chunks if chunks < 4 * _CHUNKS else 1.0
        large = layout.output_tiles > 1 and layout.places[2] * layout.item > _MOST_BYTES
        return cycles * rounds * (4.0 if large else 1.0)

    choices = ((_cycles(a, target), a) for a in _layouts(problem, target, lengths, products))
    return min(choices, key=rank)


# -- the algorithm -----------------------------------------------------------------------------
def error_of(layout: FftLayout) -> float:
    """Expected error relative to the largest output, for data of random sign.

    Roundings of the transforms spread evenly over a tile: a few units of the last place for each
    doubling of T, whatever the number of channels; those of the products are a random walk.
    """
    doublings = 2 * (layout.length.bit_length() - 1)
    return ROUNDOFF[layout.dtype] * (4.0 + 0.5 * doublings + 1.0 * reduction_steps(layout) ** 0.5)


def _reject(problem: Problem, target: Target) -> str | None:
    window = problem.window
    lanes = target.lanes(problem.spec.dtype)
    if window.kernel[0] != 1 or window.size[0] != 1 or window.out[0] != 1:
        return "there are three spatial axes; the transforms have two"
    if problem.y_offset:
        return "the output is written with an offset"
    for axis in (1, 2):
        reason = obstacle(window, axis)
        if reason:
            return reason
    depthwise = problem.group_inputs == problem.group_outputs == 1
    for access, channels, side in (
        (problem.x, problem.group_inputs, "input"),
        (problem.y, problem.group_outputs, "output"),
    ):
        if access.block not in (1, lanes):
            return f"channels stand in blocks of {access.block}; a vector has {lanes}"
        if problem.spec.groups > 1 and channels % access.block and not depthwise:
            return (
                f"groups of {channels} {side} channels do not fill blocks of {access.block} "
                "channels"
            )
    return None


def _cost(problem: Problem, target: Target) -> float:
    return _best(problem, target, LENGTHS, (4,))[0]


def _numbers(parameters: Parameters, name: str, known: tuple[int, ...]) -> tuple[int, ...]:
    """The values of a parameter to choose from: all that are known, or the one that is given."""
    if name not in parameters:
        return known
    text = parameters[name]
    if text not in map(str, known):
        hint = "; whole images are transformed by leanconv.reference only"
        raise SpecError(
            f"fft: {name} is {text!r}; expected one of {', '.join(map(str, known))}"
            + (hint if text == "whole" else "")
        )
    return (int(text),)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    lengths = _numbers(parameters, "tile", LENGTHS)
    products = _numbers(parameters, "products", (4, 3)) if "products" in parameters else (4,)
    layout = _best(problem, target, lengths, products)[1]
    kernel = FftConv(layout)

    def pack(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        packed = {name: kernel.pack_channels(values) for name, values in channels.items()}
        w = w.reshape(*w.shape[:2], *problem.window.kernel[1:])
        return {"w": pack_weights(layout, w), **packed}

    parts = "x".join(map(str, layout.parts))
    text = (
        f"tile {layout.length}, outputs {layout.height.step}x{layout.width.step}, "
        f"parts {parts}, block {layout.block_height}x{layout.block_width}, "
        f"products {layout.products}"
    )
    return single("fft", kernel, pack, error_of(layout), text)


FFT = Algorithm("fft", ("tile", "products"), _reject, _cost, _candidate, automatic=False)
