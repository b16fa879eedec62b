"""im2col, MEC and im2win: a copy unfolds the input, then the same GEMM runs over it."""

from __future__ import annotations

from math import prod

import numpy as np

from leanconv.algorithms.parameters import Parameters, one_of, parameter
from leanconv.errors import SpecError
from leanconv.gpu.launch import (
    Launch,
    Pointer,
    blocks,
    copy_box,
    dense_strides,
    divisor,
    make_launch,
)
from leanconv.gpu.lowering.conv_problem import ConvProblem, Epilogue, Lowered
from leanconv.gpu.lowering.gemm import Product, lower_product
from leanconv.gpu.lowering.product_tiles import Tile
from leanconv.gpu.lowering.windows import Windows, unfolded_windows
from leanconv.gpu.machine import IEEE, Arithmetic, Machine
from leanconv.records import dataclass, replace
from leanconv.types import FLOAT32

MEC_THRESHOLD = 100  # T of the MEC paper, "good on recent GPUs"


@dataclass(frozen=True)
class _Shape:
    """The unfolded tensor (n, i, j, t, c), and which cells of the input it holds.

    Attributes:
        i, j, t: extents.
        taps: of t, how many go along w.
        h, w: (step of i, step of j, step of t's part, padding) along each axis of the input.
    """

    i: int
    j: int
    t: int
    taps: int
    h: tuple[int, int, int, int]
    w: tuple[int, int, int, int]


def _copy(problem: ConvProblem, shape: _Shape, target: str) -> Launch:
    spec = problem.spec
    channels = spec.in_channels
    rows = spec.batch * shape.i * shape.j * shape.t
    tile_c = min(64, 1 << (channels - 1).bit_length())
    tile_r = max(1, 1024 // tile_c)
    return make_launch(
        "data_movement.unfold",
        (blocks(rows, tile_r), blocks(channels, tile_c)),
        {
            "x": Pointer(problem.x, problem.dtype),
            "y": Pointer(target, problem.dtype),
            "rows": rows,
            "height": spec.size[0],
            "width": spec.size[1],
            "channels": channels,
            "extent_i": shape.i,
            "extent_j": shape.j,
            "extent_t": shape.t,
            "taps": shape.taps,
            "i_h": shape.h[0],
            "j_h": shape.h[1],
            "t_h": shape.h[2],
            "pad_h": shape.h[3],
            "i_w": shape.w[0],
            "j_w": shape.w[1],
            "t_w": shape.w[2],
            "pad_w": shape.w[3],
        },
        {"BR": tile_r, "BC": tile_c},
        writes="y",
        divisible={"channels": divisor(channels)},
    )


def _lower(
    problem: ConvProblem,
    shape: _Shape,
    windows: Windows,
    segments: np.ndarray,
    machine: Machine,
    algorithm: str,
    *,
    arithmetics: tuple[Arithmetic, ...] | None = None,
    tile: Tile | None = None,
    epilogue: Epilogue | None = None,
) -> Lowered:
    """The copy and the product over its result."""
    spec, unfolded = problem.spec, f"{problem.name}/unfolded"
    size = spec.batch * shape.i * shape.j * shape.t * spec.in_channels * problem.dtype.bytes
    product = Product(
        windows,
        spec.out_channels,
        problem.dtype,
        unfolded,
        problem.y,
        problem.epilogue if epilogue is None else epilogue,
        problem.name,
    )
    done = lower_product(
        product, segments, arithmetics or problem.arithmetics, machine, algorithm, tile
    )
    copied = (size + prod(spec.input_shape) * problem.dtype.bytes) / machine.memory_bandwidth
    return replace(
        done,
        launches=(_copy(problem, shape, unfolded), *done.launches),
        temporaries={unfolded: size, **done.temporaries},
        estimate_s=done.estimate_s + copied + machine.launch_s,
    )


def lower_im2col(
    problem: ConvProblem, w: np.ndarray, machine: Machine, parameters: Parameters
) -> Lowered:
    """Every window copied whole: (M, R*S*C), then one GEMM."""
    del parameters
    spec = problem.spec
    out_h, out_w = spec.output_size
    kernel_h, kernel_w = spec.kernel
    shape = _Shape(
        out_h,
        out_w,
        kernel_h * kernel_w,
        kernel_w,
        (spec.stride[0], 0, spec.dilation[0], spec.pad_begin[0]),
        (0, spec.stride[1], spec.dilation[1], spec.pad_begin[1]),
    )
    length = spec.reduction
    windows = unfolded_windows(1, 1, spec.batch * out_h * out_w, (0, 0, length), length)
    segments = np.moveaxis(w, 1, -1).reshape(spec.out_channels, 1, length)
    return _lower(problem, shape, windows, segments, machine, "im2col")


@dataclass(frozen=True)
class MecParameters(Parameters):
    """The solution of the paper, by its letter."""

    solution: str | None = parameter(one_of("A", "B"))


def lower_mec(
    problem: ConvProblem, w: np.ndarray, machine: Machine, parameters: MecParameters
) -> Lowered:
    """MEC, algorithm 2 of its paper: unfolded along w only, then one batch of overlapping GEMMs.

    Solution A makes o_h GEMMs of (i_n * o_w) rows, whose result (h, n, w, c) is brought into order
    through L; solution B i_n * o_h GEMMs of o_w rows, in order at once. Either is one launch.
    """
    spec = problem.spec
    out_h, out_w = spec.output_size
    kernel_h, kernel_w = spec.kernel
    padded = spec.size[0] + spec.pad_begin[0] + spec.pad_end[0]
    run = kernel_w * spec.in_channels
    shape = _Shape(
        out_w,
        padded,
        kernel_w,
        kernel_w,
        (0, 1, 0, spec.pad_begin[0]),
        (spec.stride[1], 0, spec.dilation[1], spec.pad_begin[1]),
    )
    outputs, elements = prod(spec.output_shape), spec.batch * out_w * padded * run
    fits = outputs <= elements and not problem.epilogue.residual
    solution = parameters.solution or ("A" if out_w <= MEC_THRESHOLD and fits else "B")
    if solution == "A" and not fits:
        raise SpecError(
            f"solution is {solution!r} for {spec}; expected B, or A where the output is no larger "
            "than the unfolded tensor and no residual is added"
        )
    image, column, row = out_w * padded * run, padded * run, spec.stride[0] * run
    segments = np.moveaxis(w, 1, -1).reshape(spec.out_channels, 1, kernel_h * run)
    name = f"mec:solution={solution}"
    if solution == "B":
        windows = unfolded_windows(spec.batch, out_h, out_w, (image, row, column), kernel_h * run)
        return _lower(problem, shape, windows, segments, machine, name)
    windows = unfolded_windows(out_h, spec.batch, out_w, (row, image, column), kernel_h * run)
    done = _lower(problem, shape, windows, segments, machine, name)
    unfolded = f"{problem.name}/unfolded"
    dense = (spec.batch, out_h, out_w * spec.out_channels)
    strides = dense_strides(dense)
    by_row = dense_strides((out_h, spec.batch, out_w * spec.out_channels))
    back = (
        copy_box(problem.y, unfolded, problem.dtype, (outputs,), (1,), (1,)),
        copy_box(unfolded, problem.y, problem.dtype, dense, (by_row[1], by_row[0], 1), strides),
    )
    moved = 4 * outputs * problem.dtype.bytes / machine.memory_bandwidth
    return replace(
        done,
        launches=(*done.launches, *back),
        estimate_s=done.estimate_s + moved + 2 * machine.launch_s,
    )


_SWITCHES = ("micro", "vector", "double", "prefetch")


@dataclass(frozen=True)
class Im2winParameters(Parameters):
    """One of the thesis' two kernels, and the switches of its steps; see `Im2winForm`."""

    form: str | None = parameter(one_of("basic", "high"))
    micro: int | None = parameter(one_of(0, 1))
    vector: int | None = parameter(one_of(0, 1))
    double: int | None = parameter(one_of(0, 1))
    prefetch: int | None = parameter(one_of(0, 1))


@dataclass(frozen=True)
class Im2winForm:
    """The steps from the thesis' basic kernel (algorithm 8) to the high-performance one (9).

    Attributes:
        micro: a thread computes a block of outputs; without, tiles of 32 x 32 with few a thread.
        vector: loads of 16 bytes; without, of one element.
        double: the next tile is loaded while one is used.
        prefetch: two tiles are on their way; one before sm_90, whose registers do not suffice.
    """

    micro: bool = True
    vector: bool = True
    double: bool = True
    prefetch: bool = True

    @staticmethod
    def of(parameters: Im2winParameters) -> Im2winForm | None:
        """The form of `form=basic` or `prefetch=0`; None to leave it open."""
        given = parameters.given()
        if not given:
            return None
        switches = dict.fromkeys(_SWITCHES, given.pop("form", "high") == "high")
        return Im2winForm(**{**switches, **{name: value == 1 for name, value in given.items()}})

    def tile(self, arch: int) -> Tile:
        """The tile of the GEMM in this form."""
        stages = 3 if self.double and self.prefetch and arch >= 90 else 2 if self.double else 1
        return Tile(128, 64, 16, 8, stages) if self.micro else Tile(32, 32, 16, 8, stages)


def lower_im2win(
    problem: ConvProblem, w: np.ndarray, machine: Machine, parameters: Im2winParameters
) -> Lowered:
    """im2win with its tensor stored: (n, o_h, width, R, C), so that a window is one run.

    The index mapping is the thesis' algorithm 7 with channels last: rows m are (n, oh, ow), k runs
    over (s, r, c), and the window of ow starts at ow * stride * R * C. Without parameters the
    arithmetic and the tile are free; with them the product is the thesis' own, in float32 fused
    multiply-adds.
    """
    spec, form = problem.spec, Im2winForm.of(parameters)
    out_h, out_w = spec.output_size
    kernel_h, kernel_w = spec.kernel
    padded = spec.size[1] + spec.pad_begin[1] + spec.pad_end[1]
    run = kernel_h * spec.in_channels
    shape = _Shape(
        out_h,
        padded,
        kernel_h,
        1,
        (spec.stride[0], 0, spec.dilation[0], spec.pad_begin[0]),
        (0, 1, 0, spec.pad_begin[1]),
    )
    strides = (out_h * padded * run, padded * run, spec.stride[1] * run)
    windows = unfolded_windows(spec.batch, out_h, out_w, strides, kernel_w * run)
    # (K, C, R, S) -> (K, S, R, C)
    segments = w.transpose(0, 3, 2, 1).reshape(spec.out_channels, 1, kernel_w * run)
    if form is None:
        return _lower(problem, shape, windows, segments, machine, "im2win")
    arithmetics = (IEEE,) if problem.dtype == FLOAT32 else problem.arithmetics
    only = form.tile(machine.arch) if problem.dtype == FLOAT32 else None
    done = _lower(
        problem, shape, windows, segments, machine, "im2win", arithmetics=arithmetics, tile=only
    )
    shown = ", ".join(f"{k}={int(v)}" for k, v in vars(form).items())
    done = replace(done, parameters=f"{done.parameters}, {shown}")
    return done if form.vector else _without_vectors(done)


def _without_vectors(done: Lowered) -> Lowered:
    """Launches compiled without any knowledge of alignment."""
    launches = []
    for launch in done.launches:
        if launch.code.function == "gemm.segment_gemm":
            code = replace(launch.code, divisible=())
            launch = replace(launch, code=code)
        launches.append(launch)
    return replace(done, launches=tuple(launches))
