"""Methods that compute in float32, on operands that are stored in halves.

The candidate is the one of the same problem in float32. Its kernels read and write halves where the
operand is one (`codegen.half_stored`), and its weights are packed as in float32 and rounded, unless
the method transforms them: what transforms make of weights stays in float32, as products of rounded
numbers would err more. That is four times the bytes of the weights and more: a limit of bytes rules
it out where it is too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import Problem, storage_error
from leanconv.codegen.half_stored import calls_on_halves, half_stored, halved_calls
from leanconv.codegen.lowered import PackCall
from leanconv.target import Target
from leanconv.types import FLOAT32, HALVES, SINGLE, Precision

# Time over float32's, measured (Sapphire Rapids): of what transforms tiles, what copies its input
# before it multiplies, and what converts it in each product.
_TRANSFORMED, _COPIED, _EACH = 1.03, 1.17, 1.5


def has_halves(precision: Precision) -> bool:
    """Return whether a precision sums in float32 and stores some operands in halves."""
    operands = precision.x, precision.w, precision.y
    stored = all(each in (FLOAT32, *HALVES) for each in operands)
    return precision.accumulate == FLOAT32 and stored and not precision.is_uniform


@cache
def with_halves(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """A method of float32 for problems whose operands are in halves."""
    transforms, choices = algorithm.transforms, algorithm.choices
    copied = algorithm.copied_taps

    def seen(problem: Problem) -> Problem:
        left = problem.max_error - storage_error(_types(problem.conv.precision, transforms))
        return replace(with_conv(problem, precision=SINGLE), max_error=max(0.0, left))

    def make(problem: Problem, target: Target, given: Parameters) -> Candidate:
        made = algorithm.make(seen(problem), target, given)
        return stored(made, problem.conv.precision, transforms)

    def offered_from(problem: Problem) -> list[float]:
        added = storage_error(_types(problem.conv.precision, transforms))
        return [error + added for error in algorithm.offered_from(seen(problem))]

    def slower(problem: Problem) -> float:
        """Time over float32's."""
        if transforms:
            return _TRANSFORMED
        once = copied is not None and prod(problem.conv.window.kernel) >= copied
        return _COPIED if once else _EACH

    def cost(problem: Problem, target: Target) -> float:
        return slower(problem) * algorithm.cost(seen(problem), target)

    def choices_of(problem: Problem, target: Target, lean: bool) -> list[Choice]:
        assert choices is not None
        factor = slower(problem)
        found = choices(seen(problem), target, lean)
        return [replace(choice, cycles=factor * choice.cycles) for choice in found]

    def plausible(problem: Problem) -> bool:
        # A method that copies its input is laid out for one size.
        sized = not problem.any_size or copied is None
        return sized and algorithm.plausible(seen(problem))

    return replace(
        algorithm,
        reject=lambda problem, target: algorithm.reject(seen(problem), target),
        cost=cost,
        make=make,
        plausible=plausible,
        choices=choices and choices_of,
        precisions=has_halves,
        automatic=copied is not None or algorithm.automatic,
        offered_from=offered_from,
    )


def _types(precision: Precision, transforms: bool) -> Precision:
    """Return the storage types of a method: transformed weights stay in float32."""
    return replace(precision, w=FLOAT32) if transforms else precision


def stored(candidate: Candidate, precision: Precision, transforms: bool) -> Candidate:
    """A candidate of the problem in float32, with its operands stored as a precision says.

    Args:
        candidate: that computes in float32.
        precision: of the problem.
        transforms: whether it transforms weights.
    """
    types = _types(precision, transforms)
    halves = halves_of(types)
    uses = tuple(use_of_halves(use, halves) for use in candidate.kernels)
    choice = replace(candidate.choice, error=candidate.choice.error + storage_error(types))

    def packing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        wide = w if w.dtype == FLOAT32 else np.empty(w.shape, FLOAT32)
        calls = candidate.packing(wide, channels)
        if wide is not w:
            given = np.ascontiguousarray(w)
            for role, each in calls.items():
                if np.may_share_memory(each[0].source(), wide):
                    calls[role] = calls_on_halves(each, wide, given, str(precision.w))
        if types.w in HALVES:
            calls["w"] = halved_calls(calls["w"], str(types.w))
        return calls

    return replace(candidate, choice=choice, kernels=uses, packing=packing)


def halves_of(precision: Precision) -> dict[str, str]:
    """The half precisions of the roles that have one."""
    roles = {"x": precision.x, "w": precision.w, "residual": precision.y, "y": precision.y}
    return {role: str(dtype) for role, dtype in roles.items() if dtype in HALVES}


def use_of_halves(use: KernelUse, halves: Mapping[str, str]) -> KernelUse:
    """A kernel that reads and writes halves in some roles."""
    return replace(use, kernel=half_stored(use.kernel, tuple(halves.get(r, "") for r in use.roles)))
