"""The convolutions that fused Winograd takes a problem apart into: no dilation, few taps each.

Each residue of a dilation is a convolution of its own. Where a phase of its stride has more than
`LARGEST_TAPS` taps along an axis, the kernel is cut, and the parts add up in the output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from leanconv.algorithms.decompose import (
    Range,
    part_count,
    part_ranges,
    phase_taps,
    residue_counts,
    residue_strides,
    with_taps,
    without_dilation,
)
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Window
from leanconv.spec.format import ceil_div

LARGEST_TAPS = 7  # of one phase along one axis; with more, rounding grows faster than speed
MOST_RESIDUES, MOST_CUTS = 2048, 64  # each is a stage of its own; cuts add up in the output
ADDED = 1.7  # the error where parts of a kernel are added up in y, which rounds once more for each


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
    for residue in without_dilation(problem):
        ranges = [(rows, columns) for rows in _cuts(residue, 1) for columns in _cuts(residue, 2)]
        if len(ranges) > 1:
            residue = replace(residue, max_error=residue.max_error / ADDED)
        for number, taps in enumerate(ranges):
            first, last = number == 0, number == len(ranges) - 1
            parts.append(Part(with_taps(residue, taps, first, last), taps, not first))
    return parts


def too_many_parts(window: Window) -> str | None:
    """Why a problem is not taken apart: it would be into too many; None if it can be."""
    counts, strides = residue_counts(window), residue_strides(window)
    residues, cuts = counts[1] * counts[2], 1
    for axis in (1, 2):
        kernel = window.kernel[axis]
        each = _taps_of_part(kernel, strides[axis])
        cuts *= part_count(kernel, each, each)
    if residues > MOST_RESIDUES:
        return f"{residues} pieces without dilation; at most {MOST_RESIDUES}"
    if cuts > MOST_CUTS:
        return f"{cuts} pieces of a long kernel; at most {MOST_CUTS}"
    return None


def is_cut(window: Window) -> bool:
    """Whether the filter is cut into parts that add up."""
    pairs = zip(window.kernel, residue_strides(window), strict=True)
    return any(phase_taps(taps, stride) > LARGEST_TAPS for taps, stride in pairs)


def _cuts(problem: Problem, axis: int) -> list[Range]:
    """Ranges of taps along an axis, whole phases each."""
    kernel = problem.window.kernel[axis]
    return part_ranges(kernel, _taps_of_part(kernel, problem.window.stride[axis]))


def _taps_of_part(kernel: int, stride: int) -> int:
    """Taps of all phases of one part along an axis."""
    taps = phase_taps(kernel, stride)
    return ceil_div(taps, ceil_div(taps, LARGEST_TAPS)) * stride
