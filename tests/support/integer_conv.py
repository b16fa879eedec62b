"""Convolutions of integers in blocks of channels, run and held to the definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms import select
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.magnitudes import PairTraits, sum_bits
from leanconv.algorithms.problem import Problem
from leanconv.codegen.dot import fitting_lanes
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import check_runs_here, host
from leanconv.errors import SpecError
from leanconv.graph.ops.quantised_layers import numbers_of, requantised
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec, Format
from leanconv.spec.requantise import Quantisation, ResidualCodes
from leanconv.target import PRESETS, Target
from leanconv.types import INT8, INT16, INT32, UINT8, DType, Precision
from support.kernel_runner import run_kernel
from support.packing import packed_constants

U8S8 = Precision(UINT8, INT8, INT32, INT32)
S8S8 = Precision(INT8, INT8, INT32, INT32)
U8U8 = Precision(UINT8, UINT8, INT32, INT32)
S16 = Precision(INT16, INT16, INT32, INT32)

_SPREAD = 1e-4  # scales of the sums of random bytes, by which some codes are clamped, some are not

SHAPES = [
    "ic1ih1iw1oc1oh1ow1kh1",
    "ic3ih9iw11oc5oh9ow11kh3ph1pw1",  # one group, of which a channel is padded
    "ic16ih7iw9oc16oh7ow9kh1",
    "ic17ih5iw7oc33oh5ow7kh3ph1pw1",  # a block of one channel, a vector of one
    "ic20ih13iw15oc48oh7ow8kh3sh2sw2ph1pw1",
    "ic18ih8iw19oc7oh4ow7kh5kw3sh2sw3ph2pw2",
    "mb3ic70ih1iw1oc40oh1ow1kh1",
    "mb2ic200ih4iw31oc65oh4ow31kh1",  # more products than a partial sum of floats has
    "ic40ih6iw33oc24oh6ow33kh3kw7ph1pw3",
    "mb2ic40ih9iw7oc24oh6ow7kh4kw1",  # one tap wide: rows are merged
    "g2ic32ih5iw6oc64oh5ow6kh3ph1pw1",
]
# Two that lie beside each other and fit, by the thinnest margin where they can.
FITTING = [(64, 64), (127, 1), (1, 127), (128 - 1, -128), (-128, 127), (-128, 0), (-127, -1)]
EXCEEDING = [(65, 64), (127, 2), (-128, -1), (-64, -65), (127, 127), (-128, -128)]
# Of two groups, two that lie beside each other of each.
FITTING_FOURS = [(32, 32, 32, 32), (64, 64, 0, 0), (127, -128, 1, 0), (-64, -64, 127, 1)]
EXCEEDING_FOURS = [(64, 64, 1, 0), (64, 64, 64, 64), (-128, 127, -1, -1), (-128, 0, 0, -128)]


def runnable() -> list[Any]:
    """This machine, one without a register of groups, a preset of each other instruction set.

    Machines of equal instructions and units differ by what decides, which other tests hold. The
    first two are not run again where this machine is taken for another, which is among the presets.
    """
    targets: list[Target] = [host(), replace(host(), name="no-vnni", extensions=())]
    found = [pytest.param(target, marks=pytest.mark.once) for target in targets]
    for target in PRESETS.values():
        try:
            check_runs_here(target)
        except SpecError:
            continue
        if all(_instructions(target) != _instructions(each) for each in targets):
            targets.append(target)
            found.append(pytest.param(target, marks=pytest.mark.presets))
    return found


def _instructions(target: Target) -> tuple[object, ...]:
    """What of a target the code of kernels depends on, besides sizes of caches and rates."""
    return target.isa, frozenset(target.extensions), target.fma_units


def blocked(tensor: np.ndarray, block: int, fill: np.random.Generator) -> np.ndarray:
    """A tensor (N, C, …) in blocks of channels; what is beyond the last channel is anything."""
    n, c, *spatial = tensor.shape
    blocks = -(-c // block)
    info = np.iinfo(tensor.dtype)
    padded = fill.integers(info.min, info.max, (n, blocks * block, *spatial), tensor.dtype, True)
    padded[:, :c] = tensor
    split = padded.reshape(n, blocks, block, *spatial)
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def plain(tensor: np.ndarray, channels: int) -> np.ndarray:
    """The tensor (N, C, …) that lies in blocks."""
    split = np.moveaxis(tensor, -1, 2)
    return split.reshape(split.shape[0], -1, *split.shape[3:])[:, :channels]


def problem(spec: ConvSpec, target: Target) -> Problem:
    form = Format(target.channel_block(spec.precision.x))
    x, y = (Access.of_format(shape, form) for shape in (spec.input_shape, spec.output_shape))
    return Problem.of(spec, x, y)


def candidate(
    spec: ConvSpec,
    target: Target,
    choice: str = "direct",
    w: np.ndarray | None = None,
    any_size: tuple[int, ...] = (),
) -> Candidate:
    """The candidate of an algorithm named with its parameters; weights tell how large sums are."""
    given = replace(problem(spec, target), any_size=any_size)
    if w is not None:
        given = replace(given, sum_bits=sum_bits(w, spec.precision.x))
        lanes = fitting_lanes(target)
        if lanes and w.dtype == np.int8:
            excess = PairTraits.of(w, lanes).excess_in(spec.groups, w.shape[1])
            given = replace(given, excess=excess)
    return select.choose(given, target, select.choice_named(choice))


def operands(spec: ConvSpec, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input and weights of all numbers there are, and a bias."""
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)

    x, w = draw(spec.input_shape, spec.precision.x), draw(spec.weight_shape, spec.precision.w)
    return x, w, rng.integers(-1000, 1000, spec.out_channels, np.int32)


def scales(spec: ConvSpec, ties: bool) -> np.ndarray:
    """A scale for each channel: of any kind, or a power of two, so that halves are rounded."""
    rng = np.random.default_rng(1)
    if ties:
        return (2.0 ** -rng.integers(8, 14, spec.out_channels)).astype(np.float32)
    return (rng.random(spec.out_channels) * _SPREAD * 20 / spec.reduction**0.5).astype(np.float32)


def added(dtype: DType, first: bool) -> Quantisation:
    """A residual with zeros, bounds and scales that all differ."""
    low = int(dtype.low)
    own = ResidualCodes(low + 91, low + 3, low + 250, 0.031, 0.0172, 0.0403, low + 120, first)
    return Quantisation(low + 77, low + 5, low + 255, own)


def fitting_pairs(shape: tuple[int, ...], seed: int = 5) -> np.ndarray:
    """Weights (K, C, taps…) whose pairs fit: many at the limits."""
    random = np.random.default_rng(seed)
    outputs, inputs, *taps = shape
    pairs = random.choice(np.array(FITTING, np.int8), (outputs, -(-inputs // 2), *taps))
    return np.ascontiguousarray(
        np.moveaxis(pairs, -1, 2).reshape(outputs, -1, *taps)[:, :inputs], np.int8
    )


def some_exceeding(shape: tuple[int, ...], seed: int = 7) -> np.ndarray:
    """The same, of which few pairs exceed."""
    w, random = fitting_pairs(shape), np.random.default_rng(seed)
    outputs, inputs, *taps = shape
    for output, channel in np.argwhere(
        random.random((outputs, inputs - 1)) < 0.002 * np.prod(taps)
    ):
        first, place = channel // 2 * 2, tuple(random.integers(0, taps))
        w[(output, slice(first, first + 2), *place)] = EXCEEDING[random.integers(0, len(EXCEEDING))]
    w[0, :2, -1] = 127
    return w


def some_fours_exceeding(shape: tuple[int, ...], seed: int = 7, share: float = 0.002) -> np.ndarray:
    """Weights (K, C, taps…) of which all pairs fit, and few fours do not: many at the limits."""
    random = np.random.default_rng(seed)
    outputs, inputs, *taps = shape
    places = outputs, -(-inputs // 8), 2, *taps
    fours = random.choice(np.array(FITTING_FOURS), places)
    few = random.random(places) < share
    few[0, 0, 0, ..., -1:] = share > 0
    fours[few] = random.choice(np.array(EXCEEDING_FOURS), int(few.sum()))
    fours = np.moveaxis(fours.reshape(*places, 2, 2), (-2, -1), (2, 4))  # group, pair, of the pair
    return np.ascontiguousarray(fours.reshape(outputs, -1, *taps)[:, :inputs], np.int8)


def check(
    spec: ConvSpec,
    target: Target,
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray,
    quantisation: Quantisation | None = None,
    scale: np.ndarray | None = None,
    choice: str = "direct",
    any_size: tuple[int, ...] = (),
) -> None:
    """Hold what an algorithm makes of a spec to the definition: modulo 2^32, saturated or codes.

    Args:
        spec, target, x, w, bias: what is computed.
        quantisation, scale: what sums become, where `spec.requantise` says that they do.
        choice: the algorithm with its parameters.
        any_size: as `Problem` has it.
    """
    block = target.channel_block(spec.precision.x)
    made = candidate(spec, target, choice, w, any_size)
    channels = {"bias": bias} if spec.bias else {}
    if quantisation is not None:
        assert scale is not None
        channels |= {"scale": scale, "quantisation": numbers_of(quantisation)}
    constants = packed_constants(made, w, channels)
    sizes = {n: a.nbytes for n, a in constants.items()}
    assert sizes == made.constant_bytes, (sizes, made.constant_bytes)
    rng, dtype = np.random.default_rng(9), spec.precision.y
    y = np.full(Format(block).physical_shape(spec.output_shape), 77, dtype)
    residual = None
    if spec.residual:
        stored = np.iinfo(dtype)
        residual = rng.integers(stored.min, stored.max, spec.output_shape, stored.dtype, True)
        constants["residual"] = blocked(residual, block, rng)
    roles = {"x": blocked(x, block, rng), **constants, "y": y}
    roles |= {role: np.full(size, 0xA5, np.uint8) for role, size in made.temporaries.items()}
    for use in made.kernels:
        cuts = sorted({use.kernel.chunks // 3, use.kernel.chunks // 2})
        given = (roles[role] for role in use.roles)
        roles[use.roles[-1]] = run_kernel(use.kernel, *given, target=target, parts=cuts)
    summed = replace(spec, residual=False) if quantisation else spec
    addends = [x, w, bias if spec.bias else None, None if quantisation else residual]
    wide = (None if a is None else a.astype(np.int64) for a in addends)
    sums = convolve(summed, *wide).astype(np.int32)
    if quantisation is None:
        expected = np.clip(sums, np.iinfo(dtype).min, np.iinfo(dtype).max)
    else:
        assert scale is not None
        expected = requantised(sums, scale, quantisation, dtype, residual)
    assert np.array_equal(plain(roles["y"], spec.out_channels), expected), made.details
