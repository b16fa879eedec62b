"""Overlap-save tiles: how one axis of a convolution is cut for transforms of T numbers.

A tile yields `step` outputs from T inputs; a kernel of at most T - step + 1 taps is one part. A
longer one is cut into parts of `step` taps: part p of tile t then reads the inputs of tile t + p,
so that every input tile is transformed once, and the sum over parts is a small convolution over
tiles, done between the transforms.

Phases of a stride add up like channels, and residues of a dilation are like images: see
`algorithms/decompose.py`.
"""

from __future__ import annotations

from leanconv.algorithms.decompose import Residues, part_count, phase_count, phase_taps, residues
from leanconv.codegen.geometry import Window
from leanconv.records import cached_property, dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent

_KEPT = 4  # outputs computed together; few forms serve all steps


@dataclass(frozen=True)
class Axis:
    """One axis, cut.

    Attributes:
        size, out: input and output extents.
        kernel, stride, dilation, pad: of the convolution.
        length: T, numbers of one transform.
        step: outputs of one tile.
    """

    size: Extent
    out: Extent
    kernel: int
    stride: int
    dilation: int
    pad: int
    length: int
    step: Extent

    @cached_property
    def _residues(self) -> Residues:
        return residues(self.stride, self.dilation)

    @property
    def residue_step(self) -> int:
        """Outputs from one of a residue to its next."""
        return self._residues.count

    @property
    def residue_stride(self) -> int:
        """The stride of a residue's convolution."""
        return self._residues.stride

    @cached_property
    def phases(self) -> int:
        """Phases that have a tap."""
        return phase_count(self.kernel, self.residue_stride)

    @cached_property
    def taps(self) -> int:
        """Taps of the longest phase."""
        return phase_taps(self.kernel, self.residue_stride)

    @cached_property
    def parts(self) -> int:
        """Parts of the kernel."""
        return int(part_count(self.taps, self.step, self.length - self.step + 1))

    @property
    def longest(self) -> Axis:
        """The same axis with all outputs that a tile has room for, if the kernel is one part."""
        if self.parts > 1:
            return self
        return replace(self, step=self.length - self.taps + 1)

    @cached_property
    def residues(self) -> int:
        """Residues that have outputs."""
        return min(self.residue_step, self.out)

    @cached_property
    def tiles(self) -> int:
        """Tiles of the longest residue."""
        return ceil_div(ceil_div(self.out, self.residue_step), self.step)

    @cached_property
    def kept(self) -> int:
        """Outputs that are computed of each tile: `step` and perhaps a few more."""
        most = self.length - self.taps + 1 if self.parts == 1 else (self.length + 1) // 2
        return min(most, _KEPT * int(ceil_div(self.step, _KEPT)))

    @property
    def usual(self) -> int:
        """Outputs that every whole tile has, for all steps with the same `kept`."""
        return (self.kept - 1) // _KEPT * _KEPT + 1

    @cached_property
    def spread(self) -> int:
        """Input positions between neighbours in a tile."""
        return self.residue_stride * self.dilation

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The numbers of outputs, other than 0, that tiles of all residues have; largest first."""
        found = set()
        for b in (0, self.residues - 1):  # residues differ by one output at most
            count = ceil_div(self.out - b, self.residue_step)
            found |= {int(min(count, self.step)), int(count % self.step)}
        return tuple(sorted((c for c in found if c > 0), reverse=True))

    def positions(self, phase: int, part: int) -> slice:
        """The kernel's taps of a phase and a part."""
        first = part * self.step
        last = self.taps if part == self.parts - 1 else first + self.step
        taps = range(phase, self.kernel, self.residue_stride)[first:last]
        return slice(taps.start, taps.stop, self.residue_stride)


def axes_of(window: Window, axis: int, length: int) -> list[Axis]:
    """The ways worth considering to cut an axis: for each number of parts, the longest step."""
    whole = _uncut(window, axis)
    taps, outputs = whole.taps, ceil_div(whole.out, whole.residue_step)
    found: dict[int, Axis] = {}
    for step in range(1, length + 1):
        parts = part_count(taps, step, length - step + 1)
        if parts > 1 and 2 * step > length + 1:
            continue  # a whole part of `step` taps does not fit the transform
        balanced = ceil_div(outputs, ceil_div(outputs, step))
        chosen = balanced if part_count(taps, balanced, length - balanced + 1) == parts else step
        found[parts] = replace(whole, length=length, step=chosen)
    fewest = sorted(found)[:2]
    return [found[parts] for parts in fewest]


def least_length(window: Window, axis: int) -> int:
    """The numbers of a transform that has a whole axis (of each phase and residue) in one tile."""
    whole = _uncut(window, axis)
    return whole.step + whole.taps - 1


def _uncut(window: Window, axis: int) -> Axis:
    out, kernel, stride = window.out[axis], window.kernel[axis], window.stride[axis]
    dilation = window.dilation[axis] if kernel > 1 else 1
    axis_of = Axis(window.size[axis], out, kernel, stride, dilation, window.pad[axis], 1, 1)
    step = ceil_div(out, axis_of.residue_step)
    return replace(axis_of, length=step + axis_of.taps - 1, step=step)
