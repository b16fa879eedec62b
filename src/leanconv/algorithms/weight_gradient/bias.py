"""The gradient of the bias, db[k] = sum of dy over images and pixels, beside that of the weights.

Kernels that read dy anyway also add it up, where `Problem.sums_dy` says that db is wanted:

    direct, im2col, mec   panels of dy, where a chunk has copied them (`PanelSums`)
    depthwise             vectors of dy, as they are loaded for the taps
    winograd              the pixels of a tile, as they are loaded for its transform

Only the chunks of the first block of input channels do so. Each part of the pixels has a row of K
sums, and a last kernel adds the rows in their order: what a row sums follows from the shape alone.
What computes dw is chosen as if db were not wanted, so that dw has the same bits with it.

Methods that do not see each element of dy once have a sum of its own (`with_bias`): `naive`, and
`depthwise` where the taps take several passes or have a depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod

from leanconv.algorithms.interface import Candidate, KernelUse, halves_of, use_of_halves
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.weight_gradient.sums import Panels
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.kernels.reduce import Reduction
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT32, DType

RESULT, ROWS = "db", "db_rows"  # roles: the gradient, and its rows before they are added
_UNROLLED = 4  # pixels that are added to each other before they are added to a sum


def added_rows(
    dtype: DType, rows: int, elements: int, source: str = ROWS, result: str = RESULT
) -> KernelUse:
    """The kernel that adds rows of so many elements, which lie one after the other.

    Args:
        dtype: of all numbers.
        rows, elements: two rows at least; elements of each.
        source, result: roles of the rows and of their sum.
    """
    kernel = Reduction(dtype, "sum", (rows, elements), (True, False))
    return KernelUse(kernel, (source, result))


def with_rows_added(candidate: Candidate, problem: Problem, rows: int) -> Candidate:
    """A candidate whose kernels write rows of sums of dy, with what adds them.

    Args:
        candidate: kernels with the role `ROWS`, which is `RESULT` where there is but one row.
        problem: that it is for.
        rows: their number.
    """
    if not problem.sums_dy:
        return candidate
    conv = problem.conv
    if rows == 1 and not problem.any_size:
        return replace(candidate, kernels=tuple(_renamed(candidate.kernels)))
    size = rows * conv.out_channels * conv.dtype.bytes
    added = added_rows(conv.dtype, rows, conv.out_channels)
    temporaries = {**candidate.temporaries, ROWS: size}
    return replace(candidate, kernels=(*candidate.kernels, added), temporaries=temporaries)


def _renamed(uses: Iterable[KernelUse]) -> Iterable[KernelUse]:
    for use in uses:
        yield replace(use, roles=tuple(RESULT if role == ROWS else role for role in use.roles))


def with_bias(candidate: Candidate, problem: Problem) -> Candidate:
    """A candidate that computes db, too, where it is wanted: by a sum of its own if need be."""
    if not problem.sums_dy or any(RESULT in use.roles for use in candidate.kernels):
        return candidate
    halves = halves_of(problem.conv.precision, FLOAT32)
    sums, temporaries = _own_sum(problem)
    uses = tuple(use_of_halves(use, halves) for use in sums)
    return replace(
        candidate,
        kernels=(*candidate.kernels, *uses),
        temporaries={**candidate.temporaries, **temporaries},
    )


def _own_sum(problem: Problem) -> tuple[list[KernelUse], dict[str, int]]:
    """The kernels that sum dy alone, from any layout, and their temporaries."""
    conv, access = problem.conv, problem.conv.y
    dtype, channels, pixels = conv.precision.accumulate, conv.out_channels, prod(conv.window.out)
    if access.block > 1:
        shape = conv.batch * ceil_div(channels, access.block), pixels, access.block
        images = Reduction(dtype, "sum", shape, (False, True, False), channels)
        uses = [KernelUse(images, ("dy", ROWS)), added_rows(dtype, conv.batch, channels)]
        return uses, {ROWS: conv.batch * channels * dtype.bytes}
    if access.lanes_contiguous:
        return [added_rows(dtype, conv.batch * pixels, channels, "dy")], {}
    planes = Reduction(dtype, "sum", (conv.batch, channels, pixels), (True, False, True))
    return [KernelUse(planes, ("dy", RESULT))], {}


def sum_of(values: Sequence[Value]) -> Value:
    """Emit the sum of some vectors, in pairs."""
    while len(values) > 1:
        odd = values[len(values) // 2 * 2 :]
        values = [*(a + b for a, b in zip(values[::2], values[1::2], strict=False)), *odd]
    return values[0]


class PanelSums:
    """Emits the sums of the panels of dy that a chunk copies; those of others are left alone.

    Args:
        e: the function to append to.
        panels: of a group.
        held: address of the sums of a chunk: `panels.bias_elements`.
        db: address of the row of K sums.
        block: number of the chunk among those of the blocks of input channels; the first one sums.
    """

    def __init__(
        self, e: Function, panels: Panels, held: Pointer, db: Pointer, block: Value
    ) -> None:
        self._e, self._panels, self._held, self._db = e, panels, held, db
        self._is_first = block.compare("eq", 0) if panels.chunks[0] > 1 else None

    def _chosen(self) -> AbstractContextManager[None]:
        return nullcontext() if self._is_first is None else self._e.when(self._is_first)

    def clear(self) -> None:
        """Begin with zero."""
        e, panels = self._e, self._panels
        with self._chosen(), e.loop("bias", panels.bias_elements, step=panels.lanes) as at:
            e.store(e.zero(panels.kind), self._held.at(at))

    def add(
        self, number: Value, outputs: int, pixels: Pointer, width: Value | int, count: Value
    ) -> None:
        """Add a panel's copied pixels.

        Args:
            number: of the panel in the chunk.
            outputs: of the panel.
            pixels: address of the first one; each has whole vectors.
            width: elements from one pixel to the next.
            count: of pixels, one at least.
        """
        e, (kind, lanes) = self._e, (self._panels.kind, self._panels.lanes)
        vectors = ceil_div(outputs, lanes)
        with self._chosen():
            acc = [e.zero(kind)] * vectors
            groups = count // _UNROLLED
            rest = groups * _UNROLLED
            with e.when(groups.compare("ne", 0), [acc]), e.loop("bias", groups, [acc]) as index:
                first = pixels.at(index * (width * _UNROLLED))
                for j in range(vectors):
                    places = (first.at(width * i + j * lanes) for i in range(_UNROLLED))
                    acc[j] = acc[j] + sum_of([e.load(place, kind) for place in places])
            with e.when(rest.compare("ult", count), [acc]):
                with e.loop("bias", count, [acc], start=rest) as index:
                    for j in range(vectors):
                        acc[j] = acc[j] + e.load(pixels.at(index * width + j * lanes), kind)
            for j, value in enumerate(acc):
                place = self._held.at(number * self._panels.wide + j * lanes)
                e.store(e.load(place, kind) + value, place)

    def write(self, number: Value, outputs: int, channel: Value, adds: bool = False) -> None:
        """Write a panel's sums to the row.

        Args:
            number, outputs: as `add` has them.
            channel: the panel's first.
            adds: whether they are added to what the row holds.
        """
        e, (kind, lanes) = self._e, (self._panels.kind, self._panels.lanes)
        with self._chosen():
            for first in range(0, outputs, lanes):
                live, place = min(lanes, outputs - first), self._db.at(channel + first)
                value = e.load(self._held.at(number * self._panels.wide + first), kind)
                value = e.load_first(place, kind, live) + value if adds else value
                e.store_first(value, place, live)
