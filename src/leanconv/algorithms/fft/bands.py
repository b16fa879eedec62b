"""One channel fills one lane of a vector: bands of rows of its image fill all of them.

    rows of the output    0 .. first - 1     above: windows that reach over the image's first row
                          first + b * band + i      band b of the lanes, row i: a depthwise layer
                          the rest           below

The bands are the channels of a depthwise convolution, whose weights are copies of the one kernel:
from channel to channel, `x` and `y` move by the rows of a band. Windows overlap in the input, where
nothing is written. Which rows go where depends on the image and the target alone, not on a batch.
"""

from __future__ import annotations

from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access, Window
from leanconv.records import replace
from leanconv.target import Target

_LEAST_ROWS = 16  # of a band: fewer waste more of a tile than lanes are won


def bands_of(problem: Problem, target: Target) -> list[Problem]:
    """The bands as one depthwise problem, then the rows above and below; none where it cannot be.

    Args:
        problem: of one input and one output channel, or any other, which has no bands.
        target: whose lanes the bands fill.
    """
    window, lanes = problem.window, problem.lanes(target)
    one = problem.groups == problem.in_channels == problem.out_channels == 1
    if not one or problem.x.block > 1 or problem.y.block > 1:
        return []
    first, past = window.full(1)
    rows = (past - first) // lanes
    if rows < _LEAST_ROWS or window.sometimes_empty(1):
        return []
    end = first + lanes * rows
    side_by_side = replace(
        _part(problem, first, rows),
        in_channels=lanes,
        out_channels=lanes,
        groups=lanes,
        x=_apart(problem.x, rows * window.stride[1]),
        y=_apart(problem.y, rows),
    )
    parts = [side_by_side]
    if first:
        parts.append(replace(problem, window=_rows(window, window.size[1], first, window.pad[1])))
    if end < window.out[1]:
        parts.append(_part(problem, end, window.out[1] - end))
    return parts


def _part(problem: Problem, first: int, rows: int) -> Problem:
    """Some rows of the output, whose windows begin inside the image."""
    window, (_, x_row, _), (_, y_row, _) = problem.window, problem.x.spatial, problem.y.spatial
    begin = first * window.stride[1] - window.pad[1]
    reach = (rows - 1) * window.stride[1] + (window.kernel[1] - 1) * window.dilation[1] + 1
    size = min(reach, window.size[1] - begin)
    return replace(
        problem,
        window=_rows(window, size, rows, 0),
        x_offset=problem.x_offset + begin * x_row,
        y_offset=problem.y_offset + first * y_row,
    )


def _rows(window: Window, size: int, out: int, pad: int) -> Window:
    """A window of other rows."""
    (d, _, w), (above, _, across), (before, _, left) = window.size, window.out, window.pad
    return replace(window, size=(d, size, w), out=(above, out, across), pad=(before, pad, left))


def _apart(access: Access, rows: int) -> Access:
    """Channels that are so many rows apart."""
    return replace(access, block_stride=rows * access.spatial[1])
