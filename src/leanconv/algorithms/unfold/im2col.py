"""im2col: every window becomes a row of a matrix, and convolution a matrix product.

    M[(od, oh, ow), (kd, kh, kw, c)] = x[c, od·sd + kd·dd - pd, …]
    y = act(M · W + bias + residual)

`rows=whole` unfolds one image at a time into a matrix that all threads share, as Caffe and section
2.1.3 of the im2win thesis do; the matrix is `od·oh·ow · kd·kh·kw·c` elements. `rows=batch` unfolds
all images first, as equation 2 of the MEC paper counts it. Without either a few rows
of the matrix at a time (`rows=N`; as many as half of L2 holds) are unfolded into a
thread's scratch and multiplied while they are there.
"""

from __future__ import annotations

from math import prod

import numpy as np

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse
from leanconv.algorithms.parameters import Choice, Parameters, count_or, parameter
from leanconv.algorithms.problem import Problem, sum_error
from leanconv.algorithms.unfold import candidates
from leanconv.algorithms.unfold.kernels import ImageProduct, Unfold
from leanconv.algorithms.unfold.unfolding import Unfolding
from leanconv.codegen.geometry import Access, Triple, Window
from leanconv.codegen.tiling import rank_tiles
from leanconv.kernels.packing import copied
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import require_numbers
from leanconv.target import Target

_FEW_CHANNELS = 8  # below, runs of taps along a row are moved instead of squares of channels
_LONG_ROW = 5  # taps of a row from which on the same holds for any number of channels
BATCH = "batch"  # all images' matrices at once
_MOST_IMAGES = 1024  # two stages each


def matrix_elements(problem: Problem) -> int:
    """Elements of one image's unfolded matrix: (od·oh·ow) · (kd·kh·kw·c)."""
    window = problem.conv.window
    return prod(window.out) * prod(window.kernel) * problem.conv.in_channels


def unfolding_of(problem: Problem, target: Target, position: Triple) -> Unfolding:
    """All axes unfolded; the columns of the matrix are (kd, kh, kw, c), or (c, kd, kh, kw)."""
    conv, window, inputs = problem.conv, problem.conv.window, problem.conv.inputs
    _, kh, kw = window.kernel
    by_taps = channels_first(problem)
    tap = (kh * kw, kw, 1) if by_taps else (kh * kw * inputs, kw * inputs, inputs)
    return Unfolding(
        window,
        conv.x,
        inputs,
        (True, True, True),
        prod(window.kernel) if by_taps else 1,
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


def view_of(problem: Problem, out: Triple, image: int, group: int) -> candidates.UnfoldedView:
    """The matrix: one window is one row, and its columns are the channels."""
    steps = problem.conv.reduction
    spatial = (out[1] * out[2] * steps, out[2] * steps, steps)
    ones = (1, 1, 1)
    order = (1, 2, 3, 4) if channels_first(problem) else (2, 3, 4, 1)
    return candidates.UnfoldedView(
        Window(out, out, ones, ones, ones, (0, 0, 0)),
        Access(image, steps, group, spatial),
        steps,
        order,
    )


def _whole(problem: Problem, target: Target, rows: str) -> Candidate:
    """The matrix of an image at a time, or of the whole batch."""
    conv, out = problem.conv, problem.conv.window.out
    steps = conv.reduction
    unfolding = unfolding_of(problem, target, (out[1] * out[2] * steps, out[2] * steps, steps))
    if conv.batch == 1 or rows == BATCH:
        view = view_of(problem, out, unfolding.elements, unfolding.elements * conv.batch)
        return candidates.whole_tensor(
            _choice(problem), problem, target, unfolding, view, f"rows={rows}"
        )
    view = view_of(problem, out, unfolding.elements, unfolding.elements)
    kernel = candidates.tiled(with_conv(candidates.product(problem, view, target), batch=1), target)
    size = unfolding.elements * conv.groups
    chunk = candidates.unfold_rows(unfolding, conv.groups * out[0], target.costs)
    unfold = Unfold(unfolding, 1, conv.groups, size, unfolding.elements, chunk, True)
    multiply = ImageProduct(kernel, conv.y.image)
    uses = []
    for n in range(conv.batch):
        uses.append(KernelUse(unfold, ("x", f"image{n}", "unfolded")))
        uses.append(KernelUse(multiply, ("unfolded", f"image{n}", *kernel.operands[1:])))
    own = candidates.packing(kernel, view, problem)
    images = {f"image{n}": np.array([n], np.int64) for n in range(conv.batch)}
    return Candidate(
        _choice(problem),
        tuple(uses),
        lambda w, channels: own(w, channels) | {name: copied(n) for name, n in images.items()},
        {"unfolded": size * conv.dtype.bytes},
        f"rows=whole, tile {kernel.tile.rows}x{kernel.tile.vectors}",
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


def _blocked(problem: Problem, target: Target, rows: int | None) -> Candidate:
    conv = problem.conv
    require_numbers("the choice of blocks", conv.batch, *conv.window.out)
    (_, height, width) = conv.window.out
    steps = conv.reduction
    room = rows or max(1, target.l2_bytes // 2 // (steps * conv.dtype.bytes))
    if room < width:
        columns = room if rows else _segment(problem, target, room)
        shapes = [((1, columns), (1, width % columns or columns))]
    else:
        most = min(height, room // width)
        sizes = [most] if rows else candidates.sizes_to_try(height, most)
        shapes = [((size, width), (height % size or size, width)) for size in sizes]

    def view(rows: int, columns: int) -> candidates.UnfoldedView:
        return view_of(problem, (1, 1, rows * columns), 0, 0)

    choices = [
        candidates.Blocks(
            unfolding_of(problem, target, (0, shape[1] * steps, steps)),
            shape[0] * shape[1] * steps,
            shape,
            last,
            view,
            f"rows={shape[0] * shape[1]}",
        )
        for shape, last in shapes
    ]
    return candidates.by_blocks(
        _choice(problem), problem, candidates.cheapest_cut(problem, target, choices)
    )


@dataclass(frozen=True)
class Im2colParameters(Parameters):
    """Rows of the matrix that are unfolded at a time: `rows=64`, an image's or the batch's."""

    rows: int | str | None = parameter(count_or("whole", BATCH))


def _choice(problem: Problem) -> Choice:
    """However many rows there are at a time, the order of the sums is the same."""
    return Choice("im2col", Im2colParameters(), error=sum_error(problem))


def _candidate(problem: Problem, target: Target, parameters: Im2colParameters) -> Candidate:
    rows = parameters.rows
    return (
        _whole(problem, target, rows) if isinstance(rows, str) else _blocked(problem, target, rows)
    )


def _reject(problem: Problem, target: Target) -> str | None:
    if problem.conv.batch > _MOST_IMAGES:
        return f"{problem.conv.batch} images, one after the other; at most {_MOST_IMAGES}"
    return candidates.reject(problem, target)


IM2COL = Algorithm(
    "im2col",
    Im2colParameters,
    _reject,
    candidates.cost(lambda problem: problem.conv.batch * matrix_elements(problem)),
    _candidate,
    automatic=False,
    copied_taps=1,
)
