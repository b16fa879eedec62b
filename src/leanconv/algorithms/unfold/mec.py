"""MEC: windows are unfolded along the width only (Cho and Brand, ICML 2017).

    L[n, ow, d, h, (kw, c)] = x[n, c, d, h, ow·sw + kw·dw - pw]                       algorithm 2
    y[n, k, od, oh, ow] = act(bias + residual + sum over kd, kh, (kw, c) of
        L[n, ow, od·sd + kd·dd - pd, oh·sh + kh·dh - ph, (kw, c)] · w[k, c, kd, kh, kw])

The rows of one output row's product are windows of L that overlap those of the next output row:
partitions of L at a distance of sh·kw·c, read in place. L holds no rows of zeros above and below;
there the product leaves out taps instead.

Solution A multiplies all images of an output row at once, o_h large products, into an output that
lies h-n-w-c, which is copied into L and from there to its place. Solution B makes i_n·o_h products
that write to the final layout; for one image of one channel they are algorithm 1. A is taken if
`o_w <= T` and the output fits into L, as in the paper.

`rows=N` unfolds what N output rows need, `(N-1)·sh + (kh-1)·dh + 1` input rows, into a thread's
scratch and multiplies it while it is there: L is never whole. Rows of padding are zeros there.
"""

from __future__ import annotations

from math import prod

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse
from leanconv.algorithms.parameters import COUNT, Choice, Parameters, one_of, parameter
from leanconv.algorithms.problem import Problem, sum_error
from leanconv.algorithms.unfold import candidates
from leanconv.algorithms.unfold.im2col import channels_first
from leanconv.algorithms.unfold.kernels import Unfold
from leanconv.algorithms.unfold.unfolding import Unfolding
from leanconv.codegen.geometry import Access, Window
from leanconv.errors import SpecError
from leanconv.kernels.copy import Copy
from leanconv.kernels.copy_plan import StridedBox, copy_tasks
from leanconv.records import dataclass, replace
from leanconv.target import Target

_T = 100  # the paper's value for recent machines


def unfolded_elements(problem: Problem) -> int:
    """|L|: n · ow · d · h · kw · c elements (equation 3); rows of padding are not counted."""
    conv, window = problem.conv, problem.conv.window
    depth, height, _ = window.size
    positions = conv.batch * window.out[2] * depth * height
    return positions * window.kernel[2] * conv.in_channels


def unfolding_of(problem: Problem, target: Target) -> Unfolding:
    """The width alone unfolded: L of an image is (ow, d, h), each of them (kw, c) or (c, kw)."""
    conv, inputs = problem.conv, problem.conv.inputs
    depth, height, _ = conv.window.size
    taps = conv.window.kernel[2]
    by_taps, run = channels_first(problem), taps * inputs
    return Unfolding(
        conv.window,
        conv.x,
        inputs,
        (False, False, True),
        taps if by_taps else 1,
        (height * run, run, depth * height * run),
        (0, 0, 1 if by_taps else inputs),
        conv.dtype,
        conv.lanes(target),
    )


def view_of(problem: Problem, merged: bool = True) -> candidates.UnfoldedView:
    """L with the overlapping partitions as strides.

    Args:
        problem: all images are in L.
        merged: whether kh·kw·c elements are one run where nothing is padded along the height.
    """
    conv, window, batch = problem.conv, problem.conv.window, problem.conv.batch
    (depth, height, _), width = window.size, window.out[2]
    kd, kh, kw = window.kernel
    run = kw * conv.inputs
    order = (1, 4) if channels_first(problem) else (4, 1)
    image = width * depth * height * run
    x = Access(image, run, image * batch, (height * run, run, depth * height * run))
    size, out = (depth, height, width), window.out
    stride, dilation = (*window.stride[:2], 1), (*window.dilation[:2], 1)
    whole = window.always_full(1) and window.pad[1] == 0  # less than none: rows that are left out
    if merged and whole and window.dilation[1] == 1:
        x = replace(x, block=kh * run, spatial=(height * run, window.stride[1] * run, x.spatial[2]))
        flat = Window(
            (depth, out[1], width),
            out,
            (kd, 1, 1),
            (stride[0], 1, 1),
            (dilation[0], 1, 1),
            (window.pad[0], 0, 0),
        )
        return candidates.UnfoldedView(flat, x, kh * run, (3, *order, 2))
    unfolded = Window(size, out, (kd, kh, 1), stride, dilation, (*window.pad[:2], 0))
    return candidates.UnfoldedView(unfolded, x, run, (*order, 2, 3))


def _obstacle(problem: Problem) -> str | None:
    """Why solution A is impossible; None if it is possible."""
    conv = problem.conv
    if conv.epilogue.residual:
        return "its products stand in the output before the residual has been read"
    output = conv.batch * prod(conv.window.out) * conv.out_channels
    if output > unfolded_elements(problem):
        return f"the output's {output} elements do not fit into L's {unfolded_elements(problem)}"
    return None


def _solution_a(problem: Problem, target: Target) -> Candidate:
    """Products of all images at once; then the output passes through L to its place."""
    conv = problem.conv
    batch, groups, dtype, out = conv.batch, conv.groups, conv.dtype, conv.window.out
    unfolding, view = unfolding_of(problem, target), view_of(problem)
    columns = batch * out[2]
    window = view.window
    view = replace(
        view,
        window=replace(window, size=(*window.size[:2], columns), out=(*window.out[:2], columns)),
    )
    row = columns * conv.out_channels
    hnwc = Access(0, 1, 1, (out[1] * row, row, conv.out_channels))
    kernel = candidates.tiled(
        with_conv(candidates.product(problem, view, target), batch=1, y=hnwc), target
    )
    rows = candidates.unfold_rows(unfolding, batch * groups * out[0], target.costs)
    image = unfolding.elements
    unfold = Unfold(unfolding, batch, groups, image, image * batch, rows)
    elements = batch * prod(out) * conv.out_channels
    copied = Copy(dtype, 1, tuple(copy_tasks(StridedBox(0, (elements,), (1,), (1,)), dtype)))
    return Candidate(
        _choice(problem),
        (
            KernelUse(unfold, ("x", "unfolded")),
            KernelUse(kernel, ("unfolded", *kernel.operands[1:])),
            KernelUse(copied, ("y", "unfolded")),
            KernelUse(_reorder(problem, hnwc), ("unfolded", "y")),
        ),
        candidates.packing(kernel, view, problem),
        {"unfolded": image * batch * groups * conv.dtype.bytes},
        f"solution=A, tile {kernel.tile.rows}x{kernel.tile.vectors}",
    )


def _reorder(problem: Problem, hnwc: Access) -> Copy:
    """Make the copy from (od, oh, n, ow, k) to the output's own order."""
    conv = problem.conv
    y, (depth, height, width) = conv.y, conv.window.out
    whole, rest = divmod(conv.out_channels, y.block)
    spatial = (depth, height, width)
    image = width * conv.out_channels
    boxes = [(whole, y.block, 0)] if whole else []
    boxes += [(1, rest, whole)] if rest else []
    tasks = []
    for blocks, channels, first in boxes:
        box = StridedBox(
            0,
            (conv.batch, blocks, *spatial, channels),
            (image, y.block, *hnwc.spatial, 1),
            (y.image, y.block_stride, *y.spatial, 1),
            first * y.block,
            first * y.block_stride,
        )
        tasks += copy_tasks(box, conv.dtype)
    return Copy(conv.dtype, 1, tuple(tasks))


def _blocks(problem: Problem, target: Target, rows: int) -> candidates.Blocks:
    """Blocks of `rows` output rows; their rows of L overlap, and rows of padding are stored."""
    conv, window, inputs = problem.conv, problem.conv.window, problem.conv.inputs
    kd, kh, kw = window.kernel
    _, height, width = window.out
    stride, dilation = window.stride[1], window.dilation[1]
    rows = min(rows, height)
    overlap = (kh - 1) * dilation + 1 - stride
    lines, run = rows * stride + overlap, kw * inputs
    column, by_taps = kd * lines * run, channels_first(problem)

    def view(rows: int, columns: int) -> candidates.UnfoldedView:
        x = Access(0, run, 0, (lines * run, run, column))
        order = (1, 4) if by_taps else (4, 1)
        size, out = (kd, rows * stride + overlap, columns), (1, rows, columns)
        steps, gaps = (1, stride, 1), (1, dilation, 1)
        if dilation == 1:
            x = replace(x, block=kh * run, spatial=(lines * run, stride * run, column))
            flat = Window((kd, rows, columns), out, (kd, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0))
            return candidates.UnfoldedView(flat, x, kh * run, (3, *order, 2))
        return candidates.UnfoldedView(
            Window(size, out, (kd, kh, 1), steps, gaps, (0, 0, 0)), x, run, (*order, 2, 3)
        )

    unfolding = Unfolding(
        Window(
            window.size,
            (window.out[0], (height - 1) * stride + (kh - 1) * dilation + 1, width),
            (kd, 1, kw),
            (window.stride[0], 1, window.stride[2]),
            (window.dilation[0], 1, window.dilation[2]),
            window.pad,
        ),
        conv.x,
        inputs,
        (True, True, True),
        kw if by_taps else 1,
        (0, run, column),
        (lines * run, 0, 1 if by_taps else inputs),
        conv.dtype,
        conv.lanes(target),
    )
    return candidates.Blocks(
        unfolding,
        width * column,
        (rows, width),
        (height % rows or rows, width),
        view,
        f"rows={rows}",
        stride,
        overlap,
    )


@dataclass(frozen=True)
class MecParameters(Parameters):
    """The paper's solution, the longest row of outputs for which it is A; output rows at a time."""

    solution: str | None = parameter(one_of("A", "B"))
    T: int | None = parameter(COUNT)
    rows: int | None = parameter(COUNT)


def _choice(problem: Problem) -> Choice:
    """Both solutions add up in the same order."""
    return Choice("mec", MecParameters(), error=sum_error(problem))


def _candidate(problem: Problem, target: Target, parameters: MecParameters) -> Candidate:
    solution, most = parameters.solution, parameters.T or _T
    if parameters.rows:
        if solution or parameters.T:
            raise SpecError(
                "algorithm mec: rows=N unfolds and multiplies block by block; expected it without "
                "solution and T, which say how the whole of L is multiplied"
            )
        return candidates.by_blocks(
            Choice("mec", parameters, error=sum_error(problem)),
            problem,
            candidates.cheapest_cut(problem, target, [_blocks(problem, target, parameters.rows)]),
        )
    obstacle = _obstacle(problem)
    if solution is None:
        solution = "A" if problem.conv.window.out[2] <= most and obstacle is None else "B"
    if solution == "B":
        unfolding, view = unfolding_of(problem, target), view_of(problem)
        strides = unfolding.elements, unfolding.elements * problem.conv.batch
        return candidates.whole_tensor(
            _choice(problem), problem, target, unfolding, strides, view, "solution=B"
        )
    if obstacle:
        raise SpecError(f"algorithm mec: solution A is not possible, {obstacle}; use solution=B")
    return _solution_a(problem, target)


MEC = Algorithm(
    "mec",
    MecParameters,
    candidates.reject,
    candidates.cost(unfolded_elements),
    _candidate,
    automatic=False,
    takes_halves=False,  # it copies bytes of its output
)
