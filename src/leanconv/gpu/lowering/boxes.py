"""1x1 convolutions as matrix products by bulk tensor copies of both operands (`kernels.boxes`)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from leanconv.gpu.arithmetic import Arithmetic
from leanconv.gpu.launch import Pointer, TensorMap, blocks, divisor, make_launch
from leanconv.gpu.lowering.conv_problem import ConvProblem
from leanconv.gpu.lowering.gemm import pack, sum_error
from leanconv.gpu.lowering.lowered import Lowered
from leanconv.gpu.lowering.tiles import Tile, box_tiles, seconds
from leanconv.gpu.lowering.windows import in_place_windows, unfolded_windows
from leanconv.gpu.machine import TENSOR_COPIES, Machine
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT64

_ALIGNED = 16  # bytes, of the stride between rows
_MODES = ("native", "tf32")  # products that are not split: halves are made in registers


@dataclass(frozen=True)
class Boxing:
    """A tile, how products are made, and the time expected, in seconds."""

    tile: Tile
    arithmetic: Arithmetic
    estimate_s: float

    def __str__(self) -> str:
        return f"tile {self.tile} by tensor copies of rows"


def boxes_reject(problem: ConvProblem, machine: Machine) -> str | None:
    """Why a convolution is no product of matrices that are copied in boxes, or None."""
    spec = problem.spec
    if machine.arch < TENSOR_COPIES:
        return f"sm_{machine.arch} has no bulk tensor copies; expected sm_{TENSOR_COPIES}"
    if not in_place_windows(spec) or max(spec.stride) > 1:
        return f"the kernel is {spec.kernel} of stride {spec.stride}, padded; expected 1x1 in place"
    if spec.groups > 1:
        return f"groups is {spec.groups}; expected 1"
    if problem.dtype == FLOAT64 or not any(a.name in _MODES for a in problem.arithmetics):
        return (
            f"{problem.dtype} in {problem.arithmetics[0].name} arithmetic; expected products that "
            f"are not split ({', '.join(_MODES)})"
        )
    row = spec.in_channels * problem.dtype.bytes
    if row % _ALIGNED:
        return f"a row of the input has {row} bytes; expected a multiple of {_ALIGNED}"
    return None


def boxings(problem: ConvProblem, machine: Machine) -> Iterator[Boxing]:
    """Every tile of a convolution that `boxes_reject` accepts."""
    spec = problem.spec
    arithmetic = next(a for a in problem.arithmetics if a.name in _MODES)
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
        yield Boxing(tile, arithmetic, estimate)


def best_boxing(problem: ConvProblem, machine: Machine) -> Boxing | None:
    """What is expected to be fastest, or None if it is no such product."""
    if boxes_reject(problem, machine):
        return None
    return min(boxings(problem, machine), key=lambda boxing: boxing.estimate_s)


def lower_boxes(problem: ConvProblem, w: np.ndarray, boxing: Boxing) -> Lowered:
    """The launch with one tile; `w` is (K, C, 1, 1)."""
    spec, tile, arithmetic = problem.spec, boxing.tile, boxing.arithmetic
    dtype, epilogue, name = problem.dtype, problem.epilogue, problem.name
    rows, length = spec.batch * prod(spec.size), spec.in_channels
    columns, steps = spec.out_channels, ceil_div(length, tile.k)
    packed = pack(w.reshape(columns, 1, length), tile.k, arithmetic, dtype)
    launch = make_launch(
        "boxes.box_gemm",
        (blocks(rows, tile.m) * blocks(columns, tile.n),),
        {
            "x": TensorMap(problem.x, dtype, (rows, length), (tile.m, tile.k)),
            "w": TensorMap(f"{name}/w", dtype, (columns, steps * tile.k), (tile.n, tile.k)),
            **epilogue.buffers(dtype),
            "y": Pointer(problem.y, dtype),
            "rows": rows,
            "columns": columns,
            "blocks": steps,
            **epilogue.numbers(),
        },
        {
            "BM": tile.m,
            "BN": tile.n,
            "BK": tile.k,
            "MODE": arithmetic.mode,
            **epilogue.constants(),
            "ACC": dtype.accumulator,
        },
        writes="y",
        warps=tile.warps,
        stages=tile.stages,
        divisible={"columns": divisor(columns)},
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
        str(boxing),
        sum_error(length, arithmetic),
        boxing.estimate_s,
    )
