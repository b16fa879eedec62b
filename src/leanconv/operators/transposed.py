"""Transposed convolutions as ordinary ones: one for each phase of the output, or one for all.

With C input channels, K output channels and strides s, the phases of one output are s_h·s_w
convolutions of stride 1 over the same input. Where they have as many outputs each, they are one
convolution of K·s_h·s_w output channels whose store puts each phase in its place: the input is read
(and, by Winograd, transformed) once, and lanes are filled where K is small. Its window is as large
as all phases' together; taps that a phase lacks are zeros. That costs nothing where the kernel is a
multiple of the stride and the padding fits, as for 2x2 with stride 2.

Windows that do not overlap, uncut and in planes, are a 1x1 convolution whose channels are the taps
of each output: a vector of them is stored as rows of taps (`by_taps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from leanconv.algorithms.common.conv import Conv, with_conv
from leanconv.algorithms.decompose import TransposedPhase, transposed_phases
from leanconv.algorithms.direct.shape import PackedConv
from leanconv.algorithms.interface import Candidate, KernelUse, channel_calls
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access, PhasedAccess, TapAccess, Window, triple
from leanconv.codegen.lowered import PackCall
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Node
from leanconv.kernels.packing import copied
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.units import shape_text

_MOST_BLOCKS = 4  # of which panels have whole multiples
MOST_PHASES = 1024  # a stride of 32 along two axes


def phase_count(window: Window) -> int:
    """The phases of a transposed convolution that have outputs."""
    return prod(map(min, window.stride, window.out))


def grouped(w: np.ndarray, whole: Problem) -> np.ndarray:
    """View weights (C, K / groups, k…) as (groups, K / groups, C / groups, kd, kh, kw)."""
    conv = whole.conv
    apart = w.reshape(conv.groups, conv.inputs, conv.outputs, *conv.window.kernel)
    return np.asarray(apart.swapaxes(1, 2))


def by_output(weights: np.ndarray) -> np.ndarray:
    """Return what `grouped` gives as (K, C / groups, kd, kh, kw), a view where there can be one."""
    return np.asarray(weights.reshape(-1, *weights.shape[2:]))


def phases(node: Node, whole: Problem, weights: np.ndarray) -> list[tuple[Problem, np.ndarray]]:
    """Split a transposed convolution by the output's position modulo the stride.

    Args:
        node: a transposed convolution.
        whole: the problem of the whole convolution.
        weights: (K, C / groups, kd, kh, kw).

    Returns:
        Each phase with its weights (K, C / groups, taps…), a view.

    Raises:
        UnsupportedError: there are too many phases.
    """
    conv, stride = whole.conv, whole.conv.window.stride
    if (count := phase_count(conv.window)) > MOST_PHASES:
        raise UnsupportedError(
            f"node {node.name!r} ({node.op}): strides {node.attributes['strides']} split the "
            f"output into {count} phases; expected at most {MOST_PHASES}"
        )
    y, rank = conv.y, len(node.attributes["strides"])
    apart = triple(tuple(step * s for step, s in zip(y.spatial, stride, strict=True)), 1)
    found = []
    for phase in transposed_phases(conv.window):
        taps = _taps_of(phase, weights)
        offset = sum(o * s for o, s in zip(phase.first, y.spatial, strict=True))
        y_of_phase = replace(y, spatial=apart)
        part = replace(conv, window=phase.window, y=y_of_phase, y_offset=offset)
        label = f"a phase of {shape_text(taps.shape[-rank:])} taps of a transposed convolution"
        found.append((replace(whole, conv=part, label=label), taps))
    return found


def is_untouched(window: Window) -> bool:
    """Return whether a phase has no tap: its outputs are the bias alone."""
    return any(-pad > size for pad, size in zip(window.pad, window.size, strict=True))


def _taps_of(phase: TransposedPhase, weights: np.ndarray) -> np.ndarray:
    d, h, w = phase.taps
    return weights[:, :, d, h, w][:, :, ::-1, ::-1, ::-1]


@dataclass(frozen=True)
class Stacked:
    """The order of the weights of all phases as those of one convolution.

    Attributes:
        block: outputs of the output's blocks.
        kernel: taps of the one convolution, along height and width.
        phases: each with the row and the column of its first tap in that, in the order of channels.
    """

    block: int
    kernel: tuple[int, int]
    phases: tuple[tuple[TransposedPhase, int, int], ...]

    def elements(self, inputs: int) -> int:
        """Weights of a block."""
        return len(self.phases) * self.block * inputs * prod(self.kernel)

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Order the weights (k, C / g, kd, kh, kw) of one block of outputs, zeros beside them."""
        shape = len(self.phases), self.block, weights.shape[1], *self.kernel
        stacked = np.zeros(shape, weights.dtype)
        for number, (phase, top, left) in enumerate(self.phases):
            part = _taps_of(phase, weights)[:, :, 0]
            height, width = part.shape[2:]
            stacked[number, : len(part), :, top : top + height, left : left + width] = part
        return stacked


def together(
    found: Sequence[Problem], whole: Problem, lanes: int
) -> tuple[Problem, Stacked] | None:
    """The phases of a transposed convolution as one convolution.

    Args:
        found: all phases, as `phases` returns them.
        whole: the problem of the whole convolution.
        lanes: of the target's vectors.

    Returns:
        The convolution, whose `y` is a `PhasedAccess`, and the order of its weights; None if the
        phases have different sizes, dilations, groups or a depth, or do not fill vectors.
    """
    one, y = found[0], _in_vectors(whole.conv, lanes)
    window, item = one.conv.window, y.spatial
    places = {_place(problem, y): number for number, problem in enumerate(found)}
    across = 1 + max(column for _, column in places)
    down = len(found) // across
    cells = [(row, column) for row in range(down) for column in range(across)]
    alike = all(
        problem.conv.window.out == window.out and problem.conv.window.dilation == (1, 1, 1)
        for problem in found
    )
    if len(found) == 1 or not alike or sorted(places) != cells:
        return None
    if (one.conv.y.spatial[1], one.conv.y.spatial[2]) != (down * item[1], across * item[2]):
        return None
    if not window.is_flat:
        return None
    if y.block != 1 and (y.block != lanes or one.conv.groups > 1):
        return None
    if y.block == 1 and item[2] != 1:  # channels lie beside each other, and fill no vectors
        return None
    windows = [problem.conv.window for problem in found]
    if any(map(is_untouched, windows)):
        return None
    pad, kernel = list(window.pad), list(window.kernel)
    for axis in (1, 2):
        pad[axis] = max(w.pad[axis] for w in windows)
        kernel[axis] = pad[axis] + max(w.kernel[axis] - w.pad[axis] for w in windows)
    numbers, parts = [places[cell] for cell in cells], list(transposed_phases(whole.conv.window))
    placed = ((parts[n], pad[1] - windows[n].pad[1], pad[2] - windows[n].pad[2]) for n in numbers)
    access = PhasedAccess(
        y.image, y.block, y.block_stride, one.conv.y.spatial, (down, across), item[1], item[2]
    )
    outputs = ceil_div(one.conv.out_channels, y.block) * len(found) * y.block
    conv = replace(
        one.conv,
        outputs=outputs // one.conv.groups,
        window=replace(window, kernel=triple((kernel[1], kernel[2]), 1), pad=(0, pad[1], pad[2])),
        y=access,
        y_offset=0,
    )
    label = f"the {len(found)} phases of a transposed convolution"
    order = Stacked(y.block, (kernel[1], kernel[2]), tuple(placed))
    return replace(one, conv=conv, label=label), order


@dataclass(frozen=True)
class Tapped:
    """The order of the weights of windows that do not overlap as those of a 1x1 convolution.

    Attributes:
        y: whose channels are blocks of taps.
        block: outputs of the output's blocks.
    """

    y: TapAccess
    block: int = 1

    def elements(self, inputs: int) -> int:
        """Weights of an output."""
        return self.y.phase_count * self.y.block * inputs

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Order the weights (1, C / g, 1, kh, kw) of an output, zeros beside them."""
        (_, inputs, _, height, width), y, (down, across) = weights.shape, self.y, self.y.phases
        rows = np.zeros((down * y.rows, width, inputs), weights.dtype)
        rows[:height] = weights[0, :, 0].transpose(1, 2, 0)
        blocks = np.zeros((down, across * y.block, inputs), weights.dtype)
        blocks[:, : y.rows * width] = rows.reshape(down, -1, inputs)
        return blocks


def by_taps(whole: Problem, lanes: int) -> tuple[Problem, Tapped] | None:
    """A transposed convolution whose windows do not overlap as a 1x1 convolution.

    Args:
        whole: the problem of the whole convolution.
        lanes: of the target's vectors.

    Returns:
        The convolution, whose `y` is a `TapAccess`, and the order of its weights; None if windows
        overlap, are cut or have gaps, or rows of taps in planes leave most of a vector empty.
    """
    conv, window, y = whole.conv, whole.conv.window, whole.conv.y
    (deep, down, across), ones = window.kernel, (1, 1, 1)
    apart = window.kernel == window.stride and window.dilation == ones and window.pad == (0, 0, 0)
    if not apart or deep > 1 or down * across == 1 or y.block > 1 or y.spatial[2] != 1:
        return None
    if any(o != n * k for o, n, k in zip(window.out, window.size, window.kernel, strict=True)):
        return None
    rows = max(1, min(down, lanes // across))
    if ceil_div(down, rows) > _MOST_BLOCKS:  # blocks with fewer rows need panels of whole outputs
        rows = next(r for r in range(rows, 0, -1) if down % r == 0)
    blocks = ceil_div(down, rows), ceil_div(across, lanes)
    if 2 * down * across <= prod(blocks) * lanes:
        return None
    access = TapAccess(
        y.image,
        lanes,
        y.block_stride,
        triple((y.spatial[0], y.spatial[1] * down, across), 1),
        blocks,
        y.spatial[1] * rows,
        lanes,
        (down, across),
        rows,
    )
    if access.alike > _MOST_BLOCKS:
        return None
    outputs = conv.outputs * access.phase_count * lanes
    size = window.size
    conv = replace(
        conv, outputs=outputs, window=Window(size, size, ones, ones, ones, (0, 0, 0)), y=access
    )
    return replace(whole, conv=conv, label="a transposed convolution by its taps"), Tapped(access)


def _in_vectors(conv: Conv, lanes: int) -> Access:
    """Return where the output lies; channels that lie beside each other are blocks of vectors."""
    y = conv.y
    beside = y.block == 1 == conv.groups and y.lanes_contiguous
    if beside and conv.outputs % lanes == 0:
        return replace(y, block=lanes, block_stride=lanes)
    return y


def blocks_of_outputs(weights: np.ndarray, block: int) -> list[np.ndarray]:
    """View weights (groups, K / groups, …) as arrays (outer, inner, k, …) of blocks of outputs.

    The last one has what is left of a block.
    """
    groups, outputs, *rest = weights.shape
    if block == 1:
        return [weights[:, :, np.newaxis]]
    whole = outputs // block * block
    assert groups == 1
    parts = weights[:, :whole].reshape(1, -1, block, *rest), weights[:, np.newaxis, whole:]
    return [part for part in parts if part.size]


def _place(problem: Problem, y: Access) -> tuple[int, int]:
    """Row and column of a phase's first output."""
    row, rest = divmod(problem.conv.y_offset, y.spatial[1])
    return int(row), int(rest // y.spatial[2])


def of_phases(values: np.ndarray, y: PhasedAccess) -> np.ndarray:
    """One number for each output channel, for the channels of a convolution of all phases."""
    if isinstance(y, TapAccess):
        return np.repeat(values, y.phase_count * y.block)
    blocks = ceil_div(len(values), y.block)
    padded = np.zeros((blocks, 1, y.block), values.dtype)
    padded.reshape(-1)[: len(values)] = values
    return np.repeat(padded, y.phase_count, axis=1).reshape(-1)


def one_kernel(found: Sequence[tuple[Problem, Candidate]]) -> list[list[int]]:
    """Group phases that differ only in weights and in where they write: lists of indices.

    Those of any size are apart: how many have as many outputs depends on what a stride leaves.

    Args:
        found: each phase with how it is computed.
    """
    if len(found) == 1 or found[0][0].any_size:
        return [[number] for number in range(len(found))]
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
        calls = phase.changing_weight_calls if problem.weights_change else phase.weight_calls
        weights = calls(problem.weights_3d(w))
        return {"w": weights, **channel_calls(phase, channels), "offsets": copied(offsets)}

    uses = (KernelUse(kernel, kernel.operands),)
    return replace(first, kernels=uses, packing=packing)
