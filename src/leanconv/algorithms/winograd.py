"""Choosing the parameters of Winograd: form, tile of outputs, blocks, register tile, parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from leanconv.algorithms.lowering import choice_of
from leanconv.algorithms.problem import (
    Algorithm,
    Alternative,
    Candidate,
    Parameters,
    Piece,
    Problem,
)
from leanconv.algorithms.winograd_kernel import Pair, WinogradConv, unplanned
from leanconv.algorithms.winograd_split import LARGEST_TAPS, Part, split
from leanconv.algorithms.winograd_stages import in_stages
from leanconv.codegen.partial_sums import effective_length
from leanconv.codegen.tiling import fits, step_cycles
from leanconv.codegen.types import ITEMSIZE
from leanconv.errors import SpecError
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.winograd.error import error_estimate
from leanconv.winograd.matrices import transform

MOST_ALPHA = 8  # points along an axis; more amplify rounding beyond the default error
_INPUT_CYCLES, _OUTPUT_CYCLES = 7.0, 5.0  # for each vector of V and of M
_PLANAR_CYCLES = 3.0  # more, where vectors are gathered by transposing
_TURNED_CYCLES = 9.0  # more, where results are turned and stored in pieces of rows
_SCRATCH_SHARE = 0.6  # of the second cache that V and M of a block may fill
_L3_BYTES_PER_CYCLE = 12.0
_TRAFFIC = 0.04  # what operands cost beside the arithmetic in tiles of few rows or vectors


def _reject(problem: Problem, target: Target) -> str | None:
    """Why fused Winograd cannot compute a problem; None if it can."""
    spec, window = problem.spec, problem.window
    if window.size[0] != 1 or window.kernel[0] != 1 or window.out[0] != 1:
        return "a depth axis"
    if problem.y_offset:
        return "the output is written with an offset"
    for access, channels in ((problem.x, problem.group_inputs), (problem.y, problem.group_outputs)):
        if spec.groups > 1 and channels % access.block:
            return f"groups of {channels} channels do not fill blocks of {access.block}"
    taps = _taps(problem)
    if max(taps) < 2:
        return "one tap in each direction: nothing to save"
    if max(window.dilation) > 1 and max(window.stride) > 1:
        return "a stride together with a dilation"
    if any(d > min(i, o) for d, i, o in zip(window.dilation, window.size, window.out, strict=True)):
        return f"a dilation of {max(window.dilation)} larger than the image"
    if min(_least(taps)) > 0 and _error(problem, _least(taps)) > problem.max_error:
        return f"an error above {problem.max_error:.1e} even with the smallest tiles"
    return None if problem.x.lanes_contiguous else _reject_planes(problem, target)


def _reject_planes(problem: Problem, target: Target) -> str | None:
    """Why vectors of channels cannot be gathered from planes; None if they can."""
    window, stride = problem.window, problem.window.stride[1:]
    if stride[1] not in (1, 2, 4):
        return f"a stride of {stride[1]} between channels in planes; 1, 2 or 4 can be gathered"
    if problem.x.spatial[2] != 1 or window.dilation[2] != 1:
        return "columns are not neighbours in memory"
    lines = target.lanes(problem.spec.dtype) // stride[1]
    inputs = problem.group_inputs
    if lines < 1 or (inputs % lines and inputs * stride[0] > 8 * lines):
        return f"{inputs} channels in planes do not fill groups of {lines}"
    if target.isa == "neon":
        return "masks computed at run time, which this target lacks"
    return None


def _taps(problem: Problem) -> Pair:
    """Taps of one phase's filter (h, w), those of the largest piece of a long kernel."""
    window = problem.window
    h, w = (
        min(ceil_div(k, s), ceil_div(k, s * ceil_div(ceil_div(k, s), LARGEST_TAPS)))
        for k, s in zip(window.kernel[1:], window.stride[1:], strict=True)
    )
    return h, w


def _least(taps: Pair) -> Pair:
    """The smallest tile of outputs that saves anything."""
    return 2 if taps[0] > 1 else 1, 2 if taps[1] > 1 else 1


def _error(problem: Problem, m: Pair) -> float:
    window, taps = problem.window, _taps(problem)
    height, width = transform(m[0], taps[0]), transform(m[1], taps[1])
    phases = min(window.kernel[1], window.stride[1]) * min(window.kernel[2], window.stride[2])
    steps = round(effective_length(problem.group_inputs * phases))
    axes = [t for t in (height, width) if t.alpha > 1]
    return error_estimate(*axes, reduction=steps, dtype=problem.spec.dtype)


def _tiles(
    problem: Problem, target: Target, m: Pair, parameters: Parameters
) -> Iterator[tuple[float, WinogradConv]]:
    """All kernels for one tile of outputs, with their cycles on one core."""
    wanted = {key: _count(key, value) for key, value in parameters.items() if key != "m"}
    lanes = target.lanes(problem.spec.dtype)
    base = unplanned(problem, m, lanes)
    channel_vectors = ceil_div(problem.group_outputs, lanes)
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
                for cycles, parted in _with_parts(kernel, target):
                    if all(getattr(parted, key) == value for key, value in wanted.items()):
                        yield cycles, parted


def _count(key: str, value: str) -> int:
    if not value.isdecimal() or not value.isascii() or int(value) < 1:
        raise SpecError(f"{key} is {value!r}; expected an integer of at least 1")
    return int(value)


def _with_parts(kernel: WinogradConv, target: Target) -> Iterator[tuple[float, WinogradConv]]:
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
    back_cost = _OUTPUT_CYCLES + (0.0 if kernel.y.lanes_contiguous else _TURNED_CYCLES)
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
    return (into + products + back) * kernel.groups


def _sizes(problem: Problem, parameters: Parameters) -> list[Pair]:
    """The tiles of outputs to consider: those asked for, or all within the default error."""
    taps = _taps(problem)
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
        sizes = [m for m in sizes if _error(problem, m) <= problem.max_error] or [_least(taps)]
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
        raise SpecError(
            f"{problem.spec}: no fused Winograd kernel has {dict(given)}; leave some of these out"
        )
    return min(choices, key=lambda c: c[0])


def _cost(problem: Problem, target: Target) -> float:
    return sum(cycles for cycles, _, _ in _all_best(split(problem), target, ()))


def _all_best(
    parts: list[Part], target: Target, given: tuple[tuple[str, str], ...]
) -> list[tuple[float, WinogradConv, Pair]]:
    """The best kernel of every part; all share the tile and the panels, and so the packing."""
    first = _best(parts[0].problem, target, given)
    _, kernel, m = first
    shared = dict(given) | {"m": f"{m[0]}x{m[1]}", "vectors": str(kernel.vectors)}
    for key in ("tiles", "rows", "parts"):
        shared.pop(key, None)
    fixed = tuple(shared.items())
    return [first, *(_best(part.problem, target, fixed) for part in parts[1:])]


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    form = choice_of(parameters, "form", "winograd", ("fused", "stages"))
    others = {key: value for key, value in parameters.items() if key != "form"}
    if form == "stages":
        return _stages(problem, target, others)
    return _fused(problem, target, others)


def _stages(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    """The separate stages, with the tiles of outputs that the fused form would take."""
    wrong = [key for key in parameters if key != "m"]
    if wrong:
        raise SpecError(
            f"algorithm winograd: {wrong[0]} goes with form=fused; expected m alone beside "
            "form=stages"
        )
    parts = split(problem)
    _, _, m = _best(parts[0].problem, target, tuple(parameters.items()))
    shared = {"m": f"{m[0]}x{m[1]}"}
    tiles = [(part, _sizes(part.problem, shared)[0]) for part in parts]
    return in_stages(problem, target, tiles, _error(problem, m))


def _fused(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    given = tuple(parameters.items())
    parts = split(problem)
    chosen = _all_best(parts, target, given)
    kernels = [kernel for _, kernel, _ in chosen]
    names = {part.taps: f"w{number or ''}" for number, part in enumerate(parts)}

    def pack(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        packed = {name: kernels[0].pack_channels(values) for name, values in channels.items()}
        flat = w.reshape(*w.shape[:2], *problem.window.kernel[1:])
        for part, kernel in zip(parts, kernels, strict=True):
            (top, bottom), (left, right) = part.taps
            if names[part.taps] not in packed:
                taps = flat[:, :, top:bottom, left:right]
                packed[names[part.taps]] = kernel.pack_weights(taps)
        return packed

    pieces = []
    for part, kernel in zip(parts, kernels, strict=True):
        roles = {"w": names[part.taps], "residual": "y" if part.adds_up else "residual"}
        pieces.append(Piece(kernel, tuple(roles.get(o, o) for o in kernel.operands)))
    _, kernel, m = chosen[0]
    text = f"F({m[0]}x{m[1]}, {kernel.taps[0]}x{kernel.taps[1]}) blocks of {kernel.tiles} tiles, "
    text += f"{kernel.rows}x{kernel.vectors}, {kernel.parts} part(s)"
    if len(pieces) > 1:
        text += f", {len(pieces)} pieces"
    arithmetic = f"winograd:m={m[0]}x{m[1]}"
    error = _error(problem, m)
    largest = {names[part.taps]: k.weight_bytes for part, k in zip(parts, kernels, strict=True)}
    weights = sum(largest.values())
    return Candidate("winograd", tuple(pieces), pack, error, {}, text, arithmetic, weights)


_MOST_SIZES, _MOST_SHAPES = 4, 3  # tiles of outputs worth trying, and kernels for each


def _alternatives(problem: Problem, target: Target) -> list[Alternative]:
    """The best tiles of outputs, each with the register tiles that are estimated best."""
    parts = split(problem)
    found = []
    square = problem.window.out[1] == problem.window.out[2]
    for m in _sizes(parts[0].problem, {}):
        if square and _taps(problem)[0] == _taps(problem)[1] and m[0] > m[1]:
            continue  # the same as the other way round
        shapes: dict[tuple[int, int], Alternative] = {}
        kernels = sorted(_tiles(parts[0].problem, target, m, {}), key=lambda choice: choice[0])
        for cycles, kernel in kernels:
            name = f"winograd:m={m[0]}x{m[1]},rows={kernel.rows},vectors={kernel.vectors}"
            name += f",tiles={kernel.tiles},parts={kernel.parts}"
            total = cycles * len(parts)
            shapes.setdefault((kernel.rows, kernel.vectors), Alternative(total, name))
        found.append(list(shapes.values())[: _MOST_SHAPES if len(parts) == 1 else 1])
    found.sort(key=lambda shapes: shapes[0].cycles)
    return [one for shapes in found[:_MOST_SIZES] for one in shapes]


_PARAMETERS = ("form", "m", "tiles", "rows", "vectors", "parts")
WINOGRAD = Algorithm(
    "winograd", _PARAMETERS, _reject, _cost, _candidate, alternatives=_alternatives
)
