"""Taking a convolution apart into ones that fused Winograd computes: no dilation, few taps.

* Dilation d (decimation): outputs r, r + d, r + 2d … read only inputs of one residue modulo d; each
  residue is an ordinary convolution over a part of the image, whose weights are the same. With a
  stride s and g = gcd(s, d), outputs r + t·d/g read x[r·s + d·(t·s/g + k)]: the stride left is s/g.
* More than `LARGEST_TAPS` taps along an axis: the filter is cut, and the parts' results add up in
  the output (the decomposition of DWM, arXiv 2002.00552).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from leanconv.algorithms.problem import Problem
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Triple, Window
from leanconv.spec.format import ceil_div

LARGEST_TAPS = 7  # of one phase along one axis; with more, rounding grows faster than speed
MOST_RESIDUES, MOST_CUTS = 2048, 64  # each is a stage of its own; cuts add up in the output
ADDED = 1.7  # the error where parts of a kernel are added up in y, which rounds once more for each

Range = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """One of the convolutions.

    Attributes:
        problem: without dilation, with at most `LARGEST_TAPS` taps; where it is one of several
            that add up, with so much smaller an error that their sum keeps the whole's.
        taps: which taps of the filter it has: first and one past the last, along height and width.
        adds_up: whether it adds to what the parts before it have left in the output.
    """

    problem: Problem
    taps: tuple[Range, Range]
    adds_up: bool


def split(problem: Problem) -> list[Part]:
    """Take a problem apart; a list of one where there is nothing to take apart."""
    parts = []
    for residue in _residues(problem):
        ranges = [(rows, columns) for rows in _cuts(residue, 1) for columns in _cuts(residue, 2)]
        for number, taps in enumerate(ranges):
            first, last = number == 0, number == len(ranges) - 1
            parts.append(Part(_with_taps(residue, taps, first, last), taps, not first))
    return parts


def too_many_parts(window: Window) -> str | None:
    """Why a problem is not taken apart: it would be into too many; None if it can be."""
    apart, steps = residues_of(window), inner_stride(window)
    residues, cuts = apart[1] * apart[2], 1
    for axis in (1, 2):
        cuts *= ceil_div(window.kernel[axis], _taps_of_part(window.kernel[axis], steps[axis]))
    if residues > MOST_RESIDUES:
        return f"{residues} pieces without dilation; at most {MOST_RESIDUES}"
    if cuts > MOST_CUTS:
        return f"{cuts} pieces of a long kernel; at most {MOST_CUTS}"
    return None


def is_cut(window: Window) -> bool:
    """Whether the filter is cut into parts that add up."""
    pairs = zip(window.kernel, inner_stride(window), strict=True)
    return any(ceil_div(taps, stride) > LARGEST_TAPS for taps, stride in pairs)


def residues_of(window: Window) -> Triple:
    """How many residues of output positions are convolved apart, along each axis."""
    depth, height, width = (
        d // gcd(s, d) for s, d in zip(window.stride, window.dilation, strict=True)
    )
    return depth, height, width


def inner_stride(window: Window) -> Triple:
    """The stride of each residue's convolution."""
    depth, height, width = (
        s // gcd(s, d) for s, d in zip(window.stride, window.dilation, strict=True)
    )
    return depth, height, width


def _residues(problem: Problem) -> list[Problem]:
    """One problem without dilation for each residue of the output positions."""
    if problem.window.dilation == (1, 1, 1):
        return [problem]
    _, rows, columns = residues_of(problem.window)
    return [_residue(problem, (0, row, column)) for row in range(rows) for column in range(columns)]


def _residue(problem: Problem, residue: Triple) -> Problem:
    window, x, y = problem.window, problem.x, problem.y
    size, out, pad = list(window.size), list(window.out), list(window.pad)
    x_offset, y_offset = problem.x_offset, problem.y_offset
    stride, apart = inner_stride(window), residues_of(window)
    for axis in (1, 2):
        step = window.dilation[axis]
        # Output q of residue r reads inputs r·s - pad + (q·stride + tap)·step, which is
        # begin + (ahead + q·stride + tap)·step.
        ahead, begin = divmod(residue[axis] * window.stride[axis] - window.pad[axis], step)
        size[axis] = ceil_div(window.size[axis] - begin, step)
        out[axis] = ceil_div(window.out[axis] - residue[axis], apart[axis])
        pad[axis] = -ahead
        x_offset += begin * x.spatial[axis]
        y_offset += residue[axis] * y.spatial[axis]

    def spread(spatial: Triple, steps: Triple) -> Triple:
        return spatial[0], spatial[1] * steps[1], spatial[2] * steps[2]

    return replace(
        problem,
        window=replace(
            window,
            size=(size[0], size[1], size[2]),
            out=(out[0], out[1], out[2]),
            pad=(pad[0], pad[1], pad[2]),
            stride=stride,
            dilation=(1, 1, 1),
        ),
        x=replace(x, spatial=spread(x.spatial, window.dilation)),
        y=replace(y, spatial=spread(y.spatial, apart)),
        x_offset=x_offset,
        y_offset=y_offset,
    )


def _cuts(problem: Problem, axis: int) -> list[Range]:
    """Ranges of taps along an axis, whole phases each."""
    kernel = problem.window.kernel[axis]
    each = _taps_of_part(kernel, problem.window.stride[axis])
    return [(first, min(kernel, first + each)) for first in range(0, kernel, each)]


def _taps_of_part(kernel: int, stride: int) -> int:
    """Taps of all phases of one part along an axis."""
    taps = ceil_div(kernel, stride)
    return ceil_div(taps, ceil_div(taps, LARGEST_TAPS)) * stride


def _with_taps(problem: Problem, taps: tuple[Range, Range], first: bool, last: bool) -> Problem:
    window = problem.window
    (top, bottom), (left, right) = taps
    alone = first and last
    return replace(
        problem,
        max_error=problem.max_error if alone else problem.max_error / ADDED,
        window=replace(
            window,
            kernel=(1, bottom - top, right - left),
            pad=(window.pad[0], window.pad[1] - top, window.pad[2] - left),
        ),
        epilogue=Epilogue(
            bias=problem.epilogue.bias and first,
            residual=problem.epilogue.residual or not first,
            activation=problem.epilogue.activation if last else None,
        ),
    )
