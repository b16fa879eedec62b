"""Choosing the parameters of fused Winograd: the tile of outputs, blocks, register tile, parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from leanconv.algorithms.problem import (
    Algorithm,
    Candidate,
    Parameters,
    Problem,
    single,
)
from leanconv.algorithms.winograd_kernel import Pair, WinogradConv
from leanconv.codegen.tiling import fits, step_cycles
from leanconv.codegen.types import ITEMSIZE
from leanconv.errors import SpecError
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.winograd.error import error_estimate
from leanconv.winograd.matrices import transform

MOST_ALPHA = 8  # points along an axis; more amplify rounding beyond the default error
_LARGEST_TAPS = 7
_INPUT_CYCLES, _OUTPUT_CYCLES = 7.0, 5.0  # for each vector of V and of M
_PLANAR_CYCLES = 3.0  # more, where vectors are gathered by transposing
_SCRATCH_SHARE = 0.6  # of the second cache that V and M of a block may fill
_L3_BYTES_PER_CYCLE = 12.0
_TRAFFIC = 0.04  # what operands cost beside the arithmetic in tiles of few rows or vectors


def _reject(problem: Problem, target: Target) -> str | None:
    """Why fused Winograd cannot compute a problem; None if it can."""
    spec, window = problem.spec, problem.window
    if spec.groups != 1:
        return "groups"
    if window.size[0] != 1 or window.kernel[0] != 1 or window.out[0] != 1:
        return "a depth axis"
    if window.dilation != (1, 1, 1):
        return "a dilation"
    if problem.y_offset:
        return "the output is written with an offset"
    kernel, stride = window.kernel[1:], window.stride[1:]
    taps = [ceil_div(k, s) for k, s in zip(kernel, stride, strict=True)]
    if max(taps) < 2:
        return "one tap in each direction: nothing to save"
    if max(taps) > _LARGEST_TAPS:
        return f"{max(taps)} taps in one direction; at most {_LARGEST_TAPS}"
    if not problem.x.lanes_contiguous:
        if stride[1] not in (1, 2, 4):
            return f"a stride of {stride[1]} between channels in planes; 1, 2 or 4 can be gathered"
        if problem.x.spatial[2] != 1:
            return "columns are not neighbours in memory"
        lines = target.lanes(spec.dtype) // stride[1]
        if lines < 1 or (spec.in_channels % lines and spec.in_channels * stride[0] > 8 * lines):
            return f"{spec.in_channels} channels in planes do not fill groups of {lines}"
    if _error(problem, (2 if taps[0] > 1 else 1, 2 if taps[1] > 1 else 1)) > problem.max_error:
        return f"an error above {problem.max_error:.1e} even with the smallest tiles"
    if target.isa == "neon" and not problem.x.lanes_contiguous:
        return "masks computed at run time, which this target lacks"
    return None


def _error(problem: Problem, m: Pair) -> float:
    window = problem.window
    taps = tuple(
        ceil_div(k, s) for k, s in zip(window.kernel[1:], window.stride[1:], strict=True)
    )
    height, width = transform(m[0], taps[0]), transform(m[1], taps[1])
    phases = min(window.kernel[1], window.stride[1]) * min(window.kernel[2], window.stride[2])
    steps = problem.group_inputs * phases
    axes = [t for t in (height, width) if t.alpha > 1]
    return error_estimate(*axes, reduction=steps, dtype=problem.spec.dtype)


def _tiles(
    problem: Problem, target: Target, m: Pair, parameters: Parameters
) -> Iterator[tuple[float, WinogradConv]]:
    """All kernels for one tile of outputs, with their cycles on one core."""
    wanted = {key: int(value) for key, value in parameters.items() if key != "m"}
    spec, window = problem.spec, problem.window
    lanes = target.lanes(spec.dtype)
    base = WinogradConv(
        batch=spec.batch,
        inputs=spec.in_channels,
        outputs=spec.out_channels,
        size=window.size[1:],
        out=window.out[1:],
        kernel=window.kernel[1:],
        stride=window.stride[1:],
        pad=window.pad[1:],
        m=m,
        x=problem.x,
        y=problem.y,
        dtype=spec.dtype,
        lanes=lanes,
        tiles=1,
        rows=1,
        vectors=1,
        parts=1,
        epilogue=problem.epilogue,
    )
    channel_vectors = ceil_div(spec.out_channels, lanes)
    room = _SCRATCH_SHARE * target.l2_bytes
    for vectors in range(1, min(6, channel_vectors) + 1):
        for rows in range(min(2, base.tile_count), min(16, base.tile_count) + 1):
            if not fits(target, rows, vectors):
                break
            for panels in (1, 2, 3):
                kernel = replace(base, tiles=rows * panels, rows=rows, vectors=vectors)
                if panels > 1 and (kernel.scratch_bytes > room or rows * panels > 20):
                    break
                if rows * (panels - 1) >= base.tile_count:
                    break
                for cycles, split in _with_parts(kernel, target):
                    if all(getattr(split, key) == value for key, value in wanted.items()):
                        yield cycles, split


def _with_parts(
    kernel: WinogradConv, target: Target
) -> Iterator[tuple[float, WinogradConv]]:
    """The ways of splitting the output channels into parts, with the estimated cycles."""
    for parts in (1, 2, 4, 8):
        if parts > kernel.panels:
            break
        split = replace(kernel, parts=parts)
        cycles = total = _cycles(split, target)
        # The last round of chunks leaves cores idle: judge by what two and four cores would take.
        for cores in (2, 4):
            rounds = ceil_div(split.chunks, cores)
            cycles = max(cycles, rounds * total / split.chunks * min(cores, 2) * 0.97)
        yield cycles, split


def _cycles(kernel: WinogradConv, target: Target) -> float:
    """Estimated cycles of one core: transforms, products, the stream of weights."""
    item = ITEMSIZE[kernel.dtype]
    points, blocks = kernel.points, kernel.blocks
    per_vector = _INPUT_CYCLES + (_PLANAR_CYCLES if kernel.planar else 0.0)
    tiles = kernel.tile_count
    into = tiles * points * kernel.channel_blocks * per_vector * kernel.parts
    back_cost = _OUTPUT_CYCLES + (0.0 if kernel.y.lanes_contiguous else 2.0)
    back = tiles * points * kernel.panels * kernel.vectors * back_cost
    step = step_cycles(target, kernel.rows, kernel.vectors)
    overhead = 2.0 * kernel.rows * kernel.vectors
    one = step * kernel.steps + overhead
    products = one * points * kernel.panels * (kernel.tiles // kernel.rows) * blocks
    products *= 1 + _TRAFFIC * (1 / kernel.rows + 1 / kernel.vectors)
    weights = points * kernel.steps * kernel.panels * kernel.panel_lanes * item
    if weights > target.l2_bytes // 2:
        products = max(products, weights * blocks / _L3_BYTES_PER_CYCLE)
    if target.l3_bytes and weights > target.l3_bytes // 2:
        products = max(products, weights * blocks / (_L3_BYTES_PER_CYCLE / 4))
    if kernel.scratch_bytes > target.l2_bytes:
        products *= 1.3
    return into + products + back


def _sizes(problem: Problem, parameters: Parameters) -> list[Pair]:
    """The tiles of outputs to consider: those asked for, or all within the default error."""
    window = problem.window
    taps = [ceil_div(k, s) for k, s in zip(window.kernel[1:], window.stride[1:], strict=True)]
    if "m" in parameters:
        text = parameters["m"]
        numbers = text.split("x")
        if not all(n.isdecimal() and int(n) >= 1 for n in numbers) or len(numbers) > 2:
            raise SpecError(f"m is {text!r}; expected outputs of a tile, such as 4 or 4x6")
        m = [int(n) for n in (numbers * 2)[:2]]
        sizes = [(m[0] if taps[0] > 1 else 1, m[1] if taps[1] > 1 else 1)]
    else:
        axes = [range(2, MOST_ALPHA - r + 2) if r > 1 else range(1, 2) for r in taps]
        sizes = [(a, b) for a in axes[0] for b in axes[1] if abs(a - b) <= 1 or 1 in (a, b)]
        least = (2 if taps[0] > 1 else 1, 2 if taps[1] > 1 else 1)
        sizes = [m for m in sizes if _error(problem, m) <= problem.max_error] or [least]
    if max(m + r - 1 for pair in sizes for m, r in zip(pair, taps, strict=True)) > 16:
        raise SpecError("m is too large; expected m + taps - 1 of at most 16 points")
    return sizes


@lru_cache(maxsize=256)
def _best(
    problem: Problem, target: Target, given: tuple[tuple[str, str], ...]
) -> tuple[float, WinogradConv, Pair]:
    parameters = dict(given)
    choices = [
        (cycles, kernel, m)
        for m in _sizes(problem, parameters)
        for cycles, kernel in _tiles(problem, target, m, parameters)
    ]
    if not choices:
        raise SpecError(f"{problem.spec}: too few tiles for Winograd")
    return min(choices, key=lambda c: c[0])


def _cost(problem: Problem, target: Target) -> float:
    return _best(problem, target, ())[0]


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    _, kernel, m = _best(problem, target, tuple(parameters.items()))

    def pack(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        packed = {name: kernel.pack_channels(values) for name, values in channels.items()}
        flat = w.reshape(*w.shape[:2], *kernel.kernel)
        return {"w": kernel.pack_weights(flat), **packed}

    text = f"F({m[0]}x{m[1]}, {kernel.taps[0]}x{kernel.taps[1]}) blocks of {kernel.tiles} tiles, "
    text += f"{kernel.rows}x{kernel.vectors}, {kernel.parts} part(s)"
    arithmetic = f"winograd:m={m[0]}x{m[1]}"
    return single("winograd", kernel, pack, _error(problem, m), text, arithmetic)


_PARAMETERS = ("m", "tiles", "rows", "vectors", "parts")
WINOGRAD = Algorithm("winograd", _PARAMETERS, _reject, _cost, _candidate)
