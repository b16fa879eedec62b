"""Plans of Winograd's forms, their runs in guarded memory, and what they are held to."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

import leanconv as lc
from leanconv.algorithms import select
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.problem import Problem as Lowering
from leanconv.algorithms.winograd.algorithm import WINOGRAD
from leanconv.codegen.geometry import Access
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec, Format
from leanconv.target import Target
from support.guarded import Guarded
from support.kernel_runner import run_kernel
from support.problems import Problem

FORMS = ("winograd", "winograd:form=stages")


def make_plan(problem: Problem, algorithm: str, threads: int = 1) -> lc.ConvPlan:
    """The plan of a problem."""
    arrays = problem.arrays(False)
    return lc.plan_conv2d(
        problem.spec.input_shape,
        arrays.w,
        arrays.bias,
        residual=problem.spec.residual,
        slope=arrays.slope,
        algorithm=algorithm,
        threads=threads,
        **problem.options,
    )


def run(
    problem: Problem, algorithm: str, threads: int = 1, whole: bool = False
) -> tuple[lc.ConvPlan, np.ndarray]:
    """Plan, and run twice into a guarded array full of NaN."""
    arrays, plan = problem.arrays(whole), make_plan(problem, algorithm, threads)
    if whole:
        plan.repack(arrays.w, arrays.bias, arrays.slope)
    assert plan.used_bytes == plan.memory_bytes == plan.workspace_bytes + plan.weight_bytes
    out = Guarded.unwritten(problem.spec.output_shape, problem.spec.dtype)
    for _ in range(2):  # nothing may depend on what an earlier run left in the workspace
        out.array[...] = np.nan
        plan(arrays.x, out=out.array, residual=arrays.residual)
    out.check()
    return plan, out.array


def check(problem: Problem, algorithm: str, threads: int = 1) -> float:
    """Compare with float64; the error as a part of the one that is stated.

    Errors count against the largest output; where few outputs happen to be small, against the
    root of the sum of squares that the largest one adds up. The estimate is made for some tens of
    outputs; fewer, mostly made of padding, may err by twice as much.
    """
    plan, result = run(problem, algorithm, threads)
    arrays = problem.arrays(False)
    expected = problem.expected(arrays, False)
    bare = replace(problem.spec, bias=False, residual=False, activation=None)
    squares = convolve(bare, *(np.square(a.astype(np.float64)) for a in (arrays.x, arrays.w)))
    largest = max(np.abs(expected).max(), 2 * np.sqrt(squares.max()))
    if largest == 0.0:  # nothing but padding
        np.testing.assert_array_equal(result, expected)
        return 1.0
    error = float(np.abs(result - expected).max() / largest)
    allowed = 1 if prod(problem.spec.output_shape) >= 64 else 2
    assert error <= allowed * plan.predicted_error, f"{plan.explain()}\n{problem}: {error:.2e}"
    return error / plan.predicted_error


def candidate_of(spec: ConvSpec, lay: str, target: Target, text: str) -> Candidate:
    """The candidate for tensors in planes, with channels last or in blocks of channels."""
    lanes = target.lanes(spec.dtype)

    def access(channels: int, size: tuple[int, ...]) -> Access:
        shape = (spec.batch, channels, *size)
        if lay == "blocks":
            return Access.of_format(shape, Format(lanes))
        return Access.of_format(shape, Format.of_layout(lay))

    x, y = access(spec.in_channels, spec.size), access(spec.out_channels, spec.output_size)
    problem = Lowering.of(spec, x, y)
    assert WINOGRAD.reject(problem, target) is None
    return select.choose(problem, target, select.choice_named(text))


def run_pieces(candidate: Candidate, spec: ConvSpec, values: dict[str, np.ndarray]) -> None:
    """Run the kernels one after the other on guarded arrays, V and M of exactly their bytes."""
    for role, size in candidate.temporaries.items():
        values[role] = np.full(size // spec.itemsize, np.nan, spec.dtype)
    for use in candidate.kernels:
        cuts = sorted({use.kernel.chunks // 3, use.kernel.chunks // 2})
        operands = [values[role] for role in use.roles]
        values[use.roles[-1]] = run_kernel(use.kernel, *operands, parts=cuts)
