"""1x1 convolutions as matrix products of the input's rows (`kernels.pointwise`).

Slices: of few rows, whose programs share k among their warps. Boxes: by bulk tensor copies of both
operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from leanconv.gpu.launch import Pointer, TensorMap, blocks, divisor, make_launch
from leanconv.gpu.lowering.conv_problem import ConvProblem, Lowered
from leanconv.gpu.lowering.gemm import pack, sum_error
from leanconv.gpu.lowering.product_tiles import Tile, box_tiles, seconds
from leanconv.gpu.lowering.windows import in_place_windows, unfolded_windows
from leanconv.gpu.machine import IEEE, TENSOR_COPIES, Arithmetic, Machine
from leanconv.records import dataclass
from leanconv.spec import ConvSpec
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT16, FLOAT32, FLOAT64

# Every warp multiplies one slice of `k` products of a step. Compiled ahead of time in the tests.
TILES = (
    Tile(16, 16, 64, 4, 3),
    Tile(16, 16, 32, 4, 3),
    Tile(16, 16, 64, 2, 3),
    Tile(16, 32, 32, 2, 3),
)
_SLICED_MODES = ("tf32x3", "tf32", "ieee", "native")
_ALIGNED = 16  # bytes, of the stride between rows
_BOXED_MODES = ("native", "tf32")  # products that are not split: halves are made in registers


@dataclass(frozen=True)
class Pointwise:
    """A tile, how products are made, the time expected in seconds, and how operands are loaded."""

    tile: Tile
    arithmetic: Arithmetic
    estimate_s: float
    boxed: bool

    def __str__(self) -> str:
        if self.boxed:
            return f"tile {self.tile} by tensor copies of rows"
        return f"tile {self.tile}, k shared by {self.tile.warps} warps"


def _other_window(spec: ConvSpec) -> str | None:
    """Why a convolution is no matrix product of rows of its input, or None."""
    if not in_place_windows(spec) or max(spec.stride) > 1:
        return f"the kernel is {spec.kernel} of stride {spec.stride}, padded; expected 1x1 in place"
    return f"groups is {spec.groups}; expected 1" if spec.groups > 1 else None


def slices_reject(problem: ConvProblem) -> str | None:
    """Why a convolution is no matrix product of rows of its input, or None."""
    double = problem.dtype == FLOAT64
    known = "double precision is not shared among warps" if double else None
    return _other_window(problem.spec) or known


def slicings(problem: ConvProblem, machine: Machine, finite: bool) -> Iterator[Pointwise]:
    """Every way to cut a convolution that `slices_reject` accepts.

    Args:
        problem, machine: the convolution, and the GPU to choose for.
        finite: whether all weights are; halves of what is infinite are NaN.
    """
    spec = problem.spec
    rows = spec.batch * prod(spec.size)
    usable = (a for a in problem.arithmetics if a.name in _SLICED_MODES and (finite or not a.split))
    arithmetic = next(usable, None)
    if arithmetic is None:
        return
    item, length = problem.dtype.bytes, spec.in_channels
    # Long steps of float32 do not fit into the registers of sm_80, nor of multiply-adds anywhere.
    roomy = machine.arch >= TENSOR_COPIES and arithmetic is not IEEE
    fitting = (tile for tile in TILES if tile.k <= 32 or roomy or item < 4)
    for tile in fitting:
        programs = ceil_div(rows, tile.m) * ceil_div(spec.out_channels, tile.n)
        steps = ceil_div(length, tile.k * tile.warps)
        moved = programs * length * (tile.m * item + tile.n * max(item, 4 * arithmetic.split))
        waves = ceil_div(programs, 2 * machine.processors)
        native = arithmetic.name == "native"
        each = machine.slice_native_s if native else machine.slice_product_s
        step = machine.slice_step_s + tile.k * tile.warps * (tile.m + tile.n) * each
        program = machine.slice_start_s * (tile.m + tile.n) + steps * step
        busy = max(waves * program, moved / machine.cache_bandwidth)
        flops = 2.0 * programs * tile.m * tile.n * steps * tile.k * tile.warps
        work = 2 * flops / machine.rate(arithmetic.name, problem.dtype)
        yield Pointwise(tile, arithmetic, max(busy, work) + machine.launch_s, boxed=False)


def best_slicing(problem: ConvProblem, machine: Machine, finite: bool) -> Pointwise | None:
    """Return the slicing of the least estimated time; None if none is possible."""
    if slices_reject(problem):
        return None
    found = slicings(problem, machine, finite)
    return min(found, key=lambda slicing: slicing.estimate_s, default=None)


def boxes_reject(problem: ConvProblem, machine: Machine) -> str | None:
    """Why a convolution is no product of matrices that are copied in boxes, or None."""
    spec = problem.spec
    if machine.arch < TENSOR_COPIES:
        return f"sm_{machine.arch} has no bulk tensor copies; expected sm_{TENSOR_COPIES}"
    if reason := _other_window(spec):
        return reason
    if problem.dtype == FLOAT64 or not any(a.name in _BOXED_MODES for a in problem.arithmetics):
        return (
            f"{problem.dtype} in {problem.arithmetics[0].name} arithmetic; expected products that "
            f"are not split ({', '.join(_BOXED_MODES)})"
        )
    row = spec.in_channels * problem.dtype.bytes
    if row % _ALIGNED:
        return f"a row of the input has {row} bytes; expected a multiple of {_ALIGNED}"
    return None


def boxings(problem: ConvProblem, machine: Machine) -> Iterator[Pointwise]:
    """Every tile of a convolution that `boxes_reject` accepts."""
    spec = problem.spec
    arithmetic = next(a for a in problem.arithmetics if a.name in _BOXED_MODES)
    rows, length = spec.batch * prod(spec.size), spec.in_channels
    windows = unfolded_windows(rows, 1, 1, (length, 0, 0), length)
    for tile in box_tiles(arithmetic, length):
        estimate = seconds(
            windows,
            spec.out_channels,
            arithmetic,
            problem.dtype,
            machine,
            tile,
            1,
            tile.copies,
            copied=True,
        )
        yield Pointwise(tile, arithmetic, estimate, boxed=True)


def best_boxing(problem: ConvProblem, machine: Machine) -> Pointwise | None:
    """Return the boxing of the least estimated time; None if none is possible."""
    if boxes_reject(problem, machine):
        return None
    return min(boxings(problem, machine), key=lambda boxing: boxing.estimate_s)


def lower_pointwise(problem: ConvProblem, w: np.ndarray, chosen: Pointwise) -> Lowered:
    """The launch with one tile; `w` is (K, C, 1, 1)."""
    spec, tile, arithmetic = problem.spec, chosen.tile, chosen.arithmetic
    dtype, epilogue, name = problem.dtype, problem.epilogue, problem.name
    rows, length = spec.batch * prod(spec.size), spec.in_channels
    columns = spec.out_channels
    packed = pack(w.reshape(columns, 1, length), tile.k, arithmetic, dtype)
    operands: dict[str, Pointer | TensorMap]
    numbers, constants, known = {"rows": rows, "columns": columns}, {}, {}
    if chosen.boxed:
        steps = ceil_div(length, tile.k)
        operands = {
            "x": TensorMap(problem.x, dtype, (rows, length), (tile.m, tile.k)),
            "w": TensorMap(f"{name}/w", dtype, (columns, steps * tile.k), (tile.n, tile.k)),
        }
        numbers |= {"blocks": steps}
    else:
        split, pitch = arithmetic.split, packed["w"].shape[1]
        operands = {
            "x": Pointer(problem.x, dtype),
            "w": Pointer(f"{name}/w", FLOAT16 if split else dtype),
            "w_low": Pointer(f"{name}/w_low" if split else "", FLOAT16),
            "scale": Pointer(f"{name}/scale" if split else "", FLOAT32),
        }
        steps = ceil_div(length, tile.k * tile.warps)
        numbers |= {"length": length, "pitch": pitch, "steps": steps}
        constants = {"SLICES": tile.warps}
        known = {"length": divisor(length), "pitch": divisor(pitch)}
    launch = make_launch(
        "pointwise.box_gemm" if chosen.boxed else "pointwise.sliced_gemm",
        (blocks(rows, tile.m) * blocks(columns, tile.n),),
        {
            **operands,
            **epilogue.buffers(dtype),
            "y": Pointer(problem.y, dtype),
            **numbers,
            **epilogue.numbers(),
        },
        {
            "BM": tile.m,
            "BN": tile.n,
            "BK": tile.k,
            **constants,
            "MODE": arithmetic.mode,
            **epilogue.constants(),
            "ACC": dtype.accumulator,
        },
        writes="y",
        warps=tile.warps,
        stages=tile.stages,
        divisible={"columns": divisor(columns), **known},
        in_place="residual",
        flops=spec.flops,
        numbers=dtype.accumulator,
    )
    return Lowered(
        (launch,),
        {f"{name}/{role}": array for role, array in packed.items()},
        {},
        "direct",
        arithmetic.name,
        str(chosen),
        sum_error(length, arithmetic),
        chosen.estimate_s,
    )
