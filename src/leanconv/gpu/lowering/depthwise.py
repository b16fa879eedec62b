"""Depthwise convolution, and depthwise with the 1x1 convolution behind it in one launch."""

from __future__ import annotations

from math import prod

import numpy as np

from leanconv.algorithms.parameters import Parameters, one_of, parameter
from leanconv.errors import SpecError
from leanconv.gpu.launch import (
    Constant,
    Launch,
    Pointer,
    blocks,
    by_axis,
    divisor,
    make_launch,
)
from leanconv.gpu.lowering.conv_problem import ConvProblem, Epilogue, Lowered, stored
from leanconv.gpu.lowering.gemm import pack, sum_error
from leanconv.gpu.lowering.product_tiles import Tile
from leanconv.gpu.machine import FP16X3, IEEE, Arithmetic, Machine
from leanconv.records import dataclass
from leanconv.spec import ConvSpec
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT16, FLOAT32, FLOAT64, DType

_MOST_UNROLLED = 25
_MANY = 1024  # programs, that keep every processor busy
_IN_ROW = 4  # outputs of a thread of `depthwise_row`
# Of depthwise and 1x1 in one launch: every tile is compiled ahead of time in the tests.
_FUSED_TILES = (Tile(64, 64, 32, 4, 2), Tile(64, 32, 32, 4, 2), Tile(32, 32, 32, 4, 2))


def fused_tiles(arithmetic: Arithmetic) -> tuple[Tile, ...]:
    """The tiles of depthwise and 1x1 in one launch; larger ones spill in fused multiply-adds."""
    return _FUSED_TILES[-1:] if arithmetic is IEEE else _FUSED_TILES


@dataclass(frozen=True)
class DepthwiseParameters(Parameters):
    """The number of a row's outputs that a thread makes: `outputs`, 1 or 4."""

    outputs: int | None = parameter(one_of(1, _IN_ROW))


def depth_tile(spec: ConvSpec) -> tuple[int, int, int]:
    """Rows, columns and channels of the tile that a program of `depthwise` computes.

    A thread that computes several positions loads the weights once; that pays as long as there are
    programs for every processor.
    """
    channels = 64 if spec.out_channels >= 64 else 32 if spec.out_channels > 16 else 16
    out_w = spec.output_size[1]
    width = 16 if channels <= 32 and out_w >= 28 else 8 if out_w >= 6 else 4
    for elements in (2048, 1024, 512):
        height = min(elements // (channels * width) or 1, 4)
        if _programs(spec, (height, width, channels)) >= _MANY:
            break
    return height, width, channels


def row_tile(spec: ConvSpec) -> tuple[int, int, int]:
    """Rows, positions along a row and channels of the tile of `depthwise_row`.

    Of channels 64, if fewer are not filled up by an eighth less; of shapes the one with the fewest
    outputs beside the image, the highest first.
    """
    channels = 64
    while channels > 16 and 8 * _filled(spec.out_channels, channels) > 9 * spec.out_channels:
        channels //= 2
    positions = {64: 8 if spec.dtype == FLOAT32 else 16, 32: 16, 16: 32}[channels]
    out_h, out_w = spec.output_size
    shapes = [(positions // width, width) for width in (2, 4, 1)]

    def covered(shape: tuple[int, int]) -> int:
        return _filled(out_h, shape[0]) * _filled(out_w, _IN_ROW * shape[1])

    height, width = min(shapes, key=covered)
    return height, width, channels


def _filled(extent: int, side: int) -> int:
    """An extent filled up to whole tiles."""
    return ceil_div(extent, side) * side


def _programs(spec: ConvSpec, tile: tuple[int, int, int]) -> int:
    """Programs of a tile of so many outputs."""
    out_h, out_w = spec.output_size
    across = blocks(out_h, tile[0]) * blocks(out_w, tile[1])
    return spec.batch * across * blocks(spec.out_channels, tile[2])


def _in_row(spec: ConvSpec) -> str | None:
    """Why a thread cannot make several outputs of a row, or None."""
    if spec.out_channels != spec.groups:
        return f"{spec.out_channels} outputs of {spec.groups} channels; expected one for each"
    if spec.dilation[1] > 1 and spec.kernel[1] > 1:
        return f"dilation is {spec.dilation}; expected 1 along w"
    if spec.stride[1] > 2:
        return f"stride is {spec.stride}; expected at most 2 along w"
    if prod(spec.kernel) > _MOST_UNROLLED:
        return f"the kernel has {prod(spec.kernel)} taps; expected at most {_MOST_UNROLLED}"
    if spec.dtype == FLOAT64:
        return "dtype is float64; expected a smaller one"
    return None


def _window(spec: ConvSpec) -> dict[str, int]:
    return by_axis(stride=spec.stride, pad=spec.pad_begin, dilation=spec.dilation)


def depth_weights(w: np.ndarray, dtype: DType) -> np.ndarray:
    """Weights (K, 1, R, S) as the kernels read them: (R, S, K)."""
    return stored(np.moveaxis(w[:, 0], 0, -1), dtype)


def lower_depthwise(
    problem: ConvProblem, w: np.ndarray, machine: Machine, parameters: DepthwiseParameters
) -> Lowered:
    """One launch that reads and writes memory once; its time is memory's.

    Raises:
        SpecError: `outputs=4` is asked for, and cannot be.
    """
    spec, dtype = problem.spec, problem.dtype
    reason = _in_row(spec)
    if parameters.outputs == _IN_ROW and reason:
        raise SpecError(f"outputs is {_IN_ROW} for {spec}: {reason}; leave outputs out")
    tile = height, width, channels = row_tile(spec)
    many = _programs(spec, (height, _IN_ROW * width, channels)) >= _MANY
    shares = spec.stride[1] == 1 or dtype.bytes == 2  # few columns of stride 2, in four bytes
    pays = many and shares and not reason
    by_row = parameters.outputs == _IN_ROW or (parameters.outputs is None and pays)
    if not by_row:
        tile = depth_tile(spec)
    weights = f"{problem.name}/w"
    launch = _depth_launch(problem, weights, tile, by_row)
    moved = (prod(spec.input_shape) + prod(spec.output_shape)) * dtype.bytes
    arithmetic = problem.arithmetics[-1]
    return Lowered(
        (launch,),
        {weights: depth_weights(w, dtype)},
        {},
        "depthwise",
        "fma" if dtype != FLOAT64 else "ieee",
        f"tile {'x'.join(map(str, tile))}" + (f" of {_IN_ROW} outputs" if by_row else ""),
        min(sum_error(spec.reduction, arithmetic), arithmetic.unit_error),
        moved / machine.memory_bandwidth + machine.launch_s,
    )


def _depth_launch(
    problem: ConvProblem, weights: str, tile: tuple[int, int, int], by_row: bool
) -> Launch:
    spec, dtype, epilogue = problem.spec, problem.dtype, problem.epilogue
    height, width, channels = tile
    multiple = spec.out_channels // spec.groups
    window = _window(spec)
    if by_row:
        width *= _IN_ROW
        constants: dict[str, Constant] = {"STRIDE_W": window.pop("stride_w")}
        del window["dilation_w"]
    else:
        # Five by five in float64 would spill, as would several outputs of a channel.
        few = multiple > 1 or dtype == FLOAT64
        unrolled = prod(spec.kernel) <= (9 if few else _MOST_UNROLLED)
        constants = {"MULTIPLE": multiple, "UNROLLED": unrolled}
    return make_launch(
        "depthwise.depthwise_row" if by_row else "depthwise.depthwise",
        (
            blocks(spec.output_size[0], height) * blocks(spec.output_size[1], width),
            blocks(spec.out_channels, channels),
            spec.batch,
        ),
        {
            "x": Pointer(problem.x, dtype),
            "w": Pointer(weights, dtype),
            **epilogue.buffers(dtype),
            "y": Pointer(problem.y, dtype),
            "height": spec.size[0],
            "width": spec.size[1],
            **by_axis(out=spec.output_size),
            "channels": spec.in_channels,
            "outputs": spec.out_channels,
            **window,
            **epilogue.numbers(),
        },
        {
            "R": spec.kernel[0],
            "S": spec.kernel[1],
            **constants,
            "TH": height,
            "TW": tile[1],
            "BC": channels,
            **epilogue.constants(),
            "ACC": dtype.accumulator,
        },
        writes="y",
        divisible={
            "channels": divisor(spec.in_channels),
            "outputs": divisor(spec.out_channels),
        },
        in_place="residual",
        flops=spec.flops,
        numbers=dtype.accumulator,
    )


def fused_rejects(depth: ConvSpec, point: ConvSpec, dtype: DType) -> str | None:
    """Why a depthwise and a 1x1 convolution cannot be one launch, or should not."""
    if len(depth.size) > 2:
        return "there are three spatial axes"
    if depth.in_channels != depth.groups or depth.out_channels != depth.groups:
        return "the first is not depthwise with one output for each channel"
    if prod(point.kernel) != 1 or point.groups != 1 or point.stride != (1, 1):
        return "the second is not 1x1 of stride 1"
    if any((*point.pad_begin, *point.pad_end)):
        return "the second pads"
    if prod(depth.kernel) > _MOST_UNROLLED:
        return f"the kernel has {prod(depth.kernel)} taps; expected at most {_MOST_UNROLLED}"
    if dtype == FLOAT64:
        return "double precision is kept in separate launches"
    return None


def lower_fused(
    problem: ConvProblem,
    depth: ConvSpec,
    w_depth: np.ndarray,
    bias_depth: str,
    w: np.ndarray,
    machine: Machine,
    only: Tile | None = None,
) -> Lowered:
    """A depthwise convolution and the 1x1 behind it; the tensor between is never stored.

    Args:
        problem: of the 1x1 convolution, but reading what the depthwise one reads.
        depth: the depthwise convolution with its activation.
        w_depth: (C, 1, R, S).
        bias_depth: name of its bias, or `""`.
        w: (K, C, 1, 1).
        machine: the GPU to choose for.
        only: the tile to use.
    """
    point, dtype, epilogue = problem.spec, problem.dtype, problem.epilogue
    arithmetic = next(a for a in problem.arithmetics if a is not FP16X3)
    out_h, out_w = depth.output_size
    rows = point.batch * out_h * out_w
    tile, estimate = _fused_tile(problem, depth, rows, arithmetic, machine, only)
    channels, columns = point.in_channels, point.out_channels
    packed = pack(w.reshape(columns, 1, channels), tile.k, arithmetic, dtype)
    constants = {f"{problem.name}/{role}": array for role, array in packed.items()}
    constants[f"{problem.name}/w_depth"] = depth_weights(w_depth, dtype)
    inner = Epilogue(bias=bias_depth, activation=depth.activation)
    kept = FLOAT16 if arithmetic.split else dtype
    launch = make_launch(
        "depthwise.depthwise_pointwise",
        (blocks(rows, tile.m) * blocks(columns, tile.n),),
        {
            "x": Pointer(problem.x, dtype),
            "w_depth": Pointer(f"{problem.name}/w_depth", dtype),
            "bias_depth": Pointer(bias_depth, dtype),
            "w": Pointer(f"{problem.name}/w", kept),
            "w_low": Pointer(f"{problem.name}/w_low" if arithmetic.split else "", FLOAT16),
            "scale": Pointer(f"{problem.name}/scale" if arithmetic.split else "", FLOAT32),
            **epilogue.buffers(dtype),
            "y": Pointer(problem.y, dtype),
            "rows": rows,
            "columns": columns,
            "height": depth.size[0],
            "width": depth.size[1],
            "out_area": out_h * out_w,
            "out_width": out_w,
            "channels": channels,
            **_window(depth),
            "blocks": ceil_div(channels, tile.k),
            **{f"{name}_depth": number for name, number in inner.numbers().items()},
            **epilogue.numbers(),
        },
        {
            "R": depth.kernel[0],
            "S": depth.kernel[1],
            "BM": tile.m,
            "BN": tile.n,
            "BK": tile.k,
            "MODE": arithmetic.mode,
            "HAS_DEPTH_BIAS": bool(bias_depth),
            "DEPTH_ACT": inner.constants()["ACT"],
            **epilogue.constants(),
            "ACC": dtype.accumulator,
        },
        writes="y",
        warps=tile.warps,
        stages=tile.stages,
        divisible={"channels": divisor(channels), "columns": divisor(columns)},
        in_place="residual",
        flops=depth.flops + point.flops,
        numbers=dtype.accumulator,
    )
    error = sum_error(channels, arithmetic) + arithmetic.unit_error
    name = "depthwise+1x1"
    return Lowered((launch,), constants, {}, name, arithmetic.name, f"tile {tile}", error, estimate)


def _fused_tile(
    problem: ConvProblem,
    depth: ConvSpec,
    rows: int,
    arithmetic: Arithmetic,
    machine: Machine,
    only: Tile | None,
) -> tuple[Tile, float]:
    """The tile with the least estimated time, and that time: the depthwise part is recomputed for
    each tile of columns."""
    columns, channels = problem.spec.out_channels, problem.spec.in_channels
    found = []
    for tile in (only,) if only else fused_tiles(arithmetic):
        across = ceil_div(columns, tile.n)
        waves = ceil_div(ceil_div(rows, tile.m) * across, machine.processors)
        taps = prod(depth.kernel)
        # Loads of taps go through L1: some 64 bytes a cycle and processor, measured nowhere yet.
        depth_s = tile.m * channels * taps * 4 / machine.depthwise_rate
        rate = machine.rate(arithmetic.name, problem.dtype) / machine.processors
        point_s = 2.0 * tile.m * tile.n * channels / rate
        busy = waves * (depth_s + point_s)
        moved = prod(depth.input_shape) + rows * columns
        memory = moved * problem.dtype.bytes / machine.memory_bandwidth
        found.append((max(busy, memory) + machine.launch_s, tile))
    seconds, best = min(found, key=lambda each: each[0])
    return best, seconds
