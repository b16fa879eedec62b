"""Taking convolutions apart: dilations, strides, long kernels, transposed convolutions.

Along each axis, with o an output, k a tap and x[o·s + k·d - pad] what they multiply:

* Dilation into residues (decimation): with g = gcd(s, d), outputs r + t·d/g read the inputs
  r·s + d·(t·s/g + k) - pad: for each of the d/g residues r an ordinary convolution of stride s/g
  over every d-th input, with the same weights.
* Stride into phases (polyphase): the taps p, p + s, p + 2s … form phase p; phases are convolutions
  of stride 1 over every s-th input, and add up like channels.
* Long kernels into parts: consecutive taps, whose results add up in the output (DWM, arXiv
  2002.00552).
* Transposed convolution into phases: output o is the sum of x[i]·w[k] over o + pad = i·s + k·d. At
  the outputs of one residue of o + pad modulo s that is an ordinary convolution of stride 1 with
  the taps that k·d = o + pad (modulo s) leaves, backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from math import gcd

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.problem import Problem
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Triple, Window
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div

Range = tuple[int, int]


def _triple(values: Iterable[int]) -> Triple:
    depth, height, width = values
    return depth, height, width


# -- dilations into residues -------------------------------------------------------------------
@dataclass(frozen=True)
class Residues:
    """The residues of one axis.

    Attributes:
        count: d / g, which is also the distance from one output of a residue to the next.
        stride: s / g, the stride of each residue's convolution.
    """

    count: int
    stride: int


def residues(stride: int, dilation: int) -> Residues:
    """The residues that a dilation splits an axis into."""
    common = gcd(stride, dilation)
    return Residues(dilation // common, stride // common)


def residue_counts(window: Window) -> Triple:
    """Count the residues that are convolved separately, along each axis."""
    return _triple(
        residues(*axis).count for axis in zip(window.stride, window.dilation, strict=True)
    )


def residue_strides(window: Window) -> Triple:
    """The stride of each residue's convolution, along each axis."""
    return _residue_strides(window.stride, window.dilation)


@lru_cache(maxsize=256)
def _residue_strides(stride: Triple, dilation: Triple) -> Triple:
    return _triple(residues(*axis).stride for axis in zip(stride, dilation, strict=True))


def without_dilation(problem: Problem) -> list[Problem]:
    """One problem for each residue of height and width; the problem itself without dilation."""
    if problem.conv.window.dilation == (1, 1, 1):
        return [problem]
    _, rows, columns = residue_counts(problem.conv.window)
    return [_residue(problem, (0, r, c)) for r, c in product(range(rows), range(columns))]


def _residue(problem: Problem, residue: Triple) -> Problem:
    conv, window, x, y = problem.conv, problem.conv.window, problem.conv.x, problem.conv.y
    size, out, pad = list(window.size), list(window.out), list(window.pad)
    x_offset, y_offset = conv.x_offset, conv.y_offset
    counts = residue_counts(window)
    for axis in (1, 2):
        step = window.dilation[axis]
        # Output q of residue r reads inputs r·s - pad + (q·stride + tap)·step, which is
        # begin + (ahead + q·stride + tap)·step.
        ahead, begin = divmod(residue[axis] * window.stride[axis] - window.pad[axis], step)
        size[axis] = ceil_div(window.size[axis] - begin, step)
        out[axis] = ceil_div(window.out[axis] - residue[axis], counts[axis])
        pad[axis] = -ahead
        x_offset += begin * x.spatial[axis]
        y_offset += residue[axis] * y.spatial[axis]

    def spread(spatial: Triple, steps: Triple) -> Triple:
        return spatial[0], spatial[1] * steps[1], spatial[2] * steps[2]

    return with_conv(
        problem,
        window=replace(
            window,
            size=_triple(size),
            out=_triple(out),
            pad=_triple(pad),
            stride=residue_strides(window),
            dilation=(1, 1, 1),
        ),
        x=replace(x, spatial=spread(x.spatial, window.dilation)),
        y=replace(y, spatial=spread(y.spatial, counts)),
        x_offset=x_offset,
        y_offset=y_offset,
    )


# -- strides into phases -----------------------------------------------------------------------
def phase_count(kernel: int, stride: int) -> int:
    """Phases of a stride that have a tap."""
    return min(kernel, stride)


def phase_taps(kernel: int, stride: int, phase: int = 0) -> int:
    """Taps of a phase; the first one has the most."""
    return ceil_div(kernel - phase, stride)


# -- long kernels into parts -------------------------------------------------------------------
def part_count(taps: int, each: int, last: int) -> int:
    """Parts of a kernel: of `each` taps all but the last one, which may have up to `last`."""
    return 1 + max(0, ceil_div(taps - last, each))


def part_ranges(taps: int, each: int) -> list[Range]:
    """First tap and one past the last of every part of up to `each` taps."""
    return [(first, min(taps, first + each)) for first in range(0, taps, each)]


def with_taps(problem: Problem, taps: tuple[Range, Range], first: bool, last: bool) -> Problem:
    """The part of a problem that has some taps of height and width, and no dilation.

    Args:
        problem: to be cut; its results are bias, residual and all parts' sums, activated.
        taps: first tap and one past the last, along height and width.
        first: whether it starts from bias and residual; later parts add to the output.
        last: whether it applies the activation, and makes codes of sums.
    """
    window, epilogue = problem.conv.window, problem.conv.epilogue
    (top, bottom), (left, right) = taps
    return with_conv(
        problem,
        window=replace(
            window,
            kernel=(1, bottom - top, right - left),
            pad=(window.pad[0], window.pad[1] - top, window.pad[2] - left),
        ),
        epilogue=Epilogue(
            bias=epilogue.bias and first,
            residual=epilogue.residual or not first,
            activation=epilogue.activation if last else None,
            requantise=epilogue.requantise if last else None,
        ),
    )


# -- transposed convolutions into phases -------------------------------------------------------
@dataclass(frozen=True)
class TransposedPhase:
    """One phase of a transposed convolution.

    Attributes:
        window: of the ordinary convolution of stride 1 that computes it.
        taps: its taps of the kernel along each axis; they are applied in reverse order.
        first: its first output along each axis; the next ones are the stride further on.
    """

    window: Window
    taps: tuple[slice, slice, slice]
    first: Triple


def transposed_taps(kernel: int, stride: int, dilation: int) -> int:
    """The most taps of a transposed convolution that one output has along an axis."""
    return ceil_div(kernel, residues(dilation, stride).count)


def transposed_phases(window: Window) -> Iterator[TransposedPhase]:
    """The phases that have outputs, in the order of their first outputs modulo the stride.

    Args:
        window: of the transposed convolution: its own input and output extents, kernel, stride,
            dilation and padding.
    """
    axes = []
    for axis in range(3):
        stride, out, pad = window.stride[axis], window.out[axis], window.pad[axis]
        found = sorted((o + pad) % stride for o in range(min(stride, out)))
        axes.append([_phase(window, axis, p) for p in found])
    for part in product(*axes):
        depth, height, width = (phase.taps for phase in part)
        yield TransposedPhase(
            Window(
                window.size,
                _triple(p.count for p in part),
                _triple(len(range(k)[p.taps]) for k, p in zip(window.kernel, part, strict=True)),
                (1, 1, 1),
                _triple(p.dilation for p in part),
                _triple(p.pad for p in part),
            ),
            (depth, height, width),
            _triple(p.first for p in part),
        )


@dataclass(frozen=True)
class _AxisPhase:
    """One phase along one axis: outputs `first + i * stride`, i < count; the rest as above."""

    first: int
    count: int
    taps: slice
    dilation: int
    pad: int


def _phase(window: Window, axis: int, p: int) -> _AxisPhase:
    """The phase p: outputs o with (o + pad) % stride == p, of which there are some."""
    size, kernel, pad = window.size[axis], window.kernel[axis], window.pad[axis]
    stride, dilation = window.stride[axis], window.dilation[axis]
    start = max(0, ceil_div(pad - p, stride))
    first = start * stride + p - pad
    count = ceil_div(window.out[axis] - first, stride)
    # Its taps k are those with k·dilation = p modulo the stride: every `split.count`-th, or none.
    split = residues(dilation, stride)
    apart, step = split.count, split.stride
    low = p // (stride // apart) * pow(step, -1, apart) % apart
    if p % (stride // apart) or low >= kernel:
        # One tap that never touches the input: the output is the bias alone.
        return _AxisPhase(first, count, slice(0, 1), 1, -size - count)
    begin = (low * dilation - p) // stride
    # i = start + u - begin - t·step for tap t; backwards, tap t' = T-1-t adds t'·step.
    reach = begin + (kernel - 1 - low) // apart * step
    return _AxisPhase(first, count, slice(low, None, apart), step, reach - start)
