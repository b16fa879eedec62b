"""Splitting a problem into convolutions without dilation and with few taps each.

Each residue of a dilation is a convolution of its own. Where a phase of its stride has more than
`LARGEST_TAPS` taps along an axis, the kernel is cut, and the pieces add up in the output. Residues
that differ only in where they read and write are one kernel.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

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
from leanconv.codegen.geometry import Triple, Window
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div

LARGEST_TAPS = 7  # of one phase along one axis; with more, rounding grows faster than speed
MOST_RESIDUES, MOST_CUTS = 2048, 64  # each is a stage of its own; cuts add up in the output
ADDED = 1.7  # factor of the error where pieces add up in y: each rounds y once more


@dataclass(frozen=True)
class Piece:
    """One of the convolutions.

    Attributes:
        problem: without dilation, with at most `LARGEST_TAPS` taps; if it is one of several that
            add up, with `max_error` divided by `ADDED`.
        taps: its taps of the filter: first and one past the last, along height and width.
        cut: number of these taps among the cuts of the kernel.
    """

    problem: Problem
    taps: tuple[Range, Range]
    cut: int

    @property
    def adds_up(self) -> bool:
        """True if the piece adds to the output of the pieces before it."""
        return self.cut > 0

    @property
    def weights(self) -> str:
        """The role of its packed weights, which residues share."""
        return f"w{self.cut or ''}"


def split(problem: Problem) -> list[Piece]:
    """Split a problem into pieces: only one if it has no dilation and few taps."""
    pieces = []
    for residue in without_dilation(problem):
        ranges = [(rows, columns) for rows in _cuts(residue, 1) for columns in _cuts(residue, 2)]
        if len(ranges) > 1:
            residue = replace(residue, max_error=residue.max_error / ADDED)
        for cut, taps in enumerate(ranges):
            first, last = cut == 0, cut == len(ranges) - 1
            pieces.append(Piece(with_taps(residue, taps, first, last), taps, cut))
    return pieces


def too_many_pieces(window: Window) -> str | None:
    """Why a problem would have too many pieces; None if it has not."""
    counts, strides = residue_counts(window), residue_strides(window)
    residues, cuts = counts[1] * counts[2], 1
    for axis in (1, 2):
        kernel = window.kernel[axis]
        each = _taps_of_piece(kernel, strides[axis])
        cuts *= part_count(kernel, each, each)
    if residues > MOST_RESIDUES:
        return f"{residues} pieces without dilation; at most {MOST_RESIDUES}"
    if cuts > MOST_CUTS:
        return f"{cuts} pieces of a long kernel; at most {MOST_CUTS}"
    return None


def is_cut(window: Window) -> bool:
    """Return whether the filter is cut into pieces that add up."""
    return _is_cut(window.kernel, residue_strides(window))


@lru_cache(maxsize=256)
def _is_cut(kernel: Triple, stride: Triple) -> bool:
    axes = zip(kernel, stride, strict=True)
    return any(phase_taps(taps, step) > LARGEST_TAPS for taps, step in axes)


def _cuts(problem: Problem, axis: int) -> list[Range]:
    """Ranges of taps along an axis, whole phases each."""
    kernel = problem.conv.window.kernel[axis]
    return part_ranges(kernel, _taps_of_piece(kernel, problem.conv.window.stride[axis]))


def _taps_of_piece(kernel: int, stride: int) -> int:
    """Taps of all phases of one piece along an axis."""
    taps = phase_taps(kernel, stride)
    return ceil_div(taps, ceil_div(taps, LARGEST_TAPS)) * stride
