"""Which candidate computes one convolution within limits of bytes and of error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from leanconv.algorithms import Candidate, Problem, select
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.codegen.geometry import Access
from leanconv.errors import BudgetError, SpecError
from leanconv.records import dataclass
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned
from leanconv.target import Target
from leanconv.types import FLOAT32
from leanconv.units import counted, error_text

_ANY_ERROR = 2.0**100  # that every candidate keeps


def conv_problem(spec: ConvSpec, max_error: float | None) -> Problem:
    """The places of a spec's tensors in the user's arrays."""
    x = (spec.batch, spec.in_channels, *spec.size)
    y = (spec.batch, spec.out_channels, *spec.output_size)
    if spec.layout == "NHWC":
        return Problem.of(spec, Access.channels_last(x), Access.channels_last(y), max_error)
    return Problem.of(spec, Access.planes(x), Access.planes(y), max_error)


def needed_bytes(candidate: Candidate, threads: int) -> int:
    """The bytes that a plan with a candidate takes, known without packing."""
    packed = candidate.constant_bytes.values()
    return candidate.workspace_bytes(threads) + sum(map(aligned, packed))


@dataclass(frozen=True)
class ConvChoice:
    """How a convolution is to be chosen.

    Attributes:
        problem: the convolution; its `max_error` is the default one where none is given.
        target, threads: of the plan.
        requested: an algorithm with its parameters, or `AUTO`.
        reproducible: whether neither the batch nor a limit of bytes may change the bits.
        memory_limit, max_error: None where there is none.
    """

    problem: Problem
    target: Target
    threads: int
    requested: Choice
    reproducible: bool
    memory_limit: int | None
    max_error: float | None

    def best(self) -> Candidate:
        """The fastest candidate that keeps both limits.

        Raises:
            BudgetError: there is none. Its `smallest_error`, or its `smallest_bytes`, is the least
                limit that works.
        """
        first = self._first()
        if first and self._keeps(first):
            return first
        accurate = list(filter(self._is_accurate, self._candidates()))
        if not accurate:
            raise self._inaccurate()
        if self.reproducible:
            accurate = accurate[:1]
        for candidate in accurate:
            if self._fits(candidate):
                return candidate
        least = min(map(self._bytes, accurate))
        raise BudgetError(
            f"{self.problem} needs {counted(least, 'byte')} at least, the limit is "
            f"{counted(self.memory_limit or 0, 'byte')}; "
            f"give memory_limit={least} or more",
            least,
        )

    def is_kept(self) -> bool:
        """Whether the first choice keeps both limits."""
        first = self._first()
        return first is not None and self._keeps(first)

    def _keeps(self, candidate: Candidate) -> bool:
        return self._fits(candidate) and self._is_accurate(candidate)

    def _first(self) -> Candidate | None:
        """The first choice; None if what is requested can do no more than this error forbids."""
        try:
            return select.choose(self.problem, self.target, self.requested, self.reproducible)
        except SpecError:
            larger = replace(self.problem, max_error=_ANY_ERROR)
            given = self.max_error is not None and self.requested != AUTO
            if not given or select.refusal(self.requested, larger, self.target):
                raise
            return None

    def _candidates(self) -> Iterator[Candidate]:
        """The first choice, then the others that may be taken to keep a limit, fastest first.

        These are all algorithms with all parameters, also those that are never chosen for their
        time. If an algorithm is requested, only its open parameters vary, and none do if the
        request names any. What a reproducible plan takes is chosen for one image.
        """
        first = self._first()
        if first:
            yield first
        requested = self.requested
        if requested.parameters.given():
            return
        judged = self.problem.alone() if self.reproducible else self.problem
        for choice, candidate in select.choices(judged, self.target, lean=True):
            if requested == AUTO or choice.algorithm == requested.algorithm:
                if not self.reproducible or self.problem.batch == 1:
                    yield candidate
                elif self._is_accurate(candidate):
                    yield next(select.ranked(self.problem, self.target, candidate.choice))

    def _bytes(self, candidate: Candidate) -> int:
        return needed_bytes(candidate, self.threads)

    def _fits(self, candidate: Candidate) -> bool:
        return self.memory_limit is None or self._bytes(candidate) <= self.memory_limit

    def _is_accurate(self, candidate: Candidate) -> bool:
        return self.max_error is None or candidate.choice.error <= self.max_error

    def _inaccurate(self) -> BudgetError:
        assert self.max_error is not None
        least = self._least_error()
        if least is None:  # within the limit of bytes
            least = replace(self, memory_limit=None)._least_error()
        assert least is not None, "no candidate keeps any error"
        double = ", or float64 arrays" if self.problem.dtype == FLOAT32 else ""
        return BudgetError(
            f"{self.problem}: max_error is {self.max_error:.3g}; the most accurate candidate is "
            f"expected to err by {least:.3g}; give max_error={error_text(least)} or more{double}",
            0,
            least,
        )

    def _least_error(self) -> float | None:
        """The least `max_error` that works within the limit of bytes; None if none does.

        Which candidates there are depends on the error that is accepted: it is lowered to what the
        most accurate one states until nothing is below. Where a candidate is offered only for
        more than it states, the least error is sought between the two.
        """
        works, stated = _ANY_ERROR, self._least_stated(_ANY_ERROR)
        if stated is None:
            return None
        while (better := self._least_stated(stated)) is not None:
            works, stated = stated, math.nextafter(better, 0.0)
        if math.nextafter(works, 0.0) == stated:
            return works
        while self._least_stated(2 * stated) is None:
            stated *= 2
        high = min(works, 2 * stated)
        any_bits = replace(self, reproducible=False)._stated(high)
        guesses = [*select.offered_from(self.problem), *any_bits]
        return least_float(stated, high, self._works, guesses)

    def _works(self, max_error: float) -> bool:
        return bool(self._stated(max_error))

    def _least_stated(self, max_error: float) -> float | None:
        """What the most accurate candidate states that another `max_error` accepts, if any."""
        return min(self._stated(max_error), default=None)

    def _stated(self, max_error: float) -> list[float]:
        """The errors of all candidates that another `max_error` accepts."""
        problem = replace(self.problem, max_error=max_error)
        asking = replace(self, problem=problem, max_error=max_error)
        accurate = filter(asking._is_accurate, asking._candidates())
        found = islice(accurate, 1 if self.reproducible else None)
        return [each.choice.error for each in found if self._fits(each)]


def least_float(
    low: float, high: float, works: Callable[[float], bool], guesses: Iterable[float] = ()
) -> float:
    """The least number that works: `low` does not, `high` does, and so does all above what does.

    Args:
        low, high: between which it is sought.
        works: takes tens of milliseconds.
        guesses: numbers of which it may be one: these are tried first.
    """
    likely = sorted({guess for guess in guesses if low < guess < high})
    while likely:
        middle = len(likely) // 2
        if works(likely[middle]):
            high, likely = likely[middle], likely[:middle]
        else:
            low, likely = likely[middle], likely[middle + 1 :]
    below = math.nextafter(high, low)
    if below > low and not works(below):
        low = below
    while math.nextafter(low, high) < high:
        middle_value = low + (high - low) / 2
        if works(middle_value):
            high = middle_value
        else:
            low = middle_value
    return high
