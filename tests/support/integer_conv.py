"""Direct convolutions of integers in blocks of channels, run and held to the definition."""

from __future__ import annotations

import numpy as np

from leanconv.algorithms.direct import DIRECT
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec, Format
from leanconv.target import Target
from leanconv.types import INT8, INT16, INT32, UINT8, Precision
from support.kernel_runner import run_kernel

U8S8 = Precision(UINT8, INT8, INT32, INT32)
S8S8 = Precision(INT8, INT8, INT32, INT32)
U8U8 = Precision(UINT8, UINT8, INT32, INT32)
S16 = Precision(INT16, INT16, INT32, INT32)


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


def candidate(spec: ConvSpec, target: Target) -> Candidate:
    given = problem(spec, target)
    assert DIRECT.refusal(given, target) is None
    return DIRECT.candidate(given, target)


def operands(spec: ConvSpec, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input and weights of all numbers there are, and a bias."""
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)

    x, w = draw(spec.input_shape, spec.precision.x), draw(spec.weight_shape, spec.precision.w)
    return x, w, rng.integers(-1000, 1000, spec.out_channels, np.int32)


def check(spec: ConvSpec, target: Target, x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> None:
    """Hold what `direct` makes of a spec to the definition, in int64, modulo 2^32, saturated."""
    block, made = target.channel_block(spec.precision.x), candidate(spec, target)
    ((use, constants),) = [(use, made.pack(w, {"bias": bias})) for use in made.kernels]
    assert {n: a.nbytes for n, a in constants.items()} == dict(made.constant_bytes)
    rng, stored = np.random.default_rng(9), np.iinfo(spec.precision.y)
    y = np.full(Format(block).physical_shape(spec.output_shape), 77, spec.precision.y)
    residual = None
    if spec.residual:
        residual = rng.integers(stored.min, stored.max, spec.output_shape, stored.dtype, True)
        constants["residual"] = blocked(residual, block, rng)
    roles = {"x": blocked(x, block, rng), **constants, "y": y}
    found = run_kernel(use.kernel, *(roles[role] for role in use.roles), target=target)
    operands = (None if a is None else a.astype(np.int64) for a in (x, w, bias, residual))
    sums = convolve(spec, *operands).astype(np.int32)
    expected = np.clip(sums, stored.min, stored.max)
    assert np.array_equal(plain(found, spec.out_channels), expected)
