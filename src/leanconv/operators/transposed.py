"""Transposed convolutions as ordinary ones: one for each phase of the output, or one for all.

With C input channels, K output channels and strides s, the phases of one output are s_h·s_w
convolutions of stride 1 over the same input. Where they have as many outputs each, they are one
convolution of K·s_h·s_w output channels whose store puts each phase in its place: the input is read
(and, by Winograd, transformed) once, and lanes are filled where K is small. Its window is as large
as all phases' together; taps that a phase lacks are zeros. That costs nothing where the kernel is a
multiple of the stride and the padding fits, as for 2x2 with stride 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.decompose import transposed_phases
from leanconv.algorithms.direct.shape import PackedConv
from leanconv.algorithms.interface import Candidate, KernelUse, channel_calls
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access, PhasedAccess, Window, triple
from leanconv.codegen.lowered import PackCall
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Node
from leanconv.kernels.packing import copied
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.units import shape_text

MOST_PHASES = 1024  # a stride of 32 along two axes


def phase_count(window: Window) -> int:
    """The phases of a transposed convolution that have outputs."""
    return prod(map(min, window.stride, window.out))


def phases(node: Node, whole: Problem, w: np.ndarray) -> list[tuple[Problem, np.ndarray]]:
    """Split a transposed convolution by the output's position modulo the stride.

    Args:
        node: a ConvTranspose.
        whole: the problem of the whole convolution.
        w: weights (C, K / groups, k…).

    Returns:
        Each phase with its weights (K, C / groups, taps…).

    Raises:
        UnsupportedError: there are too many phases.
    """
    conv, kernel, stride = whole.conv, whole.conv.window.kernel, whole.conv.window.stride
    if (count := phase_count(conv.window)) > MOST_PHASES:
        raise UnsupportedError(
            f"node {node.name!r} (ConvTranspose): strides {node.attributes['strides']} split the "
            f"output into {count} phases; expected at most {MOST_PHASES}"
        )
    # (C, K/g, k…) -> (g, C/g, K/g, k…) -> (K, C/g, k…)
    grouped = w.reshape(conv.groups, conv.inputs, w.shape[1], *kernel).swapaxes(1, 2)
    by_output = grouped.reshape(conv.out_channels, conv.inputs, *kernel)
    y, rank = conv.y, w.ndim - 2
    apart = triple(tuple(step * s for step, s in zip(y.spatial, stride, strict=True)), 1)
    found = []
    for phase in transposed_phases(conv.window):
        d, h, v = phase.taps
        taps = by_output[:, :, d, h, v][:, :, ::-1, ::-1, ::-1]
        offset = sum(o * s for o, s in zip(phase.first, y.spatial, strict=True))
        y_of_phase = replace(y, spatial=apart)
        part = replace(conv, window=phase.window, y=y_of_phase, y_offset=offset)
        label = f"a phase of {shape_text(taps.shape[-rank:])} taps of a transposed convolution"
        found.append((replace(whole, conv=part, label=label), taps))
    return found


def together(
    found: Sequence[tuple[Problem, np.ndarray]], y: Access, lanes: int
) -> tuple[Problem, np.ndarray] | None:
    """The phases of a transposed convolution as one convolution.

    Args:
        found: all phases, as `phases` returns them.
        y: where the output lies.
        lanes: of the target's vectors.

    Returns:
        The convolution, whose `y` is a `PhasedAccess`, and its weights (K', C, taps…); None if the
        phases have different sizes, dilations, groups or a depth, or do not fill vectors.
    """
    one, weights = found[0][0], found[0][1]
    window, item = one.conv.window, y.spatial
    places = {_place(problem, y): number for number, (problem, _) in enumerate(found)}
    across = 1 + max(column for _, column in places)
    down = len(found) // across
    whole = [(row, column) for row in range(down) for column in range(across)]
    alike = all(
        problem.conv.window.out == window.out and problem.conv.window.dilation == (1, 1, 1)
        for problem, _ in found
    )
    if len(found) == 1 or not alike or sorted(places) != whole:
        return None
    if (one.conv.y.spatial[1], one.conv.y.spatial[2]) != (down * item[1], across * item[2]):
        return None
    if not window.is_flat:
        return None
    if y.block != 1 and (y.block != lanes or one.conv.groups > 1):
        return None
    outputs, phases_of = one.conv.out_channels, len(found)
    pad, kernel = list(window.pad), list(window.kernel)
    for axis in (1, 2):
        windows = [problem.conv.window for problem, _ in found]
        if any(-w.pad[axis] > w.size[axis] for w in windows):  # a phase without a tap
            return None
        pad[axis] = max(w.pad[axis] for w in windows)
        kernel[axis] = pad[axis] + max(w.kernel[axis] - w.pad[axis] for w in windows)
    blocks = ceil_div(outputs, y.block)
    shape = (blocks, phases_of, y.block, *weights.shape[1:2], kernel[1], kernel[2])
    stacked = np.zeros(shape, weights.dtype)
    for number, place in enumerate(whole):
        problem, taps = found[places[place]]
        at = [pad[axis] - problem.conv.window.pad[axis] for axis in (1, 2)]
        (height, width), (top, left) = problem.conv.window.kernel[1:], at
        for block in range(blocks):
            part = taps[block * y.block : (block + 1) * y.block, :, 0]
            stacked[block, number, : len(part), :, top : top + height, left : left + width] = part
    access = PhasedAccess(
        y.image, y.block, y.block_stride, one.conv.y.spatial, (down, across), item[1], item[2]
    )
    conv = replace(
        one.conv,
        outputs=blocks * phases_of * y.block // one.conv.groups,
        window=replace(window, kernel=triple((kernel[1], kernel[2]), 1), pad=(0, pad[1], pad[2])),
        y=access,
        y_offset=0,
    )
    label = f"the {phases_of} phases of a transposed convolution"
    problem = replace(one, conv=conv, label=label)
    return problem, stacked.reshape(-1, *shape[3:4], 1, *shape[4:])


def _place(problem: Problem, y: Access) -> tuple[int, int]:
    """Row and column of a phase's first output."""
    row, rest = divmod(problem.conv.y_offset, y.spatial[1])
    return int(row), int(rest // y.spatial[2])


def of_phases(values: np.ndarray, y: PhasedAccess) -> np.ndarray:
    """One number for each output channel, for the channels of a convolution of all phases."""
    blocks = ceil_div(len(values), y.block)
    padded = np.zeros((blocks, 1, y.block), values.dtype)
    padded.reshape(-1)[: len(values)] = values
    return np.repeat(padded, y.phase_count, axis=1).reshape(-1)


def one_kernel(found: Sequence[tuple[Problem, Candidate]]) -> list[list[int]]:
    """Group phases that differ only in weights and in where they write: lists of indices.

    Args:
        found: each phase with how it is computed.
    """
    if len(found) == 1:
        return [[0]]
    alike: list[tuple[object, list[int]]] = []  # no table: with symbols in them they have no hash
    for number, (_, candidate) in enumerate(found):
        kernel = candidate.kernels[0].kernel
        same = with_conv(kernel, y_offset=0) if isinstance(kernel, PackedConv) else number
        known = next((numbers for other, numbers in alike if other == same), None)
        if known is None:
            alike.append((same, [number]))
        else:
            known.append(number)
    return [numbers for _, numbers in alike]


def joined(found: Sequence[tuple[Problem, Candidate]]) -> Candidate:
    """Return the candidate that computes several phases of one kernel, from stacked weights.

    Args:
        found: the phases of one list of `one_kernel`.

    Returns:
        A candidate whose `packing` packs the weights of one of them.
    """
    (problem, first), *_ = found
    phase = first.kernels[0].kernel
    assert isinstance(phase, PackedConv)
    offsets = np.array([p.conv.y_offset for p, _ in found], np.int64)
    kernel = replace(with_conv(phase, y_offset=0), phases=len(found))

    def packing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        weights = phase.weight_calls(problem.weights_3d(w))
        return {"w": weights, **channel_calls(phase, channels), "offsets": copied(offsets)}

    uses = (KernelUse(kernel, kernel.operands),)
    return replace(first, kernels=uses, packing=packing)
