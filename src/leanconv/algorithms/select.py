"""Choice of the algorithm for a problem: by name, or the cheapest that keeps its limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from leanconv.algorithms import (
    ALGORITHMS,
    BY_WEIGHTS,
    MACHINE_ALGORITHMS,
    WEIGHT_GRADIENTS,
)
from leanconv.algorithms.interface import Algorithm, Candidate, has_halves, with_halves
from leanconv.algorithms.magnitudes import (
    Magnitudes,
    in_halves,
    magnitudes,
    plain_losses,
    usual_magnitudes,
)
from leanconv.algorithms.parameters import AUTO, Choice, Parameters, parse_choice
from leanconv.algorithms.problem import (
    Problem,
    default_error,
    most_weight_bytes,
    sum_error,
    typical,
)
from leanconv.codegen.geometry import Triple
from leanconv.errors import SpecError
from leanconv.lazy_imports import Late
from leanconv.records import replace
from leanconv.spec.conv import Propagation
from leanconv.target import Target
from leanconv.types import SINGLE

_ALL = Late(
    (*ALGORITHMS, *MACHINE_ALGORITHMS),
    lambda name: (ALGORITHMS if name in ALGORITHMS else MACHINE_ALGORITHMS)[name],
)
PARAMETERS: Mapping[str, type[Parameters]] = Late(_ALL, lambda name: _ALL[name].parameters)
GRADIENT_PARAMETERS: Mapping[str, type[Parameters]] = Late(
    WEIGHT_GRADIENTS, lambda name: WEIGHT_GRADIENTS[name].parameters
)


def _table_of(problem: Problem) -> Mapping[str, Algorithm[Any]]:
    """The methods of what is computed of a problem's convolution."""
    return WEIGHT_GRADIENTS if problem.propagation == Propagation.WEIGHTS else _ALL


def saves_products(name: str) -> bool:
    """Return whether an algorithm takes fewer products by what is known of weights, in planes."""
    return name in BY_WEIGHTS


def algorithms_for(problem: Problem) -> list[Algorithm[Any]]:
    """All algorithms, as they compute in a problem's precision where they can do that.

    Those that save products by what is known of the weights are left out where it is not known.
    """
    missing = {name for name, known in BY_WEIGHTS.items() if getattr(problem, known) is None}
    return [_named(name, problem) for name in _table_of(problem) if name not in missing]


def _named(name: str, problem: Problem) -> Algorithm[Any]:
    """An algorithm; one of float32 takes operands in halves, too."""
    found = _table_of(problem)[name]
    if found.precisions(problem.conv.precision) or not has_halves(problem.conv.precision):
        return found
    return with_halves(found) if found.takes_halves and found.precisions(SINGLE) else found


def choice_named(text: str) -> Choice:
    """The choice that the user selects as `"winograd:m=4"`.

    Raises:
        SpecError: there is no such algorithm or parameter, or a value makes no sense.
    """
    return parse_choice(text, PARAMETERS)


def gradient_choice_named(text: str) -> Choice:
    """The same of a method of the gradient of weights."""
    return parse_choice(text, GRADIENT_PARAMETERS)


def transforms(choice: Choice, problem: Problem) -> bool:
    """Return whether a choice's algorithm multiplies transformed numbers, which are rounded."""
    return _named(choice.algorithm, problem).transforms


def estimated_cycles(choice: Choice, problem: Problem, target: Target) -> float:
    """Estimated cycles of an algorithm with the best of its parameters."""
    return _named(choice.algorithm, problem).cost(problem, target)


def ranked(
    problem: Problem, target: Target, choice: Choice = AUTO, reproducible: bool = False
) -> Iterator[Candidate]:
    """The candidates for a problem, the cheapest first; only that of `choice` if one is given.

    Args:
        problem: the convolution.
        target: the machine.
        choice: an algorithm with its parameters.
        reproducible: choose as for one image, so that the batch does not change the bits: the
            algorithm if none is named, and the parameters that are left open.

    Raises:
        SpecError: the algorithm rejects the problem, or no kernel has the parameters.
    """
    if choice != AUTO:
        yield _made(choice, problem, target, reproducible)
    elif reproducible and problem.conv.batch > 1:
        for candidate in ranked(problem.alone(), target):
            yield _made(candidate.choice, problem, target)
    else:
        for algorithm in sorted(_possible(problem, target), key=lambda a: a.cost(problem, target)):
            candidate = algorithm.candidate(problem, target)
            if _allowed(candidate, problem):
                yield candidate


def _possible(problem: Problem, target: Target) -> list[Algorithm[Any]]:
    """The algorithms to consider if the user names none."""
    return [
        a
        for a in algorithms_for(problem)
        if a.automatic and a.plausible(problem) and a.refusal(problem, target) is None
        if lost_weights(a, problem) is None
    ]


def expected(problem: Problem) -> list[Algorithm[Any]]:
    """The algorithms that a problem's reader expects: of floats, not those of few machines."""
    table, floats = _table_of(problem), problem.conv.precision.accumulate.is_float
    names = ALGORITHMS if table is _ALL and floats else table
    return [_named(name, problem) for name in names]


def lost_weights(algorithm: Algorithm[Any], problem: Problem) -> str | None:
    """Why the weights are too small for what an algorithm makes of them; None if they are not."""
    if algorithm.transforms and problem.small_weights:
        return "weights so small that transforms would lose them"
    return None


def _allowed(candidate: Candidate, problem: Problem) -> bool:
    """Return whether a candidate keeps the limits of error and of transformed weights.

    Plain sums are always allowed, however small `max_error` is, unless their error exceeds the
    default (from some 50,000 products on); such sums are computed as partial sums.
    """
    plain = min(sum_error(problem), default_error(problem.conv.precision))
    if candidate.choice.error > max(problem.max_error, plain):
        return False
    return candidate.weight_bytes <= most_weight_bytes(problem)


def choices(problem: Problem, target: Target, lean: bool = False) -> list[tuple[Choice, Candidate]]:
    """All choices of algorithms and parameters that may be the best, the cheapest first.

    Args:
        problem, target: the convolution and the machine.
        lean: whether to add algorithms and parameters that are never the fastest but may need
            less memory.

    Returns:
        Choices with all their parameters, each with its candidate.
    """
    found: list[tuple[Choice, Candidate]] = []
    for algorithm in algorithms_for(problem) if lean else _possible(problem, target):
        if lean and (algorithm.refusal(problem, target) or lost_weights(algorithm, problem)):
            continue
        if algorithm.choices is None:
            cycles = algorithm.cost(problem, target)
            options = [Choice(algorithm.name, algorithm.parameters(), cycles)]
        else:
            options = algorithm.choices(problem, target, lean)
        for option in options:
            candidate = _made(option, problem, target)
            # What is made of weights' values rounds what was not rounded, and is no leaner.
            rounds = candidate.of_values and not algorithm.plausible(problem)
            if _allowed(candidate, problem) and not rounds:
                found.append((replace(option, error=candidate.choice.error), candidate))
    return sorted(found, key=lambda pair: pair[0].cycles)


def choose(
    problem: Problem, target: Target, choice: Choice = AUTO, reproducible: bool = False
) -> Candidate:
    """The first of `ranked`; the most accurate candidate if none keeps the limits.

    Raises:
        SpecError: no algorithm computes the problem, or the one that is named does not.
    """
    for candidate in ranked(problem, target, choice, reproducible):
        return candidate
    possible = [a.candidate(problem, target) for a in _possible(problem, target)]
    if possible:
        return min(possible, key=lambda candidate: candidate.choice.error)
    raise SpecError(
        f"{problem}: no algorithm takes these blocks of channels; expected plain layouts"
    )


def usual_choice(
    problem: Problem, target: Target, reproducible: bool = False, outputs: Triple | None = None
) -> Choice:
    """The algorithm for maps of the usual sizes, where a problem has any; AUTO if it refuses this.

    Its parameters are left open: those of any size follow from the usual sizes, too.

    Args:
        problem, target, reproducible: as of `choose`.
        outputs: of other maps for which the algorithm is chosen, along depth, height and width.
    """
    usual = _usual(typical(problem, outputs), target, reproducible)
    return AUTO if usual.algorithm in rejections(problem, target) else usual


@lru_cache(maxsize=256)
def _usual(problem: Problem, target: Target, reproducible: bool) -> Choice:
    return choice_named(choose(problem, target, AUTO, reproducible).choice.algorithm)


def _made(
    choice: Choice, problem: Problem, target: Target, reproducible: bool = False
) -> Candidate:
    """The candidate of a choice, with the parameters that it leaves open chosen for the problem.

    With `reproducible`, open parameters that change the bits are chosen as for a batch of one.
    """
    algorithm, given = _named(choice.algorithm, problem), choice.parameters
    reason = algorithm.refusal(problem, target)
    if reason:
        raise SpecError(f"algorithm {algorithm.name!r} cannot compute {problem}: {reason}")
    if reproducible and problem.conv.batch > 1:
        alone = algorithm.candidate(problem.alone(), target, given)
        given = given.filled(alone.choice.parameters)
    return algorithm.candidate(problem, target, given)


def magnitudes_of(
    problem: Problem, candidate: Candidate, w: np.ndarray | None = None
) -> Magnitudes:
    """Return the bounds of results and inputs within which a candidate's error holds.

    Args:
        problem, candidate: the convolution and its kernels.
        w: weights (K, C / groups, taps…); None for usual ones, as of `usual_magnitudes`.
    """
    losses, error = candidate.losses or plain_losses(problem), candidate.choice.error
    if w is None:
        found = usual_magnitudes(losses, error, problem.conv.precision.accumulate)
    else:
        found = magnitudes(losses, error, w)
    return in_halves(found, problem.conv.precision, w)


def is_possible(problem: Problem, target: Target) -> bool:
    """Return whether an algorithm that need not be named computes a problem."""
    return bool(_possible(problem, target))


def offered_from(problem: Problem) -> list[float]:
    """Errors from which on, where they are accepted, algorithms offer more candidates.

    What a candidate states itself is not among them.
    """
    return [error for a in algorithms_for(problem) for error in a.offered_from(problem)]


def refusal(choice: Choice, problem: Problem, target: Target) -> str | None:
    """Why the algorithm of a choice cannot compute a problem; None if it can."""
    return _named(choice.algorithm, problem).refusal(problem, target)


def rejections(problem: Problem, target: Target) -> dict[str, str]:
    """Why algorithms do not compute a problem, or are not considered for it, by name."""
    found: dict[str, str] = {}
    for algorithm in expected(problem):
        reason = algorithm.refusal(problem, target)
        if reason is None and not algorithm.automatic:
            reason = "only on request"
        elif reason is None and lost_weights(algorithm, problem):
            reason = lost_weights(algorithm, problem)
        elif reason is None and not algorithm.plausible(problem):
            reason = algorithm.unlikely(problem)
        if reason is not None:
            found[algorithm.name] = reason
    return found
