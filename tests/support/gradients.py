"""Gradients of weights: problems, arrays in any layout, candidates run alone, NumPy's answer."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np

from leanconv.algorithms import Candidate, Problem, select
from leanconv.algorithms.weight_gradient.bias import with_bias
from leanconv.codegen.geometry import Access
from leanconv.half_arrays import as_float32, in_memory
from leanconv.planner.packing import candidate_program
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.memory import ArenaPart, SharedArena
from leanconv.runtime.portable import told_program
from leanconv.spec import NHWC, PLAIN, ConvSpec, Format
from leanconv.spec.conv import Propagation
from leanconv.target import Target
from leanconv.types import HALVES
from support.guard_pages import FILL, side
from support.guarded import GUARD_BYTES, Guarded
from support.paged import Paged


def gradient_problem(
    spec: ConvSpec, x: Format = PLAIN, dy: Format = PLAIN, sums_dy: bool = False
) -> Problem:
    """The problem of dw, and of db with `sums_dy`, of tensors that lie in these formats."""
    spec = replace(spec, bias=False, residual=False, activation=None)
    places = Access.of_format(spec.input_shape, x), Access.of_format(spec.output_shape, dy)
    weights = Propagation.WEIGHTS
    return replace(Problem.of(spec, *places), propagation=weights, sums_dy=sums_dy)


def formats(spec: ConvSpec, target: Target) -> list[tuple[Format, Format]]:
    """The pairs of formats in which x and dy may lie."""
    block = target.lanes(spec.precision.accumulate)
    blocked = (spec.in_channels % block, spec.out_channels % block) == (0, 0) or spec.groups == 1
    return list(product((PLAIN, NHWC, *([Format(block)] if blocked else [])), repeat=2))


def in_format(array: np.ndarray, form: Format) -> np.ndarray:
    """An array (N, C, spatial…) as it lies in a format, zeros in the channels of padding."""
    if form.order == "NHWC":
        return np.ascontiguousarray(np.moveaxis(array, 1, -1))
    if not form.block:
        return array
    n, c, *size = array.shape
    blocks = -(-c // form.block)
    filled = np.zeros((n, blocks * form.block, *size), array.dtype)
    filled[:, :c] = array
    apart = filled.reshape(n, blocks, form.block, *size)
    return np.ascontiguousarray(np.moveaxis(apart, 2, -1))


def expected(spec: ConvSpec, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The gradient of the weights (K, C / g, kernel…), summed in the arrays' type."""
    groups, rank = spec.groups, len(spec.size)
    pads = zip(spec.pad_begin, spec.pad_end, strict=True)
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    padded = padded.reshape(len(x), groups, -1, *padded.shape[2:])
    apart = dy.reshape(len(x), groups, -1, *dy.shape[2:])
    dw = np.zeros((groups, apart.shape[2], padded.shape[2], *spec.kernel), x.dtype)
    axes = "xyz"[:rank]
    for tap in np.ndindex(*spec.kernel):
        seen = padded[_touched(spec, tap)]
        sums = np.einsum(f"ngc{axes},ngk{axes}->gkc", seen, apart, optimize=True)
        dw[(slice(None),) * 3 + tap] = sums
    return dw.reshape(spec.out_channels, -1, *spec.kernel)


def expected_data(spec: ConvSpec, w: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The gradient of the data (N, C, spatial…), summed in the arrays' type."""
    groups, axes = spec.groups, "xyz"[: len(spec.size)]
    apart = dy.reshape(len(dy), groups, -1, *dy.shape[2:])
    turned = w.reshape(groups, -1, *w.shape[1:])
    ends = zip(spec.pad_begin, spec.size, spec.pad_end, strict=True)
    size = tuple(map(sum, ends))
    dx = np.zeros((len(dy), groups, w.shape[1], *size), dy.dtype)
    for tap in np.ndindex(*spec.kernel):
        sums = np.einsum(f"ngk{axes},gkc->ngc{axes}", apart, turned[(..., *tap)], optimize=True)
        dx[_touched(spec, tap)] += sums
    inner = (slice(p, p + n) for p, n in zip(spec.pad_begin, spec.size, strict=True))
    return np.ascontiguousarray(dx.reshape(len(dy), -1, *size)[(..., *inner)])


def convolved(spec: ConvSpec, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The convolution (N, K, spatial…) without bias, summed in the arrays' type."""
    groups, axes = spec.groups, "xyz"[: len(spec.size)]
    pads = zip(spec.pad_begin, spec.pad_end, strict=True)
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    padded = padded.reshape(len(x), groups, -1, *padded.shape[2:])
    factors = w.reshape(groups, -1, *w.shape[1:])
    y = np.zeros((len(x), groups, factors.shape[1], *spec.output_size), x.dtype)
    for tap in np.ndindex(*spec.kernel):
        seen, factor = padded[_touched(spec, tap)], factors[(..., *tap)]
        y += np.einsum(f"ngc{axes},gkc->ngk{axes}", seen, factor, optimize=True)
    return y.reshape(spec.output_shape)


def _touched(spec: ConvSpec, tap: tuple[int, ...]) -> tuple[slice, ...]:
    """What a tap touches of the padded input (N, groups, C / groups, spatial…)."""
    sizes = zip(tap, spec.dilation, spec.stride, spec.output_size, strict=True)
    at = (slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in sizes)
    return (slice(None),) * 3 + tuple(at)


def run(
    candidate: Candidate, problem: Problem, x: np.ndarray, dy: np.ndarray, **given: Any
) -> np.ndarray:
    """dw (K, C / g, kd, kh, kw) by a candidate; arguments as of `run_all`."""
    conv = problem.conv
    shape = conv.out_channels, conv.inputs, *conv.window.kernel
    return run_all(candidate, problem, x, dy, **given)[0].reshape(shape)


def run_all(
    candidate: Candidate,
    problem: Problem,
    x: np.ndarray,
    dy: np.ndarray,
    threads: int = 1,
    target: Target | None = None,
    pages: Literal["start", "end"] | None = None,
) -> list[np.ndarray]:
    """dw in rows (K, ...) by a candidate, between guards, and db (K,) if the problem has it.

    Args:
        candidate, problem: the kernels, and what they compute.
        x, dy: as they lie in memory; results are given so, too.
        threads: that take part.
        target: the machine.
        pages: whether arrays touch a page that nobody may read, before them or behind them; zones
            that nobody may write if None. Sessions with guard pages decide it themselves.
    """
    conv, target = problem.conv, target or planning_target()
    names = ["dw", "db"] if problem.sums_dy else ["dw"]
    shapes = (conv.out_channels, conv.reduction), (conv.out_channels,)
    results = [
        in_memory(np.full(shape, np.nan, conv.precision.accumulate), conv.precision.w)
        for shape, _ in zip(shapes, names, strict=False)
    ]
    held = [_guarded(array, pages) for array in (x, dy, *results)]
    program, library = candidate_program(candidate, target, threads, ["x", "dy", *names])
    assert program.arena_bytes == candidate.workspace_bytes(threads)
    with _arena(program.arena_bytes) as arena:
        told = told_program(program, library, arena)
        told.run([*(each.array.ctypes.data for each in held), 0])
    for each, given in zip(held, (x, dy), strict=False):
        each.check()
        assert np.array_equal(each.array, given)
    for each in held[2:]:
        each.check()
    return [each.array.copy() for each in held[2:]]


def _guarded(array: np.ndarray, pages: str | None) -> Any:
    where = side() or pages
    return Paged(array, at_end=where == "end") if where else Guarded(array)


@contextmanager
def _arena(size: int) -> Iterator[ArenaPart]:
    """Memory of NaN to work in, and a zone behind it that nobody may write."""
    arena = SharedArena()
    if side():  # each buffer has pages of its own
        yield arena.part(size)
        return
    part = arena.part(size + GUARD_BYTES)
    ctypes.memset(part.address(), FILL, part.bytes)
    yield part
    assert set(ctypes.string_at(part.address() + size, GUARD_BYTES)) == {FILL}


def computed(spec: ConvSpec, x: np.ndarray, dy: np.ndarray, name: str, **given: Any) -> np.ndarray:
    """dw by the method of a name, from planes or other formats (`x_format`, `dy_format`)."""
    forms = given.pop("x_format", PLAIN), given.pop("dy_format", PLAIN)
    problem, target = gradient_problem(spec, *forms), given.get("target") or planning_target()
    choice = select.gradient_choice_named(name)
    candidate = select.choose(problem, target, choice)
    types, pairs = spec.precision, zip((x, dy), forms, strict=True)
    x, dy = (in_format(array, form) for array, form in pairs)
    arrays = in_memory(x, types.x), in_memory(dy, types.y)
    dw = run(candidate, problem, *arrays, **given).reshape(spec.weight_shape)
    return as_float32(dw, types.w) if types.w in HALVES else dw


def computed_with_bias(
    spec: ConvSpec,
    x: np.ndarray,
    dy: np.ndarray,
    name: str,
    forms: tuple[Format, Format],
    **given: Any,
) -> list[np.ndarray]:
    """dw and db by the method of a name, from tensors in these formats."""
    problem, target = gradient_problem(spec, *forms, sums_dy=True), planning_target()
    candidate = select.choose(problem, target, select.gradient_choice_named(name))
    types, pairs = spec.precision, zip((x, dy), forms, strict=True)
    x, dy = (in_format(array, form) for array, form in pairs)
    arrays = in_memory(x, types.x), in_memory(dy, types.y)
    found = run_all(with_bias(candidate, problem), problem, *arrays, **given)
    return [as_float32(each, types.w) if types.w in HALVES else each for each in found]
