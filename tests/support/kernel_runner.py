"""Run one kernel on NumPy arrays, with guard bytes around everything it may write."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leanconv.codegen.compiler import load
from leanconv.codegen.forms import emitted, instance_of
from leanconv.codegen.host import host
from leanconv.codegen.kernel import SCRATCH_OF_NEXT, SCRATCH_OF_PREVIOUS, Kernel
from leanconv.codegen.machine_code import compile_text
from leanconv.spec.format import aligned
from leanconv.target import Target
from support import guard_pages
from support.emulated import LoadedObject, call
from support.guarded import Guarded
from support.paged import Paged

Guard = Callable[[np.ndarray], Guarded | Paged]
SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def guarded_operand(array: np.ndarray) -> Guarded | Paged:
    """A copy between zones, or at a page that nobody may touch in a session that wants that."""
    side = guard_pages.side()
    return Paged(array, at_end=side == "end") if side else Guarded(array)


def run_kernel(kernel: Kernel, *arrays: np.ndarray, **settings: Any) -> np.ndarray:
    """Run a kernel's whole grid and return a copy of its last operand; see `run_results`."""
    return run_results(kernel, *arrays, **settings)[-1]


def run_results(
    kernel: Kernel,
    *arrays: np.ndarray,
    target: Target | None = None,
    parts: Sequence[int] | None = None,
    singly: Sequence[int] | None = None,
    in_place: int | None = None,
    guard: Guard = guarded_operand,
    outside: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Run a kernel's whole grid and return copies of its last operands.

    Args:
        kernel: what to run.
        arrays: one per operand, the result last (fill it with NaN beforehand).
        target: what to compile for, this machine by default; AArch64 code is emulated elsewhere.
        parts: chunk numbers at which to cut the grid into several calls, run backwards; each round
            is cut alike, where a kernel has several.
        singly: all chunk numbers, in the order in which one thread does one after the other, told
            where it goes on.
        in_place: an operand in whose memory the result is written; the result's array is left out.
        guard: what each array is copied into.
        outside: takes what the kernel reports for each of its `index_ranges`.
    """
    shared = in_place is not None
    assert len(arrays) + shared == len(kernel.operands), f"operands are {kernel.operands}"
    guarded = [guard(a) for a in arrays]
    written = guarded[-kernel.result_count :] if in_place is None else [guarded[in_place]]
    addresses = [g.array.ctypes.data for g in (*guarded, *written * shared)]
    scratch = guard(np.full(aligned(max(1, kernel.scratch_bytes)), 0xFF, np.uint8))
    reports = np.zeros(len(kernel.index_ranges), np.int64)
    addresses += [reports[number:].ctypes.data for number in range(len(reports))]
    reached = [*(g.memory for g in (*guarded, scratch)), reports]
    if target is None or target.triple.split("-")[0] == host().triple.split("-")[0]:
        library = load([kernel], target)
        words, function = library.form(kernel).words, SIGNATURE(library.address(kernel))
    else:
        words, function = _emulated(kernel, target, reached)
    table = np.array([*words, *addresses], np.int64)
    reached.append(table)
    arguments = table.ctypes.data + 8 * len(words)
    for begin in range(0, kernel.chunks, each := kernel.chunks // kernel.rounds):
        cuts = [begin, *(begin + part // kernel.rounds for part in parts or ()), begin + each]
        for lo, hi in reversed(list(itertools.pairwise(cuts))):
            if lo < hi and not singly:
                function(arguments, lo, hi, scratch.array.ctypes.data)
    for last, chunk in itertools.pairwise([-2, *(singly or ())]):
        mark = (
            {1: SCRATCH_OF_PREVIOUS, -1: SCRATCH_OF_NEXT}.get(chunk - last, 0)
            if kernel.reuses_scratch
            else 0
        )
        function(arguments, chunk | mark, chunk + 1, scratch.array.ctypes.data)
    for g, original in zip(guarded, arrays, strict=True):
        g.check()
        if g not in written:
            assert np.array_equal(
                g.array.view(np.uint8), np.ascontiguousarray(original).view(np.uint8)
            ), "the kernel changed one of its inputs"
    scratch.check()
    if outside is not None:
        outside[:] = reports
    return [g.array.copy() for g in written]


def _emulated(
    kernel: Kernel, target: Target, reached: list[np.ndarray]
) -> tuple[tuple[int, ...], Callable[..., None]]:
    """The words of a kernel, and its function, which may reach what is in the list when called."""
    words = instance_of(kernel, target).words[::-1]
    code = _loaded_object(emitted(kernel, target)[0], target)

    def function(*arguments: int) -> None:
        call(code, Kernel.NAME, arguments, reached)

    return words, function


@functools.lru_cache(64)
def _loaded_object(text: str, target: Target) -> LoadedObject:
    return LoadedObject(compile_text(text, target))
