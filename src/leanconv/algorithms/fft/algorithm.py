"""FFT convolution as a method: transforms, parts of a kernel, what it refuses, its error."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from operator import itemgetter

import numpy as np

from leanconv.algorithms.fft.cost import Choices, best, best_plane
from leanconv.algorithms.fft.kernel import FftConv
from leanconv.algorithms.fft.layout import FftLayout, PlaneLayout, lanes_are_tiles
from leanconv.algorithms.fft.overlap_save import least_length
from leanconv.algorithms.fft.packing import weight_calls
from leanconv.algorithms.fft.plane_kernel import FftPlanes
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse, channel_calls
from leanconv.algorithms.magnitudes import LARGEST, Losses, plain_losses
from leanconv.algorithms.parameters import PARTS, Choice, Kind, Parameters, one_of, parameter
from leanconv.algorithms.problem import Problem
from leanconv.codegen.lowered import PackCall
from leanconv.errors import SpecError
from leanconv.records import dataclass
from leanconv.target import Target

LENGTHS, PRODUCTS = (16, 32), (4, 3)
LONG = (64, 128, 256)  # only where the user names them: code of several thousand instructions
PLANE_LENGTHS = (*LENGTHS, 64, 128, 256)  # where lanes are tiles
_LEAST_LENGTH = 2  # transforms beyond this multiple of the taps: code that compiles long
_MANY_TAPS = 81  # transforms pay for them whatever the number of channels

_Layout = FftLayout | PlaneLayout


def error_of(layout: _Layout) -> float:
    """Expected error relative to the largest output, for data of random sign.

    Roundings of the transforms spread evenly over a tile: a few units of the last place for each
    doubling of T, whatever the number of channels; those of the products are a random walk. On
    normal data the largest error was 0.3 to 0.4 of this.
    """
    doublings = 2 * (layout.length.bit_length() - 1)
    return layout.conv.dtype.roundoff * (4.0 + doublings / 2 + 0.65 * sqrt(layout.reduction_steps))


def _losses(problem: Problem, layout: _Layout) -> Losses:
    """Products are T times smaller than results, transformed inputs up to T^2 times larger.

    A transform of T inputs is taken along each axis; weights are divided by T^2, and sums of two
    of them are factors where a complex product is three multiplications.
    """
    plain, length = plain_losses(problem), float(layout.length)
    sums = 2 * LARGEST * layout.reduction_steps * length**3
    return Losses(sums, 2 * plain.inputs, 4 * length**2, transforms=True)


def _reject(problem: Problem, target: Target) -> str | None:
    conv, window = problem.conv, problem.conv.window
    lanes = conv.lanes(target)
    if not window.is_flat:
        return "there are three spatial axes; the transforms have two"
    depthwise = conv.inputs == conv.outputs == 1
    for access, channels, side in (
        (conv.x, conv.inputs, "input"),
        (conv.y, conv.outputs, "output"),
    ):
        if access.block not in (1, lanes):
            return f"channels lie in blocks of {access.block}; a vector has {lanes}"
        if conv.groups > 1 and channels % access.block and not depthwise:
            return (
                f"groups of {channels} {side} channels do not fill blocks of {access.block} "
                "channels"
            )
    return None


def _cost(problem: Problem, target: Target) -> float:
    return _layout(problem, target, FftParameters())[0]


def _layout(problem: Problem, target: Target, given: FftParameters) -> tuple[float, _Layout]:
    """Cycles, and the cheapest layout with the choices that the parameters leave open."""
    if given.tile != "image" and given.products != 3 and lanes_are_tiles(problem, target):
        return best_plane(problem, target, _choices(problem, given, _plane_lengths(problem)))
    return best(problem, target, _choices(problem, given, LENGTHS))


def _plane_lengths(problem: Problem) -> tuple[int, ...]:
    """Lengths up to the first of which a tile's outputs are a quarter at least."""
    taps = max(problem.conv.window.kernel)
    least = next((n for n in PLANE_LENGTHS if n >= _LEAST_LENGTH * taps), PLANE_LENGTHS[-1])
    return tuple(n for n in PLANE_LENGTHS if n <= least)


def _variants(problem: Problem, target: Target, lean: bool) -> list[Choice]:
    """Each length that planes may have, the cheapest first; else the one best choice."""
    del lean
    given = [FftParameters()]
    if lanes_are_tiles(problem, target):
        given = [FftParameters(tile=length) for length in _plane_lengths(problem)]
    found = [(_layout(problem, target, each)[0], each) for each in given]
    return [Choice("fft", each, cycles) for cycles, each in sorted(found, key=itemgetter(0))]


def _image_length(problem: Problem) -> int:
    """Length of the transform that holds a whole image and a window's reach over its end."""
    needed = max(least_length(problem.conv.window, axis) for axis in (1, 2))
    length = next((n for n in LENGTHS + LONG if n >= needed), None)
    if length is None:
        raise SpecError(
            f"fft: tile=image would transform {needed} numbers along an axis; expected at most "
            f"{LONG[-1]}: leave tile out"
        )
    return length


_LENGTH_OR_IMAGE: Kind[int | str] = one_of(*LENGTHS, *LONG, "image")


@dataclass(frozen=True)
class FftParameters(Parameters):
    """Length of the transform, multiplications of a complex product, parts of the kernel (h, w)."""

    tile: int | str | None = parameter(_LENGTH_OR_IMAGE)
    products: int | None = parameter(one_of(*PRODUCTS))
    parts: tuple[int, int] | None = parameter(PARTS)


def _choices(problem: Problem, given: FftParameters, lengths: tuple[int, ...]) -> Choices:
    """Return the lengths, products and parts that the parameters leave open."""
    products = (given.products,) if given.products else PRODUCTS
    if isinstance(given.tile, str):
        return Choices((_image_length(problem),), products, given.parts or (1, 1))
    return Choices((given.tile,) if given.tile else lengths, products, given.parts)


def _candidate(problem: Problem, target: Target, parameters: FftParameters) -> Candidate:
    conv = problem.conv
    if parameters.products == 3 and conv.inputs == 1 < conv.groups:
        raise SpecError(
            "fft: products is 3 for a depthwise convolution, which it saves nothing; expected 4, "
            "or leave it out"
        )
    layout = _layout(problem, target, parameters)[1]
    kernel = FftPlanes(layout) if isinstance(layout, PlaneLayout) else FftConv(layout)

    def packing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        w = w.reshape(*w.shape[:2], *conv.window.kernel[1:])
        return {"w": weight_calls(kernel.layout, w), **channel_calls(kernel, channels)}

    details = (
        f"tile {layout.length}, outputs {layout.height.step}x{layout.width.step}, "
        f"parts {layout.height.parts}x{layout.width.parts}, "
    )
    if isinstance(layout, PlaneLayout):
        details += f"lanes are tiles, {layout.vectors} vectors of a channel"
    else:
        details += (
            f"block {layout.block_height}x{layout.block_width}, "
            f"slices {layout.splits}, products {layout.products}"
        )
    chosen = FftParameters(layout.length, layout.products, layout.parts)
    return Candidate(
        Choice("fft", chosen, error=error_of(layout)),
        (KernelUse(kernel, kernel.operands),),
        packing,
        details=details,
        weight_bytes=layout.weight_elements * layout.item,
        losses=_losses(problem, layout),
    )


def _plausible(problem: Problem) -> bool:
    """Enough channels, or taps, to pay for transforms."""
    conv = problem.conv
    kernel = conv.window.kernel[1:]
    many = min(conv.inputs, conv.outputs) >= 16 or prod(kernel) >= _MANY_TAPS
    return min(kernel) >= 3 and many


FFT = Algorithm(
    "fft",
    FftParameters,
    _reject,
    _cost,
    _candidate,
    plausible=_plausible,
    choices=_variants,
    transforms=True,
)
