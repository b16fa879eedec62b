"""Convolution by tiled Fourier transforms: overlap-save, for large kernels.

    Y[tile, k, f] = sum over c of X[tile, c, f] · V[c, k, f]        for every frequency f

with X the T x T transform of a tile of the input, V that of the kernel (conjugated, computed once,
in float64), and the outputs a part of Y's inverse transform: a circular correlation is the wanted
one wherever the kernel does not wrap around. T is 16 or 32; a kernel that is too long for T is cut
into parts, each input tile still being transformed once (`fft_tiles`). `tile=image` transforms
whole images, as with a library's FFT: one tile, T of at most 256, only when asked for.

Within a tile every output depends, in rounding, on every input: an infinity or a NaN spoils the
outputs of its tile, not only those whose windows hold it.

A chunk takes a block of tiles all the way: transform, products by the micro-kernel, transform
back, epilogue. Its workspace belongs to the thread and does not grow with the image. (Zlateski and
others, ICS 2019, arXiv 1809.07851, and its follow-up on fusing tiles, arXiv 1912.02165; a kernel
in parts is the uniformly partitioned convolution of audio.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod, sqrt

import numpy as np

from leanconv.algorithms.fft.cost import Choices, best
from leanconv.algorithms.fft.layout import FftLayout
from leanconv.algorithms.fft.multiply import (
    bin_weights,
    multiply,
    pack_weights,
    reduction_steps,
    weight_elements,
)
from leanconv.algorithms.fft.tiles import least_length
from leanconv.algorithms.fft.transform import Transforms
from leanconv.algorithms.interface import Algorithm, Candidate, Parameters, single
from leanconv.algorithms.problem import Problem
from leanconv.codegen.emitter import Function
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.types import ELEMENT
from leanconv.dtypes import ROUNDOFF
from leanconv.errors import SpecError
from leanconv.target import Target

LENGTHS, PRODUCTS = (16, 32), (4, 3)
LONG = (64, 128, 256)  # asked for only: code of several thousand instructions


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
        """Groups (or vectors of channels) by slices of their outputs by blocks of tiles."""
        return self.layout.outer * self.layout.splits * prod(self.layout.blocks)

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
        grouped = np.zeros((layout.groups, layout.group_vectors * layout.lanes), values.dtype)
        grouped[:, : layout.outputs] = values.reshape(layout.groups, layout.outputs)
        return grouped.reshape(-1)

    def emit(self, target: Target) -> str:
        """Emit: for each chunk transform, multiply, transform back."""
        layout = self.layout
        e = Function(self.NAME)
        pointers = {name: e.pointer(i) for i, name in enumerate(self.operands)}
        with e.chunks(layout.outer, layout.splits, *layout.blocks) as (outer, part, *block):
            image, down, right = block
            transforms = Transforms(e, layout, pointers, outer, part, (image, down, right))
            transforms.forward()
            weights = (outer * layout.splits + part) * (layout.bins * bin_weights(layout))
            multiply(e, layout, pointers["w"].at(weights, ELEMENT[layout.dtype]))
            transforms.inverse()
        return e.finish()


# -- the algorithm -----------------------------------------------------------------------------
def error_of(layout: FftLayout) -> float:
    """Expected error relative to the largest output, for data of random sign.

    Roundings of the transforms spread evenly over a tile: a few units of the last place for each
    doubling of T, whatever the number of channels; those of the products are a random walk. On
    normal data the largest error was 0.3 to 0.4 of this.
    """
    doublings = 2 * (layout.length.bit_length() - 1)
    return ROUNDOFF[layout.dtype] * (4.0 + doublings / 2 + 0.65 * sqrt(reduction_steps(layout)))


def _reject(problem: Problem, target: Target) -> str | None:
    window = problem.window
    lanes = target.lanes(problem.spec.dtype)
    if window.kernel[0] != 1 or window.size[0] != 1 or window.out[0] != 1:
        return "there are three spatial axes; the transforms have two"
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
    return best(problem, target, Choices(LENGTHS, PRODUCTS))[0]


def _image_length(problem: Problem) -> int:
    """The transform that holds a whole image and what a window reaches over its end."""
    needed = max(least_length(problem.window, axis) for axis in (1, 2))
    length = next((n for n in LENGTHS + LONG if n >= needed), None)
    if length is None:
        raise SpecError(
            f"fft: tile=image would transform {needed} numbers along an axis; expected at most "
            f"{LONG[-1]}: leave tile out"
        )
    return length


def _choices(problem: Problem, parameters: Parameters) -> Choices:
    """What the parameters leave to choose from."""
    if parameters.get("tile") == "image":
        length = str(_image_length(problem))
        return _choices(problem, {"parts": "1x1", **parameters, "tile": length})

    def numbers(name: str, known: tuple[int, ...], more: tuple[object, ...]) -> tuple[int, ...]:
        text = parameters.get(name)
        if text is None:
            return known
        if text not in map(str, known + more):
            expected = ", ".join(map(str, known + more))
            raise SpecError(f"fft: {name} is {text!r}; expected one of {expected}")
        return (int(text),)

    parts = None
    if "parts" in parameters:
        fields = parameters["parts"].split("x")
        if len(fields) != 2 or not all(f.isdecimal() for f in fields):
            raise SpecError(f"fft: parts is {parameters['parts']!r}; expected two such as 1x2")
        parts = int(fields[0]), int(fields[1])
    lengths = numbers("tile", LENGTHS, (*LONG, "image"))
    return Choices(lengths, numbers("products", PRODUCTS, ()), parts)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    if parameters.get("products") == "3" and problem.group_inputs == 1 < problem.spec.groups:
        raise SpecError(
            "fft: products is 3 for a depthwise convolution, which it saves nothing; expected 4, "
            "or leave it out"
        )
    layout = best(problem, target, _choices(problem, parameters))[1]
    kernel = FftConv(layout)

    def pack(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        packed = {name: kernel.pack_channels(values) for name, values in channels.items()}
        w = w.reshape(*w.shape[:2], *problem.window.kernel[1:])
        return {"w": pack_weights(layout, w), **packed}

    parts = "x".join(map(str, layout.parts))
    text = (
        f"tile {layout.length}, outputs {layout.height.step}x{layout.width.step}, "
        f"parts {parts}, block {layout.block_height}x{layout.block_width}, "
        f"slices {layout.splits}, products {layout.products}"
    )
    arithmetic = f"fft:tile={layout.length},products={layout.products},parts={parts}"
    made = single("fft", kernel, pack, error_of(layout), text, arithmetic)
    return replace(made, weight_bytes=weight_elements(layout) * layout.item)


def _worth_asking(problem: Problem) -> bool:
    """Enough channels, or taps, to pay for transforms."""
    kernel = problem.window.kernel[1:]
    return min(kernel) >= 3 and (
        min(problem.group_inputs, problem.group_outputs) >= 16 or min(kernel) >= 9
    )


_PARAMETERS = ("tile", "products", "parts")
FFT = Algorithm("fft", _PARAMETERS, _reject, _cost, _candidate, worth_asking=_worth_asking)
