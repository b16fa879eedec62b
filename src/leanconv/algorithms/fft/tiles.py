"""Overlap-save tiles: how one axis of a convolution is cut for transforms of T numbers.

A tile yields `step` outputs from T inputs; a kernel of at most T - step + 1 taps is one part. A
longer one is cut into parts of `step` taps: part p of tile t then reads the inputs of tile t + p,
so that every input tile is transformed once, and the sum over parts is a small convolution over
tiles, done between the transforms.

Strides are split into phases (polyphase): phase a takes the inputs and the taps whose position is
a modulo the stride, and phases add up like channels. Dilations are split into classes
(decimation): class b of the outputs, b modulo the dilation, sees only inputs of one class, so that
classes are like images. With both, stride s and dilation d with the common divisor g, outputs
b + t·d/g read the inputs b·s + d·(t·s/g + k): there are d/g classes, each with the stride s/g.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from leanconv.codegen.geometry import Window
from leanconv.spec.format import ceil_div


@dataclass(frozen=True)
class Axis:
    """One axis, cut.

    Attributes:
        size, out: input and output extents.
        kernel, stride, dilation, pad: of the convolution.
        length: T, numbers of one transform.
        step: outputs of one tile.
    """

    size: int
    out: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    length: int
    step: int

    @cached_property
    def apart(self) -> int:
        """From one output of a class to the next."""
        return self.dilation // gcd(self.stride, self.dilation)

    @cached_property
    def inner(self) -> int:
        """The stride within a class."""
        return self.stride // gcd(self.stride, self.dilation)

    @cached_property
    def phases(self) -> int:
        """Phases that have a tap."""
        return min(self.inner, self.kernel)

    @cached_property
    def taps(self) -> int:
        """Taps of the longest phase."""
        return ceil_div(self.kernel, self.inner)

    @cached_property
    def parts(self) -> int:
        """Parts of the kernel."""
        return parts_of(self.taps, self.length, self.step)

    @cached_property
    def classes(self) -> int:
        """Classes of outputs."""
        return min(self.apart, self.out)

    @cached_property
    def tiles(self) -> int:
        """Tiles of the longest class."""
        return ceil_div(ceil_div(self.out, self.apart), self.step)

    @cached_property
    def spread(self) -> int:
        """Input positions between neighbours in a tile."""
        return self.inner * self.dilation

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The numbers of outputs, other than 0, that tiles of all classes have; largest first."""
        found = set()
        for b in (0, self.classes - 1):  # classes differ by one output at most
            count = ceil_div(self.out - b, self.apart)
            found |= {min(count, self.step), count % self.step}
        return tuple(sorted((c for c in found if c > 0), reverse=True))

    def positions(self, phase: int, part: int) -> tuple[slice, int]:
        """The kernel's taps of a phase and a part, and how many there are."""
        first = part * self.step
        last = self.taps if part == self.parts - 1 else first + self.step
        taps = range(phase, self.kernel, self.inner)[first:last]
        return slice(taps.start, taps.stop, self.inner), len(taps)


def parts_of(taps: int, length: int, step: int) -> int:
    """Parts of a kernel of `taps` taps, all but the last of `step` taps."""
    longest = length - step + 1
    return 1 + max(0, ceil_div(taps - longest, step))


def axes_of(window: Window, axis: int, length: int) -> list[Axis]:
    """The ways worth considering to cut an axis: for each number of parts, the longest step."""
    whole = _uncut(window, axis)
    taps, outputs = whole.taps, ceil_div(whole.out, whole.apart)
    found: dict[int, Axis] = {}
    for step in range(1, length + 1):
        parts = parts_of(taps, length, step)
        if parts > 1 and 2 * step > length + 1:
            continue  # a whole part of `step` taps does not fit the transform
        balanced = ceil_div(outputs, ceil_div(outputs, step))
        chosen = balanced if parts_of(taps, length, balanced) == parts else step
        found[parts] = replace(whole, length=length, step=chosen)
    fewest = sorted(found)[:2]
    return [found[parts] for parts in fewest]


def least_length(window: Window, axis: int) -> int:
    """The numbers of a transform that has a whole axis (of each phase and class) in one tile."""
    whole = _uncut(window, axis)
    return whole.step + whole.taps - 1


def _uncut(window: Window, axis: int) -> Axis:
    """An axis as one tile."""
    out, kernel, stride = window.out[axis], window.kernel[axis], window.stride[axis]
    dilation = window.dilation[axis] if kernel > 1 else 1
    axis_of = Axis(window.size[axis], out, kernel, stride, dilation, window.pad[axis], 1, 1)
    step = ceil_div(out, axis_of.apart)
    return replace(axis_of, length=step + axis_of.taps - 1, step=step)
