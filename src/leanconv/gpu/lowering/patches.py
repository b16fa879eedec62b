"""Implicit GEMM over patches of the output, whose inputs are loaded by bulk tensor copies (TMA).

The input is described to the hardware in one of two forms (see `kernels.patches`): tap by tap, or
as an overlapping view of its windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod, sqrt

import numpy as np

from leanconv.gpu.launch import Launch, Pointer, TensorMap, by_axis, divisor, make_launch
from leanconv.gpu.lowering.conv_problem import ConvProblem, Lowered
from leanconv.gpu.lowering.gemm import LEAST_SUM, PROMOTED, X_SCALE, pack, repair_tile, sum_error
from leanconv.gpu.lowering.product_tiles import Tile, seconds, tiles
from leanconv.gpu.lowering.windows import Windows, in_place_windows, unfolded_windows
from leanconv.gpu.machine import FP16X3, TENSOR_COPIES, TF32X3, Arithmetic, Machine
from leanconv.records import dataclass, replace
from leanconv.spec import ConvSpec
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT16, FLOAT32, FLOAT64, INT32

TAPS, WINDOWS = "taps", "windows"
_ALIGNED = 16  # bytes, of every stride of a tensor that is copied so
_MOST_STRIDE = 2**40  # bytes
_SIDES = (16, 8, 4, 2, 1)  # of a patch; an image that is one row is cut into whole tiles
_MOST_IMAGES = 256  # of one box
# A box reaches the products through registers. Where a step makes one product alone, Triton 3.6
# leaves it in flight while the next box overwrites them: wrong sums, seen on an H100. Where it
# makes three, each is waited for. Strict products of boxes spill.
_MODES = ("fp16x3", "tf32x3")


@dataclass(frozen=True)
class Patching:
    """One way to cut a product into tiles.

    Attributes:
        form: of the input, `TAPS` or `WINDOWS`.
        tile, images, width: of the product; images, and columns of each, of the patch that it
            covers.
        arithmetic: how products are made.
        estimate_s: the time expected, in seconds.
    """

    form: str
    tile: Tile
    images: int
    width: int
    arithmetic: Arithmetic
    estimate_s: float

    @property
    def height(self) -> int:
        """Rows of a patch in each image."""
        return self.tile.m // (self.images * self.width)

    @property
    def shape(self) -> str:
        """Images, rows and columns of a patch."""
        return f"{self.images}x{self.height}x{self.width}"

    def __str__(self) -> str:
        shown = f"tile {self.tile}, patches {self.shape} by tensor copies"
        return shown if self.form == TAPS else f"{shown} of overlapping windows"


def patches_reject(problem: ConvProblem, machine: Machine, form: str) -> str | None:
    """Why a convolution's inputs cannot be loaded by bulk tensor copies in a form, or None."""
    spec = problem.spec
    if machine.arch < TENSOR_COPIES:
        return f"sm_{machine.arch} has no bulk tensor copies; expected sm_{TENSOR_COPIES}"
    if len(spec.size) > 2:
        return "three spatial axes; expected one or two"
    if spec.groups > 1:
        return f"groups is {spec.groups}; expected 1"
    if not any(a.name in _MODES for a in problem.arithmetics) or problem.dtype == FLOAT64:
        return (
            f"{problem.dtype} in {problem.arithmetics[0].name} arithmetic; expected products that "
            f"are split ({', '.join(_MODES)})"
        )
    reason = _taps_reject(spec) if form == TAPS else _windows_reject(spec, machine)
    if reason:
        return reason
    steps = [step * problem.dtype.bytes for step in _tensor(spec, form)[1][:-1]]
    odd = [step for step in steps if step % _ALIGNED or step >= _MOST_STRIDE]
    if odd:
        return (
            f"the input has a stride of {odd[-1]} bytes; expected multiples of {_ALIGNED} below "
            "2^40"
        )
    return None


def _taps_reject(spec: ConvSpec) -> str | None:
    if max(spec.stride) > 1:
        return f"stride is {spec.stride}; expected 1"
    return None


def _windows_reject(spec: ConvSpec, machine: Machine) -> str | None:
    if not machine.overlapping_maps:
        return "the driver makes no tensor maps whose cells overlap"
    if any((*spec.pad_begin, *spec.pad_end)):
        return f"the input is padded by {spec.pad_begin} and {spec.pad_end}; expected none"
    if spec.dilation[1] > 1 and spec.kernel[1] > 1:
        return "the kernel is dilated along w, so that no row of a window is contiguous"
    return None


def _tensor(spec: ConvSpec, form: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents of the input in a form, and strides in elements."""
    height, width = spec.size
    channels = spec.in_channels
    if form == TAPS:
        row = width * channels
        return (spec.batch, height, width, channels), (height * row, row, channels, 1)
    extents = (spec.batch, *spec.output_size, spec.kernel[0], spec.kernel[1] * channels)
    row, cell = width * channels, channels
    rows, columns = spec.stride[0] * row, spec.stride[1] * cell
    return extents, (height * row, rows, columns, spec.dilation[0] * row, 1)


def _flat(spec: ConvSpec) -> ConvSpec:
    """A convolution as one image of one row where it is a matrix product; else itself."""
    if not in_place_windows(spec) or max(spec.stride) > 1:
        return spec
    return replace(
        spec, batch=1, size=(1, spec.batch * prod(spec.size)), stride=(1, 1), dilation=(1, 1)
    )


def patchings(
    problem: ConvProblem, machine: Machine, finite: bool, form: str
) -> Iterator[Patching]:
    """Every way to cut a convolution that `patches_reject` accepts in a form.

    Args:
        problem: the convolution.
        machine: the GPU to choose for.
        finite: whether all weights are; halves of what is infinite are NaN.
        form: of the input.
    """
    spec = _flat(problem.spec)
    out_h, out_w = spec.output_size
    for arithmetic in problem.arithmetics:
        if arithmetic.name not in _MODES or (arithmetic.split and not finite):
            continue
        for tile in tiles(arithmetic, problem.dtype, machine.arch):
            images, height, width = _patch(spec, tile.m)
            rows = ceil_div(out_h, height) * height, ceil_div(out_w, width) * width
            windows = _counted(spec, ceil_div(spec.batch, images) * images, rows, form)
            estimate = seconds(
                windows,
                spec.out_channels,
                arithmetic,
                problem.dtype,
                machine,
                tile,
                1,
                tile.copies,
            )
            yield Patching(form, tile, images, width, arithmetic, estimate)


def _patch(spec: ConvSpec, cells: int) -> tuple[int, int, int]:
    """Images, rows and columns of the patch that covers the output with the least left over.

    Among equals the one with the fewest images, which shares most of its windows.
    """
    out_h, out_w = spec.output_size
    if out_h == 1:
        return 1, 1, cells
    shapes = (
        (cells // (height * width), height, width)
        for height in _SIDES
        for width in _SIDES
        if cells // (height * width) <= min(_MOST_IMAGES, max(1, spec.batch))
        and cells >= height * width
    )

    def covered(shape: tuple[int, int, int]) -> tuple[int, int, int]:
        extents = zip((spec.batch, out_h, out_w), shape, strict=True)
        return prod(ceil_div(extent, side) * side for extent, side in extents), shape[0], shape[1]

    return min(shapes, key=covered, default=(1, cells // _SIDES[0], _SIDES[0]))


def _counted(spec: ConvSpec, images: int, rows: tuple[int, int], form: str) -> Windows:
    """Return the windows as the estimate counts them, patches filled up."""
    image = prod(spec.size) * spec.in_channels
    segments, length = _segments(spec, form)
    windows = unfolded_windows(images, *rows, (image, 0, 0), length)
    return replace(windows, segments=segments)


def _segments(spec: ConvSpec, form: str) -> tuple[int, int]:
    """Runs of contiguous elements in a window, and the length of each."""
    if form == TAPS:
        return prod(spec.kernel), spec.in_channels
    return spec.kernel[0], spec.kernel[1] * spec.in_channels


def best_patching(
    problem: ConvProblem,
    machine: Machine,
    finite: bool,
    forms: Sequence[str] = (WINDOWS, TAPS),  # among equals windows, whose steps are whole
) -> Patching | None:
    """Return the patching of the least estimated time; None if none is possible."""
    possible = [form for form in forms if patches_reject(problem, machine, form) is None]
    found = (each for form in possible for each in patchings(problem, machine, finite, form))
    return min(found, key=lambda patching: patching.estimate_s, default=None)


def lower_patches(problem: ConvProblem, w: np.ndarray, patching: Patching) -> Lowered:
    """The launches for one way to cut.

    Args:
        problem: the convolution.
        w: (K, C, R, S).
        patching: of `patchings`.
    """
    spec, tile, arithmetic = problem.spec, patching.tile, patching.arithmetic
    count, length = _segments(spec, patching.form)
    segments = np.moveaxis(w, 1, -1).reshape(spec.out_channels, count, length)
    packed = pack(segments, tile.k, arithmetic, problem.dtype)
    constants = {f"{problem.name}/{role}": array for role, array in packed.items()}
    temporaries: dict[str, int] = {}
    if arithmetic is FP16X3:
        first = _launch(problem, patching, arithmetic, "write")
        again = replace(patching, tile=repair_tile(tile))
        launches: Sequence[Launch] = (first, _launch(problem, again, TF32X3, "read"))
        temporaries[f"{problem.name}/flags"] = 4 * first.programs
    else:
        launches = (_launch(problem, patching, arithmetic, "none"),)
    return Lowered(
        tuple(launches),
        constants,
        temporaries,
        "direct",
        arithmetic.name,
        str(patching),
        sum_error(spec.reduction, arithmetic),
        patching.estimate_s,
    )


def _launch(problem: ConvProblem, patching: Patching, arithmetic: Arithmetic, flags: str) -> Launch:
    spec, tile, dtype, epilogue = (
        _flat(problem.spec),
        patching.tile,
        problem.dtype,
        problem.epilogue,
    )
    out_h, out_w = spec.output_size
    down, across = ceil_div(out_h, patching.height), ceil_div(out_w, patching.width)
    count, length = _segments(spec, patching.form)
    each = ceil_div(length, tile.k)
    steps = count * each
    split = arithmetic.split
    kept, columns = FLOAT16 if split else dtype, spec.out_channels
    name, w_shape, w_box = problem.name, (columns, steps * tile.k), (tile.n, tile.k)
    extents, strides = _tensor(spec, patching.form)
    patch = (patching.images, patching.height, patching.width)
    box = (*patch, tile.k) if patching.form == TAPS else (*patch, 1, tile.k)
    return make_launch(
        "patches.patch_gemm",
        (ceil_div(spec.batch, patching.images) * down * across * ceil_div(columns, tile.n),),
        {
            "x": TensorMap(problem.x, dtype, extents, box, strides),
            "w": TensorMap(f"{name}/w", kept, w_shape, w_box),
            "w_low": TensorMap(f"{name}/w_low" if split else f"{name}/w", kept, w_shape, w_box),
            "scale": Pointer(f"{name}/scale" if split else "", FLOAT32),
            **epilogue.buffers(dtype),
            "flags": Pointer(f"{name}/flags" if flags != "none" else "", INT32),
            "y": Pointer(problem.y, dtype),
            "columns": columns,
            "images": spec.batch,
            **by_axis(out=spec.output_size),
            "down": down,
            "across": across,
            **by_axis(pad=spec.pad_begin, dilation=spec.dilation),
            "taps": spec.kernel[1],
            "each": each,
            "blocks": steps,
            "least": LEAST_SUM * sqrt(spec.reduction),
            **epilogue.numbers(),
        },
        {
            "WINDOWS": patching.form == WINDOWS,
            "TN": patching.images,
            "TH": patching.height,
            "TW": patching.width,
            "BM": tile.m,
            "BN": tile.n,
            "BK": tile.k,
            "X_SCALE": X_SCALE,
            "PROMOTED": PROMOTED,
            "MODE": arithmetic.mode,
            "FLAGS": flags,
            **epilogue.constants(),
            "ACC": dtype.accumulator,
        },
        writes="y",
        warps=tile.warps,
        stages=tile.stages,
        divisible={"columns": divisor(columns)},
        in_place="residual" if flags == "none" else "",
        flops=0 if flags == "read" else spec.flops,
        numbers=dtype.accumulator,
    )
