"""Convolutions of halves, run in planes or blocks of channels and held to float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leanconv.algorithms import select
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.half_arrays import as_float32, in_memory
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec, Format
from leanconv.target import Target
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, HALVES, DType, Precision
from support.kernel_runner import run_kernel
from support.packing import packed_constants

FLOAT16_STORED = Precision(FLOAT16, FLOAT16, FLOAT32, FLOAT16)
BFLOAT16_STORED = Precision(BFLOAT16, BFLOAT16, FLOAT32, BFLOAT16)
WEIGHTS_ONLY = Precision(FLOAT32, BFLOAT16, FLOAT32, FLOAT32)


def drawn(shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray:
    """Random numbers that a type holds, as float32."""
    numbers = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return as_float32(in_memory(numbers, dtype), dtype) if dtype in HALVES else numbers


def laid_out(tensor: np.ndarray, block: int, dtype: DType) -> np.ndarray:
    """A tensor (N, C, …) of float32 as kernels find it; NaN beyond the last channel of a block."""
    n, c, *spatial = tensor.shape
    padded = np.full((n, -(-c // block) * block, *spatial), np.nan, np.float32)
    padded[:, :c] = tensor
    split = np.moveaxis(padded.reshape(n, -1, block, *spatial), 2, -1)
    return np.ascontiguousarray(in_memory(np.ascontiguousarray(split), dtype))


def plain(tensor: np.ndarray, channels: int) -> np.ndarray:
    """The tensor (N, C, …) that lies in blocks."""
    split = np.moveaxis(tensor, -1, 2)
    return split.reshape(split.shape[0], -1, *split.shape[3:])[:, :channels]


def check(spec: ConvSpec, target: Target, choice: str, in_blocks: bool) -> None:
    """Hold what an algorithm makes of a spec to float64, within the error that it states."""
    types = spec.precision
    block = target.channel_block(types.x) if in_blocks else 1
    shapes = (spec.batch, spec.in_channels, *spec.size), spec.output_shape
    problem = Problem.of(spec, *(Access.of_format(shape, Format(block)) for shape in shapes))
    made = select.choose(problem, target, select.choice_named(choice))
    x, w = drawn(shapes[0], types.x, 1), drawn(spec.weight_shape, types.w, 2)
    bias = drawn((spec.out_channels,), FLOAT32, 3)
    constants = packed_constants(made, in_memory(w, types.w), {"bias": bias} if spec.bias else {})
    sizes = {name: array.nbytes for name, array in constants.items()}
    assert sizes == made.constant_bytes, (sizes, made.constant_bytes)
    y = laid_out(np.full(spec.output_shape, np.nan, np.float32), block, types.y)
    roles = {"x": laid_out(x, block, types.x), **constants, "y": y}
    residual = None
    if spec.residual:
        residual = drawn(spec.output_shape, types.y, 4)
        roles["residual"] = laid_out(residual, block, types.y)
    roles |= {role: np.full(size, 0xFF, np.uint8) for role, size in made.temporaries.items()}
    for use in made.kernels:
        cuts = sorted({use.kernel.chunks // 3, use.kernel.chunks // 2})
        given = (roles[role] for role in use.roles)
        roles[use.roles[-1]] = run_kernel(use.kernel, *given, target=target, parts=cuts)
    wide = (
        None if each is None else each.astype(np.float64)
        for each in (x, w, bias if spec.bias else None, residual)
    )
    expected = convolve(replace(spec, precision=Precision.of("float64")), *wide)
    found = roles["y"]
    found = plain(as_float32(found, types.y) if types.y in HALVES else found, spec.out_channels)
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error <= made.choice.error, (error, made.choice.error, made.details)
