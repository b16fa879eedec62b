"""Which algorithm computes a problem: by name, or the cheapest that keeps its limits."""

from __future__ import annotations

from collections.abc import Iterator

from leanconv.algorithms import ALGORITHMS
from leanconv.algorithms.interface import Algorithm, Alternative, Candidate
from leanconv.algorithms.problem import DEFAULT_ERROR, Problem, most_weight_bytes
from leanconv.algorithms.rounding import sum_error
from leanconv.errors import SpecError, short
from leanconv.target import Target

_LONGEST_VALUE = 64  # characters of a parameter; numbers stay such that float can hold them


def ranked(
    problem: Problem, target: Target, algorithm: str | None = None, reproducible: bool = False
) -> Iterator[Candidate]:
    """The ways to compute a problem, the cheapest first; only the one asked for, if one is.

    Args:
        problem: the convolution.
        target: the machine.
        algorithm: an algorithm with its parameters, such as `"winograd:m=4"`, or None.
        reproducible: choose as for one image, so that the batch does not change the bits: the
            algorithm where none is asked for, and the parameters that are left open.

    Raises:
        SpecError: the algorithm that is asked for does not exist or rejects the problem.
    """
    if algorithm is not None:
        yield named(algorithm, problem, target, reproducible)
        return
    if reproducible and problem.spec.batch > 1:
        for candidate in ranked(problem.alone(), target):
            yield named(candidate.arithmetic, problem, target)
        return
    for chosen in sorted(_possible(problem, target), key=lambda a: a.cost(problem, target)):
        candidate = chosen.candidate(problem, target, {})
        if _allowed(candidate, problem):
            yield candidate


def _possible(problem: Problem, target: Target) -> list[Algorithm]:
    """The algorithms to consider where the user asks for none."""
    return [
        a
        for a in ALGORITHMS
        if a.automatic and a.worth_asking(problem) and a.reject(problem, target) is None
    ]


def _allowed(candidate: Candidate, problem: Problem) -> bool:
    """Whether a candidate keeps the error and the bound of transformed weights.

    Sums in the plain order are always allowed, however small the error that is accepted, but for
    those of some 50,000 products, which err more than the default: partial sums are there for them.
    """
    plain = min(sum_error(problem), DEFAULT_ERROR[problem.spec.dtype])
    if candidate.error > max(problem.max_error, plain):
        return False
    return candidate.weight_bytes <= most_weight_bytes(problem)


def alternatives(
    problem: Problem, target: Target, every: bool = False
) -> list[tuple[Alternative, Candidate]]:
    """All choices of algorithms and parameters that may be the best, the cheapest first.

    Args:
        problem, target: what is computed, and where.
        every: whether algorithms and parameters count that are not considered for their time, as
            they may be lean.
    """
    found: list[tuple[Alternative, Candidate]] = []
    for algorithm in ALGORITHMS if every else _possible(problem, target):
        if every and algorithm.reject(problem, target):
            continue
        if algorithm.alternatives is None:
            options = [Alternative(algorithm.cost(problem, target), algorithm.name)]
        else:
            options = algorithm.alternatives(problem, target, every)
        made = ((option, named(option.name, problem, target)) for option in options)
        found += [(option, candidate) for option, candidate in made if _allowed(candidate, problem)]
    return sorted(found, key=lambda pair: pair[0].cycles)


def choose(
    problem: Problem, target: Target, algorithm: str | None = None, reproducible: bool = False
) -> Candidate:
    """The first of `ranked`; the most accurate one where all are expected to err too much.

    Raises:
        SpecError: no algorithm computes the problem, or the one that is asked for does not.
    """
    for candidate in ranked(problem, target, algorithm, reproducible):
        return candidate
    possible = [a.candidate(problem, target, {}) for a in _possible(problem, target)]
    if possible:
        return min(possible, key=lambda candidate: candidate.error)
    raise SpecError(
        f"{problem.spec}: no algorithm takes these blocks of channels; expected plain layouts"
    )


def named(text: str, problem: Problem, target: Target, reproducible: bool = False) -> Candidate:
    """The algorithm of a text such as `"winograd"` or `"mec:solution=B"`.

    Parameters that the text leaves open are chosen for the problem; reproducible, those that change
    the bits are chosen for one image of it.
    """
    algorithm, parameters = parsed(text)
    reason = algorithm.reject(problem, target)
    if reason:
        raise SpecError(f"algorithm {algorithm.name!r} cannot compute {problem.spec}: {reason}")
    if reproducible and problem.spec.batch > 1:
        alone = algorithm.candidate(problem.alone(), target, parameters)
        parameters = {**parsed(alone.arithmetic)[1], **parameters}
    return algorithm.candidate(problem, target, parameters)


def parsed(text: str) -> tuple[Algorithm, dict[str, str]]:
    """The algorithm that a text names, and the parameters that it gives."""
    name, _, rest = text.partition(":")
    known: dict[str, Algorithm] = {a.name: a for a in ALGORITHMS}
    if name not in known:
        raise SpecError(f"algorithm {name!r} is not known; expected one of {', '.join(known)}")
    algorithm, parameters = known[name], {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals or key not in algorithm.parameters:
            raise SpecError(
                f"algorithm {text!r}: {part!r} is no parameter of {name}; expected "
                + (
                    f"key=value with key in {algorithm.parameters}"
                    if algorithm.parameters
                    else "none"
                )
            )
        if len(value) > _LONGEST_VALUE:
            raise SpecError(
                f"algorithm {short(text)}: {key} has {len(value)} characters; expected at most "
                f"{_LONGEST_VALUE}"
            )
        parameters[key] = value
    return algorithm, parameters


def rejections(problem: Problem, target: Target) -> dict[str, str]:
    """Why algorithms do not compute a problem, or are not considered for it, by name."""
    found: dict[str, str] = {}
    for algorithm in ALGORITHMS:
        reason = algorithm.reject(problem, target)
        if reason is None and not algorithm.automatic:
            reason = "only on request"
        elif reason is None and not algorithm.worth_asking(problem):
            reason = "too few channels or taps to pay"
        if reason is not None:
            found[algorithm.name] = reason
    return found
