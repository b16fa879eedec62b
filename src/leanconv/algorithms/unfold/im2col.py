"""im2col: every window becomes a row of a matrix, and convolution a matrix product.

    M[(od, oh, ow), (kd, kh, kw, c)] = x[c, od·sd + kd·dd - pd, …]
    y = act(M · W + bias + residual)

`rows=whole` unfolds one image at a time into a matrix that all threads share, as Caffe and section
2.1.3 of the im2win thesis do; the matrix is `od·oh·ow · kd·kh·kw·c` elements. `rows=batch` unfolds
all images first, as equation 2 of the MEC paper counts it. Without either a few rows
of the matrix at a time (`rows=N`; as many as half of L2 holds) are unfolded into a
thread's scratch and multiplied while they are there.

`lanes=pixels` lays the matrix out as planes, one for each (c, kd, kh, kw), with windows side by
side: y in planes takes sums with lanes along pixels as they are (`planar.pointwise`).
"""

from __future__ import annotations

from math import prod

import numpy as np

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse
from leanconv.algorithms.parameters import Choice, Parameters, count_or, one_of, parameter
from leanconv.algorithms.problem import (
    Problem,
    beside_weights,
    strided_walk_cycles,
    sum_error,
    walk_error,
)
from leanconv.algorithms.unfold import candidates
from leanconv.algorithms.unfold.kernels import ImageProduct, Unfold
from leanconv.algorithms.unfold.unfolding import PIECE_BYTES, Unfolding
from leanconv.codegen.geometry import Access, PhasedAccess, Triple, Window
from leanconv.codegen.partial_sums import effective_length
from leanconv.codegen.tiling import rank_tiles
from leanconv.errors import SpecError
from leanconv.kernels.packing import copied
from leanconv.records import dataclass, replace
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.symbolic import Extent, Strides, fixed, require_numbers
from leanconv.target import Target
from leanconv.types import DType

CHANNELS, PIXELS = "channels", "pixels"
_LONG_STRIDE = 4  # beyond it no method but this has lanes along columns
_TILES = 12  # vectors of pixels that whole register tiles divide
_SQUARES = 0.5  # of an element's move where squares are transposed in registers
_FEW_CHANNELS = 8  # below, runs of taps along a row are moved instead of squares of channels
_LONG_ROW = 5  # taps of a row from which on the same holds for any number of channels
BATCH = "batch"  # all images' matrices at once
_MOST_IMAGES = 1024  # two stages each


def matrix_elements(problem: Problem) -> int:
    """Elements of one image's unfolded matrix: (od·oh·ow) · (kd·kh·kw·c)."""
    window = problem.conv.window
    return prod(window.out) * prod(window.kernel) * problem.conv.in_channels


def unfolding_of(
    problem: Problem, target: Target, position: Strides, plane: Extent = 0
) -> Unfolding:
    """All axes unfolded; the columns of the matrix are (kd, kh, kw, c), or (c, kd, kh, kw).

    Args:
        problem, target: the convolution and the machine.
        position: from one window of the matrix to the next, along each axis.
        plane: elements from one column to the next where windows are neighbours; 0: columns are.
    """
    conv, window, inputs = problem.conv, problem.conv.window, problem.conv.inputs
    _, kh, kw = window.kernel
    by_taps = bool(plane) or channels_first(problem)
    step = plane or 1
    tap = (kh * kw * step, kw * step, step) if by_taps else (kh * kw * inputs, kw * inputs, inputs)
    return Unfolding(
        window,
        conv.x,
        inputs,
        (True, True, True),
        prod(window.kernel) * step if by_taps else 1,
        position,
        tap,
        conv.dtype,
        conv.lanes(target),
    )


def channels_first(problem: Problem) -> bool:
    """Return whether runs of taps along a row are copied: planes, few channels or long rows."""
    conv, window = problem.conv, problem.conv.window
    if conv.x.lanes_contiguous or conv.x.spatial[2] != 1 or window.dilation[2] != 1:
        return False
    taps = window.kernel[2]
    return taps >= _LONG_ROW or (taps > 1 and conv.inputs < _FEW_CHANNELS)


def view_of(
    problem: Problem, out: Triple, image: int, group: int, plane: int = 0
) -> candidates.UnfoldedView:
    """The matrix: one window is one row, and its columns are the channels.

    Args:
        problem: the convolution.
        out: windows along depth, height and width.
        image, group: elements from one to the next.
        plane: as of `unfolding_of`; the windows are one row of pixels then.
    """
    steps, ones = problem.conv.reduction, (1, 1, 1)
    if plane:
        row = (1, 1, prod(out))
        window = Window(row, row, ones, ones, ones, (0, 0, 0))
        access = Access(image, 1, plane, (plane, plane, 1))
        return candidates.UnfoldedView(window, access, steps, (1, 2, 3, 4), by_pixels=True)
    spatial = (out[1] * out[2] * steps, out[2] * steps, steps)
    order = (1, 2, 3, 4) if channels_first(problem) else (2, 3, 4, 1)
    return candidates.UnfoldedView(
        Window(out, out, ones, ones, ones, (0, 0, 0)),
        Access(image, steps, group, spatial),
        steps,
        order,
    )


def _matrix(
    problem: Problem, target: Target, out: Triple, by_pixels: bool
) -> tuple[Unfolding, int, int]:
    """The unfolding of so many windows along depth, height and width.

    Returns:
        It, the elements of a group's matrix, and those of a plane of it; 0 without planes.
    """
    steps, (_, h, w) = problem.conv.reduction, out
    if not by_pixels:
        position = (h * w * steps, w * steps, steps)
        return unfolding_of(problem, target, position), prod(out) * steps, 0
    plane = _plane(prod(out), problem.conv.dtype)
    return unfolding_of(problem, target, (h * w, w, 1), plane), plane * steps, plane


def _plane(pixels: int, dtype: DType) -> int:
    """Elements of a plane of pixels: an odd number of cache lines, so that L1 takes many planes."""
    line = ALIGNMENT // dtype.bytes
    return (ceil_div(pixels, line) | 1) * line


def _whole(problem: Problem, target: Target, rows: str, by_pixels: bool) -> Candidate:
    """The matrix of an image at a time, or of the whole batch."""
    conv, out, choice = problem.conv, problem.conv.window.out, _choice(problem, by_pixels)
    unfolding, size, plane = _matrix(problem, target, out, by_pixels)
    if conv.batch == 1 or rows == BATCH:
        strides = (size * conv.groups, size) if by_pixels else (size, size * conv.batch)
        view = view_of(problem, out, *strides, plane)
        return candidates.whole_tensor(
            choice, problem, target, unfolding, strides, view, f"rows={rows}"
        )
    view = view_of(problem, out, size, size, plane)
    kernel = candidates.planned(with_conv(problem, batch=1), view, target)
    chunk = candidates.unfold_rows(unfolding, conv.groups * out[0], target.costs)
    unfold = Unfold(unfolding, 1, conv.groups, size * conv.groups, size, chunk, True)
    multiply = ImageProduct(kernel, conv.y.image)
    uses = []
    for n in range(conv.batch):
        uses.append(KernelUse(unfold, ("x", f"image{n}", "unfolded")))
        uses.append(KernelUse(multiply, ("unfolded", f"image{n}", *kernel.operands[1:])))
    own = candidates.packing(kernel, view, problem)
    images = {f"image{n}": np.array([n], np.int64) for n in range(conv.batch)}
    return Candidate(
        choice,
        tuple(uses),
        lambda w, channels: own(w, channels) | {name: copied(n) for name, n in images.items()},
        {"unfolded": size * conv.groups * conv.dtype.bytes},
        f"rows=whole, {candidates.tile_text(kernel)}",
    )


def _segment(problem: Problem, target: Target, room: int) -> int:
    """Columns of a block that is a part of a row: equal parts, in whole register tiles."""
    conv = problem.conv
    width = conv.window.out[2]
    vectors = ceil_div(conv.outputs, conv.lanes(target))
    tile = rank_tiles(target, room, vectors, conv.reduction)[0][1]
    whole = room // tile.rows * tile.rows or room
    equal = ceil_div(width, ceil_div(width, whole))
    return min(whole, ceil_div(equal, tile.rows) * tile.rows)


def _blocked(problem: Problem, target: Target, rows: int | None, by_pixels: bool) -> Candidate:
    conv = problem.conv
    require_numbers("the choice of blocks", conv.batch, *conv.window.out)
    (_, height, width) = conv.window.out
    steps = conv.reduction
    room = rows or max(1, target.l2_bytes // 2 // (steps * conv.dtype.bytes))
    if room < width or (by_pixels and height == 1 and not rows):
        if rows:
            segments = [room]
        elif by_pixels:
            segments = _segments(width, room, conv.lanes(target))
        else:
            segments = [_segment(problem, target, room)]
        shapes = [((1, columns), (1, width % columns or columns)) for columns in segments]
    else:
        most = min(height, room // width)
        sizes = [most] if rows else candidates.sizes_to_try(height, most)
        shapes = [((size, width), (height % size or size, width)) for size in sizes]

    choices = [_blocks(problem, target, *shape, by_pixels) for shape in shapes]
    cut = candidates.cheapest_cut(problem, target, choices)
    return candidates.by_blocks(_choice(problem, by_pixels), problem, cut)


def _blocks(
    problem: Problem,
    target: Target,
    shape: tuple[int, int],
    last: tuple[int, int],
    by_pixels: bool,
) -> candidates.Blocks:
    """Blocks of so many rows and columns of the output, and of fewer at the end."""
    unfolding, elements, plane = _matrix(problem, target, (1, *shape), by_pixels)
    position = (0, *unfolding.position[1:])

    def view(rows: int, columns: int) -> candidates.UnfoldedView:
        return view_of(problem, (1, 1, rows * columns), 0, 0, plane)

    return candidates.Blocks(
        replace(unfolding, position=position),
        elements,
        shape,
        last,
        view,
        f"rows={shape[0] * shape[1]}",
    )


def _of_any_width(problem: Problem, target: Target) -> Candidate:
    """Blocks of one row, of as many columns as make a chunk; of fewer for narrower rows."""
    conv, width, lanes = problem.conv, problem.conv.window.out[2], problem.conv.lanes(target)
    require_numbers("the choice of blocks", *conv.window.out[:2])
    whole, bytes_ = _TILES * lanes, conv.reduction * conv.dtype.bytes
    room = max(1, target.l2_bytes // 2 // (whole * bytes_))
    each = whole * conv.reduction * (conv.outputs / lanes / target.fma_units + _SQUARES)
    tiles = min(room, max(1, round(target.costs.chunk / each)))
    sizes = tiles * whole, whole, lanes
    columns = next((size for size in sizes if size <= width), None)
    if columns is None or conv.epilogue.residual:
        width = fixed(width)
        columns = min(width, tiles * whole)
        shape, last = (1, columns), (1, width % columns or columns)
    else:
        shape = last = (1, columns)
    blocks = _blocks(problem, target, shape, last, True)
    kernel, cycles = candidates.block_conv(problem, target, blocks)
    kernel = replace(kernel, overlaps=shape == last)
    return candidates.by_blocks(
        _choice(problem, True), problem, candidates.Cut(cycles, blocks, kernel)
    )


def _segments(width: int, room: int, lanes: int) -> list[int]:
    """Columns of blocks that are parts of a row, of which few are no whole register tiles."""
    whole = _TILES * lanes
    sizes = candidates.sizes_to_try(width, room)
    return list(dict.fromkeys(min(room, width, ceil_div(size, whole) * whole) for size in sizes))


@dataclass(frozen=True)
class Im2colParameters(Parameters):
    """How the matrix is made and multiplied.

    Attributes:
        rows: that are unfolded at a time: `rows=64`, an image's or the batch's.
        lanes: of its product: output channels, or `pixels` where the output is in planes.
    """

    rows: int | str | None = parameter(count_or("whole", BATCH))
    lanes: str | None = parameter(one_of(CHANNELS, PIXELS))


def _choice(problem: Problem, by_pixels: bool) -> Choice:
    """However many rows there are at a time, the order of the sums is the same."""
    if by_pixels:
        error = walk_error(problem, effective_length(problem.conv.reduction))
        return Choice("im2col", Im2colParameters(lanes=PIXELS), error=error)
    return Choice("im2col", Im2colParameters(), error=sum_error(problem))


def _candidate(problem: Problem, target: Target, parameters: Im2colParameters) -> Candidate:
    rows, lanes = parameters.rows, parameters.lanes
    by_pixels = rows is None and _saves(problem) if lanes is None else lanes == PIXELS
    if by_pixels and not _in_planes(problem.conv.y):
        raise SpecError(
            f"algorithm im2col: lanes=pixels for {problem}; expected output in planes (NCHW)"
        )
    if isinstance(rows, str):
        return _whole(problem, target, rows, by_pixels)
    if by_pixels and problem.any_size and rows is None:
        return _of_any_width(problem, target)
    return _blocked(problem, target, rows, by_pixels)


def _in_planes(access: Access) -> bool:
    return access.block == 1 == access.spatial[2] and not isinstance(access, PhasedAccess)


def _saves(problem: Problem) -> bool:
    """Return whether copying may pay: planes whose columns a long stride moves far apart.

    Windows that share no element are copied without repeating any. Vectors of pixels are loaded
    from what is copied, and stored as they are, where direct convolution transposes its sums.
    """
    conv, window = problem.conv, problem.conv.window
    if not (_in_planes(conv.x) and _in_planes(conv.y)) or window.dilation[2] != 1:
        return False
    if {0, 1} & set(problem.any_size):  # blocks are laid out for one height
        return False
    return window.stride[2] > _LONG_STRIDE or (
        window.stride[2] > 1 and window.kernel == window.stride
    )


def _leaves_out(problem: Problem) -> bool:
    """Return whether a stride leaves out pixels in blocks, which copying keeps out of the caches.

    Direct convolution reads them again for each panel where they exceed L2.
    """
    conv, window = problem.conv, problem.conv.window
    alone = prod(window.kernel) == 1 and window.stride[2] > 1 and conv.x.block > 1
    return alone and not problem.any_size


def _cost(problem: Problem, target: Target) -> float:
    if not _saves(problem):
        return _CHANNEL_COST(problem, target)
    _, _, plane = _matrix(problem, target, problem.conv.window.out, True)
    size = plane * problem.conv.reduction
    view = view_of(problem, problem.conv.window.out, size, size, plane)
    _, cycles = candidates.product_of_pixels(problem, view, target)
    cycles = beside_weights(problem, target, target.costs.planar_over_model * cycles)
    walk = strided_walk_cycles(problem, target, target.costs.prefetched_line)
    return cycles + walk + _moves(problem) * target.costs.element_move


def _moves(problem: Problem) -> float:
    """Elements that are moved to planes, whole pieces of taps, as `element_move` counts them."""
    conv, taps = problem.conv, problem.conv.window.kernel[2]
    piece = PIECE_BYTES // conv.dtype.bytes
    moved = conv.batch * matrix_elements(problem) * ceil_div(taps, piece) * piece / taps
    return _SQUARES * moved


_CHANNEL_COST = candidates.cost(lambda problem: problem.conv.batch * matrix_elements(problem))


def _reject(problem: Problem, target: Target) -> str | None:
    if problem.conv.batch > _MOST_IMAGES:
        return f"{problem.conv.batch} images, one after the other; at most {_MOST_IMAGES}"
    return candidates.reject(problem, target)


IM2COL = Algorithm(
    "im2col",
    Im2colParameters,
    _reject,
    _cost,
    _candidate,
    plausible=lambda problem: _saves(problem) or _leaves_out(problem),
    unlikely=lambda _: "only on request, or for long strides and what they leave out",
    copied_taps=1,
)
