"""What the kernel of few pixels takes: its chunks, its cost, how its weights are packed."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from leanconv.algorithms.common.conv import Conv
from leanconv.algorithms.problem import Problem, dram_cycles
from leanconv.algorithms.sparse.sliced import SlicedConv, permutations
from leanconv.codegen.lowered import PackCall
from leanconv.graph.slices import MOST_COLUMNS, ROWS, SPANS, Slices, slice_count, windows
from leanconv.graph.zeros import MOST_PIXELS
from leanconv.kernels.packing import copied, rearranged
from leanconv.records import replace
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import INT16, UINT8, as_dtype

_LEAST_CHUNKS = 32  # to balance any number of threads, unless below `costs.least_chunk` cycles
_COPIES = 0.1  # of a chunk's other cycles, that copying may take
# Cycles of a step beside its lookups, of a permutation, of a gathered element; of an input that is
# copied by itself; of a slice's begin and end.
_STEP, _PERMUTE, _GATHER, _ELEMENT, _SLICE = 3.2, 0.9, 1.2, 1.0, 60.0
_BEGIN, _MARGIN = 1000.0, 7.0  # cycles more, in all and of a step: see `cost`


def refused(problem: Problem) -> str | None:
    """Why a problem is none of few pixels and a matrix; None if it is one."""
    conv = problem.conv
    window, x, y = conv.window, conv.x, conv.y
    if problem.any_size:
        return "maps of any size"
    if conv.groups > 1:
        return "groups"
    if x.block > 1 or y.block > 1 or conv.x_offset or conv.y_offset:
        return "channels stand in blocks, not in planes"
    if conv.batch * prod(window.out) > MOST_PIXELS:
        return f"more than {MOST_PIXELS} pixels"
    if conv.reduction > MOST_COLUMNS:
        return f"{conv.reduction} products; at most {MOST_COLUMNS}"
    if problem.zeros is not None and not problem.zeros.steps:
        return "weights that are not counted as a matrix"
    inside = zip(window.out, window.stride, window.size, strict=True)
    if window.pad != (0, 0, 0) or any((o - 1) * step >= size for o, step, size in inside):
        return "padding"
    if window.kernel != (1, 1, 1) and not _covers(conv):
        return "kernels that slide"
    return None


def _covers(conv: Conv) -> bool:
    """Return whether a kernel is as large as its map, all of whose channels follow each other."""
    window, x = conv.window, conv.x
    (_, h, w), alike = window.size, window.kernel == window.size
    plain = x.spatial == (h * w, w, 1) and x.block_stride == prod(window.size)
    return alike and plain and window.out == window.dilation == (1, 1, 1)


@lru_cache(maxsize=256)
def planned(problem: Problem, target: Target) -> tuple[SlicedConv, float]:
    """The kernel for a problem that is not refused, with its cycles but those of its weights."""
    conv, lanes = problem.conv, problem.conv.lanes(target)
    slices, inputs = slice_count(conv.outputs), conv.reduction
    steps = problem.zeros.steps if problem.zeros else (slices * inputs,) * len(SPANS)
    contiguous = conv.window.kernel != (1, 1, 1) or conv.x.block_stride == 1
    pixels = conv.batch * prod(conv.window.out)
    most = max(1, target.registers // 2 // (ROWS // lanes))
    each = ceil_div(pixels, ceil_div(pixels, most))
    tried = [
        SlicedConv(conv, lanes, each, inputs, span, contiguous, slices, count)
        for span, count in zip(SPANS, steps, strict=True)
    ]
    kernel = min(tried, key=lambda kernel: _work(kernel, target))
    kernel = replace(kernel, slices_each=_slices_each(kernel, target))
    chunks, parts = kernel.grid
    return kernel, chunks * (_work(kernel, target) + parts * _copy(kernel))


def cost(problem: Problem, kernel: SlicedConv, cycles: float, target: Target) -> float:
    """Cycles of a kernel of which `planned` says these, to compare with those of dense kernels.

    Estimates of these are above what they take where there are few pixels, by a factor of 1.5 to
    3.5 on Zen 5. So each step has some cycles more, and no time of weights that come from L3 or
    DRAM is hidden.
    """
    size = sum(kernel.constant_bytes.values())
    stream = size / target.costs.l3_read_unprefetched if size > target.l2_bytes else 0.0
    if problem.weights_from_dram:
        stream = dram_cycles(problem, target, size)
    return cycles + kernel.grid[0] * (_BEGIN + _MARGIN * kernel.steps + stream)


def _slices_each(kernel: SlicedConv, target: Target) -> int:
    """Slices of a chunk: all, unless threads want fewer."""
    work, copy = _work(kernel, target), _copy(kernel)
    worth = min(work / target.costs.least_chunk, _COPIES * work / copy)
    parts = min(ceil_div(_LEAST_CHUNKS, kernel.grid[0]), int(worth), kernel.slices)
    return ceil_div(kernel.slices, max(1, parts))


def _copy(kernel: SlicedConv) -> float:
    """Cycles in which a chunk copies its inputs."""
    return kernel.pixels * kernel.inputs * (1 / kernel.lanes if kernel.contiguous else _ELEMENT)


def _work(kernel: SlicedConv, target: Target) -> float:
    """Cycles of the steps and slices of some pixels, without the time in which weights come."""
    arithmetic = _STEP + kernel.pixels * _lookups(kernel, target)
    step = max(arithmetic, _step_bytes(kernel) / target.costs.l2_read)
    return step * kernel.steps + (_SLICE + kernel.pixels * ROWS) * kernel.slices


def _lookups(kernel: SlicedConv, target: Target) -> float:
    """Cycles of a step's lookups for one pixel."""
    names, tables = permutations(kernel.kind, target), kernel.span // kernel.lanes
    if not names:
        return _GATHER * ROWS
    # Of one register each, and blended; or of two.
    each = 2 * tables if len(names) == 1 else ceil_div(tables, 2)
    return _PERMUTE * each * (ROWS // kernel.lanes)


def _step_bytes(kernel: SlicedConv) -> int:
    return ROWS * (kernel.conv.precision.w.bytes + UINT8.bytes) + INT16.bytes


def weight_calls(
    w: np.ndarray, span: int, steps: int, everything: bool
) -> dict[str, list[PackCall]]:
    """Return the calls that pack weights, by role.

    Args:
        w: (K, C, taps…), any view.
        span: of a step.
        steps: of all slices, for which there is room.
        everything: whether zeros are packed, too.
    """
    dtype, values = as_dtype(w.dtype), list[PackCall]()
    places, firsts, ends, rows, found = [], [], [0], [], 0
    for window in windows(len(w)):
        part = w[window]
        there = np.ones(part.shape, bool) if everything else part != 0
        made = Slices.of(there.reshape(len(part), -1), span)
        found += len(made.firsts)
        columns = made.columns
        places.append(np.where(columns < 0, 0, columns - made.firsts[:, np.newaxis]))
        firsts.append(made.firsts)
        ends.extend(ends[-1] + np.cumsum(made.counts))
        rows.append(np.where(made.rows < 0, -1, made.rows + window.start))
        if len(columns):
            taken = _Taken(np.repeat(made.rows, made.counts, axis=0), columns)
            size = columns.size
            values.append(rearranged(part[np.newaxis, np.newaxis], taken, size, dtype))
    assert found <= steps, f"{found} steps of slices, for {steps}"
    missing = steps - found
    if missing:  # of weights that were drawn to be like others
        zeros = np.zeros(missing * ROWS, w.dtype)
        values += copied(zeros)
        places.append(np.zeros((missing, ROWS), np.int64))
        firsts.append(np.zeros(missing, np.int64))
    heads = np.concatenate([np.asarray(ends), *(each.reshape(-1) for each in rows)])
    return {
        "w": values,
        "places": copied(np.concatenate(places).astype(np.uint8)),
        "firsts": copied(np.concatenate(firsts).astype(np.uint16).view(np.int16)),
        "heads": copied(heads.astype(np.int32)),
    }


class _Taken:
    """The order that takes of each row its next weight, 0 where it waits."""

    def __init__(self, rows: np.ndarray, columns: np.ndarray) -> None:
        self._rows, self._columns = rows, columns

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        flat = numbers.reshape(len(numbers), -1)
        found: np.ndarray = np.where(
            self._columns < 0, 0, flat[self._rows, np.maximum(self._columns, 0)]
        )
        return found
