"""Matrix products of few rows, whose programs share k among their warps (`kernels.sliced`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from leanconv.gpu.arithmetic import IEEE, Arithmetic
from leanconv.gpu.launch import Pointer, blocks, divisor, make_launch
from leanconv.gpu.lowering.conv_problem import ConvProblem
from leanconv.gpu.lowering.gemm import pack, sum_error
from leanconv.gpu.lowering.lowered import Lowered
from leanconv.gpu.lowering.tiles import Tile
from leanconv.gpu.lowering.windows import in_place_windows
from leanconv.gpu.machine import TENSOR_COPIES, Machine
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT16, FLOAT32, FLOAT64

# Every warp multiplies one slice of `k` products of a step. Compiled ahead of time in the tests.
TILES = (
    Tile(16, 16, 64, 4, 3),
    Tile(16, 16, 32, 4, 3),
    Tile(16, 16, 64, 2, 3),
    Tile(16, 32, 32, 2, 3),
)
_MODES = ("tf32x3", "tf32", "ieee", "native")
# Latencies, measured on an H100, for each row and column of a tile: of a program, and of each
# product of a step; of a step as such.
_START_S, _STEP_S, _PRODUCT_S, _NATIVE_S = 17e-9, 0.05e-6, 73e-12, 31e-12


@dataclass(frozen=True)
class Slicing:
    """A tile, how products are made, and the time expected, in seconds."""

    tile: Tile
    arithmetic: Arithmetic
    estimate_s: float

    def __str__(self) -> str:
        return f"tile {self.tile}, k shared by {self.tile.warps} warps"


def slices_reject(problem: ConvProblem) -> str | None:
    """Why a convolution is no matrix product of rows of its input, or None."""
    spec = problem.spec
    if not in_place_windows(spec) or max(spec.stride) > 1:
        return f"the kernel is {spec.kernel} of stride {spec.stride}, padded; expected 1x1 in place"
    if spec.groups > 1:
        return f"groups is {spec.groups}; expected 1"
    if problem.dtype == FLOAT64:
        return "double precision is not shared among warps"
    return None


def slicings(problem: ConvProblem, machine: Machine, finite: bool) -> Iterator[Slicing]:
    """Every way to cut a convolution that `slices_reject` accepts.

    Args:
        problem, machine: what is computed, and where.
        finite: whether all weights are; halves of what is infinite are NaN.
    """
    spec = problem.spec
    rows = spec.batch * int(np.prod(spec.size))
    usable = (a for a in problem.arithmetics if a.name in _MODES and (finite or not a.split))
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
        each = _NATIVE_S if arithmetic.name == "native" else _PRODUCT_S
        step = _STEP_S + tile.k * tile.warps * (tile.m + tile.n) * each
        program = _START_S * (tile.m + tile.n) + steps * step
        busy = max(waves * program, moved / machine.cache_bandwidth)
        flops = 2.0 * programs * tile.m * tile.n * steps * tile.k * tile.warps
        work = 2 * flops / machine.rate(arithmetic.name, problem.dtype)
        yield Slicing(tile, arithmetic, max(busy, work) + machine.launch_s)


def best_slicing(problem: ConvProblem, machine: Machine, finite: bool) -> Slicing | None:
    """What is expected to be fastest, or None if it is no such product."""
    if slices_reject(problem):
        return None
    found = slicings(problem, machine, finite)
    return min(found, key=lambda slicing: slicing.estimate_s, default=None)


def lower_slices(problem: ConvProblem, w: np.ndarray, slicing: Slicing) -> Lowered:
    """The launch for one way to cut; `w` is (K, C, 1, 1)."""
    spec, tile, arithmetic = problem.spec, slicing.tile, slicing.arithmetic
    dtype, epilogue, split, name = problem.dtype, problem.epilogue, arithmetic.split, problem.name
    rows, length = spec.batch * int(np.prod(spec.size)), spec.in_channels
    columns = spec.out_channels
    packed = pack(w.reshape(columns, 1, length), tile.k, arithmetic, dtype)
    pitch = packed["w"].shape[1]
    launch = make_launch(
        "sliced.sliced_gemm",
        (blocks(rows, tile.m) * blocks(columns, tile.n),),
        {
            "x": Pointer(problem.x, dtype),
            "w": Pointer(f"{name}/w", FLOAT16 if split else dtype),
            "w_low": Pointer(f"{name}/w_low" if split else "", FLOAT16),
            "scale": Pointer(f"{name}/scale" if split else "", FLOAT32),
            **epilogue.buffers(dtype),
            "y": Pointer(problem.y, dtype),
            "rows": rows,
            "columns": columns,
            "length": length,
            "pitch": pitch,
            "steps": ceil_div(length, tile.k * tile.warps),
            **epilogue.numbers(),
        },
        {
            "BM": tile.m,
            "BN": tile.n,
            "BK": tile.k,
            "SLICES": tile.warps,
            "MODE": arithmetic.mode,
            **epilogue.constants(),
            "ACC": dtype.accumulator,
        },
        writes="y",
        warps=tile.warps,
        stages=tile.stages,
        divisible={
            "columns": divisor(columns),
            "length": divisor(length),
            "pitch": divisor(pitch),
        },
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
        str(slicing),
        sum_error(length, arithmetic),
        slicing.estimate_s,
    )
